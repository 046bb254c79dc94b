"""Tasks in the caller's own transaction, of every library: they exist when it commits, and only then."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pytest

import penstock
from penstock import App, InvalidArgument, QueueNotFound, UnsupportedConnection
from tests.integrations.callers import (
    Caller,
    open_async_psycopg,
    open_async_sqlalchemy,
    open_asyncpg,
    open_django,
    open_psycopg,
    open_psycopg2,
    open_sqlalchemy,
)
from tests.integrations.drivers import Driver, awaited_driver, blocking_driver

from .conftest import NOWHERE

_numbers = itertools.count(1)

ERROR = Exception
_async_alchemy = partial(awaited_driver, error=ERROR, open_=open_async_sqlalchemy)
DRIVERS = [
    blocking_driver("psycopg", ERROR, open_psycopg),
    awaited_driver("psycopg-async", ERROR, open_async_psycopg),
    blocking_driver("psycopg2", ERROR, open_psycopg2),
    awaited_driver("asyncpg", ERROR, open_asyncpg),
    blocking_driver("session", ERROR, open_sqlalchemy, kind="Session", driver="psycopg"),
    blocking_driver("connection", ERROR, open_sqlalchemy, kind="Connection", driver="psycopg2"),
    awaited_driver("async-session", ERROR, open_async_sqlalchemy, kind="AsyncSession", driver="asyncpg"),
    awaited_driver(
        "async-connection", ERROR, open_async_sqlalchemy, kind="AsyncConnection", driver="psycopg"
    ),
    blocking_driver("django", ERROR, open_django),
    blocking_driver("django-proxy", ERROR, open_django, is_proxy=True),
]


def number(x: int) -> None: ...


class Stage:
    """An app without a database of its own, and the caller's connection."""

    def __init__(self, driver: Driver, caller: Caller, dsn: str) -> None:
        self.driver = driver
        self.caller = caller
        self.queue = f"using {next(_numbers)}"
        self.dsn = dsn
        # It has nothing but the connection to send with.
        self.app = App(NOWHERE)
        self.task = self.app.task(queue=self.queue)(number)
        self.callback = self.app.task(name="callback", queue=self.queue)(number)

    async def enqueue(self, x: int, **options: Any) -> int:
        bound = self.task.options(**options).using(self.caller.connection)
        handle = await bound.enqueue_async(x) if self.driver.is_awaited else bound.enqueue(x)
        return handle.id

    async def enqueue_many(self, *given: int) -> list[int]:
        bound, calls = self.task.using(self.caller.connection), [(x,) for x in given]
        many = await bound.enqueue_many_async(calls) if self.driver.is_awaited else bound.enqueue_many(calls)
        return [handle.id for handle in many]

    async def enqueue_group(self, *given: int) -> int:
        calls, using = [self.task.call(x) for x in given], self.caller.connection
        if self.driver.is_awaited:
            group = await self.app.enqueue_group_async(calls, callback=self.callback.call(0), using=using)
        else:
            group = self.app.enqueue_group(calls, callback=self.callback.call(0), using=using)
        return group.id

    def seen(self) -> list[int] | None:
        """What other sessions see in the queue; None where there is none."""
        with penstock.connect(self.dsn) as client:
            try:
                messages = client.list_messages(self.queue)
            except QueueNotFound:
                return None
            found = [client.get_message(self.queue, message.message_id) for message in messages]
            return sorted(one.payload["x"] for one in found if one is not None)


def play(driver: Driver, dsn: str, act: Callable[[Stage], Any]) -> None:
    async def run() -> None:
        async with driver.open(dsn) as caller:
            await act(Stage(driver, caller, dsn))

    driver.run(run())


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> Driver:
    chosen: Driver = request.param
    return chosen


def test_what_is_enqueued_is_there_with_the_commit(driver: Driver, shared_dsn: str) -> None:
    async def act(stage: Stage) -> None:
        caller = stage.caller
        await caller.begin()
        await stage.enqueue(1, priority=0, tenant="a")
        await stage.enqueue_many(2, 3)
        await stage.enqueue_group(4, 5)
        assert stage.seen() is None
        await caller.commit()
        assert stage.seen() == [1, 2, 3, 4, 5]

    play(driver, shared_dsn, act)


def test_what_is_rolled_back_was_never_there(driver: Driver, shared_dsn: str) -> None:
    """The queue is not declared before: it goes with the transaction, and comes with the next."""

    async def act(stage: Stage) -> None:
        caller = stage.caller
        for x in range(3):
            await caller.begin()
            await stage.enqueue(x)
            await stage.enqueue(x)
            await stage.enqueue_many(x, x)
            await stage.enqueue_group(x)
            await caller.rollback()
            assert stage.seen() is None
        await caller.begin()
        await stage.enqueue(7)
        await stage.enqueue_many(8)
        await stage.enqueue_group(9)
        await caller.commit()
        assert stage.seen() == [7, 8, 9]

    play(driver, shared_dsn, act)


def test_the_same_in_another_order(driver: Driver, shared_dsn: str) -> None:
    """Committed, deleted, and enqueued again: the app had taken the queue for granted."""

    async def act(stage: Stage) -> None:
        caller = stage.caller
        for x in range(3):
            await caller.begin()
            await stage.enqueue(x)
            await caller.commit()
        with penstock.connect(stage.dsn) as client:
            client.delete_queue(stage.queue)
        await caller.begin()
        await stage.enqueue_many(5)
        await caller.commit()
        assert stage.seen() == [5]

    play(driver, shared_dsn, act)


