"""Sessions whose steps a test interleaves by hand, as PostgreSQL's isolation tester does.

A step runs in the thread of its session. It has settled when it is done, or when it waits for a lock of
another session: that is what a test waits for, never for time to pass.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.sql import SQL, Composed, Identifier, Placeholder

from tests.conftest import Connect

Row = tuple[Any, ...]
# Lends a connection to a test.
Lend = Callable[[], AbstractContextManager[psycopg.Connection[Any]]]
Isolation = Literal["read committed", "repeatable read", "serializable"]

PATIENCE_SECONDS = 30
LONGER_THAN_ANY_LOCK_TIMEOUT_SECONDS = 2

# A session that changes a cap sleeps between two tries.
WAITS = """
select wait_event_type = 'Lock' or wait_event = 'PgSleep' from pg_stat_activity where pid = %s
"""

# Its body is inlined, as the original's is: a session moves its own time by a setting.
MOVABLE_CLOCK = """
create or replace function penstock.clock() returns timestamptz language sql volatile as $$
    select clock_timestamp()
        + coalesce(nullif(current_setting('penstock.clock_offset', true), ''), '0')::interval
$$
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """A message as its consumer got it."""

    id: int
    token: str
    attempt: int


class Step:
    """A statement on its way."""

    def __init__(
        self, pid: int, statement: str, outcome: Future[list[Row]], watcher: psycopg.Connection[Any]
    ):
        self._pid = pid
        self._statement = statement
        self._outcome = outcome
        self._watcher = watcher

    def settle(self) -> bool:
        """True when it is done, false when it waits for a lock."""
        while not wait([self._outcome], timeout=0.001).done:
            if self._watcher.execute(WAITS, (self._pid,)).fetchone() == (True,):
                return False
        return True

    def waits(self) -> Self:
        assert not self.settle(), f"did not wait: {self._statement}"
        return self

    def passes(self) -> list[Row]:
        """Its rows, if it did not wait, or not for longer than a lock_timeout of the schema."""
        waiting_since: float | None = None
        while not self._outcome.done():
            if self.settle():
                break
            waiting_since = waiting_since or time.monotonic()
            waited = time.monotonic() - waiting_since
            assert waited < LONGER_THAN_ANY_LOCK_TIMEOUT_SECONDS, f"waits for a lock: {self._statement}"
        return self.rows()

    def rows(self) -> list[Row]:
        return self._outcome.result(PATIENCE_SECONDS)

    def value(self) -> Any:
        return self.rows()[0][0]

    def error(self) -> str | None:
        """The SQLSTATE that it ended with, None where it went well."""
        exception = self._outcome.exception(PATIENCE_SECONDS)
        if exception is None:
            return None
        if isinstance(exception, psycopg.Error):
            return exception.sqlstate
        raise exception


