"""The columns of the table of queues: what they show, how they sort, and which of them fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..output.cells import amount, brief, rate
from .history import SAMPLES, Rates
from .snapshot import Queue

__all__ = ["COLUMNS", "Column", "Line", "arrange", "chosen", "widths_of"]

GAP = 2
SHORTEST_NAME = 10
SHORT_NAME = 16
LONGEST_NAME = 40
SHORTEST_TRAIL = 8
# From here on a name has more than the least.
WIDE = 60
# Trails come after this column, and before those that are less important.
LAST_BEFORE_TRAILS = "out"


@dataclass(frozen=True, slots=True)
class Line:
    """A queue as it is shown."""

    queue: Queue
    rates: Rates
    state: str


@dataclass(frozen=True, slots=True)
class Column:
    """One column. width: in cells, 0 for the rest of the line. rank: which column is left out first."""

    name: str
    heading: str
    width: int
    rank: int
    text: Callable[[Line], str]
    key: Callable[[Line], Any]
    descends: bool = True
    trail: bool = False

    @property
    def to_the_right(self) -> bool:
        return self.descends


def _seconds(line: Line) -> float:
    return line.queue.counts.oldest_pending_seconds or 0.0


def _pending(line: Line) -> str:
    counts = line.queue.counts
    return f"~{amount(counts.pending_count)}" if counts.is_estimate else amount(counts.pending_count)


def _or_none(value: float | None) -> float:
    return -1.0 if value is None else value


COLUMNS = (
    Column("name", "QUEUE", 0, 0, lambda at: at.queue.name, lambda at: at.queue.name, descends=False),
    Column(
        "pending", "PENDING", 7, 1,
        _pending, lambda at: at.queue.counts.pending_count,
    ),
    Column(
        "active", "ACTIVE", 6, 3,
        lambda at: amount(at.queue.counts.processing_count), lambda at: at.queue.counts.processing_count,
    ),
    Column(
        "delayed", "DELAYED", 7, 8,
        lambda at: amount(at.queue.counts.delayed_count), lambda at: at.queue.counts.delayed_count,
    ),
    Column(
        "waiting", "WAITING", 7, 9,
        lambda at: amount(at.queue.counts.waiting_count), lambda at: at.queue.counts.waiting_count,
    ),
    Column("oldest", "OLDEST", 6, 5, lambda at: brief(at.queue.counts.oldest_pending_seconds), _seconds),
    Column(
        "in", "IN/s", 6, 6, lambda at: rate(at.rates.incoming), lambda at: _or_none(at.rates.incoming),
        trail=True,
    ),
    Column(
        "out", "OUT/s", 6, 7, lambda at: rate(at.rates.outgoing), lambda at: _or_none(at.rates.outgoing),
        trail=True,
    ),
    Column(
        "dead", "DEAD", 6, 4,
        lambda at: amount(at.queue.counts.dead_count), lambda at: at.queue.counts.dead_count or 0,
    ),
    Column("state", "STATE", 11, 2, lambda at: at.state, lambda at: at.state, descends=False),
)  # fmt: skip


def chosen(names: Iterable[str], pattern: str) -> list[str]:
    """Names with this in them, or that match it where it has a * or a ?; capitals do not matter."""
    wanted = pattern.casefold()
    if any(c in wanted for c in "*?"):
        return [name for name in names if fnmatchcase(name.casefold(), wanted)]
    return [name for name in names if wanted in name.casefold()]


def arrange(lines: Iterable[Line], column: Column, *, reverse: bool) -> list[Line]:
    """By a column, the largest first where it is a number; by name where they are equal."""
    by_name = sorted(lines, key=lambda line: line.queue.name)
    return sorted(by_name, key=column.key, reverse=column.descends != reverse)


def widths_of(room: int, longest_name: int) -> dict[str, int]:
    """The columns that fit, with their widths; the width of a trail is under `<name> trail`.

    The name has what the others leave it, as far as it needs that; then the trails have it.
    """
    name = max(SHORTEST_NAME, min(longest_name, LONGEST_NAME))
    least = min(name, SHORT_NAME if room >= WIDE else SHORTEST_NAME)
    flexible = room
    widths: dict[str, int] = {}
    trails: list[str] = []
    for column in sorted(COLUMNS[1:], key=lambda each: each.rank):
        for_trails = (SHORTEST_TRAIL + 1) * len(trails)
        if flexible - for_trails - least < column.width + GAP:
            break
        widths[column.name] = column.width
        flexible -= column.width + GAP
        if column.name == LAST_BEFORE_TRAILS:
            found = [each.name for each in COLUMNS if each.trail]
            trails = found if flexible - least >= (SHORTEST_TRAIL + 1) * len(found) else []
    name = max(1, min(name, flexible - (SHORTEST_TRAIL + 1) * len(trails)))
    for trail in trails:
        widths[f"{trail} trail"] = min(SAMPLES, (flexible - name) // len(trails) - 1)
    return {"name": name, **widths}
