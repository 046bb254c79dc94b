"""Whether the queue slows down while a transaction holds back vacuum: `make bench-xmin`.

A REPEATABLE READ transaction stays open; 200,000 messages wait in a second queue; 2,000 messages a second are
published in batches of 100 and consumed in batches of 10, 95 % acked, 5 % nacked with a delay of a second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import psycopg

from bench import report, statements
from bench.holders import held_snapshot
from bench.load import SIDES, Maintainer, Pool
from bench.queues import IDLE_QUEUE
from bench.report import Goal
from bench.server import Host, host
from bench.stage import Stage
from bench.statements import Counted
from bench.steady import Part, Tally, play

HOLDERS = {
    "snapshot": "a transaction holds a snapshot",
    "writer": "a transaction that writes elsewhere holds a snapshot",
    "consumer": "a transaction holds a snapshot, and a consumer keeps each of its own open for 10 s",
}
CONSUMERS = 2
WARM_UP_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and for how long."""

    seconds: int = 120
    window: int = 10
    rate: int = 2000
    idle: int = 200_000
    profile: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the side that is measured."""

    name: str
    dead: int
    size: int


@dataclass(frozen=True, slots=True)
class Window:
    """What happened in ten seconds."""

    until: int
    consumed: float
    claim_p50: float
    claim_p99: float
    ack_p99: float
    send_p99: float
    """Milliseconds, as the claims' and the acks'."""

    lag: float
    waiting: int
    claims: float
    empty_claims: float
    claim_blocks: float | None
    ack_blocks: float | None
    tables: tuple[Table, ...]


class Observer:
    """Reads the server's own counts at the end of each window."""

    def __init__(self, server: Host, dsn: str, side: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._counts = server.counts_statements
        self._schema = "penstock" if side == "penstock" else "reference"
        self._texts = (SIDES[side].claim_text, SIDES[side].ack_text)
        self._last = self._counted()
        self._undelivered = 0

    def window(self, until: int, seconds: float, tallies: list[Tally]) -> Window:
        """The window that just ended."""
        total = Tally.total(tallies)
        counted = self._counted()
        blocks: list[float | None] = [
            now.since(before) for now, before in zip(counted, self._last, strict=True)
        ]
        blocks += [None, None]
        self._last = counted
        self._undelivered += total.sent - total.first_deliveries
        return Window(
            until=until,
            consumed=total.consumed / seconds,
            claim_p50=1000 * report.percentile(total.claim_times, 0.5),
            claim_p99=1000 * report.percentile(total.claim_times, 0.99),
            ack_p99=1000 * report.percentile(total.ack_times, 0.99),
            send_p99=1000 * report.percentile(total.send_times, 0.99),
            lag=total.oldest_seconds,
            waiting=self._undelivered,
            claims=len(total.claim_times) / seconds,
            empty_claims=total.empty_claims / seconds,
            claim_blocks=blocks[0],
            ack_blocks=blocks[1],
            tables=self._tables(),
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _counted(self) -> list[Counted]:
        if not self._counts:
            return []
        return [statements.counted(self._connection, text) for text in self._texts]

    def _tables(self) -> tuple[Table, ...]:
        rows = self._connection.execute(
            "select relname, n_dead_tup, pg_total_relation_size(relid) from pg_stat_user_tables"
            " where schemaname = %s order by relname",
            (self._schema,),
        )
        return tuple(Table(*row) for row in rows)


def measure(server: Host, pool: Pool, side: str, holder: str, plan: Plan) -> Iterator[Window]:
    """Run the load for the whole time on a fresh database."""
    dsn = server.database(f"{holder}_{side}", nested_statements=plan.profile)
    stage = Stage(pool, dsn, plan.idle, 1 + CONSUMERS)
    stage.keep_history(True)
    stage.fill(side, IDLE_QUEUE)
    stage.tidy(checkpoint=True)

    begun = time.monotonic() + WARM_UP_SECONDS
    ends = tuple(begun + plan.window * number for number in range(plan.seconds // plan.window + 1))
    roles = ["publisher", *["consumer"] * CONSUMERS, *["lingerer"] * (holder == "consumer")]
    parts = [Part(role, side, dsn, plan.rate, ends, seed) for seed, role in enumerate(roles)]
    observer = Observer(server, dsn, side)
    with ExitStack() as stack:
        stack.callback(observer.close)
        stack.enter_context(Maintainer(dsn).running() if side == "penstock" else nullcontext())
        for number, tallies in enumerate(pool.run(play, parts)):
            seconds = plan.window if number else WARM_UP_SECONDS
            window = observer.window(number * plan.window, seconds, tallies)
            if number:
                yield window
            else:  # warm: from here on nothing that dies may be removed
                stack.enter_context(held_snapshot(dsn, writes=holder == "writer"))
    if plan.profile and side == "penstock":
        print(statements.profile(dsn))


def judge(windows: Sequence[Window], holder: str) -> list[Goal]:
    """The last window against the first."""
    first, last = windows[0], windows[-1]

    def name(what: str) -> str:
        return f"{holder}: {what}, last against first"

    def blocks(what: str, found: Sequence[float | None]) -> Goal:
        known = [figure for figure in found if figure is not None]
        # How much there is to walk since the floor was last raised varies: so a quarter against a quarter.
        quarter = max(1, len(known) // 4)
        ratio = median(known[-quarter:]) / max(1.0, median(known[:quarter])) if known else None
        # An index of what began empty may gain a level, so a block or two; walking the dead would be tenfold.
        return report.at_most(name(what), ratio, 1.25)

    return [
        report.at_least(name("consumed/s"), _ratio(last.consumed, first.consumed), 0.9),
        report.at_most(name("p99 of a claim"), _ratio(last.claim_p99, first.claim_p99), 2.0),
        blocks("blocks per claim", [window.claim_blocks for window in windows]),
        blocks("blocks per ack", [window.ack_blocks for window in windows]),
    ]


def _ratio(after: float, before: float) -> float | None:
    return after / before if before else None


HEAD = (
    "second",
    "consumed/s",
    "claim p50",
    "p99",
    "ack p99",
    "send p99 ms",
    "lag s",
    "waiting",
    "claims/s",
    "empty/s",
    "blocks/claim",
    "blocks/ack",
)


def spread(cells: Sequence[str]) -> str:
    """Cells under the head of the table, which is printed before its lines are known."""
    return "".join(cell.rjust(max(8, 2 + len(head))) for cell, head in zip(cells, HEAD, strict=True))


def line(window: Window) -> str:
    """A window as a line, under the head, and a line of its tables."""
    blocks = ("-" if b is None else f"{b:.1f}" for b in (window.claim_blocks, window.ack_blocks))
    times = (window.claim_p50, window.claim_p99, window.ack_p99, window.send_p99)
    rates = (report.count(window.waiting), report.count(window.claims), report.count(window.empty_claims))
    cells = (
        str(window.until),
        report.count(window.consumed),
        *(f"{time:.2f}" for time in times),
        f"{window.lag:.2f}",
        *rates,
        *blocks,
    )
    tables = (
        f"{table.name} {report.count(table.dead)} dead {report.megabytes(table.size)}"
        for table in window.tables
        if table.dead or table.size > 100_000
    )
    return f"{spread(cells)}\n        {'; '.join(tables)}"


def run(plan: Plan, holders: Sequence[str], sides: Sequence[str], path: Path | None) -> None:
    """Measure each holder one after the other, print it, and write it down where asked."""
    goals: list[Goal] = []
    results: dict[str, dict[str, list[object]]] = {}
    with host(count_statements=True) as server, Pool(2 + CONSUMERS) as pool:
        print(
            f"PostgreSQL {server.version}, {plan.rate:,} messages/s, {CONSUMERS} consumers; {report.load()}"
        )
        for holder in holders:
            for side in sides:
                print(f"\n{side}: {HOLDERS[holder]}\n{spread(HEAD)}", flush=True)
                windows = []
                for window in measure(server, pool, side, holder, plan):
                    windows.append(window)
                    print(line(window), flush=True)
                results.setdefault(holder, {})[side] = [asdict(window) for window in windows]
                verdict = judge(windows, holder)
                print(f"\n{report.goals(verdict)}")
                if side == "penstock":
                    goals += verdict
    print(f"\n{sum(goal.met is False for goal in goals)} of {len(goals)} goals missed")
    report.write_json(path, goals, {"plan": asdict(plan), "windows": results})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.xmin", description=__doc__)
    parser.add_argument("--holder", choices=(*HOLDERS, "all"), default="all", help="what holds back vacuum")
    parser.add_argument("--seconds", type=int, default=Plan().seconds, help="for each holder (120)")
    parser.add_argument("--rate", type=int, default=Plan().rate, help="messages published a second (2000)")
    parser.add_argument("--idle", type=int, default=Plan().idle, help="messages in the second queue (200000)")
    parser.add_argument(
        "--also-reference", action="store_true", help="the same load on the hand-rolled queue"
    )
    parser.add_argument(
        "--profile", action="store_true", help="print the time of each statement in our functions"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    given = parser.parse_args()
    holders = tuple(HOLDERS) if given.holder == "all" else (given.holder,)
    sides = ("penstock", "reference") if given.also_reference else ("penstock",)
    plan = Plan(seconds=given.seconds, rate=given.rate, idle=given.idle, profile=given.profile)
    run(plan, holders, sides, given.json)


if __name__ == "__main__":
    main()
