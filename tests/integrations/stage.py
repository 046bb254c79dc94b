"""The stage of a behaviour: a client, the caller's connection, a queue and a table of their own."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock import AsyncClient, AsyncMessage, AsyncTransaction, MessageDetails

from .callers import Caller
from .drivers import Driver

__all__ = ["Stage", "behaviour"]

_numbers = itertools.count(1)


class _Undo(Exception):  # noqa: N818 - no error
    """Rolls back what was only looked at."""


@dataclass(frozen=True)
class Stage:
    """A client, and a connection of the caller to the same database."""

    driver: Driver
    client: AsyncClient
    caller: Caller
    dsn: str
    sql: psycopg.Connection[Any]
    topic: str
    queue: str

    @property
    def tx(self) -> AsyncTransaction[Any]:
        return self.client.using(self.caller.connection)

    async def place_order(self) -> None:
        """What the caller does besides."""
        await self.caller.execute(f"insert into shop.orders values ('{self.queue}')")

    def orders(self) -> int:
        """How many of the caller's orders other sessions see."""
        found = self.sql.execute(
            "select count(*) from shop.orders where queue = %s", (self.queue,)
        ).fetchone()
        assert found is not None
        count: int = found[0]
        return count

    def forget_orders(self) -> None:
        self.sql.execute("delete from shop.orders where queue = %s", (self.queue,))

    async def claim(self) -> AsyncMessage[Any]:
        """The next message, which must be there."""
        message = await self.client.consume_one(self.queue)
        assert message is not None
        return message

    async def claim_new(self, payload: object = "a payload") -> AsyncMessage[Any]:
        """A message, sent and claimed."""
        await self.client.send(self.queue, payload)
        return await self.claim()

    async def details(self, message_id: int) -> MessageDetails:
        """What other sessions see of a message, which must exist."""
        found = await self.client.get_message(self.queue, message_id)
        assert found is not None
        return found

    async def payloads(self) -> list[Any]:
        """What any session could claim now; it stays there."""
        found = list[Any]()
        with suppress(_Undo):
            async with self.client.transaction() as tx:
                found += [one.payload for one in await tx.consume_batch(self.queue, batch_size=10000)]
                raise _Undo
        return found


@asynccontextmanager
async def _stage(driver: Driver, dsn: str, sql: psycopg.Connection[Any]) -> AsyncIterator[Stage]:
    number = next(_numbers)
    async with driver.client(dsn) as client, driver.open(dsn) as caller:
        stage = Stage(driver, client, caller, dsn, sql, f"topic {number}", f"queue {number}")
        await client.create_topic(stage.topic)
        await client.create_queue(stage.queue, topic=stage.topic)
        yield stage


def behaviour(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is written as a coroutine, and runs on each driver as the driver does."""

    def run(driver: Driver, shop: str, shop_sql: psycopg.Connection[Any], **others: Any) -> None:
        async def play() -> None:
            async with _stage(driver, shop, shop_sql) as stage:
                await test(stage, **others)

        driver.run(play())

    ours = list(inspect.signature(run).parameters.values())[:-1]
    theirs = list(inspect.signature(test).parameters.values())[1:]
    run.__signature__ = inspect.Signature([*ours, *theirs])  # type: ignore[attr-defined]
    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return run
