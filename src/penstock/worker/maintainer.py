"""The maintenance of a worker: more often while the worker claims much."""

from __future__ import annotations

from collections.abc import Sequence

from penstock import calls
from penstock._async.client import AsyncClient
from penstock._async.maintenance import AsyncMaintenanceLoop
from penstock.models import MaintenanceResult

from .leases import Leases

__all__ = ["Maintainer"]

# After so many claims the floor has to rise: while vacuum is held back, claims walk over all rows below it.
CLAIMS = 5000


class Maintainer:
    """Runs the maintenance loop, and wakes it after many claims.

    queue_names: the queues of the worker. maintain() examines them in each call, and other queues in turn.
    """

    def __init__(self, client: AsyncClient, leases: Leases, *, queue_names: Sequence[str]) -> None:
        self._client = client
        self._leases = leases
        self._queue_names = queue_names
        self._loop = AsyncMaintenanceLoop(self._maintain)
        self._claimed = 0

    def claimed(self, number: int) -> None:
        """The worker has claimed so many messages more."""
        self._claimed += number
        if self._claimed >= CLAIMS:
            self._loop.wake()

    async def run(self) -> None:
        """Until the caller is cancelled."""
        await self._loop.run()

    async def run_once(self) -> list[MaintenanceResult]:
        """Make one call, and return its results; none where it fails."""
        return await self._loop.run_once()

    async def _maintain(self) -> list[MaintenanceResult]:
        self._claimed = 0
        # maintain() takes messages away from consumers whose leases are over: it must not find ours.
        await self._leases.catch_up()
        timed = await self._client.internals.attempt(calls.maintain(self._queue_names))
        return timed.result
