"""An emptied database for each test, the SQL API to compare with, and a clock that all connections share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from penstock.embedded import Server

from ..conftest import Servers
from ..sql.conftest import Emptied, Lent
from ..sql.engine import Engine

# Unlike a setting of the session, a table moves the time of connections that are open already.
MOVABLE_CLOCK = """
create table if not exists public.moved (by interval not null);
delete from public.moved;
insert into public.moved values ('0');
create or replace function penstock.clock() returns timestamptz language sql volatile as $$
    select clock_timestamp() + (select by from public.moved)
$$;
"""


class Clock:
    """Moves the time of the engine, for all connections at once."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        ((definition,),) = connection.execute(
            "select pg_get_functiondef('penstock.clock()'::regprocedure)"
        ).fetchall()
        self._original: str = definition
        connection.execute(MOVABLE_CLOCK)

    def advance(self, seconds: float) -> None:
        """Time goes on by so many seconds, at once."""
        self._connection.execute("update public.moved set by = by + make_interval(secs => %s)", (seconds,))

    def restore(self) -> None:
        """Gives the engine its own clock back."""
        self._connection.execute(self._original.encode())


class Activity:
    """The connections to the test's database, but for the one that looks."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def count(self, condition: str = "true", *, name: str = "penstock") -> int:
        """How many of that application there are for which that is true."""
        ((number,),) = self._connection.execute(
            f"""select count(*) from pg_stat_activity where datname = current_database()
            and pid <> pg_backend_pid() and application_name = '{name}' and {condition}""".encode()
        ).fetchall()
        assert isinstance(number, int)
        return number

    def listening(self) -> int:
        """How many listen, or watch queues: what such a session did last."""
        return self.count("query ilike any (array['listen %', 'unlisten %', '%pg_catalog.pg_%advisory%'])")

    def claiming(self) -> int:
        """How many claim at this moment, or wait for a lock to do so."""
        return self.count("query ilike '%consume_messages_batch%' and state = 'active'")

    def idle_for(self, seconds: float) -> bool:
        """Whether no session has looked for messages for so long."""
        recent = f"query_start > clock_timestamp() - interval '{seconds} seconds'"
        return self.count(f"query ilike '%consume_messages_batch%' and {recent}") == 0


@pytest.fixture(scope="session")
def emptied(servers: Servers) -> Iterator[Emptied]:
    with ExitStack() as stack:
        yield Emptied(servers, stack)


@pytest.fixture
def database18(emptied: Emptied, server18: Server) -> str:
    """The DSN of a database with the schema and nothing else in it."""
    return emptied.get(server18)


@pytest.fixture(scope="session")
def lent() -> Iterator[Lent]:
    with ExitStack() as stack:
        yield Lent(stack)


@pytest.fixture
def sql18(lent: Lent, database18: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the test's database. The tests before have used it."""
    with lent.to_a_test(database18) as connection:
        yield connection


@pytest.fixture
def engine18(sql18: psycopg.Connection[Any]) -> Engine:
    """The SQL API itself: what a result of the client is compared with."""
    return Engine(sql18)


@pytest.fixture
def activity18(sql18: psycopg.Connection[Any]) -> Activity:
    return Activity(sql18)


@pytest.fixture
def clock18(sql18: psycopg.Connection[Any]) -> Iterator[Clock]:
    """Time that can be moved."""
    clock = Clock(sql18)
    yield clock
    clock.restore()
