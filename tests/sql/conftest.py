"""Databases that are emptied rather than made anew, a clock that tests move, and a house full of messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql as composed
from psycopg.pq import TransactionStatus

from penstock.embedded import Server

from ..conftest import Servers, connections
from .engine import Engine

# All rows but those of the installer, the days that a test had made, what it had set for the database.
EMPTY = """
do $empty$
declare
    name text;
begin
    for name in
        select c.relname from pg_class c
        where c.relnamespace = 'penstock'::regnamespace and c.relkind = 'r'
            and c.relname ~ '^(done|history_[0-9])_[0-9]+$'
    loop
        execute format('drop table penstock.%I', name);
    end loop;
    -- In the order of names: queues before topics.
    for name in
        select c.relname from pg_class c
        where c.relnamespace = 'penstock'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
            and c.relname not in ('migrations', 'installation')
        order by c.relname
    loop
        execute format('delete from penstock.%I', name);
    end loop;
    insert into penstock.upkeep values ('-infinity');
    for name in
        select c.relname from pg_class c where c.relnamespace = 'penstock'::regnamespace and c.relkind = 'S'
    loop
        perform setval(format('penstock.%I', name), 1, false);
    end loop;
    execute format('alter database %I reset all', current_database());
end
$empty$
"""

MOVABLE_CLOCK = """
create or replace function penstock.clock() returns timestamptz language sql volatile as $$
    select clock_timestamp()
        + coalesce(nullif(current_setting('penstock.clock_offset', true), ''), '0')::interval
