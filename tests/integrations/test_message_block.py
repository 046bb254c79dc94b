"""`with message:` around a block that settles the message in somebody's own transaction."""

from __future__ import annotations

import logging

import pytest

from .stage import Stage, behaviour


class BlockFailed(Exception):  # noqa: N818 - it is what happened
    """Raised by a block of the tests."""


@behaviour
async def test_committed(stage: Stage) -> None:
    message = await stage.claim_new()
    async with message:
        await stage.caller.begin()
        await stage.place_order()
        await stage.tx.ack(message, result="by hand")
        await stage.caller.commit()

    details = await stage.details(message.id)
    assert (details.state, details.result, stage.orders()) == ("done", "by hand", 1)


@behaviour
async def test_committed_after_the_block(stage: Stage) -> None:
    """The end of the block neither waits for the transaction that acked, nor acks once more."""
    message = await stage.claim_new()
    await stage.caller.begin()
    async with message:
        await stage.place_order()
        await stage.tx.ack(message)
    assert (await stage.details(message.id)).state == "active"
    await stage.caller.commit()
    assert (await stage.details(message.id)).state == "done"


@behaviour
async def test_rolled_back_by_an_error(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    message = await stage.claim_new()
    async with message:
        await stage.caller.begin()
        try:
            await stage.place_order()
            await stage.tx.ack(message)
            raise BlockFailed("out of stock")
        except BlockFailed:
            await stage.caller.rollback()
            raise

    details = await stage.details(message.id)
    assert (details.state, details.delivery_attempts, stage.orders()) == ("ready", 1, 0)
    assert details.last_error == "BlockFailed: out of stock"
    assert [record.levelno for record in caplog.records if record.name == "penstock"] == [logging.ERROR]


@behaviour
async def test_error_after_the_commit(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """What is acked stays acked."""
    message = await stage.claim_new()
    async with message:
        await stage.caller.begin()
        await stage.tx.ack(message)
        await stage.caller.commit()
        raise BlockFailed

    details = await stage.details(message.id)
    assert (details.state, details.errors) == ("done", ())
    assert "failed" in caplog.text


@behaviour
async def test_error_while_the_transaction_is_open(stage: Stage) -> None:
    """A nack would wait for a transaction that waits for the end of the block."""
    await _check_error_while_open(stage, commits=False)
    await _check_error_while_open(stage, commits=True)


async def _check_error_while_open(stage: Stage, *, commits: bool) -> None:
    message = await stage.claim_new()
    await stage.caller.begin()
    async with message:
        await stage.place_order()
        await stage.tx.ack(message)
        raise BlockFailed

    assert (await stage.details(message.id)).state == "active"
    await (stage.caller.commit() if commits else stage.caller.rollback())
    assert (await stage.details(message.id)).state == ("done" if commits else "active")
    assert stage.orders() == int(commits)
    if not commits:
        await stage.client.release(message.receipt)
        again = await stage.claim()
        assert again.id == message.id
        await again.ack()


@behaviour
async def test_rolled_back_without_a_word(stage: Stage) -> None:
    """The block has ended well, but the ack is gone: the message must not be."""
    message = await stage.claim_new()
    async with message:
        await stage.caller.begin()
        await stage.tx.ack(message)
        await stage.caller.rollback()

    details = await stage.details(message.id)
    assert details.state in ("active", "ready")
    assert details.completed_at is None


@behaviour
async def test_nacked_in_the_transaction(stage: Stage) -> None:
    message = await stage.claim_new()
    async with message:
        await stage.caller.begin()
        await stage.tx.nack(message, error="not now", delay=3600)
        await stage.caller.commit()
        raise BlockFailed

    details = await stage.details(message.id)
    assert (details.state, [entry.error for entry in details.errors]) == ("scheduled", ["not now"])


@behaviour
async def test_an_error_of_the_database_in_the_callers_transaction(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    message = await stage.claim_new()
    async with message:
        await stage.caller.begin()
        try:
            await stage.tx.ack(message)
            await stage.caller.execute("insert into shop.orders values (null)")
        except stage.driver.error:
            await stage.caller.rollback()
            raise

    details = await stage.details(message.id)
    assert details.state == "ready"
    assert "orders" in (details.last_error or "")


@behaviour
async def test_claimed_in_the_callers_transaction(stage: Stage) -> None:
    await stage.client.send_many(stage.queue, ["fine", "broken"])
    await stage.caller.begin()
    for message in await stage.tx.consume_batch(stage.queue):
        async with message:
            if message.payload == "broken":
                raise BlockFailed("as said")
    await stage.caller.commit()

    done, ready = sorted(await stage.client.list_messages(stage.queue), key=lambda one: one.message_id)
    assert (done.state, ready.state, ready.delivery_attempts) == ("done", "ready", 1)
    assert (await stage.details(ready.message_id)).last_error == "BlockFailed: as said"


@behaviour
async def test_claimed_in_a_transaction_that_is_broken_by_the_block(stage: Stage) -> None:
    """No nack can be run there: what broke it reaches the caller, whose rollback undoes the claim."""
    await stage.client.send(stage.queue, 1)
    await stage.caller.begin()
    (message,) = await stage.tx.consume_batch(stage.queue)
    with pytest.raises(stage.driver.error, match='column "queue" of relation "orders"'):
        async with message:
            await stage.caller.execute("insert into shop.orders values (null)")
    await stage.caller.rollback()

    assert await stage.payloads() == [1]
