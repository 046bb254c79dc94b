"""The client itself: its connections, and its end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from penstock import AsyncClient, ClientClosed, DatabaseUnavailable
from tests.client.both import AsyncRunning, async_until
from tests.client.conftest import Activity


async def test_a_closed_client_says_so(database18: str) -> None:
    client = AsyncClient(database18)
    await client.create_queue("q")
    await client.close()
    await client.close()
    for attempt in (client.open, client.list_queues):
        with pytest.raises(ClientClosed):
            await attempt()
    with pytest.raises(ClientClosed):
        async with client.transaction():
            pass
    begun = time.monotonic()
    with pytest.raises(ClientClosed):
        async for _ in client.consume("q", wait=10):
            pass
    assert time.monotonic() - begun < 5, "there is nothing to wait for"


async def test_it_connects_at_the_first_call(database18: str) -> None:
    client = AsyncClient(database18)
    assert await client.list_queues() == []
    await client.close()


async def test_no_connection_is_left(database18: str, activity18: Activity) -> None:
    # By a name of their own: connections that another test gave up may still be on their way.
    dsn = make_conninfo(database18, application_name="counted")
    async with AsyncClient(dsn) as client:
        await client.list_queues()
        assert activity18.count(name="counted") == 1
        async with AsyncClient(dsn) as another:
            await another.list_queues()
            assert activity18.count(name="counted") == 2
        await async_until(lambda: activity18.count(name="counted") == 1)
    await async_until(lambda: activity18.count(name="counted") == 0)


async def test_so_many_connections_and_no_more(database18: str) -> None:
    async with AsyncClient(database18, max_connections=1, connection_timeout=0.1) as client:
        async with client.transaction() as transaction:
            assert await transaction.list_queues() == []
            with pytest.raises(DatabaseUnavailable, match="all 1 connections") as caught:
                await client.list_queues()
        assert "max_connections" in (caught.value.hint or "")
        assert await client.list_queues() == []


async def test_a_call_is_one_round_trip(database18: str, tmp_path: Path) -> None:
    """Of a prepared statement, without a transaction around it."""
    async with AsyncClient(database18) as client:
        await client.create_topic("t")
        await client.create_queue("q", topic="t")

        async def four_calls() -> None:
            await client.send("q", {"a": 1}, headers={"b": "c"})
            await client.publish("t", {"a": 1})
            message = await client.consume_one("q")
            assert message is not None
            await message.ack()

        for _ in range(3):
            await four_calls()
        async with client.transaction() as transaction:
            pgconn = transaction.connection.pgconn  # of the connection that is used next
        trace = tmp_path / "trace"
        with trace.open("w") as file:
            pgconn.trace(file.fileno())
            await four_calls()
            pgconn.untrace()
    # Of each line: the time, who sent it, how many bytes, and which message it is.
    sent = [line.split("\t")[3] for line in trace.read_text().splitlines() if line.split("\t")[1] == "F"]
    assert sent == ["Bind", "Describe", "Execute", "Sync"] * 4


async def test_a_waiting_caller_gets_the_connection_that_comes_back(database18: str) -> None:
    async with AsyncClient(database18, max_connections=1) as client:
        async with client.transaction() as transaction:
            waiting = AsyncRunning(client.list_queues)
            await transaction.create_queue("q")
            assert not waiting.is_done()
        assert [queue.name for queue in await waiting.result()] == ["q"]


def test_a_client_tells_where_it_leads_without_the_password() -> None:
    client = AsyncClient("postgresql://me:secret@example.org/db")
    assert "example.org" in repr(client)
    assert "secret" not in repr(client)