class Session:
    """A connection with a thread of its own."""

    def __init__(self, connection: psycopg.Connection[Any], watcher: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._watcher = watcher
        self._thread = ThreadPoolExecutor(max_workers=1)
        self.pid = connection.info.backend_pid

    def close(self) -> None:
        """End what runs, and the transaction. A session that had to be interrupted is not used again."""
        if self._connection.info.transaction_status == TransactionStatus.ACTIVE:
            self._connection.cancel_safe()
            self._thread.shutdown()
            self._connection.close()
        self._thread.shutdown()
        if not self._connection.closed:
            self._connection.rollback()

    def start(self, function: str, /, *arguments: Any, **named: Any) -> Step:
        """Calls a function of the schema, without waiting for it."""
        return self.start_statement(*call(function, *arguments, **named))

    def start_statement(self, statement: str | Composed, /, *parameters: Any) -> Step:
        outcome = self._thread.submit(self._execute, statement, parameters)
        return self._step(statement, parameters, outcome)

    def attempt(self, statement: str | Composed, /, *parameters: Any, offset: str = "0") -> Step:
        """Starts a statement, at a time, in a transaction that is rolled back as soon as it is done."""
        outcome = self._thread.submit(self._attempt, statement, parameters, offset)
        return self._step(statement, parameters, outcome)

    def waits(self, function: str, /, *arguments: Any, **named: Any) -> Step:
        """Starts a call, and goes on as soon as it waits for a lock."""
        return self.start(function, *arguments, **named).waits()

    def rows(self, function: str, /, *arguments: Any, **named: Any) -> list[Row]:
        return self.start(function, *arguments, **named).rows()

    def value(self, function: str, /, *arguments: Any, **named: Any) -> Any:
        return self.start(function, *arguments, **named).value()

    def error(self, function: str, /, *arguments: Any, **named: Any) -> str | None:
        return self.start(function, *arguments, **named).error()

    def run(self, statement: str, /, *parameters: Any) -> list[Row]:
        return self.start_statement(statement, *parameters).rows()

    def begin(self, isolation: Isolation = "read committed") -> None:
        self.run(f"begin isolation level {isolation}")

    def begin_with_snapshot(self, isolation: Isolation) -> None:
        self.begin(isolation)
        self.run("select 1 from pg_class limit 1")

    def commit(self) -> None:
        self.run("commit")

    def rollback(self) -> None:
        self.run("rollback")

    def move_clock(self, offset: str) -> None:
        """From now on this session's clock is that far ahead."""
        self.run("select set_config('penstock.clock_offset', %s, false)", offset)

    def send(self, queue: str, n: int = 1, **options: Any) -> list[int]:
        payloads = "{" + ",".join(str(i) for i in range(n)) + "}"
        return [row[0] for row in self.rows("send_messages", queue, payloads, **options)]

    def claim(self, queue: str, n: int = 10, **options: Any) -> list[Claim]:
        return claims(self.rows("consume_messages_batch", queue, batch_size=n, **options))

    def ack(self, queue: str, *held: Claim) -> list[int]:
        acked = self.rows("ack_messages", queue, [c.id for c in held], [c.token for c in held])
        return [row[0] for row in acked]

    def maintain(self) -> list[Row]:
        """What maintenance did, in two calls: the chores of a minute may have a call of their own."""
        return [*self.start("maintain").passes(), *self.start("maintain").passes()]

    def _execute(self, statement: str | Composed, parameters: Row) -> list[Row]:
        cursor = self._connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description is not None else []

    def _attempt(self, statement: str | Composed, parameters: Row, offset: str) -> list[Row]:
        self._connection.execute(SQL("begin; set local penstock.clock_offset = {}").format(offset))
        try:
            return self._execute(statement, parameters)
        finally:
            self._connection.execute("rollback")

    def _step(self, statement: str | Composed, parameters: Row, outcome: Future[list[Row]]) -> Step:
        text = statement if isinstance(statement, str) else statement.as_string()
        return Step(self.pid, f"{text} {parameters}", outcome, self._watcher)


def call(function: str, /, *arguments: Any, **named: Any) -> tuple[Any, ...]:
    """The statement that calls a function of the schema, and its parameters."""
    places = [Placeholder()] * len(arguments)
    options = [SQL("{} => {}").format(Identifier(name), Placeholder()) for name in named]
    statement = SQL("select * from penstock.{}({})").format(
        Identifier(function), SQL(", ").join([*places, *options])
    )
    return statement, *arguments, *named.values()


def claims(rows: list[Row]) -> list[Claim]:
    """What consume returned: the id is its first column, token and attempt the sixth and seventh."""
    return [Claim(row[0], row[5], row[6]) for row in rows]


class Spec:
    """The sessions of one test."""

    def __init__(self, lend: Lend, stack: ExitStack, watcher: psycopg.Connection[Any]) -> None:
        self._lend = lend
        self._stack = stack
        self.watcher = watcher

    def session(self) -> Session:
        connection = self._stack.enter_context(self._lend())
        connection.execute(f"set statement_timeout = '{PATIENCE_SECONDS}s'")
        session = Session(connection, self.watcher)
        self._stack.callback(session.close)
        return session

    def sessions(self, n: int) -> list[Session]:
        return [self.session() for _ in range(n)]

    def movable_clock(self) -> None:
        self.watcher.execute(MOVABLE_CLOCK)

    def look(self, statement: str, *parameters: Any) -> list[Row]:
        """What is committed."""
        return self.watcher.execute(statement, parameters or None).fetchall()

    def states(self, queue: str) -> dict[int, str]:
        """Each message of a queue with its state."""
        return {row[0]: row[1] for row in self.look("select * from penstock.list_messages(%s)", queue)}

    def floor(self, queue: str) -> list[int]:
        """The newest floor of a queue, a rank for each priority."""
        ranks: list[int] = self.look(
            "select ranks from penstock.floors join penstock.queues on id = queue_id"
            " where name = %s order by tick desc limit 1",
            queue,
        )[0][0]
        return ranks


@contextmanager
def open_spec(connect: Connect) -> Iterator[Spec]:
    """Sessions that are new, and are closed with the connections of the test."""
    with ExitStack() as stack:
        yield Spec(lambda: nullcontext(connect()), stack, connect())


@contextmanager
def lend_spec(lend: Lend, watcher: psycopg.Connection[Any]) -> Iterator[Spec]:
    """Sessions that the tests before may have used."""
    with ExitStack() as stack:
        yield Spec(lend, stack, watcher)
