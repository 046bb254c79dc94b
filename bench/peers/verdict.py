"""What the rounds of the worker's benchmark come to: tables, ratios, goals."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

from bench import report
from bench.peers.measures import Round, middle, p99
from bench.peers.roster import CONTESTANTS, OURS
from bench.report import Goal

BEGIN, END = "<!-- bench-worker: begin -->", "<!-- bench-worker: end -->"


class Record(Protocol):
    """What was found of a contestant."""

    version: str
    rounds: list[Round]
    held: list[Round]
    beside: list[Round]
    failure: str | None


@dataclass(frozen=True, slots=True)
class Figures:
    """The medians of some rounds: rates a second, milliseconds, bytes."""

    enqueue_one: float
    enqueue_bulk: float
    drain: float
    latency_p50: float
    latency_p99: float
    call_p50: float
    call_p99: float
    wal: float

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Figures | None:
        if not rounds:
            return None
        since_commit = tuple(each for found in rounds for each in found.latencies)
        since_call = tuple(each for found in rounds for each in found.whole_latencies)
        return cls(
            median_of(rounds, "enqueue_one") or 0.0,
            median_of(rounds, "enqueue_bulk") or 0.0,
            median_of(rounds, "drain") or 0.0,
            middle(since_commit),
            p99(since_commit),
            middle(since_call),
            p99(since_call),
            median_of(rounds, "wal") or 0.0,
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """A contestant, free and with a snapshot held."""

    name: str
    version: str
    free: Figures | None
    held: Figures | None
    beside: Figures | None
    """Free, in turn with the rounds that had a snapshot held."""
    failure: str | None

    @property
    def title(self) -> str:
        return CONTESTANTS[self.name].title

    @property
    def is_framework(self) -> bool:
        return CONTESTANTS[self.name].is_framework


def median_of(rounds: Iterable[Round], name: str) -> float | None:
    found = [float(getattr(each, name)) for each in rounds]
    return median(found) if found else None


def summarize(records: Mapping[str, Record]) -> list[Standing]:
    return [
        Standing(
            name,
            record.version,
            Figures.of([*record.rounds, *record.beside]),
            Figures.of(record.held),
            Figures.of(record.beside),
            record.failure,
        )
        for name, record in records.items()
    ]


def line(found: Round) -> str:
    """A round in a line."""
    return (
        f"one by one {report.count(found.enqueue_one)}/s, bulk {report.count(found.enqueue_bulk)}/s, "
        f"drain {report.count(found.drain)}/s, idle p50 {middle(found.latencies):.1f} ms "
        f"p99 {p99(found.latencies):.1f}, WAL {report.count(found.wal)} bytes a task"
    )


HEAD = (
    "contestant",
    "",
    "one by one/s",
    "bulk/s",
    "drain/s",
    "idle p50 ms",
    "p99",
    "from the call p50",
    "p99",
    "WAL bytes",
)


def rows(found: Sequence[Standing]) -> list[tuple[str, ...]]:
    lines = []
    for standing in found:
        for state, figures in (("", standing.free), ("held", standing.held)):
            if figures is not None:
                lines.append((f"{standing.title} {standing.version}", state, *_cells(figures)))
        if standing.failure:
            lines.append((f"{standing.title} {standing.version}", "failed", *["-"] * (len(HEAD) - 2)))
    return lines


def _cells(figures: Figures) -> tuple[str, ...]:
    rates = (figures.enqueue_one, figures.enqueue_bulk, figures.drain)
    times = (figures.latency_p50, figures.latency_p99, figures.call_p50, figures.call_p99)
    return (
        *(report.count(rate) for rate in rates),
        *(f"{time:.1f}" for time in times),
        report.count(figures.wal),
    )


def table(found: Sequence[Standing]) -> str:
    """All figures; "held": while a transaction holds back vacuum."""
    return report.table(HEAD, rows(found))


def ratios(found: Sequence[Standing]) -> str:
    """Ours against each of the others: above 1 is better, also where less is better."""
    ours = _ours(found)
    head = ("Penstock against", "", "one by one", "bulk", "drain", "idle p50", "WAL")
    lines = []
    for standing in found:
        for state, mine, theirs in (("", ours.free, standing.free), ("held", ours.held, standing.held)):
            if standing.name == OURS or mine is None or theirs is None:
                continue
            values = (
                mine.enqueue_one / theirs.enqueue_one,
                mine.enqueue_bulk / theirs.enqueue_bulk,
                mine.drain / theirs.drain,
                theirs.call_p50 / mine.call_p50,
                theirs.wal / mine.wal,
            )
            lines.append((standing.title, state, *(f"{value:.2f}" for value in values)))
    return report.table(head, lines) if lines else ""


def _ours(found: Sequence[Standing]) -> Standing:
    return next(standing for standing in found if standing.name == OURS)


def goals(found: Sequence[Standing]) -> list[Goal]:
    """What the worker is to reach, and whether it did."""
    ours = _ours(found)
    peers = [standing for standing in found if standing.name != OURS]
    return [*_free(ours.free, [(each, each.free) for each in peers]), *_held(ours)]


def _free(mine: Figures | None, peers: Sequence[tuple[Standing, Figures | None]]) -> list[Goal]:
    if mine is None:
        return []

    def against(name: str, figure: str, share: float, *, frameworks: bool | None = None) -> Goal:
        """Ours over the best of the peers, or of those of one kind."""
        best = max(
            (
                (float(getattr(figures, figure)), standing.title)
                for standing, figures in peers
                if figures is not None and frameworks in (None, standing.is_framework)
            ),
            default=None,
        )
        ratio = None if best is None else float(getattr(mine, figure)) / best[0]
        note = "" if best is None else f"(that is {best[1]}, {report.count(best[0])}/s)"
        return report.at_least(name, ratio, share, note)

    return [
        against("drain, of the fastest framework", "drain", 3.0, frameworks=True),
        against("drain, of a bare loop on pgmq", "drain", 1.0, frameworks=False),
        against("bulk enqueue, of the fastest", "enqueue_bulk", 1.0),
        against("one by one, of the fastest", "enqueue_one", 0.9),
        report.at_most("idle latency p50, ms", mine.latency_p50, 3.0),
        report.at_most("idle latency p99, ms", mine.latency_p99, 10.0),
        report.at_most("WAL a task, kB", mine.wal / 1000, 1.0),
    ]


def _held(ours: Standing) -> list[Goal]:
    """With vacuum held back no figure is to be worse than by a tenth."""
    if ours.beside is None or ours.held is None:
        return []
    free, held = ours.beside, ours.held
    pairs = (
        ("one by one", held.enqueue_one / free.enqueue_one),
        ("bulk enqueue", held.enqueue_bulk / free.enqueue_bulk),
        ("drain", held.drain / free.drain),
        ("idle latency p50", free.call_p50 / held.call_p50),
        ("WAL", free.wal / held.wal),
    )
    return [
        report.at_least(f"vacuum held back: {name}, of itself before", ratio, 0.9) for name, ratio in pairs
    ]


def write_markdown(
    path: Path, found: Sequence[Standing], met: Sequence[Goal], postgresql: str, tasks: int
) -> None:
    """Put the tables between the two marks of a page."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    machine = (
        f"{os.cpu_count()} processors, Python {platform.python_version()}, PostgreSQL {postgresql}, "
        f"{report.count(tasks)} tasks a drain, one worker process each"
    )
    words = {True: "met", False: "**missed**", None: "not measured"}
    goal_rows = [(goal.name, goal.wanted, goal.measured, words[goal.met]) for goal in met]
    tables = "\n\n".join(
        (_markdown(HEAD, rows(found)), _markdown(("goal", "wanted", "measured", ""), goal_rows))
    )
    path.write_text(f"{before}{BEGIN}\n\n{machine}.\n\n{tables}\n\n{END}{after}")


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))
