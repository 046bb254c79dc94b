"""The clients of an app: a blocking one, and one for each event loop."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from penstock._async.client import AsyncClient
from penstock._sync.client import Client
from penstock.declarations import Declared
from penstock.values import Duration, time_limit

__all__ = ["CALL_TIMEOUT_SECONDS", "Clients"]

CALL_TIMEOUT_SECONDS = 30


class Clients:
    """Made when they are first asked for, all of the same database."""

    def __init__(
        self,
        dsn: str | None,
        listen_dsn: str | None = None,
        call_timeout: Duration | None = CALL_TIMEOUT_SECONDS,
    ) -> None:
        self.dsn = dsn
        self.listen_dsn = listen_dsn
        self.call_timeout = time_limit("call_timeout", call_timeout)
        self.declared = Declared()
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._async_clients: dict[asyncio.AbstractEventLoop, AsyncClient] = {}
        # Kept, so that the end of a loop finds them.
        self._endings: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}

    def blocking(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = Client(self.dsn, listen_dsn=self.listen_dsn, call_timeout=self.call_timeout)
                # An app lives as long as its module: nobody else would close it.
                atexit.register(self.close)
            return self._client

    def awaited(self) -> AsyncClient:
        """Of the loop that runs."""
        loop = asyncio.get_running_loop()
        with self._lock:
            client = self._async_clients.get(loop)
            if client is None:
                for other in [other for other in self._async_clients if other.is_closed()]:
                    self._pop(other).internals.abandon()
                client = self._async_clients[loop] = self.new_awaited()
                self._endings[loop] = _begun(_until_the_loop_ends(client))
            return client

    def new_awaited(self, **options: Any) -> AsyncClient:
        """Another one, which the caller closes."""
        options = {"call_timeout": self.call_timeout, **options}
        return AsyncClient(self.dsn, listen_dsn=self.listen_dsn, **options)

    def _pop(self, loop: asyncio.AbstractEventLoop) -> AsyncClient:
        self._endings.pop(loop, None)
        return self._async_clients.pop(loop)

    def close(self) -> None:
        """Close the blocking one, and those of loops that do not run any more."""
        with self._lock:
            client, self._client = self._client, None
            for loop in [loop for loop in self._async_clients if not loop.is_running()]:
                self._pop(loop).internals.abandon()
        if client is not None:
            atexit.unregister(self.close)
            client.close()

    async def aclose(self) -> None:
        """Close the one of this loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            client = self._pop(loop) if loop in self._async_clients else None
        if client is not None:
            await client.close()

    def close_resting(self) -> None:
        """Close those of loops that rest, as that of an async test does when its fixtures end."""
        for loop in [loop for loop in self._async_clients if not (loop.is_running() or loop.is_closed())]:
            loop.run_until_complete(self._pop(loop).close())

    def drop(self) -> None:
        """Close all of them: nobody will reach them any more."""
        self.close()
        for loop in tuple(self._async_clients):
            self._pop(loop).internals.abandon()


async def _until_the_loop_ends(client: AsyncClient) -> AsyncGenerator[None, None]:
    """Suspended until asyncio.run() ends what is left of its loop: then the client is closed."""
    try:
        yield
    finally:
        await client.close()


def _begun(generator: AsyncGenerator[None, None]) -> AsyncGenerator[None, None]:
    """A generator that the loop knows of, since it was begun there."""
    with suppress(StopIteration):
        generator.__anext__().__await__().send(None)
    return generator
