"""Threads that work on queues with caps, each on a connection of its own, and one that watches them."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import psycopg

from tests.conftest import Connect
from tests.isolation.invariants import broken

Connection = psycopg.Connection[Any]
Job = Callable[[Connection], None]
Look = Callable[[Connection], list[str]]

PATIENCE_SECONDS = 30
FEWEST_LOOKS = 10

CLAIM = """
select message_id, consumer_token
from penstock.consume_messages_batch(%s, vt_seconds => %s, batch_size => %s)
"""
ACK = "select * from penstock.ack_messages(%s, %s, %s)"
UNFINISHED = """
select count(*) from (
    select from penstock.ready union all select from penstock.scheduled union all select from penstock.active
    union all select from penstock.waiting union all select from penstock.dead
) m
"""


@dataclass(slots=True)
class Crowd:
    """Jobs that go on until they are told to stop; what one of them raises ends the test."""

    connect: Connect
    sent: Counter[tuple[str, int]] = field(default_factory=Counter)
    acked: Counter[tuple[str, int]] = field(default_factory=Counter)
    looks: int = 0
    violations: list[str] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    guard: threading.Lock = field(default_factory=threading.Lock)
    running: threading.Event = field(default_factory=threading.Event)
    draining: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.running.set()
        return self

    def __exit__(self, *_: object) -> None:
        self.running.clear()
        for thread in self.threads:
            thread.join()

    def start(self, *jobs: Job) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._guarded, args=(job, self.connect())) for job in jobs]
        for thread in threads:
            thread.start()
        self.threads += threads
        return threads

    def watch(self, look: Look) -> None:
        """Looks whether it holds again and again, and now and then at all invariants."""

        def job(connection: Connection) -> None:
            while self.running.is_set():
                self.violations += look(connection)
                if self.looks % 4 == 0:
                    self.violations += broken(connection)
                self.looks += 1
                if self.violations:
                    self.over.set()
                    return

        self.start(job)

    def go_on(self, seconds: float, until: Callable[[], bool] = lambda: True) -> None:
        """Lets it go on for so long, and then until there was enough to see."""
        self.over.wait(seconds)
        end = time.monotonic() + PATIENCE_SECONDS
        while not (self.looks > FEWEST_LOOKS and until()) and not self.over.wait(0.02):
            assert time.monotonic() < end, f"{self.looks} looks"

    def drain(self, owner: Connection) -> None:
        """Waits until nothing is left to do."""
        self.draining.set()
        end = time.monotonic() + PATIENCE_SECONDS
        while owner.execute(UNFINISHED).fetchone() != (0,) and not self.over.wait(0.02):
            assert time.monotonic() < end, f"left: {owner.execute(UNFINISHED).fetchone()}"

    def verdict(self) -> None:
        lost = self.sent.keys() - self.acked.keys()
        assert self.failures == [], self.failures
        assert self.violations == [], self.violations
        assert lost == set(), lost
        assert self.looks > FEWEST_LOOKS, self.looks

    def acknowledge(self, connection: Connection, queue: str, rows: list[tuple[Any, ...]]) -> list[int]:
        ids, tokens = [row[0] for row in rows], [row[1] for row in rows]
        return [row[0] for row in connection.execute(ACK, (queue, ids, tokens)).fetchall()]

    def note(self, queue: str, acked: list[int]) -> None:
        with self.guard:
            self.acked.update((queue, message) for message in acked)

    def consume(self, queues: list[str], vt_seconds: int = 60) -> Job:
        """Claims and settles in every way there is; while the crowd drains, it acks."""

        def job(connection: Connection) -> None:
            while self.running.is_set():
                queue = random.choice(queues)
                ways = ["ack"] * 4 + ["one transaction", "roll back", "linger", "give back", "ack rolls back"]
                way = "ack" if self.draining.is_set() else random.choice(ways)
                connection.execute("begin")
                claimed = connection.execute(CLAIM, (queue, vt_seconds, random.choice([1, 2, 10]))).fetchall()
                if way in ("roll back", "linger"):
                    linger(connection)
                if way == "roll back":
                    connection.execute("rollback")
                    continue
                if way != "one transaction":
                    connection.execute("commit")
                    connection.execute("begin")
                if way == "ack rolls back":
                    self.acknowledge(connection, queue, claimed)
                    linger(connection)
                    connection.execute("rollback")
                    connection.execute("begin")
                if way == "give back":
                    give_back(connection, queue, claimed)
                    acked = []
                else:
                    acked = self.acknowledge(connection, queue, claimed)
                connection.execute("commit")
                self.note(queue, acked)

        return job

    def _guarded(self, job: Job, connection: Connection) -> None:
        try:
            job(connection)
        except BaseException as failure:
            self.failures.append(failure)
            self.over.set()


def linger(connection: Connection, most_seconds: float = 0.01) -> None:
    connection.execute("select pg_sleep(%s)", (random.random() * most_seconds,))


def give_back(connection: Connection, queue: str, rows: list[tuple[Any, ...]]) -> None:
    for message, token in rows:
        statement = random.choice(
            [
                "select penstock.nack_message(%s, %s, %s, 0)",
                "select penstock.release_message(%s, %s, %s)",
            ]
        )
        connection.execute(statement, (queue, message, token))
