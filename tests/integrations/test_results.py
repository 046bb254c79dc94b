"""Every method returns on any connection, however it is set up, what it returns on penstock.Client's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import django.db  # type: ignore[import-untyped]
import psycopg
import psycopg2  # type: ignore[import-untyped]
import psycopg2.extras  # type: ignore[import-untyped]
import pytest
import sqlalchemy.exc
from psycopg.rows import class_row, dict_row, namedtuple_row, scalar_row
from psycopg.types.json import set_json_dumps, set_json_loads

import penstock
from penstock.embedded import Server
from tests.conftest import Servers

from .awaiting import awaited, run_without_loop
from .callers import (
    open_async_psycopg,
    open_async_sqlalchemy,
    open_asyncpg,
    open_django,
    open_psycopg,
    open_psycopg2,
    open_sqlalchemy,
)
from .drivers import Driver, awaited_driver, blocking_driver
from .everything import METHODS, Step, call_everything, start_ids, stop_clock


class _Undo(Exception):  # noqa: N818 - no error
    """Rolls back."""


@pytest.fixture(scope="module")
def still(servers: Servers, server18: Server) -> Iterator[str]:
    """The DSN of a database whose clock stands still. Nothing is ever committed there."""
    with servers.database(server18) as dsn:
        with psycopg.connect(dsn) as connection:
            stop_clock(connection)
        yield dsn


@pytest.fixture
def ids(still: str) -> None:
    with psycopg.connect(still) as connection:
        start_ids(connection)


@pytest.fixture(scope="module")
def expected(still: str) -> list[Step]:
    """What penstock.Client itself says."""
    with psycopg.connect(still) as connection:
        start_ids(connection)
    steps = list[Step]()

    async def look() -> None:
        async with awaited(client).transaction() as tx:
            steps.extend(await call_everything(tx))
            raise _Undo

    with penstock.connect(still) as client, suppress(_Undo):
        run_without_loop(look())
    # Nothing is left out, and each has something to tell; but what it calls can all be read.
    telling = {name for name, result in steps if result != ("list", [])}
    assert telling | {"reject_unreadable"} == METHODS == {name for name, _ in steps}
    return steps


def _compare(found: list[Step], expected: list[Step]) -> None:
    assert [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]] == []


def _play(driver: Driver, dsn: str, settings: tuple[str, ...] = ()) -> list[Step]:
    """Call everything in a transaction that is rolled back."""
    steps = list[Step]()

    async def look() -> None:
        async with driver.client(dsn) as client, driver.open(dsn) as caller:
            await caller.begin()
            for setting in settings:
                # Local, since a Session has another connection in its next transaction.
                await caller.execute(f"set local {setting}")
            steps.extend(await call_everything(client.using(caller.connection)))
            await caller.rollback()

    driver.run(look())
    return steps


@pytest.mark.usefixtures("ids")
def test_every_driver(driver: Driver, still: str, expected: list[Step]) -> None:
    _compare(_play(driver, still), expected)


# Whatever a session of the database can be set to.
ODD_SESSION = (
    "datestyle = 'German, DMY'",
    "timezone = 'Asia/Kathmandu'",
    "intervalstyle = 'sql_standard'",
    "search_path = 'nowhere'",
    "extra_float_digits = 0",
    "bytea_output = 'escape'",
    "standard_conforming_strings = off",
    "escape_string_warning = off",
    "array_nulls = off",
    "transform_null_equals = on",
    "plpgsql.extra_errors = 'all'",
    "quote_all_identifiers = on",
    "xmloption = 'document'",
)


@pytest.mark.usefixtures("ids")
def test_every_driver_in_an_odd_session(driver: Driver, still: str, expected: list[Step]) -> None:
    _compare(_play(driver, still, ODD_SESSION), expected)


def _odd_json(text: str | bytes) -> object:
    return {"this is": "not what is stored"}


async def _asyncpg_codecs(connection: Any) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, encoder=json.dumps, decoder=_odd_json, schema="pg_catalog")
    for name in ("timestamptz", "interval"):
        await connection.set_type_codec(name, encoder=str, decoder=str, schema="pg_catalog")


class _OddRecord(asyncpg.Record):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return self[name]


def _psycopg_json(connection: Any) -> None:
    set_json_loads(_odd_json, connection)
    set_json_dumps(lambda _value: '"odd"', connection)


def _psycopg2_json(connection: Any) -> None:
    psycopg2.extras.register_default_json(connection, loads=_odd_json)
    psycopg2.extras.register_default_jsonb(connection, loads=_odd_json)


def _psycopg2_autocommit(connection: Any) -> None:
    connection.autocommit = True


def _odd_row(**_values: Any) -> str:
    return "odd"


ODD = [
    *(
        driver
        for name, factory in {
            "dict": dict_row,
            "namedtuple": namedtuple_row,
            "scalar": scalar_row,
            "class": class_row(_odd_row),  # type: ignore[arg-type]
        }.items()
        for driver in (
            blocking_driver(f"psycopg-{name}_row", psycopg.Error, open_psycopg, row_factory=factory),
            awaited_driver(
                f"psycopg-async-{name}_row", psycopg.Error, open_async_psycopg, row_factory=factory
            ),
        )
    ),
    blocking_driver("psycopg-json", psycopg.Error, open_psycopg, prepare=_psycopg_json),
    awaited_driver("psycopg-async-json", psycopg.Error, open_async_psycopg, prepare=_psycopg_json),
    blocking_driver("psycopg-client", psycopg.Error, open_psycopg, cursor_factory=psycopg.ClientCursor),
    blocking_driver("psycopg-raw", psycopg.Error, open_psycopg, cursor_factory=psycopg.RawCursor),
    blocking_driver("psycopg-prepared", psycopg.Error, open_psycopg, prepare_threshold=0),
    awaited_driver("psycopg-async-unprepared", psycopg.Error, open_async_psycopg, prepare_threshold=None),
    *(
        blocking_driver(f"psycopg2-{factory.__name__}", psycopg2.Error, open_psycopg2, cursor_factory=factory)
        for factory in (
            psycopg2.extras.DictCursor,
            psycopg2.extras.RealDictCursor,
            psycopg2.extras.NamedTupleCursor,
        )
    ),
    blocking_driver("psycopg2-json", psycopg2.Error, open_psycopg2, prepare=_psycopg2_json),
    awaited_driver("asyncpg-codecs", asyncpg.PostgresError, open_asyncpg, prepare=_asyncpg_codecs),
    awaited_driver("asyncpg-record", asyncpg.PostgresError, open_asyncpg, record_class=_OddRecord),
    awaited_driver("asyncpg-uncached", asyncpg.PostgresError, open_asyncpg, statement_cache_size=0),
    *(
        blocking_driver(
            f"sqlalchemy-{driver}-json",
            sqlalchemy.exc.DBAPIError,
            open_sqlalchemy,
            kind="Session",
            driver=driver,
            json_deserializer=_odd_json,
        )
        for driver in ("psycopg", "psycopg2")
    ),
    *(
        awaited_driver(
            f"sqlalchemy-async-{driver}-json",
            sqlalchemy.exc.DBAPIError,
            open_async_sqlalchemy,
            kind="AsyncSession",
            driver=driver,
            json_deserializer=_odd_json,
        )
        for driver in ("psycopg", "asyncpg")
    ),
    *(
        blocking_driver(
            f"sqlalchemy-{driver}-stream",
            sqlalchemy.exc.DBAPIError,
            open_sqlalchemy,
            kind="Connection",
            driver=driver,
            execution_options={"stream_results": True},
        )
        for driver in ("psycopg", "psycopg2")
    ),
    blocking_driver(
        "sqlalchemy-joined",
        sqlalchemy.exc.DBAPIError,
        open_sqlalchemy,
        kind="Session on a Connection",
        driver="psycopg",
    ),
    blocking_driver(
        "django-bound", django.db.Error, open_django, use_tz=False, OPTIONS={"server_side_binding": True}
    ),
]


@pytest.mark.usefixtures("ids")
@pytest.mark.parametrize("driver", ODD, ids=lambda driver: driver.name)
def test_a_connection_that_is_set_up_oddly(driver: Driver, still: str, expected: list[Step]) -> None:
    _compare(_play(driver, still), expected)


AUTOCOMMIT = [
    blocking_driver("psycopg", psycopg.Error, open_psycopg, autocommit=True),
    awaited_driver("psycopg-async", psycopg.Error, open_async_psycopg, autocommit=True),
    blocking_driver("psycopg2", psycopg2.Error, open_psycopg2, prepare=_psycopg2_autocommit),
    awaited_driver("asyncpg", asyncpg.PostgresError, open_asyncpg),
    blocking_driver(
        "sqlalchemy",
        sqlalchemy.exc.DBAPIError,
        open_sqlalchemy,
        kind="Session",
        driver="psycopg",
        isolation_level="AUTOCOMMIT",
    ),
    awaited_driver(
        "sqlalchemy-async",
        sqlalchemy.exc.DBAPIError,
        open_async_sqlalchemy,
        kind="AsyncConnection",
        driver="asyncpg",
        isolation_level="AUTOCOMMIT",
    ),
    blocking_driver("django", django.db.Error, open_django),
]


@pytest.fixture
def still18(database18: str) -> str:
    """A database whose clock stands still, for one test."""
    with psycopg.connect(database18) as connection:
        stop_clock(connection)
        start_ids(connection)
    return database18


@pytest.mark.parametrize("driver", AUTOCOMMIT, ids=lambda driver: driver.name)
def test_a_connection_in_autocommit_mode(driver: Driver, still18: str, expected: list[Step]) -> None:
    """Each call is a transaction of its own."""

    async def look() -> None:
        async with driver.client(still18) as client, driver.open(still18) as caller:
            tx = client.using(caller.connection)
            _compare(await call_everything(tx), expected)
            await tx.create_queue("now")
            assert [queue.name for queue in await client.list_queues()] == ["now", "temporary"]
            await caller.execute("begin")
            await tx.send("now", 1)
            assert tx.in_transaction()
            await caller.execute("rollback")
            assert await client.list_messages("now") == []

    driver.run(look())


@pytest.mark.parametrize("driver", AUTOCOMMIT[:2], ids=["blocking", "awaited"])
def test_the_clients_themselves(driver: Driver, still18: str, expected: list[Step]) -> None:
    async def look() -> None:
        async with driver.client(still18) as client:
            _compare(await call_everything(client), expected)

    driver.run(look())
