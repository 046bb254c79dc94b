"""How long the quiet wait while one tenant floods the queue: `make bench-fairness`.

50 tenants put in one message each in every second, each at a random moment of it; then one more puts in
100,000, as quickly as it can. Three runs with the same moments and the same consumers: the quiet tenants
alone; beside the noisy one; and beside it in a queue that is not told whose message it is, one FIFO.

The consumers can just keep up with the quiet tenants: those alone keep them busy for nine tenths of the time
(`--load`). So the flood never drains, no consumer is ever idle, and if the noisy tenant got but a little more
than the tenth that is left over, the messages of the quiet ones would pile up. With consumers that can do
much more, the quiet alone would not wait at all, and what is compared would be how soon a busy consumer is
free. For the same reason a claim takes one message: the work on it takes 72 ms on the average, and a batch of
ten would keep a consumer away for ten times that.

A message waits from `published_at` until its lease begins, both by the database's clock. An unclaimed message
counts with what it has waited until the end. Counted is what was published after the flood
began.

The other scenario, `--scenario greedy`, is in `bench/greedy.py`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench import greedy, report
from bench.load import Pool
from bench.report import Goal
from bench.server import host
from bench.tenants import Load, Message, Send

QUIET_TENANTS = 50
NOISY = "noisy"
FLOOD_BATCH = 1000
CONSUMERS = 4
SEED = 7

RUNS = {
    "alone": "the quiet tenants alone",
    "tenants": "beside a noisy tenant",
    "fifo": "the same without tenants, one FIFO",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and for how long."""

    seconds: int = 120
    lead: int = 10
    flood: int = 100_000
    load: float = 0.9
    """What the quiet tenants send, as a share of what the consumers can do."""

    @property
    def capacity(self) -> float:
        """Messages a second that the consumers can do."""
        return QUIET_TENANTS / self.load


QUICK = Plan(seconds=20, lead=4, flood=20_000)


