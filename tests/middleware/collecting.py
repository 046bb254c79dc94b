"""A metrics collector that remembers what it is told."""

from __future__ import annotations

__all__ = ["Collector"]


class Collector:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.busy = dict[str, int]()
        self.most_busy = 0
        self.observed = list[tuple[str, str, float]]()

    def inc_busy(self, task: str) -> None:
        self.busy[task] = self.busy.get(task, 0) + 1
        self.most_busy = max(self.most_busy, *self.busy.values())

    def dec_busy(self, task: str) -> None:
        self.busy[task] = self.busy.get(task, 0) - 1

    def observe_duration(self, task: str, outcome: str, seconds: float) -> None:
        self.observed.append((task, outcome, seconds))
