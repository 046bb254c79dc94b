"""What caps and tenants cost a send, a claim and an ack: `make bench-caps`.

Queues that differ in one thing, in one database, by turns on one connection: with and without `max_active`,
each with 10,000 messages active beside; with what waits of one tenant, of 10,000, and of one where 10,000
others were served before. Then the same once more, after thousands of messages went through each of them
while a transaction held back vacuum.

Measured is the processor time of the server's process for each call, and the least of several slices counts:
the machine may be busy with other things. Where that cannot be read (the server is elsewhere), it is the time
that a call took.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from bench import report
from bench.report import Goal
from bench.server import host

CONSUMER = "me"
BATCHES = (1, 10, 100)
CALLS_IN_A_SLICE = {1: 40, 10: 20, 100: 8}
TENANTS = [f"tenant {n}" for n in range(10_000)]
CAP = ", max_active => 40000, min_active => 0, priority_shares => '{10,10,70,10}'"


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue that is compared with another."""

    name: str
    what: str
    settings: str = ""
    tenants: tuple[str, ...] = ()
    """Those that the calls send messages of, one for each call."""


PLAIN = Queue("plain", "no cap")
CAPPED = Queue("capped", "max_active", CAP)
ONE = Queue("one", "one tenant", tenants=("tenant 0",))
MANY = Queue("many", "10,000 tenants", tenants=tuple(TENANTS))
DRAINED = Queue("drained", "one, 10,000 drained", tenants=("tenant 0",))
QUEUES = (PLAIN, CAPPED, ONE, MANY, DRAINED)


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds for each call, in a phase."""

    phase: str
    queue: str
    batch: int
    send: float
    claim: float
    ack: float


class Meter:
    """One connection, and the processor time of its server process."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute("set synchronous_commit = off")
        self._schedstat = Path(f"/proc/{self.connection.info.backend_pid}/schedstat")

    def spent(self) -> float:
        """Seconds."""
        try:
            return int(self._schedstat.read_text().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            return time.perf_counter()

    def rows(self, sql: str, *parameters: Any) -> list[Any]:
        return self.connection.execute(sql, parameters, prepare=True).fetchall()

    def send(self, queue: Queue, number: int, tenant: str | None) -> None:
        send = "select count(*) from penstock.send_messages(%s, %s::jsonb[], tenant => %s::text)"
        self.rows(send, queue.name, ['{"n": 1}'] * number, tenant)

    def claim(self, queue: Queue, number: int) -> list[int]:
        claim = "select message_id from penstock.consume_messages_batch(%s, %s, 3600, %s::int)"
        return [message_id for (message_id,) in self.rows(claim, queue.name, CONSUMER, number)]

    def ack(self, queue: Queue, ids: list[int]) -> None:
        ack = "select count(*) from penstock.ack_messages(%s, %s, %s::text[])"
        self.rows(ack, queue.name, ids, [CONSUMER] * len(ids))


def prepare(meter: Meter, size: int) -> None:
    """So many active in the queues with and without a cap, five times that waiting in those of tenants."""
    for queue in QUEUES:
        create = f"select penstock.create_queue(%s, retain_completed_seconds => 0{queue.settings})"
        meter.rows(create, queue.name)
    for queue in (PLAIN, CAPPED):
        meter.send(queue, size, None)
        assert len(meter.claim(queue, size)) == size
    for _ in range(5):
        meter.send(ONE, size, ONE.tenants[0])
    send = "select count(*) from penstock.send_messages(%s, %s::jsonb[], tenants => %s::text[])"
    served = [tenant for tenant in TENANTS for _ in range(2)]
    for start in range(0, len(served), 10_000):
        some = served[start : start + 10_000]
        meter.rows(send, DRAINED.name, ['{"n": 1}'] * len(some), some)
        meter.ack(DRAINED, meter.claim(DRAINED, len(some)))
    for n in range(5):
        some = [TENANTS[(n * size + m) % len(TENANTS)] for m in range(size)]
        meter.rows(send, MANY.name, ['{"n": 1}'] * size, some)
        meter.send(DRAINED, size, DRAINED.tenants[0])
    meter.rows("select * from penstock.maintain()")


def slices(meter: Meter, phase: str, rounds: int) -> Iterator[Cost]:
    """By turns through all queues; what is sent is claimed and acked, so that what waits stays as it is."""
    chosen = random.Random(7)
    for _ in range(rounds):
        for queue in QUEUES:
            for batch in BATCHES:
                calls = CALLS_IN_A_SLICE[batch]
                tenants = [chosen.choice(queue.tenants) if queue.tenants else None for _ in range(calls)]
                marks = [meter.spent()]
                for tenant in tenants:
                    meter.send(queue, batch, tenant)
                marks.append(meter.spent())
                claimed = [meter.claim(queue, batch) for _ in tenants]
                marks.append(meter.spent())
                for ids in claimed:
                    meter.ack(queue, ids)
                marks.append(meter.spent())
                assert sum(map(len, claimed)) == calls * batch
                send, claim, ack = (1e6 * (marks[n + 1] - marks[n]) / calls for n in range(3))
                yield Cost(phase, queue.what, batch, send, claim, ack)
        meter.rows("select * from penstock.maintain()")


def least(costs: Sequence[Cost]) -> list[Cost]:
    """The best slice of each queue and batch."""
    found = {(cost.phase, cost.queue, cost.batch) for cost in costs}
    return [
        Cost(*key, *(min(getattr(c, call) for c in same) for call in ("send", "claim", "ack")))
        for key in sorted(found, key=lambda key: (key[0], [q.what for q in QUEUES].index(key[1]), key[2]))
        for same in [[c for c in costs if (c.phase, c.queue, c.batch) == key]]
    ]


@contextmanager
def vacuum_held_back(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from penstock.queues")
        yield
        holder.rollback()


def measure(dsn: str, size: int, rounds: int) -> list[Cost]:
    meter = Meter(dsn)
    prepare(meter, size)
    meter.connection.execute("vacuum analyze")
    costs = list(slices(meter, "vacuum runs", rounds))
    with vacuum_held_back(dsn):
        for _ in slices(meter, "not counted", 4 * rounds):
            pass
        costs += slices(meter, "vacuum held back", rounds)
    return least(costs)


def goals(costs: Sequence[Cost]) -> list[Goal]:
    def worst(call: str, base: Queue, other: Queue, batch: int) -> float:
        """The ratio of one to the other, the worse of the two phases."""

        def of(queue: Queue, phase: str) -> float:
            key = (phase, queue.what, batch)
            return float(next(getattr(c, call) for c in costs if (c.phase, c.queue, c.batch) == key))

        return max(of(other, phase) / of(base, phase) for phase in {c.phase for c in costs})

    found = []
    for batch in BATCHES:
        found.append(
            report.at_most(f"claim of {batch}, max_active", worst("claim", PLAIN, CAPPED, batch), 2.0)
        )
        for queue in (MANY, DRAINED):
            for call in ("claim", "send"):
                ratio = worst(call, ONE, queue, batch)
                found.append(report.at_most(f"{call} of {batch}, {queue.what}", ratio, 1.3))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer messages and rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    arguments = parser.parse_args()
    print(report.load())
    with host(count_statements=False) as server:
        size, rounds = (2_000, 3) if arguments.quick else (10_000, 12)
        costs = measure(server.database("caps"), size, rounds)
    head = ("", "queue", "batch", "send us", "claim us", "ack us")
    print(
        report.table(
            head,
            [
                (c.phase, c.queue, str(c.batch), *(report.count(v) for v in (c.send, c.claim, c.ack)))
                for c in costs
            ],
        )
    )
    found = goals(costs)
    print(report.goals(found))
    report.write_json(arguments.json, found, {"costs": [asdict(cost) for cost in costs]})


if __name__ == "__main__":
    main()
