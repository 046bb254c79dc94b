"""What the Python clients cost, against psycopg in the same run: `make bench-client`.

The processor time of a single call over the same call with bare psycopg; calls of a thousand messages,
against pgmq and COPY; the overhead of batches over the bare SQL call; the rate of send_many against COPY; and
how long a message takes to an idle consumer. Contestants take turns in short slices, so that noise of the
machine hits all; a ratio is the median of the ratios of neighbouring slices, and the worst of them is told
too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import bulk, latency, overhead, report, single, thousand
from bench.bulk import Throughput
from bench.latency import Latency, Pauses
from bench.overhead import Overhead
from bench.report import Goal
from bench.server import Host, host
from bench.single import Single
from bench.thousand import Thousand

PARTS = ("single", "thousand", "overhead", "bulk", "latency")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    rounds: int = 41
    thousand_rounds: int = 21
    messages: int = 100_000
    bulk_rounds: int = 9
    variant_rounds: int = 3
    pauses: tuple[Pauses, ...] = (
        Pauses("5 to 50 ms", 500, 0.005, 0.05),
        Pauses("1 to 3 s", 10, 1.0, 3.0),
    )


QUICK = Plan(
    rounds=7,
    thousand_rounds=5,
    messages=20_000,
    bulk_rounds=3,
    variant_rounds=1,
    pauses=(Pauses("5 to 50 ms", 100, 0.005, 0.05), Pauses("1 to 3 s", 2, 1.0, 3.0)),
)


@dataclass(frozen=True, slots=True)
class Found:
    """All that was measured."""

    singles: Sequence[Single] = ()
    thousands: Sequence[Thousand] = ()
    overheads: Sequence[Overhead] = ()
    throughputs: Sequence[Throughput] = ()
    latencies: Sequence[Latency] = ()


def measure(server: Host, plan: Plan, parts: Sequence[str]) -> Found:
    """Each part in a fresh database."""
    return Found(
        single.measure(server.database("single"), plan.rounds) if "single" in parts else (),
        thousand.measure(server.database("thousand"), plan.thousand_rounds) if "thousand" in parts else (),
        overhead.measure(server.database("overhead"), plan.rounds) if "overhead" in parts else (),
        bulk.measure(server.database("bulk"), plan.messages, plan.bulk_rounds, plan.variant_rounds)
        if "bulk" in parts
        else (),
        latency.measure(server.database("latency"), list(plan.pauses)) if "latency" in parts else (),
    )


def goals(found: Found) -> list[Goal]:
    """What was promised, and whether it is so."""
    goals = [
        report.at_most(f"{each.client}, {each.call}, {each.where}: CPU us over psycopg", each.over, 40.0)
        for each in found.singles
    ]
    goals += [
        report.at_least(
            f"{each.way} of 1,000, of the rate of pgmq",
            each.of_pgmq.middle,
            1.0,
            f"(worst {each.of_pgmq.lowest:.2f})",
        )
        for each in found.thousands
        if each.way in (thousand.ENQUEUE_MANY, thousand.SEND_MANY)
    ]
    goals += [
        report.at_most(
            f"{each.client}, {each.call} of 100, over psycopg", each.ratio.middle, 1.25, _worst(each)
        )
        for each in found.overheads
        if each.batch == 100 and each.call in ("send", overhead.CONSUME_AND_ACK) and each.against == "Jsonb"
    ]
    goals += [
        report.at_least(
            "send_many, of the rate of COPY", each.ratio.middle, 0.8, f"(worst {each.ratio.lowest:.2f})"
        )
        for each in found.throughputs
        if (each.way, each.against) == (bulk.SEND_MANY, bulk.COPY)
    ]
    for late in found.latencies:
        name = f"{late.client}, idle for {late.pauses}, ms over bare"
        goals.append(report.at_most(f"{name}: p50", late.middle_over_bare, 3.0))
        worst = f"(worst {late.highest - late.bare_middle:.2f})"
        goals.append(report.at_most(f"{name}: p99", late.p99_over_bare, 20.0, worst))
    return goals


def _worst(each: Overhead) -> str:
    return f"(worst {each.ratio.highest:.2f})"


def tell_singles(found: Sequence[Single]) -> str:
    head = ("client", "call", "where", "bare", "client", "over")
    rows = [
        (each.client, each.call, each.where, *(f"{cost:.1f}" for cost in (each.bare, each.ours, each.over)))
        for each in found
    ]
    return report.table(head, rows)


def tell_thousands(found: Sequence[Thousand]) -> str:
    head = ("way", "messages/s", "of pgmq", "of COPY", "client CPU us", "server CPU us")
    rows = [
        (
            each.way,
            report.count(each.rate),
            f"{each.of_pgmq.middle:.2f}",
            f"{each.of_copy.middle:.2f}",
            f"{each.client_microseconds:.2f}",
            f"{each.server_microseconds:.2f}",
        )
        for each in found
    ]
    return report.table(head, rows)


def tell_overheads(found: Sequence[Overhead]) -> str:
    head = (
        "client",
        "call",
        "batch",
        "against",
        "bare",
        "client",
        "ratio",
        "best",
        "worst",
        "CPU bare",
        "CPU client",
    )
    rows = [
        (
            each.client,
            each.call,
            str(each.batch),
            each.against,
            report.count(each.bare_microseconds),
            report.count(each.client_microseconds),
            *(f"{ratio:.2f}" for ratio in (each.ratio.middle, each.ratio.lowest, each.ratio.highest)),
            report.count(each.bare_processor),
            report.count(each.client_processor),
        )
        for each in found
    ]
    return report.table(head, rows)


def tell_throughputs(found: Sequence[Throughput]) -> str:
    head = ("way", "messages/s", "against", "its", "ratio", "worst", "best", "client CPU us", "server CPU us")
    rows = [
        (
            each.way,
            report.count(each.rate),
            each.against,
            report.count(each.copy_rate),
            *(f"{ratio:.2f}" for ratio in (each.ratio.middle, each.ratio.lowest, each.ratio.highest)),
            f"{each.client_microseconds:.2f}",
            f"{each.server_microseconds:.2f}",
        )
        for each in found
    ]
    return report.table(head, rows)


def tell_latencies(found: Sequence[Latency]) -> str:
    head = ("client", "pauses", "samples", "bare p50 ms", "bare p99", "p50 ms", "p99", "highest")
    rows = [
        (
            each.client,
            each.pauses,
            str(each.samples),
            *(f"{value:.2f}" for value in (each.bare_middle, each.bare_p99)),
            *(f"{value:.2f}" for value in (each.middle, each.p99, each.highest)),
        )
        for each in found
    ]
    return report.table(head, rows)


def tell(found: Found) -> None:
    """Print the tables of what was measured."""
    if found.singles:
        print(f"\nOne call, microseconds of the calling process's processor\n\n{tell_singles(found.singles)}")
    if found.thousands:
        print(f"\nCalls of 1,000 messages, for each message\n\n{tell_thousands(found.thousands)}")
    if found.overheads:
        print(f"\nOverhead of a call, microseconds\n\n{tell_overheads(found.overheads)}")
    if found.throughputs:
        print(f"\nVery many messages, by way\n\n{tell_throughputs(found.throughputs)}")
    if found.latencies:
        print(f"\nLatency of an idle consumer, milliseconds\n\n{tell_latencies(found.latencies)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer messages and rounds")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part, not all")
    parser.add_argument("--profile", action="store_true", help="only tell where the time of a call goes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    arguments = parser.parse_args()
    print(report.load())
    with host(count_statements=False) as server:
        print(f"PostgreSQL {server.version}")
        if arguments.profile:
            print(overhead.profile(server.database("overhead")))
            return
        found = measure(server, QUICK if arguments.quick else Plan(), arguments.only or PARTS)
    tell(found)
    met = goals(found)
    print(f"\n{report.goals(met)}")
    report.write_json(arguments.json, met, asdict(found))


if __name__ == "__main__":
    main()
