"""Single sends a second by so many connections, while a consumer of the system keeps up."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import psycopg

from bench import report
from bench.arena import Arena
from bench.peers import measures
from bench.peers.roster import OURS
from bench.peers.runner import PeerError
from bench.report import Goal
from bench.sends import pgbench, processor
from bench.sends.consumers import consuming, watching
from bench.sends.pgbench import PgbenchError
from bench.sends.systems import ALONE, REFERENCE, SYSTEMS, System
from bench.turns import Ratio

WANTED = 0.75
JUDGED = (1, 16, 64, 256)
BEHIND_SECONDS = 0.5
BEHIND_LEAST = 500
"""A consumer keeps up if what is left at the end is not more than so many, or was sent within that time."""

DISKS: dict[str, Mapping[str, str]] = {
    "at the disk's speed": {},
    "4 ms": {"commit_delay": "4000", "commit_siblings": "0"},
}
"""How long a commit of a sender takes; where asked, also one of a consumer."""


@dataclass(frozen=True, slots=True)
class Slice:
    """What was measured of one system for a few seconds."""

    rate: float
    backlog: int
    server_cpu: float
    """Seconds of the server's processors for one send, with all that the consumer asked of it."""
    consumer_cpu: float
    """Seconds of the consumer's processors for one send."""

    @property
    def kept_up(self) -> bool:
        return self.backlog <= max(BEHIND_LEAST, BEHIND_SECONDS * self.rate)


@dataclass(slots=True)
class Case:
    """One system at one number of connections on one disk."""

    disk: str
    connections: int
    system: str
    slices: list[Slice] = field(default_factory=list)
    references: list[float] = field(default_factory=list)
    """The rate of the reference in the same round, for each slice."""

    @property
    def rate(self) -> float:
        return median(each.rate for each in self.slices)

    @property
    def ratio(self) -> Ratio:
        return Ratio.of([each.rate for each in self.slices], self.references)

    @property
    def kept_up(self) -> bool:
        return self.system == ALONE or all(each.kept_up for each in self.slices)


class Measurement:
    """All systems on one server, each with a database that the slices get copies of."""

    def __init__(self, server: Arena, systems: Sequence[System], seconds: float, *, delay_all: bool) -> None:
        """delay_all: the settings of a disk hold for the sessions of consumers, too."""
        self._delay_all = delay_all
        self._server = server
        self._systems = systems
        self._seconds = seconds
        self._processors = processor.Server(server.dsn)
        for system in systems:
            prepare(server, system)

    def case(self, disk: str, connections: int, rounds: int, peer_rounds: int) -> list[Case]:
        """All systems in turn, each round in the opposite order of the last; peers in the first rounds."""
        found = {system.name: Case(disk, connections, system.name) for system in self._systems}
        for number in range(rounds):
            able = [each for each in self._systems if not each.is_peer or number < peer_rounds]
            slices = {}
            for system in able if number % 2 else reversed(able):
                try:
                    slices[system.name] = self._slice(system, disk, connections)
                except (PeerError, PgbenchError) as failure:
                    if not system.is_peer:
                        raise
                    print(f"{system.title}, {connections} connections: {failure}", file=sys.stderr)
            for name, each in slices.items():
                found[name].slices.append(each)
                found[name].references.append(slices[REFERENCE].rate)
        return [each for each in found.values() if each.slices]

    def _slice(self, system: System, disk: str, connections: int) -> Slice:
        settings = DISKS[disk]
        common = settings if self._delay_all else {}
        dsn = self._server.database("slice", template=system.name, settings=common)
        with watching(system, dsn) as watch, consuming(system, dsn, watch) as consumers:
            pgbench.rate(dsn, system.send, min(connections, 4), 1)  # warm
            server, consumer = self._processors.used(), processor.of(consumers)
            rate = pgbench.rate(dsn, system.send, connections, self._seconds, settings)
            backlog = watch.backlog()
            sent = rate * self._seconds
            cpu = (self._processors.used() - server) / sent, (processor.of(consumers) - consumer) / sent
        return Slice(rate, backlog, *cpu)


def prepare(server: Arena, system: System) -> str:
    """A database of the system with no message in it."""
    dsn = server.database(system.name)
    if system.contestant is not None:
        measures.setup(system.contestant, dsn)
    if system.schema:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(system.schema.encode())
    return dsn


def table(cases: Sequence[Case]) -> str:
    """A line for each system, a column for each number of connections: sends a second, and the ratio."""
    counts = sorted({case.connections for case in cases})
    by_key = {(case.system, case.connections): case for case in cases}

    def cell(name: str, connections: int) -> str:
        case = by_key.get((name, connections))
        if case is None:
            return "-"
        return f"{report.count(case.rate)} ({case.ratio.middle:.2f}){'' if case.kept_up else '*'}"

    names = [name for name in SYSTEMS if any(case.system == name for case in cases)]
    rows = [(SYSTEMS[name].title, *(cell(name, connections) for connections in counts)) for name in names]
    return report.table(("connections", *map(str, counts)), rows)


def processors(cases: Sequence[Case]) -> str:
    """Microseconds of processor for one send: of the server / of the consumer."""
    counts = sorted({case.connections for case in cases})

    def cell(name: str, connections: int) -> str:
        found = [
            f"{1e6 * median(each.server_cpu for each in case.slices):.0f} / "
            f"{1e6 * median(each.consumer_cpu for each in case.slices):.0f}"
            for case in cases
            if (case.system, case.connections) == (name, connections)
        ]
        return found[0] if found else "-"

    names = [name for name in SYSTEMS if any(case.system == name for case in cases)]
    rows = [(SYSTEMS[name].title, *(cell(name, connections) for connections in counts)) for name in names]
    return report.table(("us of CPU a send: server / consumer", *map(str, counts)), rows)


def behind(cases: Sequence[Case]) -> Iterator[str]:
    """Whose consumer did not keep up, a line each."""
    for case in cases:
        if not case.kept_up:
            left = max(each.backlog for each in case.slices)
            yield (
                f"* {SYSTEMS[case.system].title}, {case.connections} connections: the consumer did not"
                f" keep up, {left:,} messages were left"
            )


def goals(cases: Sequence[Case]) -> list[Goal]:
    """Ours with a worker that keeps up, against the reference."""
    found = []
    for disk in DISKS:
        for connections in JUDGED:
            ours = [
                case
                for case in cases
                if (case.disk, case.connections, case.system) == (disk, connections, OURS)
            ]
            name = f"sends by {connections} connections, commit {disk}, against hand-rolled"
            if not ours:
                found.append(report.at_least(name, None, WANTED))
                continue
            ratio = ours[0].ratio
            note = f"({ratio.lowest:.2f} to {ratio.highest:.2f} in {len(ours[0].slices)} rounds)"
            if not ours[0].kept_up:
                note += ", but the worker did not keep up"
            found.append(report.at_least(name, ratio.middle, WANTED, note))
    return found
