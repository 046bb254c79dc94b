"""Both clients, to be called alike: the asynchronous one runs on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from penstock import AsyncClient, AsyncConsumer, AsyncMessage, AsyncTransaction, Client

T = TypeVar("T")

PATIENCE_SECONDS = 60
# What is called for its effect on the loop, or returns more that is awaited.
WRAPPED = (AsyncClient, AsyncConsumer, AsyncMessage, AsyncTransaction)


class MakeClient(Protocol):
    """Makes a client of the kind that is tested; it is closed after the test."""

    def __call__(self, dsn: str | None = None, **options: Any) -> Client: ...


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop")
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_SECONDS)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


class Awaited:
    """Something asynchronous, to be used as its twin for threads is."""

    def __init__(self, loop: Loop, target: Any) -> None:
        self._loop = loop
        self._target = target

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if not callable(attribute):
            return attribute

        def call(*arguments: Any, **options: Any) -> Any:
            plain = [_unwrapped(one) for one in arguments]
            return self._wrap(self._loop.run(_awaited(attribute, *plain, **options)))

        return call

    def __repr__(self) -> str:
        return repr(self._target)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._loop.run(_awaited(aiter, self._target))
        try:
            while True:
                try:
                    yield self._wrap(self._loop.run(_awaited(anext, iterator)))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run(iterator.aclose())

    def __enter__(self) -> Any:
        return self._wrap(self._loop.run(self._target.__aenter__()))

    def __exit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> Any:
        return self._loop.run(self._target.__aexit__(cls, exc, traceback))

    def _wrap(self, result: Any) -> Any:
        if isinstance(result, list):
            return [self._wrap(one) for one in result]
        if isinstance(result, WRAPPED) or hasattr(result, "__aenter__"):
            return Awaited(self._loop, result)
        return result


def _unwrapped(value: Any) -> Any:
    if isinstance(value, list):
        return [_unwrapped(one) for one in value]
    return value._target if isinstance(value, Awaited) else value


async def _awaited(function: Any, *arguments: Any, **options: Any) -> Any:
    """Call in the loop's thread, and wait if there is something to wait for."""
    result = function(*arguments, **options)
    return await result if asyncio.iscoroutine(result) or hasattr(result, "__await__") else result


@contextmanager
def sync_clients() -> Iterator[MakeClient]:
    clients: list[Client] = []

    def make(dsn: str | None = None, **options: Any) -> Client:
        clients.append(Client(dsn, **options))
        return clients[-1]

    try:
        yield make
    finally:
        for client in clients:
            client.close()


@contextmanager
def async_clients() -> Iterator[MakeClient]:
    loop, clients = Loop(), list[Awaited]()

    def make(dsn: str | None = None, **options: Any) -> Client:
        clients.append(Awaited(loop, AsyncClient(dsn, **options)))
        return cast("Client", clients[-1])

    try:
        yield make
    finally:
        for client in clients:
            client.close()
        loop.close()
