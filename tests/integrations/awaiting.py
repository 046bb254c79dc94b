"""Lets a behaviour be written once: what blocks can be awaited, and runs without a loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from penstock import AsyncClient, Client, Message, Transaction

__all__ = ["awaited", "run_without_loop"]

T = TypeVar("T")

# These are called, not awaited, on both sides.
CALLED = {"using", "transaction", "in_transaction"}


class _Awaited:
    """A blocking object whose methods are awaited."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        if not callable(value):
            return value
        return _wrapped(value) if name in CALLED else _awaitable(value)

    async def __aenter__(self) -> Any:
        return _wrap(self.target.__enter__())

    async def __aexit__(self, *exc_info: Any) -> Any:
        return self.target.__exit__(*exc_info)

    def __repr__(self) -> str:
        return repr(self.target)


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        return _wrap(function(*_unwrap(arguments), **options))

    return call


def _awaitable(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def call(*arguments: Any, **options: Any) -> Any:
        return _wrap(function(*_unwrap(arguments), **options))

    return call


def _wrap(value: Any) -> Any:
    if isinstance(value, list):
        return [_wrap(item) for item in value]
    return _Awaited(value) if isinstance(value, Transaction | Message | AbstractContextManager) else value


def _unwrap(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_unwrap(item) for item in value)
    return value.target if isinstance(value, _Awaited) else value


def awaited(client: Client) -> AsyncClient:
    """A blocking client that looks like one that is awaited."""
    return cast("AsyncClient", _Awaited(client))


def run_without_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that awaits nothing but what is here."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    coroutine.close()
    raise AssertionError("something blocking has waited for an event loop")
