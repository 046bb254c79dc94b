"""Tenants and unique keys that depend on the arguments of a call."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from penstock.errors import InvalidArgument
from penstock.payloads import Json, encode_json

__all__ = ["Tenant", "Unique", "tenant_of", "unique_key_of"]

# A name, or a function of the arguments: of those among them that it has parameters for.
Tenant: TypeAlias = "str | Callable[..., str | None]"
# By all arguments (True), by those named, or by a function of the arguments.
Unique: TypeAlias = "bool | Sequence[str] | Callable[..., str]"

Choose: TypeAlias = "Callable[[Mapping[str, object]], Any]"


def tenant_of(tenant: Tenant | None) -> str | Choose | None:
    """A tenant for all, or the function that finds it."""
    if tenant is None or isinstance(tenant, str):
        return tenant
    if callable(tenant):
        return _by_name(tenant)
    raise InvalidArgument(f"tenant must be a string or a function of the arguments, not {tenant!r}")


def unique_key_of(unique: Unique, task_name: str, names: Callable[[], Sequence[str]]) -> Choose | None:
    """The function that finds the key of a call."""
    if unique is False:
        return None
    if isinstance(unique, str):
        raise InvalidArgument(f"unique must be True, a list of parameters or a function, not {unique!r}")
    if callable(unique):
        find = _by_name(unique)
        return lambda arguments: f"{task_name}:{find(arguments)}"
    chosen = None if unique is True else tuple(unique)

    def key(plain: Mapping[str, Json]) -> str:
        if chosen is not None and (unknown := set(chosen) - set(names())):
            raise InvalidArgument(
                f"task {task_name!r} is unique by {sorted(unknown)}, which it does not take"
            )
        of = plain if chosen is None else {name: plain.get(name) for name in chosen}
        text = encode_json({name: of[name] for name in sorted(of)})
        return f"{task_name}:{hashlib.sha256(text.encode()).hexdigest()}"

    return key


def _by_name(function: Callable[..., Any]) -> Choose:
    """Call a function with those of the arguments that it has parameters for."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return lambda arguments: function(**arguments)
    names = tuple(parameter.name for parameter in parameters)
    return lambda arguments: function(**{name: arguments[name] for name in names if name in arguments})
