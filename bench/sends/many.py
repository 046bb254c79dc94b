"""What one send costs beside many idle consumers of its queue: claims, and processor time of both sides.

Claims are those that pg_stat_statements counted. What the same consumers do without a message is subtracted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import psycopg

from bench import report, statements
from bench.arena import Arena, arena
from bench.peers.roster import OURS
from bench.sends import processor
from bench.sends.consumers import Watch, running, watching
from bench.sends.systems import SYSTEMS
from bench.sends.throughput import prepare
from bench.server import STATEMENTS

CLAIM = "penstock.consume_"
SETTINGS = {"shared_preload_libraries": STATEMENTS, "max_connections": "1000"}
WORKER = ("worker", "bench.sends.app:app", "--log-level", "warning")
QUIET_CLAIMS_SECONDS = 3.0
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How many consumers, and how many sends at what distance."""

    consumers: int = 1000
    workers: int = 20
    sends: int = 5
    pause: float = 0.5
    rounds: int = 5
    """Of a window without sends and one with so many, by turns: the spread shows what is chance."""


WHOLE = Plan()
QUICK = Plan(workers=4, sends=4, rounds=2)


@dataclass(frozen=True, slots=True)
class Use:
    """What was counted until a moment."""

    claims: float
    consumers: float
    server: float

    def minus(self, other: Use) -> Use:
        return Use(self.claims - other.claims, self.consumers - other.consumers, self.server - other.server)

    def by(self, number: float) -> Use:
        return Use(self.claims / number, self.consumers / number, self.server / number)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of idle consumers in a second, and of one send over that."""

    consumers: str
    idle: Use
    send: Use
    least_claims: float
    most_claims: float
    unfinished: int


@dataclass(frozen=True, slots=True)
class Window:
    """What was used in so many seconds."""

    used: Use
    seconds: float


def cost(name: str, pairs: Sequence[tuple[Window, Window]], *, sends: int, unfinished: int) -> Cost:
    """pairs: a window without messages, and the next one with so many sends. Medians, and the spread."""
    idles = [idle.used.by(idle.seconds) for idle, _ in pairs]
    overs = [busy.used.minus(idle.used.by(idle.seconds / busy.seconds)).by(sends) for idle, busy in pairs]
    claims = [over.claims for over in overs]
    return Cost(name, _middle(idles), _middle(overs), min(claims), max(claims), unfinished)


def _middle(uses: Sequence[Use]) -> Use:
    return Use(
        median(use.claims for use in uses),
        median(use.consumers for use in uses),
        median(use.server for use in uses),
    )


def measure(plan: Plan) -> list[Cost]:
    """No consumers, those of one client, and workers."""
    with arena(SETTINGS) as server:
        prepare(server, SYSTEMS[OURS])
        return [
            _measure(server, plan, "none", 0, []),
            _measure(
                server,
                plan,
                f"{plan.consumers:,} of one client",
                plan.consumers,
                [("bench.sends.idle", str(plan.consumers))],
            ),
            _measure(
                server,
                plan,
                f"{plan.workers:,} workers",
                plan.workers,
                [("penstock.cli", *WORKER)] * plan.workers,
            ),
        ]


def _measure(server: Arena, plan: Plan, name: str, number: int, commands: Sequence[tuple[str, ...]]) -> Cost:
    system = SYSTEMS[OURS]
    dsn = server.database("slice", template=system.name)
    used = processor.Server(server.dsn)
    with watching(system, dsn) as watch, ExitStack() as stack:
        watch.connection.execute(f"create extension {STATEMENTS}")
        processes = [stack.enter_context(running(*command, dsn=dsn)) for command in commands]

        def use() -> Use:
            return Use(_claims(watch.connection), processor.of(processes), used.used())

        if number:
            _wait_until_idle(watch, number)
        watch.send()
        time.sleep(2 * plan.pause)

        def window(sends: int) -> Window:
            before, begun = use(), time.monotonic()
            for place in range(plan.sends):
                if place < sends:
                    watch.send()
                time.sleep(plan.pause)
            return Window(use().minus(before), time.monotonic() - begun)

        pairs = [(window(0), window(plan.sends)) for _ in range(plan.rounds)]
        unfinished = watch.backlog() if number else 0
    return cost(name, pairs, sends=plan.sends, unfinished=unfinished)


def _claims(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    return statements.counted(connection, CLAIM).calls


def _wait_until_idle(watch: Watch, number: int) -> None:
    """Until there were as many claims as consumers, and no more of them than idle ones make."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _claims(watch.connection) < number and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(QUIET_CLAIMS_SECONDS)


HEAD = (
    "consumers",
    "idle: claims/s",
    "their CPU",
    "server CPU",
    "a send: claims (spread)",
    "their CPU ms",
    "server CPU ms",
    "not done",
)


def table(found: Sequence[Cost]) -> str:
    """A line for each kind of consumers."""
    rows = [
        (
            each.consumers,
            f"{each.idle.claims:.1f}",
            f"{each.idle.consumers:.1%}",
            f"{each.idle.server:.1%}",
            f"{each.send.claims:.1f} ({each.least_claims:.1f} to {each.most_claims:.1f})",
            f"{1e3 * each.send.consumers:.2f}",
            f"{1e3 * each.send.server:.2f}",
            report.count(each.unfinished),
        )
        for each in found
    ]
    return report.table(HEAD, rows)
