"""A connection that is closed, returned to a pool or borrowed, while a message was settled on it."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy
from django.db import transaction as django_transaction  # type: ignore[import-untyped]
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

import penstock

from .callers import django_default, django_settings, parts
from .drivers import DRIVERS
from .stage import Stage, behaviour


class BlockFailed(Exception):  # noqa: N818 - it is what happened
    """Raised by a block of the tests."""


@behaviour
async def test_closed_after_the_commit(stage: Stage) -> None:
    message = await stage.claim_new()
    async with message:
        async with stage.driver.open(stage.dsn) as caller:
            await caller.begin()
            await stage.client.using(caller.connection).ack(message)
            await caller.commit()
        raise BlockFailed

    details = await stage.details(message.id)
    assert (details.state, details.errors) == ("done", ())


@behaviour
async def test_closed_after_the_rollback(stage: Stage) -> None:
    message = await stage.claim_new()
    async with message:
        async with stage.driver.open(stage.dsn) as caller:
            await caller.begin()
            await stage.client.using(caller.connection).ack(message)
            await caller.rollback()
        raise BlockFailed("as said")

    details = await stage.details(message.id)
    assert (details.state, details.last_error) == ("ready", "BlockFailed: as said")


# Django closes no connection within a transaction.
CLOSABLE = [driver for driver in DRIVERS if not driver.name.startswith("django")]


@pytest.mark.parametrize("driver", CLOSABLE, ids=lambda driver: driver.name)
@behaviour
async def test_closed_by_the_error(stage: Stage) -> None:
    """Closing is a way to roll back."""
    message = await stage.claim_new()
    async with message, stage.driver.open(stage.dsn) as caller:
        await caller.begin()
        await stage.client.using(caller.connection).ack(message)
        raise BlockFailed("as said")

    details = await stage.details(message.id)
    assert (details.state, details.last_error) == ("ready", "BlockFailed: as said")


def _engine(dsn: str) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(
        "postgresql+psycopg://", connect_args=parts(dsn), poolclass=sqlalchemy.NullPool
    )


def _claim_new(client: penstock.Client, queue: str) -> penstock.Message[Any]:
    client.create_queue(queue)
    client.send(queue, 1)
    message = client.consume_one(queue)
    assert message is not None
    return message


def test_a_session_whose_transaction_belongs_to_its_connection(shop: str) -> None:
    """After the session's commit the connection's transaction is open still: a nack would wait for it."""
    with penstock.connect(shop) as client, _engine(shop).connect() as connection, connection.begin():
        message = _claim_new(client, "lent connection")
        session = orm.Session(connection)
        with pytest.raises(BlockFailed), message:  # noqa: PT012 - the block is what is tested
            client.using(session).ack(message)
            session.commit()
            raise BlockFailed
        session.close()
        connection.get_transaction().commit()  # type: ignore[union-attr]
        details = client.get_message("lent connection", message.id)
        assert details is not None
        assert (details.state, details.errors) == ("done", ())


def test_a_registry_has_a_session_for_each_thread(shop: str) -> None:
    registry = orm.scoped_session(orm.sessionmaker(_engine(shop)))
    with penstock.connect(shop) as client:
        client.create_queue("threads")
        tx = client.using(registry)
        tx.send("threads", "here")

        def send_and_commit() -> None:
            tx.send("threads", "there")
            registry.commit()
            registry.remove()

        thread = threading.Thread(target=send_and_commit)
        thread.start()
        thread.join()
        assert [message.payload for message in client.consume_batch("threads")] == ["there"]
        registry.commit()
        assert [message.payload for message in client.consume_batch("threads")] == ["here"]
        registry.remove()


async def test_a_blocking_client_in_run_sync_of_an_async_session(shop: str) -> None:
    engine = sqlalchemy_asyncio.create_async_engine(
        "postgresql+asyncpg://", connect_args=parts(shop, "database"), poolclass=sqlalchemy.NullPool
    )
    client = penstock.Client(shop)
    client.create_queue("run_sync")

    def send(session: orm.Session, payload: str) -> int:
        return client.using(session).send("run_sync", payload)

    async with sqlalchemy_asyncio.AsyncSession(engine) as session:
        await session.run_sync(send, "rolled back")
        await session.rollback()
        await session.run_sync(send, "committed")
        await session.commit()
    await engine.dispose()
    assert [message.payload for message in client.consume_batch("run_sync")] == ["committed"]
    client.close()


def test_psycopg_in_pipeline_mode(shop: str) -> None:
    with penstock.connect(shop) as client, psycopg.connect(shop) as connection:
        client.create_queue("pipeline")
        with connection.pipeline():
            connection.execute("insert into shop.orders values ('pipeline')")
            ids = [client.using(connection).send("pipeline", n) for n in range(3)]
        connection.commit()
        assert [message.id for message in client.consume_batch("pipeline")] == ids


def test_a_transaction_within_another(shop: str) -> None:
    """psycopg's transaction() within a transaction is a savepoint; its rollback takes the ack away."""
    with penstock.connect(shop) as client, psycopg.connect(shop) as connection:
        message = _claim_new(client, "savepoint")
        with connection.transaction():
            with suppress(BlockFailed), connection.transaction():
                client.using(connection).ack(message)
                raise BlockFailed
            client.using(connection).nack(message, delay=60)
        details = client.get_message("savepoint", message.id)
        assert details is not None
        assert details.state == "scheduled"


def test_an_atomic_block_within_another(shop: str) -> None:
    """Django rolls back to its savepoint; the outer block is open still, and a nack would wait for it."""
    with penstock.connect(shop) as client, django_default(django_settings(shop)) as connection:
        message = _claim_new(client, "atomic")
        with django_transaction.atomic():
            with pytest.raises(BlockFailed), message, django_transaction.atomic():  # noqa: PT012
                client.using(connection).ack(message)
                raise BlockFailed
            client.using(connection).reject(message, "by hand")
        details = client.get_message("atomic", message.id)
        assert details is not None
        assert (details.state, details.last_error) == ("dead", "by hand")
