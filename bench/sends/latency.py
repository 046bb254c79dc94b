"""From the commit of a send to the start of its handler, at so many sends a second.

Sends are at random distances, whether or not the earlier ones are done. A message counts from the moment at
which its sender knew of the commit: the number in its payload joins that with the start of the handler. A
latency below zero is a handler that started before the sender had the answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import report
from bench.arena import Arena
from bench.peers.roster import CONTESTANTS, OURS
from bench.peers.runner import PeerError, Program
from bench.report import Goal
from bench.sends import pgbench, processor
from bench.sends.consumers import FOR_EVER, Watch, watching
from bench.sends.pgbench import Committed
from bench.sends.systems import SEND_NUMBERED, SYSTEMS
from bench.sends.throughput import prepare

WARM_UP_SECONDS = 1.0
SETTLE_SECONDS = 3.0
"""After a start, and before a worker counts as idle."""
P50_MILLISECONDS, P99_MILLISECONDS, JUDGED_TO = 3.0, 10.0, 1000
REACHED = 0.9
"""Of the wanted pace: below that, what was measured is not the latency at this pace."""


@dataclass(frozen=True, slots=True)
class Pace:
    """So many sends a second for a while, over so many connections."""

    rate: int
    seconds: float
    connections: int


PACES = (Pace(10, 30, 2), Pace(100, 15, 4), Pace(1000, 10, 16), Pace(5000, 10, 32))
QUICK = (Pace(100, 4, 4), Pace(1000, 4, 16))


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds, and the processor time of worker and server as a share of one processor."""

    wanted: int
    reached: float
    messages: int
    p50: float
    p99: float
    longest: float
    from_call_p50: float
    from_call_p99: float
    """From the moment at which the message was to be sent."""
    worker_cpu: float
    server_cpu: float
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Idle:
    """The processor time of a worker without messages, as a share of one processor."""

    worker_cpu: float
    server_cpu: float


def joined(
    committed: Mapping[int, Committed], began: Mapping[int, float], warm_up: float
) -> tuple[list[float], list[float]]:
    """Milliseconds from the commit and from the call to the handler, of messages sent after the warm-up."""
    first = min((each.ended for each in committed.values()), default=0.0) + warm_up
    pairs = [
        (each, began[number]) for number, each in committed.items() if number in began and each.ended >= first
    ]
    return [1e3 * (at - each.ended) for each, at in pairs], [1e3 * (at - each.begun) for each, at in pairs]


def measure(server: Arena, paces: Sequence[Pace], idle_seconds: float) -> tuple[list[Latency], Idle]:
    """All paces, and an idle worker, each with a worker and a database of its own."""
    system = SYSTEMS[OURS]
    prepare(server, system)
    used = processor.Server(server.dsn)
    found = []
    for pace in paces:
        dsn = server.database("slice", template=system.name)
        with watching(system, dsn) as watch, TemporaryDirectory() as folder:
            times = Path(folder, "times")
            found.append(_paced(dsn, watch, pace, times, used))
    dsn = server.database("slice", template=system.name)
    with watching(system, dsn) as watch, _worker(dsn) as worker:
        _begin(watch)
        time.sleep(SETTLE_SECONDS)
        before = processor.of([worker.pid]), used.used()
        time.sleep(idle_seconds)
        after = processor.of([worker.pid]), used.used()
    return found, Idle(*((late - early) / idle_seconds for early, late in zip(before, after, strict=True)))


def _worker(dsn: str, environment: Mapping[str, str] | None = None) -> Program:
    return Program(
        CONTESTANTS[OURS],
        dsn,
        "work",
        expected=FOR_EVER,
        app="bench.sends.app:app",
        environment=environment,
    )


def _begin(watch: Watch) -> None:
    watch.send()
    if not watch.wait_until_done():
        raise PeerError("The worker did not begin.")


def _paced(dsn: str, watch: Watch, pace: Pace, times: Path, used: processor.Server) -> Latency:
    with _worker(dsn, {"BENCH_TIMES": str(times)}) as worker:
        _begin(watch)
        time.sleep(WARM_UP_SECONDS)
        before, started = (processor.of([worker.pid]), used.used()), time.monotonic()
        committed = pgbench.paced(dsn, SEND_NUMBERED, pace.connections, pace.seconds, pace.rate)
        after, took = (processor.of([worker.pid]), used.used()), time.monotonic() - started
        is_complete = watch.wait_until_done()
    began = {number: at for number, at in reversed(json.loads(times.read_text())) if number in committed}
    since_commit, since_call = joined(committed, began, WARM_UP_SECONDS)
    p50, p99, longest = (report.percentile(since_commit, share) for share in (0.5, 0.99, 1.0))
    worker_cpu, server_cpu = ((late - early) / took for early, late in zip(before, after, strict=True))
    return Latency(
        wanted=pace.rate,
        reached=len(committed) / pace.seconds,
        messages=len(since_commit),
        p50=p50,
        p99=p99,
        longest=longest,
        from_call_p50=report.percentile(since_call, 0.5),
        from_call_p99=report.percentile(since_call, 0.99),
        worker_cpu=worker_cpu,
        server_cpu=server_cpu,
        is_complete=is_complete and len(began) == len(committed),
    )


HEAD = (
    "sends/s",
    "reached",
    "counted",
    "p50 ms",
    "p99 ms",
    "max ms",
    "from the call: p50",
    "p99",
    "worker CPU",
    "server CPU",
)


def table(found: Sequence[Latency], idle: Idle) -> str:
    """A line for each pace, and one for an idle worker."""
    rows = [
        (
            report.count(each.wanted),
            report.count(each.reached),
            report.count(each.messages) + ("" if each.is_complete else " (not all)"),
            *(f"{value:.1f}" for value in (each.p50, each.p99, each.longest)),
            *(f"{value:.1f}" for value in (each.from_call_p50, each.from_call_p99)),
            f"{each.worker_cpu:.1%}",
            f"{each.server_cpu:.1%}",
        )
        for each in found
    ]
    return report.table(HEAD, [*rows, ("0", *["-"] * 7, f"{idle.worker_cpu:.2%}", f"{idle.server_cpu:.2%}")])


def goals(found: Sequence[Latency]) -> list[Goal]:
    """Of the paces up to a thousand a second; a latency at a pace that was not reached meets no goal."""
    return [
        _goal(each, f"{name} at {each.wanted:,} sends/s, ms", value, bound)
        for each in found
        if each.wanted <= JUDGED_TO
        for name, value, bound in (("p50", each.p50, P50_MILLISECONDS), ("p99", each.p99, P99_MILLISECONDS))
    ]


def _goal(found: Latency, name: str, value: float, bound: float) -> Goal:
    if found.is_complete and found.reached >= REACHED * found.wanted:
        return report.at_most(name, value, bound)
    goal = report.at_most(name, value, bound, f"but only {found.reached:,.0f}/s were sent, or not all ran")
    return replace(goal, met=False)
