"""client.transaction(): calls and statements take effect together or not at all."""

# ruff: noqa: PT012 - it is a whole block that raises

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from penstock import AsyncClient, InvalidArgument, LeaseLost, NewMessage, PenstockError, QueueNotFound
from tests.client.conftest import Activity
from tests.sql.engine import Engine


@pytest.fixture
def effects(engine18: Engine) -> Any:
    """A table of the user's own, and what is in it."""
    engine18.connection.execute(
        "drop table if exists public.effects; create table public.effects (n integer)"
    )

    def rows() -> list[int]:
        return [n for (n,) in engine18.query("select n from public.effects order by n")]

    yield rows
    engine18.connection.execute("drop table public.effects")


async def test_commit(client: AsyncClient, engine18: Engine, effects: Any) -> None:
    engine18.topic("t", "q")
    async with client.transaction() as transaction:
        first = await transaction.publish("t", 1)
        second = await transaction.send("q", 2)
        third = await transaction.send_many("q", [3, NewMessage(4, priority=0)])
        await transaction.connection.execute("insert into public.effects values (1)")
        assert engine18.states("q") == {}
        assert effects() == []
    assert engine18.states("q") == dict.fromkeys([first, second, *third], "ready")
    assert effects() == [1]


async def test_rollback(client: AsyncClient, engine18: Engine, effects: Any) -> None:
    engine18.topic("t", "q")
    with engine18.unchanged(), pytest.raises(ZeroDivisionError):
        async with client.transaction() as transaction:
            await transaction.publish("t", 1)
            await transaction.create_queue("another")
            await transaction.connection.execute("insert into public.effects values (1)")
            raise ZeroDivisionError
    assert effects() == []
    assert await client.send("q", "the client goes on") > 0


