"""Publishers of every kind, consumers that do all they may, and a floor raised as often as possible.

What publishers committed and what consumers acked is written down here, outside of the database.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.errors import SerializationFailure

from tests.conftest import Connect
from tests.isolation.invariants import broken_floors

Connection = psycopg.Connection[Any]
Job = Callable[[Connection], None]

TOPIC = "t"
OF_TOPIC = ("one", "two")
# A queue that has no tenants gives ranks in another way.
PLAIN = "plain"
QUEUES = (*OF_TOPIC, PLAIN)
TENANTS = (None, "acme")
# Longer than the minute after which everything is looked through for leases that ran out.
STALL_SECONDS = 100

SEND = "select * from penstock.send_messages(%s, %s, tenant => %s, priority => %s)"
SEND_KEYED = "select * from penstock.send_messages(%s, %s, tenant => %s, priority => %s, dedup_keys => %s)"
SEND_DELAYED = (
    "select * from penstock.send_messages(%s, %s, tenant => %s, priority => %s,"
    " deliver_after => penstock.clock() + interval '20 milliseconds')"
)
PUBLISH = "select * from penstock.publish_messages(%s, %s, tenant => %s, priority => %s)"
CLAIM = """
select message_id, consumer_token
from penstock.consume_messages_batch(%s, vt_seconds => %s, batch_size => %s)
"""
ACK = "select * from penstock.ack_messages(%s, %s, %s)"
UNFINISHED = """
select count(*) from (
    select from penstock.ready union all select from penstock.scheduled union all select from penstock.active
    union all select from penstock.dead
) m
"""
NEWEST = "select distinct on (queue_id) queue_id, ranks from penstock.floors order by queue_id, tick desc"


@dataclass(slots=True)
class Record:
    """What happened, as the clients saw it."""

    committed: set[tuple[str, int]] = field(default_factory=set)
    acked: Counter[tuple[str, int]] = field(default_factory=Counter)
    raised: int = 0
    violations: list[str] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    guard: threading.Lock = field(default_factory=threading.Lock)


class Stress:
    """A load on a database of its own."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._publishing = threading.Event()
        self._running = threading.Event()
        self._over = threading.Event()
        self._numbers = iter(range(1, 1 << 60))
        self.record = Record()

    def run(self, seconds: float) -> Record:
        """For so many seconds, or until something does not hold; then until all messages are acked."""
        owner = self._connect()
        owner.execute("select penstock.create_topic(%s)", (TOPIC,))
        for queue in QUEUES:
            owner.execute(
                "select penstock.create_queue(%s, %s, max_delivery_attempts => 0, notify => false)",
                (queue, TOPIC if queue in OF_TOPIC else None),
            )
        self._publishing.set()
        self._running.set()
        publishers = self._start(
            [
                self._publish("read committed"),
                self._publish("repeatable read"),
                self._publish("serializable"),
                self._publish_in_savepoints,
                self._publish_prepared,
            ]
        )
        others = self._start(
            [
                *[self._consume] * 3,
                self._revive,
                *[self._raise_floor] * 2,
                *[self._maintain] * 2,
                self._check,
            ]
        )
        self._over.wait(seconds)
        self._publishing.clear()
        for thread in publishers:
            thread.join()
        self._drain(owner)
        self._running.clear()
        for thread in others:
            thread.join()
        return self.record

    def lost(self) -> set[tuple[str, int]]:
        return self.record.committed - self.record.acked.keys()

    def _start(self, jobs: Sequence[Job]) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._guarded, args=(job, self._connect())) for job in jobs]
        for thread in threads:
            thread.start()
        return threads

    def _guarded(self, job: Job, connection: Connection) -> None:
        try:
            job(connection)
        except BaseException as failure:
            self.record.failures.append(failure)
            self._over.set()

    def _drain(self, owner: Connection) -> None:
        """Waits until nothing is left to ack, or nothing is acked any more, or something is wrong anyway."""
        acked, since = 0, time.monotonic()
        while time.monotonic() < since + STALL_SECONDS and not self._over.wait(0.05):
            if owner.execute(UNFINISHED).fetchone() == (0,):
                return
            if len(self.record.acked) != acked:
                acked, since = len(self.record.acked), time.monotonic()

    def _publish(self, isolation: str) -> Job:
        def publish(connection: Connection) -> None:
            while self._publishing.is_set():
                connection.execute(f"begin isolation level {isolation}")
                if random.random() < 0.5:
                    linger(connection)
                try:
                    sent = self._send(connection)
                    if random.random() < 0.5:
                        linger(connection)
                    if random.random() < 0.1:
                        connection.execute("rollback")
                        continue
                    connection.execute("commit")
                except SerializationFailure:
                    connection.execute("rollback")
                    continue
                self.record.committed.update(sent)

        return publish

    def _publish_in_savepoints(self, connection: Connection) -> None:
        while self._publishing.is_set():
            isolation = random.choice(["read committed", "repeatable read"])
            connection.execute(f"begin isolation level {isolation}")
            sent = []
            try:
                for _ in range(3):
                    connection.execute("savepoint s")
                    inside = self._send(connection)
                    if random.random() < 0.5:
                        connection.execute("rollback to s")
                        linger(connection)
                    else:
                        connection.execute("release s")
                        sent += inside
                connection.execute("commit")
            except SerializationFailure:
                connection.execute("rollback")
                continue
            self.record.committed.update(sent)

    def _publish_prepared(self, connection: Connection) -> None:
        while self._publishing.is_set():
            isolation = random.choice(["read committed", "repeatable read", "serializable"])
            name = f"prepared {next(self._numbers)}"
            connection.execute(f"begin isolation level {isolation}")
            try:
                sent = self._send(connection)
                connection.execute(f"prepare transaction '{name}'")
            except SerializationFailure:
                connection.execute("rollback")
                continue
            linger(connection)
            if random.random() < 0.2:
                connection.execute(f"rollback prepared '{name}'")
            else:
                connection.execute(f"commit prepared '{name}'")
                self.record.committed.update(sent)

    def _send(self, connection: Connection) -> list[tuple[str, int]]:
        """Messages to one queue, now, later or with keys, or by topic to both."""
        n = random.choice([1, 3, 20])
        queue = random.choice(QUEUES)
        tenant = None if queue == PLAIN else random.choice(TENANTS)
        options = ("{" + ",".join("1" * n) + "}", tenant, random.choice([1, 2]))
        match random.randrange(5):
            case 0:
                ids = connection.execute(SEND_DELAYED, (queue, *options)).fetchall()
            case 1:
                keys = [random.choice("abc"), *[None] * (n - 1)]
                ids = connection.execute(SEND_KEYED, (queue, *options, keys)).fetchall()
            case 2:
                ids = connection.execute(PUBLISH, (TOPIC, *options)).fetchall()
                return [(each, row[0]) for row in ids for each in OF_TOPIC]
            case _:
                ids = connection.execute(SEND, (queue, *options)).fetchall()
        return [(queue, row[0]) for row in ids]

    def _consume(self, connection: Connection) -> None:
        while self._running.is_set():
            queue = random.choice(QUEUES)
            draining = not self._publishing.is_set()
            if not draining and random.random() < 0.05:
                # So that the queues are short at times, and long at others.
                linger(connection, 1)
            how = (
                "ack"
                if draining
                else random.choice(["ack"] * 12 + ["abandon", "roll back", "fail", "fail", "linger"])
            )
            connection.execute("begin")
            rows = connection.execute(
                CLAIM, (queue, 1 if how == "abandon" else 60, random.choice([1, 10, 50]))
            ).fetchall()
            if how == "roll back":
                linger(connection)
                connection.execute("rollback")
                continue
            if how == "linger":
                linger(connection)
            if random.random() < 0.5:
                connection.execute("commit; begin")
            if how == "fail":
                fail(connection, queue, rows)
            if how in ("ack", "linger"):
                ids, tokens = [row[0] for row in rows], [row[1] for row in rows]
                acked = connection.execute(ACK, (queue, ids, tokens)).fetchall()
            else:
                acked = []
            connection.execute("commit")
            with self.record.guard:
                self.record.acked.update((queue, row[0]) for row in acked)

    def _revive(self, connection: Connection) -> None:
        while self._running.is_set():
            queue = random.choice(QUEUES)
            isolation = random.choice(["read committed", "repeatable read"])
            connection.execute(f"begin isolation level {isolation}")
            linger(connection)
            try:
                connection.execute("select penstock.requeue_dlq_messages(%s)", (queue,))
                connection.execute("commit")
            except SerializationFailure:
                connection.execute("rollback")

    def _raise_floor(self, connection: Connection) -> None:
        while self._running.is_set():
            for queue in QUEUES:
                row = connection.execute("select penstock.raise_floor(%s)", (queue,)).fetchone()
                with self.record.guard:
                    self.record.raised += row == (True,)

    def _maintain(self, connection: Connection) -> None:
        while self._running.is_set():
            connection.execute("select * from penstock.maintain()")

    def _check(self, connection: Connection) -> None:
        highest: dict[int, list[int]] = {}
        while self._running.is_set():
            self.record.violations += broken_floors(connection)
            for queue, ranks in connection.execute(NEWEST).fetchall():
                if any(new < old for new, old in zip(ranks, highest.get(queue, ranks), strict=True)):
                    self.record.violations.append(f"floor of {queue} sank from {highest[queue]} to {ranks}")
                highest[queue] = ranks
            if self.record.violations:
                self._over.set()
                return


def linger(connection: Connection, most_seconds: float = 0.03) -> None:
    connection.execute("select pg_sleep(%s)", (random.random() * most_seconds,))


def fail(connection: Connection, queue: str, rows: list[tuple[Any, ...]]) -> None:
    """Gives messages back in one of the ways there are."""
    for message, token in rows:
        statement = random.choice(
            [
                "select penstock.nack_message(%s, %s, %s, 0)",
                "select penstock.nack_message(%s, %s, %s, 1)",
                "select penstock.release_message(%s, %s, %s)",
                "select penstock.reject_message(%s, %s, %s)",
            ]
        )
        connection.execute(statement, (queue, message, token))
