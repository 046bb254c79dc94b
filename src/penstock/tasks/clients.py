"""The clients of an app: a blocking one, and one for each event loop."""

from __future__ import annotations

import asyncio
import atexit
import threading

from penstock._async.client import AsyncClient
from penstock._sync.client import Client
from penstock.declaring import Declared

__all__ = ["Clients"]


class Clients:
    """Made when they are first asked for, all of the same database."""

    def __init__(self, dsn: str | None) -> None:
        self.dsn = dsn
        self.declared = Declared()
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._async_clients: dict[asyncio.AbstractEventLoop, AsyncClient] = {}
        # Who uses the client of a loop: workers, and whoever had it made before them.
        self._users: dict[asyncio.AbstractEventLoop, int] = {}

    def blocking(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = Client(self.dsn)
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
                    self._async_clients.pop(other)._abandon()
                client = self._async_clients[loop] = AsyncClient(self.dsn)
            return client

    def enter(self) -> None:
        """Somebody works in this loop; the last one closes its client, unless that was there before."""
        loop = asyncio.get_running_loop()
        with self._lock:
            before = 1 if loop in self._async_clients else 0
            self._users[loop] = self._users.get(loop, before) + 1

    async def leave(self) -> None:
        """The end of what enter() began."""
        loop = asyncio.get_running_loop()
        with self._lock:
            left = self._users[loop] = self._users.get(loop, 1) - 1
        if left == 0:
            await self.aclose()

    def close(self) -> None:
        """Close the blocking one, and those of loops that do not run any more."""
        with self._lock:
            client, self._client = self._client, None
            for loop in [loop for loop in self._async_clients if not loop.is_running()]:
                self._async_clients.pop(loop)._abandon()
        if client is not None:
            atexit.unregister(self.close)
            client.close()

    async def aclose(self) -> None:
        """Close the one of this loop."""
        with self._lock:
            client = self._async_clients.pop(asyncio.get_running_loop(), None)
            self._users.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def close_resting(self) -> None:
        """Close those of loops that rest, as that of an async test does when its fixtures end."""
        for loop in [loop for loop in self._async_clients if not (loop.is_running() or loop.is_closed())]:
            loop.run_until_complete(self._async_clients.pop(loop).close())

    def drop(self) -> None:
        """Close all of them: nobody will reach them any more."""
        self.close()
        while self._async_clients:
            self._async_clients.popitem()[1]._abandon()
