"""Whether a tenant that is always served at once starves one with a backlog.

Consumers of a fixed capacity; one tenant has a deep backlog, another wants nine tenths of what the consumers
can do. Both want more than half, so none should get less, whether claims are of 1, 10 or 100. The eager one
has three ways:

- steady: it sends a message at a time, at its rate. What it does not get piles up, so soon both have a
  backlog.
- drained: it sends nine tenths of what the consumers claim in a round, but only when all it had sent was
  claimed. So it comes to the queue each time as one that has nothing waiting.
- held: the same, while a transaction that published stays open, which keeps the queue's floor where it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import psycopg

from bench import report
from bench.load import Pool
from bench.queues import QUEUE
from bench.report import Goal
from bench.server import host
from bench.tenants import Load, Message, Send

BACKLOG, EAGER = "backlog", "eager"
BATCHES = (1, 10, 100)
WAYS = ("steady", "drained", "held")
CONSUMERS = 4
CAPACITY = 200
EAGER_SHARE = 0.9
FILL_BATCH = 1000
LEAST_SHARE = 0.45
"""A half, less what chance and the messages that are being worked on at the ends may take."""


@dataclass(frozen=True, slots=True)
class Plan:
    """For how long each size of a claim is measured."""

    seconds: int
    lead: int


@dataclass(frozen=True, slots=True)
class Shares:
    """What the tenant with the backlog got of all that was claimed."""

    way: str
    batch: int
    share: float
    lowest_tenth: float
    """In the worst of ten parts of the run: over a second, a claim of 100 leaves it to chance."""

    by_second: tuple[float | None, ...]
    """None: no consumer claimed in that second."""

    claimed_per_second: float
    eager_p50: float
    eager_p99: float

    @classmethod
    def of(cls, way: str, batch: int, messages: Sequence[Message], seconds: int) -> Shares:
        """Sum up a run."""
        claimed = Counter(
            (message.tenant, int(message.claimed))
            for message in messages
            if message.claimed is not None and 0 <= message.claimed < seconds
        )
        ours = [claimed[BACKLOG, second] for second in range(seconds)]
        both = [mine + claimed[EAGER, second] for second, mine in enumerate(ours)]
        tenth = max(1, seconds // 10)
        parts = [slice(start, start + tenth) for start in range(0, seconds, tenth)]
        waits = [m.waited(seconds) for m in messages if m.tenant == EAGER and m.published >= 0]
        return cls(
            way=way,
            batch=batch,
            share=sum(ours) / max(1, sum(both)),
            lowest_tenth=min(sum(ours[part]) / sum(both[part]) for part in parts if any(both[part])),
            by_second=tuple(mine / all_ if all_ else None for mine, all_ in zip(ours, both, strict=True)),
            claimed_per_second=sum(both) / seconds,
            eager_p50=report.percentile(waits, 0.5),
            eager_p99=report.percentile(waits, 0.99),
        )


def load(way: str, batch: int, plan: Plan) -> Load:
    """The load of one way and one size of a claim."""
    rate = EAGER_SHARE * CAPACITY
    total = plan.lead + plan.seconds
    steady = [Send(number / rate - plan.lead, EAGER) for number in range(int(total * rate))]
    return Load(
        timetables=[steady] if way == "steady" else [],
        refill=None if way == "steady" else Send(0.0, EAGER, int(EAGER_SHARE * CONSUMERS * batch)),
        refill_rate=rate,
        lead=plan.lead,
        seconds=plan.seconds,
        consumers=CONSUMERS,
        batch=batch,
        capacity=CAPACITY,
        # More than can be done: it never runs dry.
        backlog=[Send(0.0, BACKLOG, FILL_BATCH)] * (2 + total * CAPACITY // FILL_BATCH),
    )


@contextmanager
def open_publisher(dsn: str) -> Iterator[None]:
    """Publish, and keep the transaction open while the block runs."""
    with psycopg.connect(dsn) as connection:
        connection.execute("select penstock.send_message(%s, '{}', tenant => 'publisher')", (QUEUE,))
        yield
        connection.rollback()


HEAD = ("eager", "claims of", "backlog's share", "in its worst tenth", "claimed/s", "eager p50 s", "p99 s")


def row(shares: Shares) -> tuple[str, ...]:
    """A size of a claim as a line of the table."""
    return (
        shares.way,
        str(shares.batch),
        f"{shares.share:.3f}",
        f"{shares.lowest_tenth:.3f}",
        f"{shares.claimed_per_second:.1f}",
        f"{shares.eager_p50:.3f}",
        f"{shares.eager_p99:.3f}",
    )


def judge(found: Sequence[Shares]) -> list[Goal]:
    """Half for each, whatever the size of a claim."""
    busy = min(shares.claimed_per_second for shares in found) / CAPACITY
    return [
        *(
            report.at_least(
                f"share of the backlog, {shares.way}, claims of {shares.batch}", shares.share, LEAST_SHARE
            )
            for shares in found
        ),
        report.at_least("for this to count: claimed/s, of the capacity", busy, 0.95),
    ]


def run(plan: Plan, path: Path | None) -> None:
    """Measure each size of a claim, print it, and write it down where asked."""
    found: list[Shares] = []
    with host(count_statements=False) as server, Pool(1 + CONSUMERS) as pool:
        print(
            f"PostgreSQL {server.version}, {CONSUMERS} consumers for {CAPACITY} messages/s,"
            f" the eager tenant sends {EAGER_SHARE * CAPACITY:.0f}/s; {report.load()}"
        )
        for way, batch in product(WAYS, BATCHES):
            print(f"{way}, claims of {batch}: {plan.lead} + {plan.seconds} s", flush=True)
            dsn = server.database(f"greedy_{way}_{batch}")
            with open_publisher(dsn) if way == "held" else nullcontext():
                messages = load(way, batch, plan).run(pool, dsn)
            found.append(Shares.of(way, batch, messages, plan.seconds))
    goals = judge(found)
    print(f"\n{report.table(HEAD, [row(shares) for shares in found])}")
    for shares in found:
        by_second = " ".join("-" if share is None else f"{100 * share:.0f}" for share in shares.by_second)
        print(f"\n{shares.way}, claims of {shares.batch}, percent of the backlog by second: {by_second}")
    print(f"\n{report.goals(goals)}")
    report.write_json(path, goals, {"plan": asdict(plan), "shares": [asdict(shares) for shares in found]})
