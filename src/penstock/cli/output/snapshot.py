"""One snapshot without a screen: as tables, or as a line of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from penstock.cli.output import Output, facts, is_terminal

from ..screen.choices import Choices
from ..screen.columns import COLUMNS, Column, Line, widths_of
from ..screen.history import History
from ..screen.snapshot import Place
from ..screen.view import NO_MATCH, NO_QUEUES, shown_lines
from ..screen.workers import HEADINGS, described

__all__ = ["print_snapshot"]


def print_snapshot(output: Output, place: Place, history: History, choices: Choices, vacuum: str) -> None:
    """What is there now. vacuum: what holds it back, if anything does."""
    lines = shown_lines(history, choices)
    if output.as_json:
        output.json({**_facts(place, history, lines), "vacuum_held_back": vacuum or None})
        return
    assert history.last is not None
    totals = _totals(history)
    text = ", ".join(f"{name} {value}" for name, value in totals.items())
    output.line(f"{place.name}, PostgreSQL {place.server_version}: {text}")
    if vacuum:
        output.note(vacuum)
    output.line("")
    empty = NO_MATCH if history.last.queues else NO_QUEUES
    columns = _fitting(lines)
    rows = [[_cell(column, line) for column in columns] for line in lines]
    output.table([column.heading for column in columns], rows, empty=empty)
    if history.last.workers:
        output.line("")
        output.table(HEADINGS, [described(each, history.last.at) for each in history.last.workers])


def _fitting(lines: list[Line]) -> Sequence[Column]:
    """All columns, but in a terminal no more than it has room for."""
    if not is_terminal():
        return COLUMNS
    longest = max((len(line.queue.name) for line in lines), default=0)
    widths = widths_of(Console().width, longest)
    return [column for column in COLUMNS if column.name in widths]


def _cell(column: Column, line: Line) -> Any:
    """Numbers as they are, to be read by others too."""
    match column.name:
        case "in":
            return _rounded(line.rates.incoming)
        case "out":
            return _rounded(line.rates.outgoing)
        case "pending" | "active" | "delayed" | "waiting" | "dead":
            return column.key(line)
    return column.text(line)


def _totals(history: History) -> dict[str, Any]:
    assert history.last is not None
    counts = [queue.counts for queue in history.last.queues.values()]
    rates = history.all.now
    return {
        "pending": sum(each.pending_count for each in counts),
        "active": sum(each.processing_count for each in counts),
        "dead": sum(each.dead_count or 0 for each in counts),
        "in": f"{_rounded(rates.incoming) or 0}/s",
        "out": f"{_rounded(rates.outgoing) or 0}/s",
        "workers": sum(each.is_alive for each in history.last.workers),
    }


def _facts(place: Place, history: History, lines: list[Line]) -> dict[str, Any]:
    assert history.last is not None
    return {
        "at": history.last.at,
        "database": place.database,
        "host": place.host,
        "server_version": place.server_version,
        "interval_seconds": history.seconds,
        "queues": [
            {
                "name": line.queue.name,
                "topic_name": line.queue.settings.topic_name,
                "state": line.state,
                "pending_count": line.queue.counts.pending_count,
                "processing_count": line.queue.counts.processing_count,
                "delayed_count": line.queue.counts.delayed_count,
                "waiting_count": line.queue.counts.waiting_count,
                "dead_count": line.queue.counts.dead_count,
                "is_estimate": line.queue.counts.is_estimate,
                "oldest_pending_seconds": line.queue.counts.oldest_pending_seconds,
                "in_per_second": line.rates.incoming,
                "out_per_second": line.rates.outgoing,
            }
            for line in lines
        ],
        "workers": [facts(each) for each in history.last.workers],
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)
