"""One case: a call, what grows, the law that its cost follows, and how to measure the cost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg

Connection = psycopg.Connection[Any]
Cost = Literal["blocks", "milliseconds", "locks"]

ROUNDS = 3
"""A time is the least of so many."""


@dataclass(frozen=True, slots=True)
class Case:
    """A call whose cost may grow by a factor of `most` at the most between the two sizes.

    `build` makes a database of the given size. The database is empty before, with the schema.
    `call` is one statement, run in a transaction that is rolled back; `{size}` in it is the size, `{base}`
    the last id that was drawn before `build`.
    """

    name: str
    """The call, as the page about costs names it: "get_message() of a ready message"."""
    grows: str
    """What grows: "messages ready in the queue"."""
    law: str
    """The law of the cost: "constant", "linear"."""
    build: Callable[[Connection, int], None]
    call: str
    sizes: tuple[int, int]
    most: float
    cost: Cost = "blocks"
    warm: int = 1
    """How often the call runs before. From the sixth run on PostgreSQL may use a generic plan."""

    holds_vacuum_back: bool = False
    """Whether the cost counts with dead rows: an old snapshot keeps them while the database is built."""

    def measure(self, connection: Connection, size: int, base: int = 0) -> float:
        """The cost of the call in a database that was built with this size."""
        statement = self.call.format(size=size, base=base)
        for _ in range(self.warm):
            with connection.transaction(force_rollback=True):
                connection.execute(statement.encode())
        return _MEASURES[self.cost](connection, statement)


@contextmanager
def old_snapshot(dsn: str) -> Iterator[None]:
    """A session with a snapshot, which holds back vacuum while the block runs."""
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select 1 from penstock.queues")
        yield
        connection.rollback()


def _blocks(connection: Connection, statement: str) -> float:
    with connection.transaction(force_rollback=True):
        explain = f"explain (analyze, buffers, timing off, format json) {statement}"
        row = connection.execute(explain.encode()).fetchone()
    assert row is not None
    plan = (row[0] if isinstance(row[0], list) else json.loads(row[0]))[0]["Plan"]
    return float(sum(plan[f"{kind} Blocks"] for kind in ("Shared Hit", "Shared Read")))


def _milliseconds(connection: Connection, statement: str) -> float:
    times = []
    for _ in range(ROUNDS):
        with connection.transaction(force_rollback=True):
            started = _clock(connection)
            connection.execute(statement.encode())
            times.append(1000 * (_clock(connection) - started))
    return min(times)


def _clock(connection: Connection) -> float:
    """The processor time of the server process, because other tests run meanwhile; else the time of day."""
    schedstat = Path(f"/proc/{connection.info.backend_pid}/schedstat")
    return int(schedstat.read_text().split()[0]) / 1e9 if schedstat.exists() else time.perf_counter()


def _locks(connection: Connection, statement: str) -> float:
    """The entries that the call leaves in the table of locks until its transaction ends."""
    with connection.transaction(force_rollback=True):
        connection.execute(statement.encode())
        row = connection.execute("select count(*) from pg_locks where pid = pg_backend_pid()").fetchone()
    assert row is not None
    return float(row[0])


_MEASURES: dict[Cost, Callable[[Connection, str], float]] = {
    "blocks": _blocks,
    "milliseconds": _milliseconds,
    "locks": _locks,
}
