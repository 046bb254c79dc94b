"""The maintainer: calls maintain() now and then, and more often while much is claimed."""

from __future__ import annotations

import logging

import psycopg

from penstock import calls
from penstock._async.client import AsyncClient
from penstock.backoff import Backoff
from penstock.concurrency import AsyncFlag, async_sleep, now
from penstock.errors import PenstockError
from penstock.models import MaintenanceResult

from .leases import Leases

__all__ = ["Maintainer"]

logger = logging.getLogger("penstock.worker")

# Between two calls: many workers may, one of them does the work.
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 4.0
# After so many claims the floor is to rise: while vacuum is held back every claim walks over what is below.
CLAIMS = 5000
SHORTEST_PAUSE_SECONDS = 0.1


class Maintainer:
    """Does for all queues what is due."""

    def __init__(self, client: AsyncClient, leases: Leases) -> None:
        self._client = client
        self._leases = leases
        self._flag = AsyncFlag()
        self._claimed = 0
        self._called_at = 0.0

    def claimed(self, number: int) -> None:
        """So many messages were claimed."""
        self._claimed += number
        if self._claimed >= CLAIMS:
            self._flag.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            await self._flag.wait(backoff.next())
            await async_sleep(max(0.0, self._called_at + SHORTEST_PAUSE_SECONDS - now()))
            done = await self.run_once()
            while any(each.is_unfinished for each in done):
                done = await self.run_once()
            if done:
                backoff.reset()

    async def run_once(self) -> list[MaintenanceResult]:
        """One call; what there was to do."""
        self._flag.clear()
        self._claimed, self._called_at = 0, now()
        try:
            # maintain() takes back messages whose leases are over: it must not find ours.
            await self._leases.catch_up()
            done = await self._client.internals.attempt(calls.maintain())
        except (PenstockError, psycopg.Error) as exc:
            logger.debug("maintain() failed: %s", exc)
            return []
        return done.result