def test_a_bad_argument_leaves_the_transaction_as_it_was(driver: Driver, shared_dsn: str) -> None:
    async def act(stage: Stage) -> None:
        wrong: Any = "x"
        await stage.caller.begin()
        await stage.enqueue(1)
        with pytest.raises(InvalidArgument):
            await stage.enqueue(wrong)
        with pytest.raises(InvalidArgument):
            await stage.enqueue_many(wrong)
        with pytest.raises(InvalidArgument):
            await stage.enqueue(5, priority=9)
        await stage.enqueue(2)
        await stage.caller.commit()
        assert stage.seen() == [1, 2]

    play(driver, shared_dsn, act)


# Penstock's own transactions


def test_a_transaction_of_the_client(app: App) -> None:
    task = app.task(queue="own")(number)
    with app.client.transaction() as transaction:
        task.using(transaction).enqueue(1)
        task.options(priority=0).using(transaction).enqueue_many([(2,), (3,)])
        assert app.client.list_queues() == []
    assert app.client.get_queue_statistics("own")[0].total_count == 3
    with suppress(ZeroDivisionError), app.client.transaction() as transaction:
        task.using(transaction).options(tenant="a").enqueue(4)
        raise ZeroDivisionError
    assert app.client.get_queue_statistics("own")[0].total_count == 3


async def test_a_transaction_of_the_async_client(app: App) -> None:
    task = app.task(queue="own")(number)
    async with app.async_client.transaction() as transaction:
        await task.using(transaction).enqueue_async(1)
        await task.using(transaction).enqueue_many_async([(2,)])
    assert (await app.async_client.get_queue_statistics("own"))[0].total_count == 2
    await app.aclose()


def test_what_using_of_a_client_gives(app: App, database18: str) -> None:
    task = app.task(queue="own")(number)
    with psycopg.connect(database18) as connection, penstock.connect(database18) as client:
        task.using(client.using(connection)).enqueue(1)
        assert client.list_queues() == []
        connection.commit()
        assert client.get_queue_statistics("own")[0].total_count == 1


def test_on_a_connection_that_commits_by_itself(app: App, database18: str) -> None:
    task = app.task(queue="own")(number)
    with psycopg.connect(database18, autocommit=True) as connection:
        task.using(connection).enqueue(1)
        task.using(connection).enqueue_many([(2,)])
    assert app.client.get_queue_statistics("own")[0].total_count == 2


def test_a_task_that_is_bound_does_not_bind_the_task(app: App, database18: str) -> None:
    task = app.task(queue="own")(number)
    with psycopg.connect(database18) as connection:
        bound = task.using(connection)
        bound.enqueue(1)
        connection.rollback()
        task.enqueue(2)
        bound.options(tenant="a").enqueue(3)
        connection.rollback()
    assert app.client.get_queue_statistics("own")[0].total_count == 1


# What cannot be


@pytest.mark.parametrize("wrong", [None, 5, "postgresql://somewhere", object(), psycopg])
def test_what_is_no_connection(unconnected: App, wrong: object) -> None:
    task = unconnected.task(number)
    with pytest.raises(UnsupportedConnection):
        task.using(wrong).enqueue(1)
    with pytest.raises(UnsupportedConnection):
        task.options(delay=1).using(wrong).enqueue_many([(1,)])

    async def awaited() -> None:
        await task.using(wrong).enqueue_async(1)

    with pytest.raises(UnsupportedConnection):
        asyncio.run(awaited())


async def test_an_awaited_connection_in_blocking_code(unconnected: App, shared_dsn: str) -> None:
    task = unconnected.task(number)
    async with await psycopg.AsyncConnection.connect(shared_dsn) as connection:
        with pytest.raises(UnsupportedConnection) as caught:
            task.using(connection).enqueue(1)
        assert "enqueue_async" in f"{caught.value} {caught.value.hint}"
    async with penstock.connect_async(shared_dsn) as client, client.transaction() as transaction:
        with pytest.raises(UnsupportedConnection) as caught:
            task.using(transaction).enqueue(1)
        assert "enqueue_async" in f"{caught.value} {caught.value.hint}"


async def test_a_blocking_connection_where_it_would_block(unconnected: App, shared_dsn: str) -> None:
    task = unconnected.task(number)
    with psycopg.connect(shared_dsn) as connection:
        with pytest.raises(UnsupportedConnection) as caught:
            await task.using(connection).enqueue_async(1)
        assert ".enqueue(" in f"{caught.value} {caught.value.hint}"
    with penstock.connect(shared_dsn) as client, client.transaction() as transaction:
        with pytest.raises(UnsupportedConnection) as caught:
            await task.using(transaction).enqueue_async(1)
        assert ".enqueue(" in f"{caught.value} {caught.value.hint}"


def test_a_transaction_that_is_over(app: App) -> None:
    task = app.task(queue="own")(number)
    with app.client.transaction() as transaction:
        task.using(transaction).enqueue(1)
    with pytest.raises(InvalidArgument, match="over"):
        task.using(transaction).enqueue(2)
    assert app.client.get_queue_statistics("own")[0].total_count == 1
