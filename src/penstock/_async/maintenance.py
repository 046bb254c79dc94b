"""The maintenance loop: calls maintain() again and again. Clients, workers and `penstock up` use it."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg

from penstock.backoff import Backoff
from penstock.concurrency import AsyncBackground, AsyncFlag, async_sleep, now
from penstock.errors import PenstockError
from penstock.models import MaintenanceResult

__all__ = ["AsyncMaintenanceLoop"]

logger = logging.getLogger("penstock")

# Between two calls. The pause grows while maintain() finds nothing to do or fails: many processes call
# maintain(), one of them does the work, and the others should cost little.
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 4.0
# Between two calls that wake() asked for.
SHORTEST_PAUSE_SECONDS = 0.1
# How long close() waits for a call that is under way.
CLOSE_SECONDS = 5.0


class AsyncMaintenanceLoop:
    """Calls maintain() with pauses in between, and without a pause while a result says `unfinished`.

    maintain: makes one call. An error of the database in it is logged for debugging, and the loop goes on.
    first_pause: the pause after a call that found something to do.

    run() runs the loop in the caller's task. start(), stop() and close() run it in the background.
    """

    def __init__(
        self,
        maintain: Callable[[], Coroutine[Any, Any, list[MaintenanceResult]]],
        *,
        first_pause: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        self._maintain = maintain
        self._first_pause = first_pause
        self._lock = threading.Lock()
        self._flag = AsyncFlag()
        self._is_wanted = False
        self._is_woken = False
        self._called_at = -math.inf
        self._background: AsyncBackground | None = None

    def start(self) -> None:
        """Run the loop in the background; the first call comes after a pause."""
        with self._lock:
            self._is_wanted = True
            if self._background is None or not self._background.is_alive():
                self._flag.clear()
                self._background = AsyncBackground(self._run, "penstock maintenance")

    def stop(self) -> None:
        """End the loop after the call that is under way, without waiting for that."""
        with self._lock:
            self._is_wanted = False
            self._flag.set()

    async def close(self) -> None:
        """stop(), and wait for the end of the background."""
        background = self._background
        self.stop()
        if background is not None:
            await background.end(CLOSE_SECONDS)

    def wake(self) -> None:
        """Make the next call soon, whatever is left of the pause."""
        self._is_woken = True
        self._flag.set()

    async def run(self) -> None:
        """Run the loop until stop(), or until the caller is cancelled."""
        self._is_wanted = True
        await self._run()

    async def _run(self) -> None:
        backoff, is_unfinished = Backoff(self._first_pause, LONGEST_PAUSE_SECONDS), False
        while True:
            was_set = await self._flag.wait(0 if is_unfinished else backoff.next())
            is_unfinished = False
            with self._lock:
                self._flag.clear()
                if not self._is_wanted:
                    self._background = None
                    return
            if was_set and not self._is_woken:
                continue  # stop() and then start(): the new start has to wait for its first pause
            if self._is_woken:
                await async_sleep(max(0.0, self._called_at + SHORTEST_PAUSE_SECONDS - now()))
            done = await self.run_once()
            if done:
                backoff.reset()
            is_unfinished = any(each.is_unfinished for each in done)

    async def run_once(self) -> list[MaintenanceResult]:
        """Make one call, and return its results; none where it fails."""
        self._is_woken, self._called_at = False, now()
        try:
            return await self._maintain()
        except (psycopg.Error, PenstockError) as exc:
            logger.debug("maintain() failed: %s", exc)
            return []
