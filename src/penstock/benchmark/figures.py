"""What was measured, in figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Figure", "Outcome", "figure", "percentile"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one process did: from when to when by the machine's monotonic clock, how many, and each call."""

    started: float
    ended: float
    messages: int
    durations: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """One measure. clients: how many did it side by side. The milliseconds are those of a call, where calls
    were timed; for a latency, from just before the send to the message in process.
    """

    name: str
    clients: int
    messages: int
    seconds: float
    per_second: float | None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None


def figure(name: str, outcomes: Sequence[Outcome], *, is_rate: bool = True) -> Figure:
    """What several processes did side by side, as one measure."""
    messages = sum(each.messages for each in outcomes)
    seconds = max(each.ended for each in outcomes) - min(each.started for each in outcomes)
    times = [1e3 * duration for each in outcomes for duration in each.durations]
    shares = (0.5, 0.95, 0.99, 1.0)
    return Figure(
        name,
        len(outcomes),
        messages,
        seconds,
        messages / seconds if is_rate and seconds > 0 else None,
        *((percentile(times, share) for share in shares) if times else ()),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
