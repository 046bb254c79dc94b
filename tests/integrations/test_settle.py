"""Claim, settle and extend in the caller's transaction, and what is left of it after a rollback."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import AsyncMessage, AsyncTransaction, LeaseLost, MessageDetails
from tests.sql.engine import fingerprint

from .stage import Stage, behaviour

Settle = Callable[[AsyncTransaction[Any], AsyncMessage[Any]], Awaitable[object]]
Check = Callable[[MessageDetails], bool]


async def _ack(tx: AsyncTransaction[Any], message: AsyncMessage[Any]) -> None:
    await tx.ack(message, result={"it's": "50% :done \\"})


async def _ack_many(tx: AsyncTransaction[Any], message: AsyncMessage[Any]) -> None:
    assert await tx.ack_many([message]) == []


async def _nack(tx: AsyncTransaction[Any], message: AsyncMessage[Any]) -> None:
    await tx.nack(message, delay=timedelta(hours=1), error="it's 50% :done \\ ☃")


async def _reject(tx: AsyncTransaction[Any], message: AsyncMessage[Any]) -> None:
    await tx.reject(message, "it's 50% :done \\ ☃")


async def _release(tx: AsyncTransaction[Any], message: AsyncMessage[Any]) -> None:
    await tx.release(message)


# What to do with a message, and what is true of it when that is committed.
SETTLES: list[tuple[Settle, Check]] = [
    (_ack, lambda m: (m.state, m.result) == ("done", {"it's": "50% :done \\"})),
    (_ack_many, lambda m: m.state == "done"),
    (_nack, lambda m: (m.state, m.last_error) == ("scheduled", "it's 50% :done \\ ☃")),
    (_reject, lambda m: (m.state, m.reason, m.errors[0].error) == ("dead", "failed", m.last_error)),
    (_release, lambda m: (m.state, m.delivery_attempts) == ("ready", 0)),
]


@behaviour
async def test_settle(stage: Stage) -> None:
    """Rolled back it has not been; it can be done again, and then is done with the caller's own data."""
    for settle, check in SETTLES:
        await _check_settle(stage, settle, check)
        stage.forget_orders()
        await stage.client.purge_queue(stage.queue)


async def _check_settle(stage: Stage, settle: Settle, check: Check) -> None:
    message = await stage.claim_new()

    await stage.caller.begin()
    await stage.place_order()
    await settle(stage.tx, message)
    await stage.caller.rollback()
    details = await stage.details(message.id)
    assert (details.state, details.consumer, stage.orders()) == ("active", fingerprint(message.token), 0)

    await stage.caller.begin()
    await stage.place_order()
    await settle(stage.tx, message)
    assert (await stage.details(message.id)).state == "active"
    await stage.caller.commit()
    assert check(await stage.details(message.id))
    assert stage.orders() == 1

    await stage.caller.begin()
    with pytest.raises(LeaseLost):
        await stage.tx.ack(message.receipt)
    # That was no error of the database.
    await stage.place_order()
    await stage.caller.commit()
    assert stage.orders() == 2


@behaviour
async def test_settle_by_receipt(stage: Stage) -> None:
    messages = [await stage.claim_new(n) for n in range(5)]
    acked, nacked, rejected, released, extended = messages

    await stage.caller.begin()
    await stage.tx.ack(acked.receipt, result=[1])
    await stage.tx.nack(nacked.receipt, delay=100)
    await stage.tx.reject(rejected.receipt)
    await stage.tx.release(released.receipt)
    until = await stage.tx.extend(extended.receipt, 1000)
    await stage.caller.commit()

    found = [await stage.details(message.id) for message in messages]
    assert [one.state for one in found] == ["done", "scheduled", "dead", "ready", "active"]
    assert found[0].result == [1]
    assert found[4].leased_until == until


