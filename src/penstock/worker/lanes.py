"""Lanes: how many handlers of a kind, and of a task, run at once, and who is next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from .run import Run

__all__ = ["Lane", "Places"]


class Lane:
    """So many at once; the others wait in line."""

    __slots__ = ("limit", "name", "running", "waiting")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.running = 0
        self.waiting: deque[Run] = deque()

    @property
    def free(self) -> int:
        """Places that nobody in line will take."""
        return self.limit - self.running - len(self.waiting)

    def ready(self) -> Iterator[Run]:
        """Those that may start now; each has to be counted as running before the next is asked for."""
        while self.waiting and self.running < self.limit:
            yield self.waiting.popleft()


@dataclass(frozen=True, slots=True)
class Places:
    """The lanes that the tasks of a queue go through. is_mixed: not all of them through all."""

    lanes: tuple[Lane, ...]
    is_mixed: bool

    def line(self, lane: Lane, ahead: int) -> int:
        """How many may wait for a place: where tasks are short, what is done soon.

        In a mixed queue always some: what is behind them may have places.
        """
        return max(ahead, lane.limit // 2, 1) if self.is_mixed else ahead
