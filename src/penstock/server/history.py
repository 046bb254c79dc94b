"""The history of `penstock up`: a service that calls sample()."""

from __future__ import annotations

import asyncio
import contextlib

from penstock import calls
from penstock._async.client import AsyncClient
from penstock.sampling import SamplingLoop

__all__ = ["History"]


class History:
    """Samples all queues. The maintenance reports trouble with the database, so this service does not."""

    name = "history"
    where = "a sample of every queue each 10 s"
    trouble: str | None = None

    def __init__(self, dsn: str) -> None:
        self.started = asyncio.Event()
        self._client = AsyncClient(dsn, max_connections=1, maintain=False, install=False)
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        loop = SamplingLoop(self._sample)
        running = asyncio.create_task(loop.run())
        self.started.set()
        try:
            await self._stop.wait()
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await self._client.close()

    async def _sample(self) -> float:
        return (await self._client.internals.attempt(calls.sample())).result
