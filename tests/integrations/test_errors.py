"""Errors in the caller's transaction: ours for what the schema refuses, the driver's own for all else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

import penstock
from penstock import PenstockError
from tests.poison import damage

from .stage import Stage, behaviour


@dataclass(frozen=True)
class Refusal:
    """A call that the schema refuses, and how."""

    error: type[PenstockError]
    call: Callable[[Stage], Awaitable[object]]
    message: str
    hint: str | None


async def _create_another(stage: Stage) -> None:
    await stage.tx.create_queue(stage.queue, topic=stage.topic, max_delivery_attempts=77)


REFUSALS = [
    Refusal(
        penstock.QueueNotFound,
        lambda stage: stage.tx.send("it's 50% :none", 1),
        'queue "it\'s 50% :none" does not exist',
        "create_queue() makes a queue, list_queues() lists all queues.",
    ),
    Refusal(
        penstock.TopicNotFound,
        lambda stage: stage.tx.publish_many("missing's", [1]),
        'topic "missing\'s" does not exist',
        "create_topic",
    ),
    Refusal(
        penstock.PayloadTooLarge,
        lambda stage: stage.tx.send("small", "x" * 100),
        "limit of 50 bytes",
        "max_payload_bytes",
    ),
    Refusal(
        penstock.PayloadTooLarge,
        lambda stage: stage.tx.send_many("small", [1, b"x" * 100]),
        "100 bytes",
        "max_payload_bytes",
    ),
    Refusal(
        penstock.InvalidArgument,
        lambda stage: stage.tx.send(stage.queue, 1, priority=9),
        "priority",
        None,
    ),
    Refusal(
        penstock.InvalidArgument,
        lambda stage: stage.tx.create_queue("q" * 256),
        "queue_name must have 1 to 255 characters, not 256",
        "Any characters will do; names are data, never identifiers.",
    ),
    Refusal(penstock.QueueDiffers, _create_another, "max_delivery_attempts is 3, not 77", "alter_queue()"),
]


def _states(error: BaseException) -> list[str]:
    """The SQLSTATEs along the chain of an error, whatever the library calls them."""
    states, link = [], error
    while True:
        states += [str(getattr(link, name)) for name in ("sqlstate", "pgcode") if hasattr(link, name)]
        following = getattr(link, "orig", None) or link.__cause__
        if following is None:
            return states
        link = following


@behaviour
async def test_refusals(stage: Stage) -> None:
    """Ours, with the driver's as its cause; and the transaction is as the driver leaves it after an error."""
    await stage.client.create_queue("small", max_payload_bytes=50)
    for refusal in REFUSALS:
        await _check_refusal(stage, refusal)

    await stage.caller.begin()
    await stage.place_order()
    await stage.tx.send(stage.queue, 1)
    await stage.caller.commit()
    assert (stage.orders(), await stage.payloads()) == (1, [1])


async def _check_refusal(stage: Stage, refusal: Refusal) -> None:
    await stage.caller.begin()
    await stage.place_order()
    with pytest.raises(PenstockError) as caught:
        await refusal.call(stage)

    error = caught.value
    assert type(error) is refusal.error
    assert refusal.message in str(error)
    if refusal.hint is None:
        assert error.hint is None
    else:
        assert refusal.hint in (error.hint or "")
        assert error.__notes__ == [f"Hint: {error.hint}"]
    assert isinstance(error.__cause__, stage.driver.error)
    assert refusal.error.sqlstate in _states(error.__cause__)

    # Aborted, for our calls as for the caller's own statements.
    with pytest.raises(stage.driver.error) as refused:
        await stage.place_order()
    assert "25P02" in _states(refused.value)
    with pytest.raises(stage.driver.error) as refused:
        await stage.tx.send(stage.queue, 1)
    assert "25P02" in _states(refused.value)
    assert not isinstance(refused.value, PenstockError)

    await stage.caller.rollback()


