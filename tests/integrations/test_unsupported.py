"""Objects that using() cannot take are refused at once, with the list of those that it can."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, closing
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import django.core.cache  # type: ignore[import-untyped]
import django.db  # type: ignore[import-untyped]
import psycopg
import psycopg2  # type: ignore[import-untyped]
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

import penstock
from penstock import UnsupportedConnection

from .callers import django_default, django_settings, parts

BLOCKING = ("psycopg.Connection", "psycopg2", "Session", "scoped_session", "Connection", "Django")
AWAITED = ("psycopg.AsyncConnection", "asyncpg", "AsyncSession", "async_scoped_session", "AsyncConnection")

SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
async def async_stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def _refused(using: Callable[[Any], object], wrong: object, right: tuple[str, ...]) -> UnsupportedConnection:
    with pytest.raises(UnsupportedConnection) as caught:
        using(wrong)
    for name in right:
        assert name in str(caught.value)
    assert type(wrong).__qualname__ in str(caught.value)
    assert isinstance(caught.value, TypeError | penstock.InvalidArgument)
    return caught.value


def _never_right(dsn: str, stack: ExitStack) -> list[object]:
    """What is no connection at all, or not one to PostgreSQL."""
    connection = stack.enter_context(psycopg.connect(dsn))
    engine = sqlalchemy.create_engine("postgresql+psycopg://", connect_args=parts(dsn))
    other = psycopg2.connect(dsn)
    stack.callback(other.close)
    lite = stack.enter_context(closing(sqlite3.connect(":memory:")))
    stack.enter_context(django_default(django_settings(dsn)))
    return [
        None,
        dsn,
        dsn.encode(),
        17,
        object(),
        psycopg.Connection,
        connection.cursor(),
        connection.pgconn,
        other.cursor(),
        engine,
        orm.sessionmaker(engine),
        orm.Session,
        engine.url,
        lite,
        lite.cursor(),
        django.db.connections,
        stack.enter_context(django.db.connection.cursor()),
        django.core.cache.cache,
        queue.Queue(),
        penstock.Client(dsn),
    ]


def test_client_takes_no_such_thing(shop: str, stack: ExitStack) -> None:
    for wrong in _never_right(shop, stack):
        assert _refused(penstock.Client(shop).using, wrong, BLOCKING).hint is None


def test_async_client_takes_no_such_thing(shop: str, stack: ExitStack) -> None:
    for wrong in [*_never_right(shop, stack), asyncpg.create_pool]:
        assert _refused(penstock.AsyncClient(shop).using, wrong, AWAITED).hint is None


async def test_client_takes_nothing_that_is_awaited(shop: str, async_stack: AsyncExitStack) -> None:
    engine = sqlalchemy_asyncio.create_async_engine("postgresql+psycopg://", connect_args=parts(shop))
    async_stack.push_async_callback(engine.dispose)
    pool = await async_stack.enter_async_context(asyncpg.create_pool(**parts(shop, "database"), min_size=1))
    session = await async_stack.enter_async_context(sqlalchemy_asyncio.AsyncSession(engine))
    maker = sqlalchemy_asyncio.async_sessionmaker(engine)
    client = penstock.Client(shop)
    for wrong in (
        await async_stack.enter_async_context(await psycopg.AsyncConnection.connect(shop)),
        await async_stack.enter_async_context(pool.acquire()),
        session,
        sqlalchemy_asyncio.async_scoped_session(maker, scopefunc=asyncio.current_task),
        await async_stack.enter_async_context(engine.connect()),
    ):
        assert _refused(client.using, wrong, BLOCKING).hint == "using() of penstock.AsyncClient takes it"
    for wrong in (engine, pool, maker):
        assert _refused(client.using, wrong, BLOCKING).hint is None
        assert _refused(penstock.AsyncClient(shop).using, wrong, AWAITED).hint is None


def test_async_client_takes_nothing_that_blocks(shop: str, stack: ExitStack) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", connect_args=parts(shop))
    stack.callback(engine.dispose)
    other = psycopg2.connect(shop)
    stack.callback(other.close)
    client = penstock.AsyncClient(shop)
    for wrong in (
        stack.enter_context(psycopg.connect(shop)),
        other,
        stack.enter_context(engine.connect()),
        stack.enter_context(orm.Session(engine)),
        orm.scoped_session(orm.sessionmaker(engine)),
        stack.enter_context(django_default(django_settings(shop))),
        django.db.connections["default"],
    ):
        assert _refused(client.using, wrong, AWAITED).hint == "using() of penstock.Client takes it"


def test_another_database(shop: str, stack: ExitStack) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    stack.callback(engine.dispose)
    client, awaited = penstock.Client(shop), penstock.AsyncClient(shop)
    for wrong in (
        stack.enter_context(engine.connect()),
        stack.enter_context(orm.Session(engine)),
        orm.scoped_session(orm.sessionmaker(engine)),
        stack.enter_context(django_default(SQLITE)),
        django.db.connections["default"],
    ):
        with pytest.raises(UnsupportedConnection, match=r"PostgreSQL.*sqlite"):
            client.using(wrong).send("a", 1)
        with pytest.raises(UnsupportedConnection):
            awaited.using(wrong)


def test_a_connection_of_psycopg2_that_does_not_block(shop: str) -> None:
    """Its cursors return before there is a result."""
    connection = psycopg2.connect(shop, async_=True)
    try:
        _refused(penstock.Client(shop).using, connection, BLOCKING)
    finally:
        connection.close()
