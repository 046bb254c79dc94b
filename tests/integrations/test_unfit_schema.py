"""using() on a database without the schema, or with an old one: the error says so, for each driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

import penstock
from penstock import SchemaMissing, SchemaOutdated
from penstock.embedded import Server
from tests.conftest import Servers

from .awaiting import awaited
from .drivers import Driver


@pytest.fixture(scope="module")
def empty(server18: Server) -> Iterator[str]:
    """A database without the schema."""
    with psycopg.connect(server18.dsn(), autocommit=True) as admin:
        admin.execute("drop database if exists unfit_empty")
        admin.execute("create database unfit_empty")
        yield server18.dsn("unfit_empty")
        admin.execute("drop database unfit_empty with (force)")


@pytest.fixture(scope="module")
def old(servers: Servers, server18: Server) -> Iterator[str]:
    """A database whose schema has not got one of the functions yet."""
    with servers.database(server18) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            found = connection.execute(
                "select oid::regprocedure::text from pg_proc where proname = 'send_message'"
                " and pronamespace = 'penstock'::regnamespace"
            ).fetchall()
            for (name,) in found:
                connection.execute(f"drop function {name} cascade")
        yield dsn


async def refused(driver: Driver, dsn: str) -> BaseException:
    """What send() raises in a transaction of the driver. The client itself is never connected."""
    async with driver.open(dsn) as caller:
        client = penstock.AsyncClient(dsn) if driver.is_awaited else awaited(penstock.Client(dsn))
        try:
            await client.using(caller.connection).send("orders", {"order": 17})
        except Exception as exc:
            with suppress(Exception):
                await caller.rollback()
            return exc
    raise AssertionError("it was sent")


def run(driver: Driver, dsn: str) -> BaseException:
    found: list[BaseException] = []

    async def play() -> None:
        found.append(await refused(driver, dsn))

    driver.run(play())
    return found[0]


def test_without_the_schema(driver: Driver, empty: str) -> None:
    error = run(driver, empty)
    assert isinstance(error, SchemaMissing), error
    assert 'schema "penstock" does not exist' in str(error)
    assert "penstock migrate" in (error.hint or "")
    assert isinstance(error.__cause__, driver.error), "the driver's own is the cause"


def test_with_an_old_schema(driver: Driver, old: str) -> None:
    error = run(driver, old)
    assert isinstance(error, SchemaOutdated), error
    assert "penstock.send_message(" in str(error)
    assert "penstock migrate" in (error.hint or "")