@behaviour
async def test_refused_before_it_is_sent(stage: Stage) -> None:
    """The database has not heard of it: the transaction goes on."""
    await stage.caller.begin()
    await stage.place_order()
    for payload in (float("nan"), "\0", "\ud800", {1: 2}, {"a": {b"b"}}):
        with pytest.raises(penstock.PayloadInvalid):
            await stage.tx.send(stage.queue, payload)
    with pytest.raises(penstock.InvalidArgument):
        await stage.tx.send(stage.queue, 1, tenant="\0")
    with pytest.raises(penstock.InvalidArgument):
        await stage.tx.send(stage.queue, 1, delay=-1)
    await stage.tx.send(stage.queue, 1)
    await stage.caller.commit()
    assert (stage.orders(), await stage.payloads()) == (1, [1])


@behaviour
async def test_isolation(stage: Stage) -> None:
    """Claims need READ COMMITTED; publishing and settling do not."""
    for level in ("repeatable read", "serializable"):
        await _check_isolation(stage, level)


async def _check_isolation(stage: Stage, level: str) -> None:
    message = await stage.claim_new()
    await stage.caller.begin()
    await stage.caller.execute(f"set transaction isolation level {level}")
    await stage.tx.send(stage.queue, 2)
    await stage.tx.send_many(stage.queue, [3])
    await stage.tx.ack(message)
    await stage.caller.commit()
    assert await stage.payloads() == [2, 3]
    await stage.client.purge_queue(stage.queue)
    assert (await stage.details(message.id)).state == "done"

    await stage.caller.begin()
    await stage.caller.execute(f"set transaction isolation level {level}")
    with pytest.raises(penstock.WrongIsolation, match=level.upper()) as caught:
        await stage.tx.consume_batch(stage.queue)
    assert isinstance(caught.value.__cause__, stage.driver.error)
    assert "default isolation level" in (caught.value.hint or "")
    await stage.caller.rollback()


@behaviour
async def test_other_errors_are_the_drivers_own(stage: Stage) -> None:
    await stage.caller.begin()
    await stage.caller.execute("set transaction read only")
    with pytest.raises(stage.driver.error) as caught:
        await stage.tx.send(stage.queue, 1)
    assert not isinstance(caught.value, PenstockError)
    assert "25006" in _states(caught.value)
    await stage.caller.rollback()

    await stage.caller.begin()
    await stage.caller.execute("set local role pg_monitor")
    with pytest.raises(stage.driver.error) as caught:
        await stage.tx.send(stage.queue, 1)
    assert not isinstance(caught.value, PenstockError)
    assert "42501" in _states(caught.value)
    await stage.caller.rollback()


@behaviour
async def test_an_error_within_a_savepoint(stage: Stage) -> None:
    await stage.caller.begin()
    await stage.tx.send(stage.queue, "before")
    await stage.caller.execute("savepoint here")
    await stage.tx.send(stage.queue, "within")
    with pytest.raises(penstock.QueueNotFound):
        await stage.tx.send("nowhere", 1)
    await stage.caller.execute("rollback to savepoint here")
    await stage.tx.send(stage.queue, "after")
    await stage.place_order()
    await stage.caller.commit()

    assert (await stage.payloads(), stage.orders()) == (["before", "after"], 1)


@behaviour
async def test_a_message_that_cannot_be_sent(stage: Stage) -> None:
    """Ours for a claim, which has another way; the driver's own for all else."""
    await stage.client.send(stage.queue, {"noise": [str(n) for n in range(20000)]})
    await stage.client.send(stage.queue, "fine")
    damage(stage.sql, "payloads")
    await stage.caller.begin()
    with pytest.raises(penstock.MessageUnreadable, match="missing chunk") as caught:
        await stage.tx.consume_batch(stage.queue)
    assert isinstance(caught.value.__cause__, stage.driver.error)
    assert "reject_unreadable" in (caught.value.hint or "")
    await stage.caller.rollback()

    await stage.caller.begin()
    (rejected,) = await stage.tx.reject_unreadable(stage.queue)
    assert "missing chunk" in rejected.error
    assert [message.payload for message in await stage.tx.consume_batch(stage.queue)] == ["fine"]
    await stage.caller.commit()
    assert (await stage.details(rejected.message_id)).state == "dead"
