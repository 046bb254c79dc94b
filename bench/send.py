"""Single sends while a worker listens and keeps up, against a hand-rolled queue: `make bench-send`.

Sends a second by 1 to 256 connections of pgbench, one message in a transaction. A commit takes what the disk
takes, or 4 ms and more, by commit_delay in the sessions that send. The reference is the hand-rolled queue
without wake-ups: a bare INSERT into an indexed table, beside a loop that deletes batches of up to 1,000 every
2 ms. All systems take turns, and a ratio is the median of those within a round. Every slice has a fresh
database and a consumer of its own, and * marks a consumer that did not keep up.

Then the latency from the commit to the start of the handler at 10 to 5,000 sends a second. Then what one send
costs beside many idle consumers. `--throughput`, `--latency` and `--many` measure just that.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import report
from bench.arena import Arena, arena
from bench.peers import environments
from bench.report import Goal
from bench.sends import latency, many, throughput
from bench.sends.latency import Pace
from bench.sends.systems import SYSTEMS, System
from bench.sends.throughput import DISKS, Case, Measurement

OTHER_CONNECTIONS = 50
"""Of workers, and those that watch."""
SECTIONS = ("throughput", "latency", "many")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and for how long."""

    connections: tuple[int, ...] = (1, 4, 16, 64, 256)
    seconds: int = 4
    rounds: int = 3
    peer_rounds: int = 1
    delay_all: bool = False
    paces: tuple[Pace, ...] = latency.PACES
    idle_seconds: float = 20.0
    many: many.Plan = many.WHOLE


QUICK = Plan(
    connections=(1, 16),
    seconds=1,
    rounds=1,
    peer_rounds=0,
    paces=latency.QUICK,
    idle_seconds=3.0,
    many=many.QUICK,
)


def chosen(plan: Plan) -> list[System]:
    """The systems that can run here; prints which cannot."""
    able = []
    for system in SYSTEMS.values():
        contestant = system.contestant
        if system.is_peer and not plan.peer_rounds:
            continue
        if contestant is not None and contestant.missing:
            print(f"{system.title}: {contestant.missing}, left out")
            continue
        if contestant is not None:
            environments.python(contestant)
        able.append(system)
    return able


def measure_throughput(server: Arena, plan: Plan, systems: Sequence[System]) -> list[Case]:
    """All numbers of connections on both disks; prints a table for each disk."""
    measurement = Measurement(server, systems, plan.seconds, delay_all=plan.delay_all)
    cases: list[Case] = []
    for disk in DISKS:
        found: list[Case] = []
        for connections in plan.connections:
            found += measurement.case(disk, connections, plan.rounds, plan.peer_rounds)
            print(f"  {connections} connections, commit {disk}: measured", file=sys.stderr, flush=True)
        print(f"\nsends a second (ratio to the first line), commit {disk}\n{throughput.table(found)}")
        print("\n".join(throughput.behind(found)))
        print(f"{throughput.processors(found)}", flush=True)
        cases += found
    return cases


def run(plan: Plan, sections: Sequence[str], path: Path | None, picture_path: Path | None) -> None:
    """Measure, print, write down and draw where asked."""
    begun = time.monotonic()
    goals: list[Goal] = []
    results: dict[str, Any] = {"plan": asdict(plan)}
    systems = chosen(plan) if "throughput" in sections else []
    print(report.load())
    needed = max(plan.connections) + OTHER_CONNECTIONS
    with arena({"max_connections": str(needed)}) as server:
        print(f"PostgreSQL {server.version}, {plan.rounds} x {plan.seconds} s a system and case")
        if int(server.setting("max_connections")) < needed:
            raise SystemExit(f"The server must allow {needed} connections (max_connections).")
        results["postgresql"] = server.version
        if "throughput" in sections:
            cases = measure_throughput(server, plan, systems)
            goals += throughput.goals(cases)
            results["throughput"] = [
                {**asdict(case), "rate": case.rate, "ratio": asdict(case.ratio), "kept_up": case.kept_up}
                for case in cases
            ]
            if picture_path is not None:
                from bench.sends import picture  # noqa: PLC0415 - nothing else needs matplotlib

                picture.draw(picture_path, cases)
        if "latency" in sections:
            latencies, idle = latency.measure(server, plan.paces, plan.idle_seconds)
            print(
                f"\nfrom the commit of a send to the start of the handler\n{latency.table(latencies, idle)}",
                flush=True,
            )
            goals += latency.goals(latencies)
            results |= {"latency": [asdict(each) for each in latencies], "idle": asdict(idle)}
    if "many" in sections:
        costs = many.measure(plan.many)
        print(f"\none send beside idle consumers of its queue\n{many.table(costs)}")
        results["many"] = [asdict(each) for each in costs]
    print(f"\n{report.goals(goals)}\n\n{time.monotonic() - begun:.0f} s in all")
    report.write_json(path, goals, results)


def numbers(text: str) -> tuple[int, ...]:
    """Numbers with commas between them."""
    return tuple(int(part) for part in text.split(","))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.send",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="under two minutes: shorter, without the peers")
    for section in SECTIONS:
        parser.add_argument(f"--{section}", action="store_true", help="just this, and others named so")
    parser.add_argument("--connections", type=numbers, help="as 1,4,16,64,256")
    parser.add_argument("--seconds", type=int, help="length of a slice (4)")
    parser.add_argument("--rounds", type=int, help="slices of a system in each case (3)")
    parser.add_argument("--peer-rounds", type=int, help="of a peer (1; 0: without them)")
    parser.add_argument("--delay-all", action="store_true", help="4 ms also for commits of the consumers")
    parser.add_argument("--workers", type=int, help="idle workers beside which one send is measured (20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw sends over connections, as SVG")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    plan = QUICK if given.quick else Plan()
    changes = {name: getattr(given, name) for name in ("connections", "seconds", "rounds", "peer_rounds")}
    plan = replace(plan, **{name: value for name, value in changes.items() if value is not None})
    plan = replace(plan, delay_all=given.delay_all)
    if given.workers is not None:
        plan = replace(plan, many=replace(plan.many, workers=given.workers))
    sections = [section for section in SECTIONS if getattr(given, section)] or SECTIONS
    run(plan, sections, given.json, given.picture)


if __name__ == "__main__":
    main()
