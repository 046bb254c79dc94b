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
    """Creates clients of one database when they are first needed."""

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
        # Keep a reference, so that the generators are finalized at the end of their loop, and not before.
        self._endings: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}

    def blocking(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = Client(self.dsn, listen_dsn=self.listen_dsn, call_timeout=self.call_timeout)
                # An app lives as long as its module, so no other code closes this client.
                atexit.register(self.close)
            return self._client

    def awaited(self) -> AsyncClient:
        """The client of the running event loop."""
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
        """Another client, which the caller must close."""
        options = {"call_timeout": self.call_timeout, **options}
        return AsyncClient(self.dsn, listen_dsn=self.listen_dsn, **options)

    def _pop(self, loop: asyncio.AbstractEventLoop) -> AsyncClient:
        self._endings.pop(loop, None)
        return self._async_clients.pop(loop)

    def close(self) -> None:
        """Close the blocking client, and the clients of loops that have stopped."""
        with self._lock:
            client, self._client = self._client, None
            for loop in [loop for loop in self._async_clients if not loop.is_running()]:
                self._pop(loop).internals.abandon()
        if client is not None:
            atexit.unregister(self.close)
            client.close()

    async def aclose(self) -> None:
        """Close the client of this loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            client = self._pop(loop) if loop in self._async_clients else None
        if client is not None:
            await client.close()

    def close_resting(self) -> None:
        """Close the clients of paused loops, such as the loop of an async test while its fixtures end."""
        for loop in [loop for loop in self._async_clients if not (loop.is_running() or loop.is_closed())]:
            loop.run_until_complete(self._pop(loop).close())

    def drop(self) -> None:
        """Close all clients. The app holds no reference to them afterwards."""
        self.close()
        for loop in tuple(self._async_clients):
            self._pop(loop).internals.abandon()


async def _until_the_loop_ends(client: AsyncClient) -> AsyncGenerator[None, None]:
    """Wait until asyncio.run() finalizes the generators of its loop, then close the client."""
    try:
        yield
    finally:
        await client.close()


def _begun(generator: AsyncGenerator[None, None]) -> AsyncGenerator[None, None]:
    """Start the generator inside the loop, so that the loop knows it and finalizes it."""
    with suppress(StopIteration):
        generator.__anext__().__await__().send(None)
    return generator
