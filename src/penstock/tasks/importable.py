"""Which functions can be tasks: no methods; with process=True only importable functions."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isclass, isfunction, ismethod
from typing import Any

from penstock.errors import InvalidArgument

__all__ = ["check_importable", "check_no_method"]

# The usual names of a method's first parameter.
OWNERS = ("self", "cls")


def check_no_method(function: Callable[..., Any]) -> None:
    """Refuse a method that is decorated in its class, because a worker has no object to call it on."""
    if isinstance(function, classmethod):
        named, first = function.__func__, "cls"
    elif isfunction(function):
        code = function.__code__
        named, first = function, code.co_varnames[0] if code.co_argcount else ""
    else:
        return
    owner = named.__qualname__.rpartition(".")[0]
    if first in OWNERS and owner and not owner.endswith("<locals>"):
        raise InvalidArgument(
            f"{named.__qualname__} is a method, and a worker has no {first!r} to call it with",
            hint="make a task of a function outside of the class, or put @staticmethod above @app.task and"
            f" leave out {first!r}",
        )


def check_importable(function: Callable[..., Any]) -> None:
    """Refuse functions that another process cannot import by name: lambdas, nested functions, bound methods.

    Checks the name alone, because the module is not complete yet when a function is decorated.
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