@dataclass(frozen=True, slots=True)
class Figures:
    """How long the messages of some tenants waited, in seconds."""

    sent: int
    unclaimed: int
    p50: float
    p95: float
    p99: float
    longest: float
    claimed_per_second: float

    @classmethod
    def of(cls, messages: Sequence[Message], seconds: float) -> Figures:
        """Sum up what was published after the beginning, and what was claimed since, whenever published."""
        counted = [message for message in messages if message.published >= 0]
        waits = [message.waited(seconds) for message in counted]
        claimed = sum(message.claimed is not None and message.claimed >= 0 for message in messages)
        return cls(
            sent=len(counted),
            unclaimed=sum(message.claimed is None for message in counted),
            p50=report.percentile(waits, 0.5),
            p95=report.percentile(waits, 0.95),
            p99=report.percentile(waits, 0.99),
            longest=max(waits, default=0.0),
            claimed_per_second=claimed / seconds,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """One of the three runs."""

    messages: tuple[Message, ...]
    quiet: Figures
    noisy: Figures

    @classmethod
    def of(cls, messages: Sequence[Message], seconds: float) -> Outcome:
        """Sum up a run."""
        quiet = [message for message in messages if message.tenant != NOISY]
        noisy = [message for message in messages if message.tenant == NOISY]
        return cls(tuple(messages), Figures.of(quiet, seconds), Figures.of(noisy, seconds))

    @property
    def claimed_per_second(self) -> float:
        """Of all tenants."""
        return self.quiet.claimed_per_second + self.noisy.claimed_per_second


def load(name: str, plan: Plan) -> Load:
    """The load of a run: the same moments, the same consumers in each."""
    moments = random.Random(SEED)
    quiet = [
        Send(second + moments.random(), f"quiet-{tenant:02}")
        for second in range(-plan.lead, plan.seconds)
        for tenant in range(QUIET_TENANTS)
    ]
    flood = [Send(0.0, NOISY, FLOOD_BATCH)] * (plan.flood // FLOOD_BATCH)
    return Load(
        timetables=[quiet] if name == "alone" else [quiet, flood],
        lead=plan.lead,
        seconds=plan.seconds,
        consumers=CONSUMERS,
        batch=1,
        capacity=plan.capacity,
        named=name != "fifo",
    )


def judge(found: Mapping[str, Outcome], plan: Plan) -> list[Goal]:
    """The quiet beside the noisy tenant against the quiet alone."""
    alone, tenants, fifo = (found[name] for name in RUNS)

    def slower(outcome: Outcome) -> float | None:
        return outcome.quiet.p99 / alone.quiet.p99 if alone.quiet.p99 else None

    busy = min(tenants.claimed_per_second, fifo.claimed_per_second) / plan.capacity
    in_fifo = f"(one FIFO: {slower(fifo) or 0:,.0f})"
    return [
        report.at_most("p99 of the quiet beside the noisy, against alone", slower(tenants), 2.0, in_fifo),
        report.at_least("for this to count: claimed/s beside the noisy, of the capacity", busy, 0.95),
    ]


HEAD = ("run", "tenants", "sent", "not claimed", "p50 s", "p95 s", "p99 s", "max s", "claimed/s")


def rows(name: str, outcome: Outcome) -> list[tuple[str, ...]]:
    """A run as lines of the table."""
    return [
        (
            RUNS[name],
            tenants,
            report.count(figures.sent),
            report.count(figures.unclaimed),
            *(f"{seconds:.3f}" for seconds in (figures.p50, figures.p95, figures.p99, figures.longest)),
            f"{figures.claimed_per_second:.1f}",
        )
        for tenants, figures in (("quiet", outcome.quiet), (NOISY, outcome.noisy))
        if figures.sent
    ]


def run(plan: Plan, path: Path | None, picture_path: Path | None) -> None:
    """Measure the three runs, print them, write them down and draw them where asked."""
    found: dict[str, Outcome] = {}
    with host(count_statements=False) as server, Pool(2 + CONSUMERS) as pool:
        print(
            f"PostgreSQL {server.version}, {QUIET_TENANTS} quiet messages/s, {plan.flood:,} noisy ones,"
            f" {CONSUMERS} consumers for {plan.capacity:.1f} messages/s; {report.load()}"
        )
        for name, meaning in RUNS.items():
            print(f"{meaning}: {plan.lead} + {plan.seconds} s", flush=True)
            messages = load(name, plan).run(pool, server.database(f"fairness_{name}"))
            found[name] = Outcome.of(messages, plan.seconds)
    goals = judge(found, plan)
    print(f"\n{report.table(HEAD, [row for name in found for row in rows(name, found[name])])}")
    print(f"\n{report.goals(goals)}")
    figures = {name: {"quiet": asdict(o.quiet), "noisy": asdict(o.noisy)} for name, o in found.items()}
    report.write_json(path, goals, {"plan": asdict(plan), "runs": figures})
    if picture_path is not None:
        from bench import picture  # noqa: PLC0415 - nothing else needs matplotlib

        panels = [picture.Panel(RUNS[name], o.messages, o.quiet.p99) for name, o in found.items()]
        picture.draw(picture_path, panels, NOISY, (-plan.lead, plan.seconds))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.fairness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scenario", choices=("noisy", "greedy"), default="noisy", help="noisy")
    parser.add_argument("--quick", action="store_true", help="a minute or two: shorter, a smaller flood")
    parser.add_argument("--seconds", type=int, help="for each run (120; quick: 20)")
    parser.add_argument("--load", type=float, help="noisy: what the quiet send, of the capacity (0.9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="noisy: draw the waiting times, as SVG")
    given = parser.parse_args()
    plan = QUICK if given.quick else Plan()
    plan = replace(plan, seconds=given.seconds or plan.seconds, load=given.load or plan.load)
    if given.scenario == "greedy":
        greedy.run(greedy.Plan(seconds=plan.seconds, lead=plan.lead), given.json)
    else:
        run(plan, given.json, given.picture)


if __name__ == "__main__":
    main()
