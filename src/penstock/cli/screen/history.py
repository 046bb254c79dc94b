"""Rates, and how they went: what came in and went out between two snapshots, and the last minute or two."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from .snapshot import Queue, Snapshot

__all__ = ["SAMPLES", "UNKNOWN", "History", "Rates", "Trail"]

# So many rates are kept of each queue.
SAMPLES = 60
# A queue has no consumer if nothing went out in so many samples, and its oldest message has such an age.
LATELY = 5
PATIENCE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages a second; None where it is not known."""

    incoming: float | None
    outgoing: float | None


UNKNOWN = Rates(None, None)


@dataclass(slots=True)
class Trail:
    """The last rates of a queue, the newest at the end."""

    incoming: deque[float | None] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    outgoing: deque[float | None] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def add(self, rates: Rates) -> None:
        self.incoming.append(rates.incoming)
        self.outgoing.append(rates.outgoing)

    @property
    def now(self) -> Rates:
        return Rates(self.incoming[-1], self.outgoing[-1]) if self.incoming else UNKNOWN


class History:
    """Takes snapshots, one after the other, and knows the rates."""

    def __init__(self) -> None:
        self.last: Snapshot | None = None
        # Between the last two; None where there is but one.
        self.seconds: float | None = None
        self.all = Trail()
        self._trails: dict[str, Trail] = {}

    def add(self, snapshot: Snapshot) -> None:
        before, self.last = self.last, snapshot
        if before is None:
            return
        seconds = (snapshot.at - before.at).total_seconds()
        if seconds <= 0:  # the server's clock was set back
            return
        self.seconds = seconds
        trails, rates = {}, []
        for name, queue in snapshot.queues.items():
            trail = self._trails.get(name) or Trail()
            rates.append(_rates(before.queues.get(name), queue, seconds))
            trail.add(rates[-1])
            trails[name] = trail
        self._trails = trails  # without those of queues that are gone
        self.all.add(Rates(_sum(each.incoming for each in rates), _sum(each.outgoing for each in rates)))

    def of(self, queue_name: str) -> Trail:
        return self._trails.get(queue_name) or Trail()

    def state(self, queue: Queue) -> str:
        """What an operator would say of a queue, in a word or two; nothing where all is well."""
        counts, settings = queue.counts, queue.settings
        if settings.paused_at is not None:
            return "paused"
        if settings.max_active is not None and counts.processing_count >= settings.max_active:
            return "full"
        if counts.processing_count:
            return "busy"
        if not queue.ready:
            return "waiting" if counts.waiting_count else "delayed" if counts.delayed_count else "idle"
        return "no consumer" if self._nobody_takes(queue) else "ready"

    def _nobody_takes(self, queue: Queue) -> bool:
        """Whether messages lie there, none went out lately, and no worker says that it would take them."""
        if (queue.counts.oldest_pending_seconds or 0.0) < PATIENCE_SECONDS:
            return False
        if any(list(self.of(queue.name).outgoing)[-LATELY:]):
            return False
        workers = () if self.last is None else self.last.workers
        return not any(each.is_alive and queue.name in each.queues for each in workers)


def _rates(before: Queue | None, now: Queue, seconds: float) -> Rates:
    """What came in is what is there now, with what went out, less what was there before.

    Not known where that is an estimate: the difference of two estimates says nothing.
    """
    if before is None or before.settings.id != now.settings.id or not now.keeps_history:
        return UNKNOWN
    completed = now.counts.completed_count or 0
    if before.counts.is_estimate or now.counts.is_estimate:
        return Rates(None, completed / seconds)
    came = _unfinished(now) + completed - _unfinished(before)
    return Rates(max(0, came) / seconds, completed / seconds)


def _unfinished(queue: Queue) -> int:
    counts = queue.counts
    return counts.pending_count + counts.processing_count + (counts.dead_count or 0)


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [each for each in rates if each is not None]
    return sum(known) if known else None
