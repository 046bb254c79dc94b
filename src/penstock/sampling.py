"""The sampling loop: calls sample() when a sample of the history is due. Workers and `penstock up` use it."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg

from .concurrency import async_sleep
from .errors import PenstockError

__all__ = ["SamplingLoop"]

logger = logging.getLogger("penstock")

# After a call that failed.
FAILED_PAUSE_SECONDS = 10.0
# Many processes call sample() when ten seconds begin, one of them does the work: spread the calls a little.
SPREAD_SECONDS = 0.5


class SamplingLoop:
    """Calls sample(), and waits as long as it says.

    sample: makes one call. An error of the database in it is logged for debugging, and the loop goes on.
    """

    def __init__(self, sample: Callable[[], Coroutine[Any, Any, float]]) -> None:
        self._sample = sample

    async def run(self) -> None:
        """Until the caller is cancelled."""
        while True:
            pause = await self.run_once()
            await async_sleep(pause + random.uniform(0, SPREAD_SECONDS) if pause > 0 else 0)

    async def run_once(self) -> float:
        """Make one call, and return the seconds to wait before the next one."""
        try:
            return await self._sample()
        except (psycopg.Error, PenstockError) as exc:
            logger.debug("sample() failed: %s", exc)
            return FAILED_PAUSE_SECONDS