$$
"""


def drop_days(engine: Engine, clock: Clock) -> int:
    """Let maintain() drop days. Autovacuum may hold one: then a call of the next minute drops it."""
    for _ in range(50):
        if dropped := engine.maintain().get("days dropped"):
            return dropped
        time.sleep(0.1)
        clock.advance(61)
    return 0


class Clock:
    """Moves the time of the engine, for one connection, those that join, and all that are opened later.

    The engine reads time through penstock.clock() only: its body is replaced by one that adds an offset.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connections = [connection]
        self._offset = timedelta()
        rows = connection.execute("select pg_get_functiondef('penstock.clock()'::regprocedure)").fetchall()
        self._original: str = rows[0][0]
        connection.execute(MOVABLE_CLOCK)

    def join(self, connection: psycopg.Connection[Any]) -> None:
        """Moves another connection, too."""
        self._connections.append(connection)
        self._set(connection)

    def advance(self, seconds: float) -> None:
        """Time goes on by so many seconds, at once; back, if negative."""
        self._offset += timedelta(seconds=seconds)
        for connection in self._connections:
            self._set(connection)
        first = self._connections[0]
        first.execute(
            composed.SQL("alter database {} set penstock.clock_offset = {}").format(
                composed.Identifier(first.info.dbname), composed.Literal(self._text)
            )
        )

    def now(self) -> datetime:
        return datetime.now(UTC) + self._offset

    def restore(self) -> None:
        """Gives the engine its own clock back."""
        self._connections[0].execute(self._original.encode())

    @property
    def _text(self) -> str:
        return f"{self._offset.total_seconds()} seconds"

    def _set(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute("select set_config('penstock.clock_offset', %s, false)", (self._text,))


class Emptied:
    """One database for each server, emptied before each test: a fresh one takes a hundred times as long."""

    def __init__(self, servers: Servers, stack: ExitStack) -> None:
        self._servers = servers
        self._stack = stack
        self._dsns: dict[int, str] = {}
        self._cleaners: dict[int, psycopg.Connection[Any]] = {}

    def get(self, server: Server) -> str:
        version = server.version
        if version not in self._dsns:
            dsn = self._stack.enter_context(self._servers.database(server))
            self._dsns[version] = dsn
            self._cleaners[version] = self._stack.enter_context(psycopg.connect(dsn, autocommit=True))
        self._cleaners[version].execute(EMPTY)
        return self._dsns[version]


class Lent:
    """Sessions for each database, lent to one test after the other.

    A new one reads the catalog and compiles and plans each function again: four times the work of the test.
    """

    RESET = """
        reset session authorization; reset role; reset all; close all; discard temp; discard sequences;
        select pg_advisory_unlock_all()
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._idle: dict[str, list[psycopg.Connection[Any]]] = {}

    @contextmanager
    def to_a_test(self, dsn: str) -> Iterator[psycopg.Connection[Any]]:
        connection = self._pop(dsn)
        if connection is None:
            connection = psycopg.connect(dsn, autocommit=True)
            self._stack.callback(connection.close)
        try:
            yield connection
        finally:
            if self._is_as_new(connection):
                connection.execute(self.RESET)
                self._idle.setdefault(dsn, []).append(connection)
            else:
                connection.close()

    def _pop(self, dsn: str) -> psycopg.Connection[Any] | None:
        """The session that was used last, since it has met most of the schema."""
        idle = self._idle.get(dsn, [])
        while idle:
            connection = idle.pop()
            if self._answers(connection):
                return connection
        return None

    def _answers(self, connection: psycopg.Connection[Any]) -> bool:
        try:
            connection.execute("select")
        except psycopg.OperationalError:
            connection.close()  # a test has ended all sessions
            return False
        return True

    def _is_as_new(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether a reset undoes all that the test did: not so where notifications may be on their way."""
        if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
            return False
        if connection._notice_handlers or connection._notify_handlers or not connection.autocommit:
            return False
        try:
            return connection.execute("select pg_listening_channels()").fetchall() == []
        except psycopg.OperationalError:
            return False  # the test has ended the session


@pytest.fixture(scope="session")
def lent() -> Iterator[Lent]:
    with ExitStack() as stack:
        yield Lent(stack)


@pytest.fixture
def sql(lent: Lent, database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the test's database. The tests before have used it; `connect` opens new ones."""
    with lent.to_a_test(database) as connection:
        yield connection


@pytest.fixture
def sql18(lent: Lent, database18: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the test's database, on 18 only. The tests before have used it."""
    with lent.to_a_test(database18) as connection:
        yield connection


@pytest.fixture(scope="session")
def emptied(servers: Servers) -> Iterator[Emptied]:
    with ExitStack() as stack:
        yield Emptied(servers, stack)


@pytest.fixture
def database(emptied: Emptied, server: Server) -> str:
    """The DSN of a database with the schema and nothing else in it."""
    return emptied.get(server)


@pytest.fixture
def database18(emptied: Emptied, server18: Server) -> str:
    """The DSN of a database with the schema and nothing else in it, on 18 only."""
    return emptied.get(server18)


@pytest.fixture
def engine(sql: psycopg.Connection[Any]) -> Engine:
    """The SQL API, on an empty database."""
    return Engine(sql)


@pytest.fixture
def engine18(sql18: psycopg.Connection[Any]) -> Engine:
    """The SQL API, on an empty database, on 18 only."""
    return Engine(sql18)


@pytest.fixture
def clock(sql: psycopg.Connection[Any]) -> Iterator[Clock]:
    """Time that can be moved, for the connection `sql`."""
    clock = Clock(sql)
    yield clock
    clock.restore()


@pytest.fixture
def clock18(sql18: psycopg.Connection[Any]) -> Iterator[Clock]:
    """Time that can be moved, for the connection `sql18`."""
    clock = Clock(sql18)
    yield clock
    clock.restore()


# The messages of queue billing in the furnished house, by the state they are in.
ACTIVE, DEAD, DONE, SCHEDULED, READY = 1000, 2000, 3000, 4000, 5000


def furnish(engine: Engine) -> None:
    """Something of everything: what a refused call might have broken."""
    engine.topic("orders", "billing", "audit")
    engine.queue("mail")
    engine.queue("limited", max_payload_bytes=2000)
    engine.queue("session", exclusive=True, keep_alive_seconds=86400)
    engine.queue("paused")
    engine.send("paused")
    engine.value("pause_queue", "paused")

    def publish(expected_id: int, payload: str, **options: Any) -> None:
        engine.query("select setval('penstock.message_ids', %s, false)", expected_id)
        assert engine.publish("orders", {payload: True}, **options) == expected_id

    publish(ACTIVE, "active")
    engine.take("billing", "worker", vt_seconds=86400)
    publish(DEAD, "dead")
    engine.reject(engine.take("billing", "worker"), error="broken")
    publish(DONE, "done")
    engine.ack(engine.take("billing", "worker"))
    publish(SCHEDULED, "scheduled", deliver_after=engine.now() + timedelta(days=1))
    publish(READY, "ready", tenant="acme", dedup_key="held")
    engine.send("mail", "x" * 5000)
    assert engine.states("billing") == {
        ACTIVE: "active",
        DEAD: "dead",
        DONE: "done",
        SCHEDULED: "scheduled",
        READY: "ready",
    }


class Houses:
    """One furnished database for each server, for tests that leave all as it was."""

    def __init__(self, servers: Servers, stack: ExitStack) -> None:
        self._servers = servers
        self._stack = stack
        self._houses: dict[int, Engine] = {}

    def get(self, server: Server) -> Engine:
        if server.version not in self._houses:
            connect = self._stack.enter_context(
                connections(self._stack.enter_context(self._servers.database(server)))
            )
            house = Engine(connect())
            furnish(house)
            self._houses[server.version] = house
        return self._houses[server.version]


@pytest.fixture(scope="session")
def houses(servers: Servers) -> Iterator[Houses]:
    with ExitStack() as stack:
        yield Houses(servers, stack)


@pytest.fixture
def house(houses: Houses, server: Server) -> Iterator[Engine]:
    """A database with something of everything in it. Whatever a test does there is rolled back."""
    engine = houses.get(server)
    with engine.connection.transaction(force_rollback=True):
        yield engine