async def test_an_interrupt_rolls_back(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    with pytest.raises(KeyboardInterrupt):
        async with client.transaction() as transaction:
            await transaction.send("q", 1)
            raise KeyboardInterrupt
    assert engine18.states("q") == {}
    assert await client.list_queues() != []


async def test_every_call_sees_the_others(client: AsyncClient, engine18: Engine) -> None:
    async with client.transaction() as transaction:
        await transaction.create_queue("q")
        message_id = await transaction.send("q", {"a": 1})
        (message,) = await transaction.consume_batch("q")
        assert (message.id, message.payload) == (message_id, {"a": 1})
        await message.ack(result=5)
        details = await transaction.get_message("q", message_id)
        assert details is not None
        assert (details.state, details.result) == ("done", 5)
        assert await client.list_queues() == []
    assert engine18.state("q", message_id) == "done"


@pytest.mark.parametrize("claimed_in_it", [False, True])
async def test_an_error_in_the_block_of_a_message_rolls_back(
    client: AsyncClient, engine18: Engine, effects: Any, claimed_in_it: bool
) -> None:
    """The block of the message is inside of the transaction: the error must reach the transaction."""
    engine18.queue("q")
    message_id = await client.send("q", 1)
    message = None if claimed_in_it else await client.consume_one("q")
    with pytest.raises(ZeroDivisionError):
        async with client.transaction() as transaction:
            message = message or await transaction.consume_one("q")
            assert message is not None
            async with message:
                await transaction.connection.execute("insert into public.effects values (1)")
                await transaction.ack(message)
                raise ZeroDivisionError
    assert effects() == []
    assert engine18.state("q", message_id) == ("ready" if claimed_in_it else "active")


async def test_an_effect_and_its_ack_happen_together(
    client: AsyncClient, engine18: Engine, effects: Any
) -> None:
    engine18.queue("q", max_delivery_attempts=10)
    await client.send_many("q", range(5))
    failed = set()
    async for message in client.consume("q", wait=0):
        async with message, client.transaction() as transaction:
            await transaction.connection.execute("insert into public.effects values (%s)", (message.payload,))
            if message.payload % 2 and message.attempt == 1:
                failed.add(message.payload)
                raise ValueError("before the ack")
            await transaction.ack(message)
            if message.attempt == 1:
                failed.add(message.payload)
                raise ValueError("after the ack, before the commit")
    assert failed == set(range(5))
    assert effects() == [*range(5)]
    assert set(engine18.states("q").values()) == {"done"}
    assert {row.delivery_attempts for row in engine18.rows("list_messages", "q")} == {2}
    assert engine18.rows("list_messages", "q", state="active") == []


async def test_an_error_after_the_commit_does_not_undo_the_ack(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    message_id = await client.send("q", 1)
    async for message in client.consume("q", wait=0):
        async with message:
            async with client.transaction() as transaction:
                await transaction.ack(message)
            raise ValueError("too late")
    assert engine18.state("q", message_id) == "done"


async def test_a_swallowed_rollback_is_no_ack(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    message_id = await client.send("q", 1)
    async for message in client.consume("q", wait=0):
        async with message:
            with pytest.raises(ZeroDivisionError):
                async with client.transaction() as transaction:
                    await transaction.ack(message)
                    raise ZeroDivisionError
    assert engine18.state("q", message_id) != "done"


async def test_every_settlement_inside(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    ids = await client.send_many("q", range(5))
    messages = await client.consume_batch("q")
    async with client.transaction() as transaction:
        await transaction.ack(messages[0], result=1)
        await transaction.nack(messages[1], error="e", delay=60)
        await transaction.release(messages[2])
        await transaction.reject(messages[3], "e")
        await transaction.extend(messages[4], 60)
        with pytest.raises(LeaseLost):
            await transaction.ack(messages[0])
        assert set(engine18.states("q").values()) == {"active"}
    states = engine18.states("q")
    assert [states[message_id] for message_id in ids] == ["done", "scheduled", "ready", "dead", "active"]
    assert engine18.message("q", ids[4]).vt == messages[4].leased_until


async def test_a_failed_statement_is_not_passed_over(client: AsyncClient, engine18: Engine) -> None:
    """What goes on after an error believes that it was committed."""
    engine18.queue("q")
    with pytest.raises(PenstockError, match="rolled back"):
        async with client.transaction() as transaction:
            await transaction.send("q", 1)
            with pytest.raises(QueueNotFound):
                await transaction.send("none", 1)
    assert engine18.states("q") == {}


async def test_a_savepoint_saves(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    async with client.transaction() as transaction:
        first = await transaction.send("q", 1)
        with pytest.raises(QueueNotFound):
            async with transaction.connection.transaction():
                await transaction.send("none", 1)
        second = await transaction.send("q", 2)
    assert [*engine18.states("q")] == [first, second]


async def test_errors_of_the_users_own_statements_come_as_they_are(client: AsyncClient) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        async with client.transaction() as transaction:
            await transaction.connection.execute("select * from public.no_such_table")
    assert await client.list_queues() == []


async def test_errors_of_the_schema_are_ours(client: AsyncClient) -> None:
    with pytest.raises(QueueNotFound, match='"none"') as caught:
        async with client.transaction() as transaction:
            await transaction.send("none", 1)
    assert isinstance(caught.value.__cause__, psycopg.Error)


async def test_after_its_end_it_is_of_no_use(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    async with client.transaction() as transaction:
        await transaction.send("q", 1)
    before = engine18.states("q")
    with pytest.raises(InvalidArgument, match="over"):
        await transaction.send("q", 2)
    with pytest.raises(InvalidArgument, match="over"):
        await transaction.send_many("q", [3])
    with pytest.raises(InvalidArgument, match="over"):
        await transaction.consume_one("q")
    assert engine18.states("q") == before


async def test_two_at_once(client: AsyncClient, engine18: Engine, activity18: Activity) -> None:
    engine18.queue("q")
    async with client.transaction() as first, client.transaction() as second:
        assert first.connection is not second.connection
        await first.send("q", 1)
        await second.send("q", 2)
        assert activity18.count("state = 'idle in transaction'") == 2
    assert len(engine18.states("q")) == 2


async def test_bad_input_leaves_it_whole(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    async with client.transaction() as transaction:
        await transaction.send("q", 1)
        with pytest.raises(InvalidArgument):
            await transaction.send("q", float("nan"))
        with pytest.raises(InvalidArgument):
            await transaction.send("q", 1, priority="high")  # type: ignore[arg-type]
    assert len(engine18.states("q")) == 1


async def test_using_a_connection_of_its_own_kind(
    client: AsyncClient, database18: str, engine18: Engine
) -> None:
    engine18.queue("q")
    async with await psycopg.AsyncConnection.connect(database18) as connection:
        await client.using(connection).send("q", 1)
        assert engine18.states("q") == {}
        await connection.commit()
    assert len(engine18.states("q")) == 1
