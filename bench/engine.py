"""How fast the engine is, against a hand-rolled queue in the same run: `make bench-engine`.

Both sides are measured in slices that alternate, so that noise of the machine hits both; a ratio is the
median of the ratios of neighbouring slices. Four client processes, one connection of each side in each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from bench import dependence, report, statements
from bench.dependence import Dependence
from bench.load import Pool, Sample
from bench.report import Goal
from bench.server import Host, host
from bench.stage import Rates, Stage

CLIENTS = 4
FEW = 10
"""With no more than so many waiting, a client puts back what it took, and both halves are timed."""

SEND, SETTLE = "send", "claim + ack"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and for how long."""

    waiting: tuple[int, ...] = (FEW, 100_000, 1_000_000)
    batches: tuple[int, ...] = (1, 10, 100)
    pairs: int = 9
    seconds: float = 0.8
    beside: int = 100_000
    against: str = "reference"
    profile: bool = False

    @property
    def sides(self) -> tuple[str, str]:
        """Ours first, then what it is measured against."""
        return ("penstock", self.against)


QUICK = Plan(waiting=(FEW, 20_000, 100_000), pairs=3, seconds=0.4, beside=10_000)


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the result: messages a second of both sides."""

    operation: str
    batch: int
    waiting: int
    kept: bool
    ours: float
    reference: float
    ratio: float
    cpu_ratio: float | None
    """The same by processor time of the server's processes, which other work on the machine disturbs less."""

    client_ours: float
    client_reference: float
    """Microseconds of processor that a client itself used for a call: equal and small in a fair test."""


def measure(stage: Stage, batch: int, kept: bool, plan: Plan) -> list[Case]:
    """Send, and claim and ack, by turns on both sides."""
    found: dict[str, list[Rates]] = {side: [] for side in plan.sides}
    missing = dict.fromkeys(plan.sides, 0)
    few = stage.waiting <= FEW
    phases = ((True, True),) if few else ((False, True), (True, False))
    for pair in range(plan.pairs + 1):
        samples: dict[str, list[Sample]] = {side: [] for side in plan.sides}
        seconds = plan.seconds if pair else min(plan.seconds, 0.3)  # the first pair warms up
        for sends, claims in phases:
            for side in plan.sides if pair % 2 else reversed(plan.sides):
                # Claims take half of what waits at the most; then sends put back what was taken.
                limit = missing[side] if sends else stage.waiting // 2 - missing[side]
                done = stage.run(
                    side, batch, seconds, kept=kept, sends=sends, claims=claims, limit=None if few else limit
                )
                missing[side] += sum(sample.settled - sample.sent for sample in done)
                samples[side] += done
        if pair:
            for side in plan.sides:
                found[side].append(Rates.of(samples[side]))
    ours, theirs = found.values()

    def case(operation: str) -> Case:
        mine, others = (
            [slice_.send if operation == SEND else slice_.settle for slice_ in side]
            for side in (ours, theirs)
        )
        neighbours = list(zip(mine, others, strict=True))
        cpu_ratios = [other.cpu / one.cpu for one, other in neighbours if one.cpu]
        return Case(
            operation,
            batch,
            stage.waiting,
            kept,
            ours=median(speed.rate for speed in mine),
            reference=median(speed.rate for speed in others),
            ratio=median(one.rate / other.rate for one, other in neighbours if other.rate),
            cpu_ratio=median(cpu_ratios) if cpu_ratios else None,
            client_ours=median(slice_.client_microseconds for slice_ in ours),
            client_reference=median(slice_.client_microseconds for slice_ in theirs),
        )

    return [case(SEND), case(SETTLE)]


def prepare(server: Host, pool: Pool, waiting: int, plan: Plan, name: str | None = None) -> Stage:
    """A database with so many messages waiting on both sides."""
    dsn = server.database(name or str(waiting), nested_statements=plan.profile)
    stage = Stage(pool, dsn, waiting, CLIENTS)
    for side in plan.sides:
        stage.fill(side)
    stage.tidy(checkpoint=True)
    return stage


def speed(stage: Stage, plan: Plan) -> Iterator[Case]:
    """All cases with a given backlog."""
    for kept in (False, True):
        stage.keep_history(kept)
        for batch in plan.batches:
            stage.tidy()
            if plan.profile:
                statements.reset(stage.dsn)
            yield from measure(stage, batch, kept, plan)
            if plan.profile:
                print(f"\nbatch {batch}, {stage.waiting:,} waiting, {'kept' if kept else 'no'} history")
                print(statements.profile(stage.dsn), flush=True)


