"""`with message:` around a block that settles the message in the caller's own transaction."""

# ruff: noqa: PT012 - it is a whole block that raises

from __future__ import annotations

import logging
from contextlib import suppress

import pytest

from penstock import LeaseLost

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
async def test_error_after_an_ack_in_an_open_transaction(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """The error reaches the caller, which rolls back: neither the order nor the ack takes effect."""
    message = await stage.claim_new()
    await stage.caller.begin()
    with pytest.raises(BlockFailed, match="out of stock"):
        async with message:
            await stage.place_order()
            await stage.tx.ack(message)
            raise BlockFailed("out of stock")
    await stage.caller.rollback()

    # The claim was made before the transaction: the lease runs on.
    assert ((await stage.details(message.id)).state, stage.orders()) == ("active", 0)
    assert [record for record in caplog.records if record.name == "penstock"] == []
    await stage.client.release(message.receipt)
    assert (await stage.claim()).id == message.id


@behaviour
async def test_the_caller_may_catch_the_error_and_commit(stage: Stage) -> None:
    message = await stage.claim_new()
    await stage.caller.begin()
    with pytest.raises(BlockFailed):
        async with message:
            await stage.place_order()
            await stage.tx.ack(message)
            raise BlockFailed
    await stage.caller.commit()

    assert ((await stage.details(message.id)).state, stage.orders()) == ("done", 1)


@behaviour
async def test_error_after_a_batch_was_acked_in_an_open_transaction(stage: Stage) -> None:
    message = await stage.claim_new()
    await stage.caller.begin()
    with pytest.raises(BlockFailed):
        async with message:
            await stage.tx.ack_many([message])
            raise BlockFailed
    await stage.caller.rollback()

    assert (await stage.details(message.id)).state == "active"


@behaviour
async def test_error_after_the_lease_was_extended_in_an_open_transaction(stage: Stage) -> None:
    """A nack over another connection would wait for the transaction, and the transaction for the block."""
    message = await stage.claim_new()
    await stage.caller.begin()
    with pytest.raises(BlockFailed):
        async with message:
            await stage.tx.extend(message, 60)
            raise BlockFailed
    await stage.caller.rollback()

    assert (await stage.details(message.id)).state == "active"


@behaviour
async def test_lease_lost_in_an_open_transaction(stage: Stage) -> None:
    """Another consumer has the message: what was done for it here must not be committed."""
    message = await stage.claim_new()
    await stage.client.release(message.receipt)
    other = await stage.claim()
    await stage.caller.begin()
    with pytest.raises(LeaseLost):
        async with message:
            await stage.place_order()
            await stage.tx.ack(message)
    await stage.caller.rollback()

    assert ((await stage.details(message.id)).state, stage.orders()) == ("active", 0)
    await other.ack()


@behaviour
async def test_an_ack_in_a_broken_transaction(stage: Stage) -> None:
    """Many drivers roll back without a word where a broken transaction is committed: the error is raised."""
    message = await stage.claim_new()
    await stage.caller.begin()
    with pytest.raises(stage.driver.error, match="aborted"):
        async with message:
            await stage.place_order()
            with suppress(stage.driver.error):
                await stage.caller.execute("insert into shop.orders values (null)")
            await stage.tx.ack(message)
    await stage.caller.rollback()

    assert ((await stage.details(message.id)).state, stage.orders()) == ("active", 0)


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
    """The rollback undoes the claim, and the acks of the messages before."""
    await stage.client.send_many(stage.queue, ["fine", "broken"])
    await stage.caller.begin()
    with pytest.raises(BlockFailed):
        for message in await stage.tx.consume_batch(stage.queue):
            async with message:
                if message.payload == "broken":
                    raise BlockFailed("as said")
    await stage.caller.rollback()

    assert await stage.payloads() == ["fine", "broken"]
    found = await stage.client.list_messages(stage.queue)
    assert [one.delivery_attempts for one in found] == [0, 0]


@behaviour
async def test_claimed_in_a_transaction_that_is_committed_all_the_same(stage: Stage) -> None:
    """A caller that catches the error finds the message nacked."""
    await stage.client.send_many(stage.queue, ["fine", "broken"])
    await stage.caller.begin()
    for message in await stage.tx.consume_batch(stage.queue):
        with suppress(BlockFailed):
            async with message:
                if message.payload == "broken":
                    raise BlockFailed("as said")
    await stage.caller.commit()

    done, ready = sorted(await stage.client.list_messages(stage.queue), key=lambda one: one.message_id)
    assert (done.state, ready.state, ready.delivery_attempts) == ("done", "ready", 1)
    assert (await stage.details(ready.message_id)).last_error == "BlockFailed: as said"


@behaviour
async def test_lease_lost_in_the_transaction_of_the_claim(stage: Stage) -> None:
    """The ack at the end of the block fails: the caller has to know before the commit."""
    await stage.client.send(stage.queue, 1)
    await stage.caller.begin()
    (message,) = await stage.tx.consume_batch(stage.queue)
    await stage.tx.release(message.receipt)
    with pytest.raises(LeaseLost):
        async with message:
            await stage.place_order()
    await stage.caller.rollback()

    assert (await stage.payloads(), stage.orders()) == ([1], 0)


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


@behaviour
async def test_error_after_many_were_settled_in_an_open_transaction(stage: Stage) -> None:
    message = await stage.claim_new()
    await stage.caller.begin()
    with pytest.raises(BlockFailed):
        async with message:
            await stage.tx.release_many([message])
            raise BlockFailed
    await stage.caller.rollback()

    assert (await stage.details(message.id)).state == "active"
