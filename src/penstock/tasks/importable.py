"""Functions that another process can find by their names."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isclass, ismethod
from typing import Any

from penstock.errors import InvalidArgument

__all__ = ["check_importable"]


def check_importable(function: Callable[..., Any]) -> None:
    """Refuse what another process could not import by name: lambdas, nested functions, bound methods.

    Looks at the name alone: when a function is decorated, its module is not complete yet.
    """
    qualname = getattr(function, "__qualname__", None)
    owner = function.__self__ if ismethod(function) else None
    if not isinstance(qualname, str) or not isinstance(getattr(function, "__module__", None), str):
        fault = f"{function!r} has no name"
    elif "<lambda>" in qualname:
        fault = "it is a lambda"
    elif "<locals>" in qualname:
        fault = f"{qualname} is defined inside of a function"
    elif owner is not None and not isclass(owner):
        fault = f"{qualname} is a method of one object"
    else:
        return
    raise InvalidArgument(
        f"this function cannot run in a process of its own (process=True): {fault}",
        hint="define it with def at the top of a module: the process imports it from there",
    )
