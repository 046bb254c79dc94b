"""The maintenance of `penstock up`: calls maintain() as long as it runs, and knows how that goes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import psycopg

from penstock import calls
from penstock._async.client import AsyncClient
from penstock._async.maintenance import AsyncMaintenanceLoop
from penstock.errors import ConnectionLost, DatabaseUnavailable, PenstockError
from penstock.models import MaintenanceResult

__all__ = ["Maintenance"]

logger = logging.getLogger("penstock.up")

# Between two calls while there is work; where there is none, the pauses grow to some seconds.
PAUSE_SECONDS = 0.5
# So long ago a call may have succeeded for this to be at work: some pauses, and a call that takes its time.
LATELY_SECONDS = 15.0


class Maintenance:
    """Does for all queues what is due, and waits for a database that is away.

    on_away: called after each call that found no database.
    """

    name = "maintenance"
    where = f"every {PAUSE_SECONDS:g} s while there is work, else every few seconds"

    def __init__(self, dsn: str, *, on_away: Callable[[], None]) -> None:
        self.started = asyncio.Event()
        self._client = AsyncClient(dsn, max_connections=1, maintain=False, install=False)
        self._on_away = on_away
        self._stop = asyncio.Event()
        self._succeeded_at = 0.0
        self._trouble = ""

    def trouble(self) -> str:
        """Why it is not at work; nothing where it is."""
        if self._trouble or not self.started.is_set():
            return self._trouble or "starting"
        silence = time.monotonic() - self._succeeded_at
        return f"maintain() has not come back for {silence:.0f} s" if silence > LATELY_SECONDS else ""

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        loop = AsyncMaintenanceLoop(self._maintain, first_pause=PAUSE_SECONDS)
        try:
            # What is wrong from the beginning is no case for patience.
            await self._call()
            self.started.set()
            loop.start()
            await self._stop.wait()
        finally:
            await loop.close()
            await self._client.close()

    async def _maintain(self) -> list[MaintenanceResult]:
        try:
            return await self._call()
        except (ConnectionLost, DatabaseUnavailable) as exc:
            self._tell("the database cannot be reached, waiting for it", exc)
            self._on_away()
            raise
        except (PenstockError, psycopg.Error) as exc:
            self._tell("maintain() fails", exc)
            raise

    async def _call(self) -> list[MaintenanceResult]:
        timed = await self._client._attempt(calls.maintain())
        self._succeeded_at = time.monotonic()
        if self._trouble:
            self._trouble = ""
            logger.info("the database is there again")
        return timed.result

    def _tell(self, what: str, exc: Exception) -> None:
        """Once, until it works again."""
        before, self._trouble = self._trouble, f"{what}: {' '.join(str(exc).split())}"
        if not before:
            logger.warning("%s", self._trouble)
