"""Tenants and unique keys that depend on the arguments of a call."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from penstock.errors import InvalidArgument
from penstock.payloads import encode_json

from .arguments import Arguments
from .options import LONGEST_TENANT, check_text

__all__ = ["Tenant", "Unique", "tenant_of", "unique_key_of"]

# A name, or a function. The function gets the arguments that it has parameters for.
Tenant: TypeAlias = "str | Callable[..., str | None]"
# By all arguments (True), by the named ones, or by a function of the arguments.
Unique: TypeAlias = "bool | Sequence[str] | Callable[..., str]"

Choose: TypeAlias = "Callable[[Mapping[str, object]], Any]"


def tenant_of(tenant: Tenant | None, arguments: Arguments) -> str | Choose | None:
    """The fixed tenant, or the function that computes the tenant of a call."""
    if tenant is None:
        return None
    if isinstance(tenant, str):
        check_text("tenant", tenant, LONGEST_TENANT)
        return tenant
    if callable(tenant):
        return _by_name(tenant, arguments, "tenant")
    raise InvalidArgument(f"tenant must be a string or a function of the arguments, not {tenant!r}")


def unique_key_of(unique: Unique, task_name: str, arguments: Arguments) -> Choose | None:
    """The function that computes the unique key of a call, from its arguments with all defaults."""
    if unique is False:
        return None
    if callable(unique):
        find = _by_name(unique, arguments, "unique")
        return lambda given: f"{task_name}:{find(given)}"
    if unique is not True and (
        isinstance(unique, str | bytes)
        or not isinstance(unique, Sequence)
        or not unique
        or not all(isinstance(name, str) for name in unique)
    ):
        raise InvalidArgument(f"unique must be True, a list of parameters or a function, not {unique!r}")
    chosen = None if unique is True else tuple(unique)
    arguments.check_names(chosen or (), "unique")

    def key(given: Mapping[str, object]) -> str:
        of = given if chosen is None else {name: given.get(name) for name in chosen}
        text = encode_json(arguments.canonical(of), "unique")
        return f"{task_name}:{hashlib.sha256(text.encode()).hexdigest()}"

    return key


def _by_name(function: Callable[..., Any], arguments: Arguments, what: str) -> Choose:
    """Call a function with the arguments that it has parameters for."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return lambda given: function(**given)
    names = tuple(parameter.name for parameter in parameters)
    if any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters):
        raise InvalidArgument(f"the function for {what} must take its parameters by name: {names}")
    required = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    arguments.check_names(required, what)
    return lambda given: function(**{name: given[name] for name in names if name in given})
