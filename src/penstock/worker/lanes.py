"""Lanes: how many handlers of a kind, and of a task, run at once, and which run is next."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from .run import Run

__all__ = ["RATE_SECONDS", "Demand", "Lane", "Route", "room_of"]

# So much work is claimed ahead of the slots that are free: what they do in this time.
AHEAD_SECONDS = 0.1
RATE_SECONDS = 0.1
# A lane that takes nothing for so long is not merely busy.
BLOCKED_SECONDS = 0.25


class Lane:
    """So many at once; the others wait in line."""

    __slots__ = (
        *("_counted_at", "_ended", "_ended_before", "_full_at", "_full_since", "_rate"),
        *("limit", "name", "running", "waiting"),
    )

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.running = 0
        self.waiting: deque[Run] = deque()
        self._ended = self._ended_before = 0
        self._counted_at = time.monotonic()
        # Tasks a second, of late.
        self._rate = 0.0
        # When it had no room last, and since when it has none.
        self._full_at = -BLOCKED_SECONDS
        self._full_since: float | None = None

    def end(self) -> None:
        """One of those that ran has left its slot."""
        self.running -= 1
        self._ended += 1

    @property
    def ahead(self) -> int:
        """How many may be in line: where tasks are short, what is done soon."""
        at = time.monotonic()
        if at - self._counted_at >= RATE_SECONDS:
            rate = (self._ended - self._ended_before) / (at - self._counted_at)
            self._rate = rate if rate < self._rate else (self._rate + rate) / 2
            self._counted_at, self._ended_before = at, self._ended
        return int(self._rate * AHEAD_SECONDS)

    @property
    def has_enough(self) -> bool:
        """Whether so many are in line that it is no use to claim a few more."""
        ahead = self.ahead
        return ahead > 0 and len(self.waiting) > ahead // 2

    @property
    def room(self) -> int:
        """How many more it takes: for slots that no run in line will take, and some ahead.

        None while it has enough to do: not in driblets.
        """
        room = 0 if self.has_enough else self.limit - self.running - len(self.waiting) + self.ahead
        if room > 0:
            self._full_since = None
            return room
        self._full_at = time.monotonic()
        self._full_since = self._full_since or self._full_at
        return 0

    @property
    def is_busy(self) -> bool:
        """Whether it has no room, or had none a moment ago."""
        return time.monotonic() - self._full_at < BLOCKED_SECONDS

    @property
    def is_blocked(self) -> bool:
        """Whether it has had no room for a while."""
        return self._full_since is not None and time.monotonic() - self._full_since >= BLOCKED_SECONDS

    def ready(self) -> Iterator[Run]:
        """Those that may start now; each has to be counted as running before the next is asked for."""
        while self.waiting and self.running < self.limit:
            yield self.waiting.popleft()


# The lanes that a task goes through: that of its kind, and its own where it has a limit.
Route: TypeAlias = tuple[Lane, ...]


class Demand(NamedTuple):
    """How many messages of a queue to claim, and for which routes to look behind those that are full.

    is_uneven: some routes have room while others are full.
    """

    wanted: int
    is_uneven: bool
    idle: tuple[Route, ...] = ()


def room_of(route: Route) -> int:
    """How many more runs a route takes."""
    return min(lane.room for lane in route)
