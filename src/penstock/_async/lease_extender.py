"""The lease extender: one loop of a client that extends the leases of its consumers."""

from __future__ import annotations

import logging
import math
import threading
from typing import Protocol

import psycopg

from penstock.concurrency import AsyncBackground, AsyncFlag, now
from penstock.errors import PenstockError

__all__ = ["AsyncLeaseExtender"]

logger = logging.getLogger("penstock")

SHORTEST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 10.0
# How long close() waits for a call that is under way.
CLOSE_SECONDS = 5.0


class Kept(Protocol):
    """A consumer with leases to be extended."""

    def _keep_in(self) -> float: ...

    async def _extend_leases(self) -> None: ...

    def _put_off(self) -> None: ...


class AsyncLeaseExtender:
    """Extends the leases of consumers that have some."""

    def __init__(self) -> None:
        self._consumers: set[Kept] = set()
        self._lock = threading.Lock()
        self._flag = AsyncFlag()
        self._background: AsyncBackground | None = None
        self._wakes_at = 0.0
        self._stopped = False

    def keep(self, consumer: Kept, within: float) -> None:
        """Extend the new leases of a consumer; the first of them is due within so many seconds."""
        with self._lock:
            self._consumers.add(consumer)
            if self._background is None or not self._background.is_alive():
                self._background = AsyncBackground(self._run, "penstock leases")
        if now() + within < self._wakes_at:
            self._flag.set()

    async def close(self) -> None:
        self._stopped = True
        self._flag.set()
        if self._background is not None:
            await self._background.end(CLOSE_SECONDS)

    async def _run(self) -> None:
        while not self._stopped:
            # The flag is cleared before the leases are read: a lease that is added in between sets it again.
            self._flag.clear()
            self._wakes_at = math.inf
            pause = min(max(self._due_in(), SHORTEST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
            self._wakes_at = now() + pause
            await self._flag.wait(pause)
            for consumer in tuple(self._consumers):
                if not self._stopped and consumer._keep_in() <= 0:
                    await self._extend_leases(consumer)

    def _due_in(self) -> float:
        """In how many seconds the next lease is due. Consumers without leases are forgotten until keep()."""
        with self._lock:
            due = {consumer: consumer._keep_in() for consumer in self._consumers}
            self._consumers = {consumer for consumer in due if due[consumer] < math.inf}
        return min(due.values(), default=math.inf)

    async def _extend_leases(self, consumer: Kept) -> None:
        try:
            await consumer._extend_leases()
        except (PenstockError, psycopg.Error) as exc:
            logger.debug("leases were not extended: %s", exc)
            consumer._put_off()
        except Exception:
            # A fault of one consumer must not cost the others their leases.
            logger.exception("leases were not extended")
            consumer._put_off()
