"""Lanes: how many handlers of a kind, and of a task, run at once, and which run is next."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from .run import Run

__all__ = ["RATE_SECONDS", "Demand", "Lane", "Route", "room_of"]

# Runs are claimed ahead of the free slots: as many as the lane ends in this time.
AHEAD_SECONDS = 0.1
RATE_SECONDS = 0.1
# A lane that has had no room for so long is blocked, not merely busy.
BLOCKED_SECONDS = 0.25


class Lane:
    """`limit` runs at once; other runs wait in line."""

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
        # Recent tasks per second.
        self._rate = 0.0
        # When the lane had no room last, and since when it has none.
        self._full_at = -BLOCKED_SECONDS
        self._full_since: float | None = None

    def end(self) -> None:
        """A run has left its slot."""
        self.running -= 1
        self._ended += 1

    @property
    def ahead(self) -> int:
        """How many runs may be in line: as many as the lane ends soon."""
        at = time.monotonic()
        if at - self._counted_at >= RATE_SECONDS:
            rate = (self._ended - self._ended_before) / (at - self._counted_at)
            self._rate = rate if rate < self._rate else (self._rate + rate) / 2
            self._counted_at, self._ended_before = at, self._ended
        return int(self._rate * AHEAD_SECONDS)

    @property
    def has_enough(self) -> bool:
        """Whether so many runs are in line that claiming a few more is of no use."""
        ahead = self.ahead
        return ahead > 0 and len(self.waiting) > ahead // 2

    @property
    def room(self) -> int:
        """How many more runs the lane takes: for slots that no run in line will take, and some ahead.

        0 while enough runs are in line, so that claims are few and large.
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
        """Whether the lane has no room, or had none a moment ago."""
        return time.monotonic() - self._full_at < BLOCKED_SECONDS

    @property
    def is_blocked(self) -> bool:
        """Whether the lane has had no room for a while."""
        return self._full_since is not None and time.monotonic() - self._full_since >= BLOCKED_SECONDS

    def ready(self) -> Iterator[Run]:
        """Runs that may start now. The caller must count each as running before it asks for the next."""
        while self.waiting and self.running < self.limit:
            yield self.waiting.popleft()


# The lanes that a task goes through: the lane of its kind, and its own lane where it has a limit.
Route: TypeAlias = tuple[Lane, ...]


class Demand(NamedTuple):
    """How many messages of a queue to claim. idle: routes whose messages may be behind those of full routes.

    is_uneven: some routes have room while others are full.
    """

    wanted: int
    is_uneven: bool
    idle: tuple[Route, ...] = ()


def room_of(route: Route) -> int:
    """How many more runs a route takes."""
    return min(lane.room for lane in route)