@behaviour
async def test_ack_many_tells_what_was_lost(stage: Stage) -> None:
    other = f"{stage.queue} too"
    await stage.client.create_queue(other)
    await stage.client.send_many(other, [1, 2])
    messages = [await stage.claim_new(n) for n in range(3)] + await stage.client.consume_batch(other)
    await stage.client.ack(messages[1].receipt)

    await stage.caller.begin()
    lost = await stage.tx.ack_many(messages)
    await stage.caller.commit()

    assert lost == [messages[1].receipt]
    statistics = await stage.client.get_queue_statistics(stage.queue)
    assert (statistics[0].completed_count, statistics[0].processing_count) == (3, 0)
    assert (await stage.client.get_queue_statistics(other))[0].completed_count == 2


@behaviour
async def test_extend_and_pulse(stage: Stage) -> None:
    await stage.client.send_many(stage.queue, [1, 2])
    first, second = await stage.client.consume_batch(stage.queue, token=stage.queue, visibility_timeout=60)
    before = first.leased_until

    await stage.caller.begin()
    assert await stage.tx.extend(first, 100) == before + timedelta(seconds=100)
    assert await stage.tx.extend_many([first.receipt, second.receipt], 100) == []
    assert await stage.tx.pulse(stage.queue, 1000) == 2
    await stage.caller.rollback()
    assert (await stage.details(first.id)).leased_until == before

    await stage.caller.begin()
    assert await stage.tx.extend(first, 100) == before + timedelta(seconds=100)
    assert first.leased_until == before + timedelta(seconds=100)
    await stage.caller.commit()
    assert (await stage.details(first.id)).leased_until == before + timedelta(seconds=100)

    await stage.caller.begin()
    assert await stage.tx.pulse(stage.queue, 2000, [stage.queue]) == 2
    assert await stage.tx.pulse("no_holder", 2000) == 0
    await stage.caller.commit()
    for message in (first, second):
        until = (await stage.details(message.id)).leased_until
        assert until is not None
        assert until > before + timedelta(seconds=1000)


@behaviour
async def test_claim_in_the_transaction(stage: Stage) -> None:
    ids = await stage.client.send_many(stage.queue, [1, 2, 3])

    await stage.caller.begin()
    claimed = await stage.tx.consume_batch(
        stage.queue, batch_size=2, visibility_timeout=100, token=stage.topic
    )
    assert [(message.id, message.attempt, message.token) for message in claimed] == [
        (ids[0], 1, stage.topic),
        (ids[1], 1, stage.topic),
    ]
    # Others take what is left, and do not wait.
    assert await stage.payloads() == [3]
    await claimed[0].ack()
    await stage.caller.rollback()
    assert await stage.payloads() == [1, 2, 3]

    await stage.caller.begin()
    again = await stage.tx.consume_one(stage.queue)
    assert again is not None
    assert (again.id, again.attempt) == (ids[0], 1)
    last = (await stage.tx.consume_batch(stage.queue))[-1]
    await again.ack()
    await last.nack(delay=3600, error="later")
    assert await stage.tx.consume_batch(stage.queue) == []
    assert await stage.tx.consume_one(stage.queue) is None
    await stage.caller.commit()

    states = [(await stage.details(message_id)).state for message_id in ids]
    assert states == ["done", "active", "scheduled"]


@behaviour
async def test_ack_and_publish_and_own_data_are_one(stage: Stage) -> None:
    """The point of it all: an effect that happens exactly once."""
    message = await stage.claim_new({"step": 1})
    for ends in (stage.caller.rollback, stage.caller.commit):
        await stage.caller.begin()
        await stage.place_order()
        await stage.tx.publish(stage.topic, {"step": 2})
        await stage.tx.ack(message)
        await ends()

    assert stage.orders() == 1
    assert await stage.payloads() == [{"step": 2}]
    assert (await stage.details(message.id)).state == "done"


@behaviour
async def test_in_transaction(stage: Stage) -> None:
    assert not stage.tx.in_transaction()
    await stage.caller.begin()
    await stage.place_order()
    assert stage.tx.in_transaction()
    await stage.caller.rollback()
    assert not stage.tx.in_transaction()
