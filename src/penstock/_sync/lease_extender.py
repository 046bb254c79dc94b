# Written by tools/unasync.py from src/penstock/_async/lease_extender.py:
# change that, run `make generate`.

"""The lease extender: one loop of a client that extends the leases of its consumers."""

from __future__ import annotations

import logging
import math
import threading
from typing import Protocol

import psycopg

from penstock.concurrency import Background, Flag, now
from penstock.errors import PenstockError

__all__ = ["LeaseExtender"]

logger = logging.getLogger("penstock")

SHORTEST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 10.0
# How long close() waits for a call that is under way.
CLOSE_SECONDS = 5.0


class Kept(Protocol):
    """A consumer whose leases are kept."""

    def _keep_in(self) -> float: ...

    def _extend_leases(self) -> None: ...

    def _put_off(self) -> None: ...


class LeaseExtender:
    """Extends the leases of consumers that have some."""

    def __init__(self) -> None:
        self._consumers: set[Kept] = set()
        self._lock = threading.Lock()
        self._flag = Flag()
        self._background: Background | None = None
        self._wakes_at = 0.0
        self._stopped = False

    def keep(self, consumer: Kept, within: float) -> None:
        """Look after the leases of a consumer that has new ones, the first of them within so many seconds."""
        with self._lock:
            self._consumers.add(consumer)
            if self._background is None or not self._background.is_alive():
                self._background = Background(self._run, "penstock leases")
        if now() + within < self._wakes_at:
            self._flag.set()

    def close(self) -> None:
        self._stopped = True
        self._flag.set()
        if self._background is not None:
            self._background.end(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._stopped:
            # First said, then looked: a lease that comes in between is seen here, or sets the flag.
            self._flag.clear()
            self._wakes_at = math.inf
            pause = min(max(self._due_in(), SHORTEST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
            self._wakes_at = now() + pause
            self._flag.wait(pause)
            for consumer in tuple(self._consumers):
                if not self._stopped and consumer._keep_in() <= 0:
                    self._extend_leases(consumer)

    def _due_in(self) -> float:
        """In how many seconds the next lease is due. Who has none is forgotten until it has."""
        with self._lock:
            due = {consumer: consumer._keep_in() for consumer in self._consumers}
            self._consumers = {consumer for consumer in due if due[consumer] < math.inf}
        return min(due.values(), default=math.inf)

    def _extend_leases(self, consumer: Kept) -> None:
        try:
            consumer._extend_leases()
        except (PenstockError, psycopg.Error) as exc:
            logger.debug("leases were not extended: %s", exc)
            consumer._put_off()
        except Exception:
            # Whatever is wrong with one of them, the others need their leases.
            logger.exception("leases were not extended")
            consumer._put_off()