def independence(server: Host, pool: Pool, stages: Sequence[Stage], plan: Plan) -> Iterator[Dependence]:
    """Whether a claim's time depends on the backlog, or on messages that do not wait."""
    few, many = stages[0], stages[-1]
    bare = prepare(server, pool, FEW, plan, "bare")
    crowded = prepare(server, pool, FEW, plan, "beside")
    dependence.put_beside(crowded.dsn, plan.beside)
    bare.keep_history(True)
    for stage in (few, many, bare, crowded):
        stage.tidy(checkpoint=True)
    for batch in plan.batches:
        if few is not many:
            what = f"{few.waiting:,} -> {many.waiting:,} waiting"
            yield dependence.compare(what, few, many, batch, pairs=plan.pairs, seconds=plan.seconds / 2)
        what = f"none -> {plan.beside:,} each of delayed, dead, leased, completed"
        yield dependence.compare(what, bare, crowded, batch, pairs=plan.pairs, seconds=plan.seconds / 2)


def judge(cases: Sequence[Case], depends: Sequence[Dependence]) -> list[Goal]:
    """The goals; each must hold in the worst of its cases."""

    def worst(operation: str, batch: int, bound: float) -> Goal:
        found = [case for case in cases if (case.operation, case.batch) == (operation, batch)]
        name = f"batch {batch}: {operation}, against the reference"
        if not found:
            return report.at_least(name, None, bound)
        least = min(found, key=lambda case: case.ratio)
        where = f"{least.waiting:,} waiting, {'kept' if least.kept else 'no'} history"
        middle = median(case.ratio for case in found)
        return report.at_least(name, least.ratio, bound, f"at worst ({where}); median {middle:.2f}")

    def most(name: str, part: str, bound: float) -> Goal:
        ratios = [d.ratio for d in depends if part in d.what]
        return report.at_most(name, max(ratios, default=None), bound, "at worst")

    return [
        worst(SETTLE, 100, 1.4),
        worst(SEND, 100, 1.0),
        worst(SETTLE, 1, 1.0),
        worst(SEND, 1, 0.8),
        most("a claim's time with the most waiting, against 10", "waiting", 1.5),
        # "Does not depend" has to leave room for noise.
        most("a claim's time with others beside, against none", "each of", 1.2),
    ]


HEAD = (
    "operation",
    "batch",
    "waiting",
    "history",
    "ours/s",
    "ref/s",
    "ratio",
    "by CPU",
    "client us/call: ours",
    "ref",
)


def line(case: Case) -> tuple[str, ...]:
    """A case as a row of the table."""
    return (
        case.operation,
        str(case.batch),
        report.count(case.waiting),
        "kept" if case.kept else "no",
        report.count(case.ours),
        report.count(case.reference),
        f"{case.ratio:.2f}",
        "-" if case.cpu_ratio is None else f"{case.cpu_ratio:.2f}",
        f"{case.client_ours:.0f}",
        f"{case.client_reference:.0f}",
    )


def run(plan: Plan, path: Path | None) -> None:
    """Measure all, print it, and write it down where asked."""
    begun = time.monotonic()
    cases: list[Case] = []
    with host(count_statements=plan.profile) as server, Pool(CLIENTS) as pool:
        print(
            f"PostgreSQL {server.version}, {CLIENTS} clients, against the {plan.against} queue,"
            f" {plan.pairs} x {plan.seconds} s a side and case; {report.load()}"
        )
        stages = []
        for waiting in plan.waiting:
            stages.append(prepare(server, pool, waiting, plan))
            found = list(speed(stages[-1], plan))
            cases += found
            print(f"\n{waiting:,} waiting\n{report.table(HEAD, [line(case) for case in found])}", flush=True)
        depends = list(independence(server, pool, stages, plan))
    print(f"\n{dependence.lines(depends)}")
    goals = judge(cases, depends)
    print(f"\n{report.goals(goals)}\n\n{time.monotonic() - begun:.0f} s in all")
    results = {
        "plan": asdict(plan),
        "cases": [asdict(c) for c in cases],
        "claims": [asdict(d) for d in depends],
    }
    report.write_json(path, goals, results)


def numbers(text: str) -> tuple[int, ...]:
    """Numbers with commas between them."""
    return tuple(int(part) for part in text.split(","))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="about a minute: smaller backlogs, shorter slices"
    )
    parser.add_argument("--seconds", type=float, help="length of a slice (0.8)")
    parser.add_argument("--pairs", type=int, help="slices of each side in each case (9)")
    parser.add_argument("--batches", type=numbers, help="batch sizes, as 1,10,100")
    parser.add_argument("--waiting", type=numbers, help="backlogs, ascending, as 10,100000,1000000")
    parser.add_argument(
        "--against",
        choices=("reference", "tuned"),
        help="the hand-rolled queue as most have it (default), or with its plans pinned",
    )
    parser.add_argument(
        "--profile", action="store_true", help="print the time of each statement in our functions"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    given = parser.parse_args()
    chosen = {name: getattr(given, name) for name in ("seconds", "pairs", "batches", "waiting", "against")}
    plan = replace(QUICK if given.quick else Plan(), profile=given.profile)
    run(replace(plan, **{name: value for name, value in chosen.items() if value is not None}), given.json)


if __name__ == "__main__":
    main()
