"""A mixed load that survives the death of its connections, and writes down what it was told."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg

from tests.isolation.session import MOVABLE_CLOCK

Connection = psycopg.Connection[Any]
Job = Callable[[Connection], None]

QUEUE = "q"
LEASE_SECONDS = 1
PATIENCE_SECONDS = 30

SEND = "select * from penstock.send_messages(%s, %s)"
CLAIM = """
select message_id, delivery_attempts, consumer_token, vt, clock_timestamp()
from penstock.consume_messages_batch(%s, vt_seconds => %s, batch_size => %s)
"""
ACK = "select * from penstock.ack_messages(%s, %s, %s)"
NACK = "select penstock.nack_message(%s, %s, %s, 0)"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as a consumer got it, not later than when by the database's clock."""

    message: int
    attempt: int
    token: str
    vt: datetime
    claimed_by: datetime


@dataclass(slots=True)
class Record:
    """What the clients were answered. Where a connection died before the answer, the outcome is unknown."""

    committed: set[int] = field(default_factory=set)
    maybe_committed: set[int] = field(default_factory=set)
    deliveries: list[Delivery] = field(default_factory=list)
    acked: set[Delivery] = field(default_factory=set)
    maybe_acked: set[Delivery] = field(default_factory=set)
    given_back: set[Delivery] = field(default_factory=set)
    deaths: int = 0
    failures: list[BaseException] = field(default_factory=list)


class Load:
    """Publishers, consumers and maintenance, each in a thread, connecting anew whenever a connection dies."""

    def __init__(self, dsn: Callable[[], str]) -> None:
        self._dsn = dsn
        self._over = threading.Event()
        self._news = threading.Condition()
        self.record = Record()

    def prepare(self) -> None:
        with psycopg.connect(self._dsn(), autocommit=True) as connection:
            connection.execute(MOVABLE_CLOCK)
            connection.execute("select penstock.create_queue(%s, max_delivery_attempts => 0)", (QUEUE,))

    @contextmanager
    def running(self) -> Iterator[None]:
        jobs: list[Job] = [*[self._publish] * 3, *[self._consume] * 3, self._maintain]
        threads = [threading.Thread(target=self._keep_up, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def progress(self, *, sent: int = 0, acked: int = 0, deaths: int = 0) -> Callable[[Record], bool]:
        """That so much more than now has happened."""
        now = (len(self.record.committed), len(self.record.acked), self.record.deaths)

        def done(record: Record) -> bool:
            then = (len(record.committed), len(record.acked), record.deaths)
            return all(b >= a + n for a, b, n in zip(now, then, (sent, acked, deaths), strict=True))

        return done

    def wait_for(self, done: Callable[[Record], bool]) -> None:
        with self._news:
            finished = self._news.wait_for(
                lambda: self.record.failures or done(self.record), PATIENCE_SECONDS
            )
        assert self.record.failures == []
        assert finished, f"no progress: {len(self.record.committed)} sent, {len(self.record.acked)} acked"

    def drain(self) -> None:
        """Acks all that is left, an hour later, when no lease holds any more."""
        with psycopg.connect(self._dsn(), autocommit=True) as connection:
            connection.execute("set penstock.clock_offset = '1 hour'")
            while rows := connection.execute(CLAIM, (QUEUE, 3600, 1000)).fetchall():
                connection.execute(ACK, (QUEUE, [row[0] for row in rows], [row[2] for row in rows]))

    def _keep_up(self, job: Job) -> None:
        while not self._over.is_set():
            try:
                with psycopg.connect(self._dsn(), autocommit=True, connect_timeout=5) as connection:
                    while not self._over.is_set():
                        job(connection)
            except psycopg.OperationalError:
                self._tell(deaths=1)
                self._over.wait(0.01)
            except BaseException as failure:
                self.record.failures.append(failure)
                self._tell()
                raise

    def _publish(self, connection: Connection) -> None:
        n = random.choice([1, 3, 10])
        connection.execute("begin")
        ids = [row[0] for row in connection.execute(SEND, (QUEUE, "{" + ",".join("1" * n) + "}"))]
        if random.random() < 0.1:
            connection.execute("rollback")
            return
        try:
            connection.execute("commit")
        except psycopg.OperationalError:
            self._tell(maybe_committed=ids)
            raise
        self._tell(committed=ids)
        # Some thousand messages are enough.
        self._over.wait(random.random() * 0.01)

    def _consume(self, connection: Connection) -> None:
        match random.randrange(10):
            case 0 | 1 | 2:
                self._consume_in_one_transaction(connection)
            case 3:
                # A consumer that is never heard of again: its messages come back when their leases end.
                self._claim(connection)
            case 4:
                for delivery in self._claim(connection):
                    self._tell(given_back=[delivery])
                    connection.execute(NACK, (QUEUE, delivery.message, delivery.token))
            case _:
                self._ack(connection, self._claim(connection))

    def _claim(self, connection: Connection) -> list[Delivery]:
        batch = random.choice([1, 10, 50])
        rows = connection.execute(CLAIM, (QUEUE, LEASE_SECONDS, batch)).fetchall()
        deliveries = [Delivery(*row) for row in rows]
        self._tell(deliveries=deliveries)
        if not deliveries:
            self._over.wait(0.005)
        return deliveries

    def _ack(self, connection: Connection, deliveries: list[Delivery]) -> None:
        by_id = {delivery.message: delivery for delivery in deliveries}
        try:
            rows = connection.execute(ACK, (QUEUE, list(by_id), [d.token for d in by_id.values()])).fetchall()
        except psycopg.OperationalError:
            self._tell(maybe_acked=deliveries)
            raise
        self._tell(acked=[by_id[row[0]] for row in rows])

    def _consume_in_one_transaction(self, connection: Connection) -> None:
        """What was read in a transaction that is not committed was not delivered."""
        connection.execute("begin")
        rows = connection.execute(CLAIM, (QUEUE, LEASE_SECONDS, 10)).fetchall()
        deliveries = [Delivery(*row) for row in rows]
        connection.execute(ACK, (QUEUE, [d.message for d in deliveries], [d.token for d in deliveries]))
        try:
            connection.execute("commit")
        except psycopg.OperationalError:
            self._tell(maybe_acked=deliveries)
            raise
        self._tell(deliveries=deliveries, acked=deliveries)

    def _maintain(self, connection: Connection) -> None:
        connection.execute("select * from penstock.maintain()")
        self._over.wait(0.01)

    def _tell(
        self,
        *,
        committed: list[int] | None = None,
        maybe_committed: list[int] | None = None,
        deliveries: list[Delivery] | None = None,
        acked: list[Delivery] | None = None,
        maybe_acked: list[Delivery] | None = None,
        given_back: list[Delivery] | None = None,
        deaths: int = 0,
    ) -> None:
        with self._news:
            self.record.committed.update(committed or ())
            self.record.maybe_committed.update(maybe_committed or ())
            self.record.deliveries.extend(deliveries or ())
            self.record.acked.update(acked or ())
            self.record.maybe_acked.update(maybe_acked or ())
            self.record.given_back.update(given_back or ())
            self.record.deaths += deaths
            self._news.notify_all()
