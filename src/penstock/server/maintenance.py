"""The maintenance of `penstock up`: a service that calls maintain(), and reports trouble with it."""

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
# Trouble is reported when no call has succeeded for so long: some pauses, and a call that takes long.
LATELY_SECONDS = 15.0


class Maintenance:
    """Calls maintain() for all queues, and waits for a database that is away.

    on_away: called after each call that could not reach the database.
    """

    name = "maintenance"
    where = f"every {PAUSE_SECONDS:g} s while there is work, else every few seconds"

    def __init__(self, dsn: str, *, on_away: Callable[[], None]) -> None:
        self.started = asyncio.Event()
        self._client = AsyncClient(dsn, max_connections=1, maintain=False, install=False)
        self._on_away = on_away
        self._stop = asyncio.Event()
        self._succeeded_at = 0.0
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why maintain() does not run; None where it does."""
        if self._trouble is not None:
            return self._trouble
        silence = time.monotonic() - self._succeeded_at
        if self.started.is_set() and silence > LATELY_SECONDS:
            return f"maintain() has not come back for {silence:.0f} s"
        return None

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        loop = AsyncMaintenanceLoop(self._maintain, first_pause=PAUSE_SECONDS)
        try:
            # An error of the first call ends `penstock up`: waiting would not help.
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
            self._fail("the database cannot be reached, waiting for it", exc)
            self._on_away()
            raise
        except (PenstockError, psycopg.Error) as exc:
            self._fail("maintain() fails", exc)
            raise

    async def _call(self) -> list[MaintenanceResult]:
        timed = await self._client.internals.attempt(calls.maintain())
        self._succeeded_at = time.monotonic()
        if self._trouble is not None:
            self._trouble = None
            logger.info("the database is there again")
        return timed.result

    def _fail(self, what: str, exc: Exception) -> None:
        """Keep the trouble, and log it unless there was trouble before."""
        had_trouble = self._trouble is not None
        self._trouble = f"{what}: {' '.join(str(exc).split())}"
        if not had_trouble:
            logger.warning("%s", self._trouble)
