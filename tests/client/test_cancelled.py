"""Blocks, claims and bulks that are cancelled, interrupted or rolled back at the wrong moment."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

import psycopg
import pytest

import penstock
from penstock import AsyncClient, Client, ConnectionLost, LeaseLost
from penstock.sql_call import Call
from tests.client.both import async_until, until

LEASE_SECONDS = 4


def leased_until(client: Client, message: penstock.Message[Any]) -> Any:
    found = client.get_message("q", message.id)
    assert found is not None
    return found.leased_until


async def test_a_caller_that_finds_its_message_lost_gets_an_error_and_is_not_cancelled(
    database18: str,
) -> None:
    async with penstock.connect_async(database18) as client:
        await client.create_queue("q")
        await client.send_many("q", [1, 2])
        seen = []
        async for message in client.consume("q", batch_size=1, wait=0):
            async with message:
                seen.append(message.payload)
                if message.payload == 1:
                    await client.cancel_message("q", message.id)
                    await message.reject()
            # The cancellation would come here, or with the next claim.
            await asyncio.sleep(0)
        assert seen == [1, 2]

        await client.send("q", 3)
        async for message in client.consume("q", wait=0):
            async with message:
                await client.purge_queue("q")
                with pytest.raises(LeaseLost):
                    await message.extend(10)
            await asyncio.sleep(0)
            assert message.is_lost


def test_a_lease_is_kept_until_the_end_of_its_block_is_settled(database18: str) -> None:
    """All connections of the client are in use, for longer than a lease."""
    begun, over = threading.Event(), threading.Event()
    with penstock.connect(database18, max_connections=1) as client, penstock.connect(database18) as other:
        client.create_queue("q")
        client.send("q", 1)

        def hold_the_connection() -> None:
            with client.transaction():
                begun.set()
                over.wait(60)

        holding = threading.Thread(target=hold_the_connection)
        consumer = client.consume("q", auto_extend=True, visibility_timeout=LEASE_SECONDS, wait=0)
        message = next(iter(consumer))
        message.__enter__()
        holding.start()
        begun.wait(60)
        ending = threading.Thread(target=message.__exit__, args=(None, None, None))
        ending.start()
        until(lambda: message._lease.is_settling)
        at_first = leased_until(other, message)
        until(lambda: leased_until(other, message) > at_first)
        over.set()
        ending.join(60)
        holding.join(60)
        found = other.get_message("q", message.id)
        assert found is not None
        assert (found.state, found.delivery_attempts) == ("done", 1)


def test_a_lease_is_kept_after_a_transaction_that_acked_was_rolled_back(database18: str) -> None:
    with penstock.connect(database18) as client:
        client.create_queue("q")
        client.send("q", 1)
        consumer = client.consume("q", auto_extend=True, visibility_timeout=LEASE_SECONDS, wait=0)
        message = next(iter(consumer))
        with message:
            _ack_and_roll_back(client, message)
            at_first = leased_until(client, message)
            until(lambda: leased_until(client, message) > at_first)
            with client.transaction() as transaction:
                transaction.ack(message)
        assert client.get_queue_statistics("q")[0].completed_count == 1


def _ack_and_roll_back(client: Client, message: penstock.Message[Any]) -> None:
    with suppress(OSError), client.transaction() as transaction:
        transaction.ack(message)
        # Meanwhile the keeper looks, and finds that there is nothing to keep.
        time.sleep(LEASE_SECONDS / 2)
        raise OSError


async def test_a_claim_that_is_cancelled_twice_keeps_nothing(
    database18: str, sql18: psycopg.Connection[Any]
) -> None:
    async with penstock.connect_async(database18) as client:
        await client.create_queue("q")
        await client.send_many("q", range(10))

        async def consume() -> None:
            async for _ in client.consume("q", visibility_timeout=LEASE_SECONDS):
                pass

        with sql18.transaction():
            sql18.execute("lock table penstock.queues in access exclusive mode")
            consuming = asyncio.create_task(consume())
            waiting = "select from pg_locks where not granted"
            await async_until(lambda: sql18.execute(waiting).fetchall())
            for _ in range(2):
                consuming.cancel()
                await asyncio.sleep(0.05)
        await asyncio.wait({consuming}, timeout=20)
        assert consuming.cancelled()
        # What it may have claimed comes back when its lease is over.
        got = 0
        async with asyncio.timeout(20):
            while got < 10:
                await client.maintain()
                got += len(await client.consume_batch("q", batch_size=10, visibility_timeout=600))
                await asyncio.sleep(0.1)


async def test_a_bulk_that_is_cancelled_twice_leaves_the_client_as_it_was(database18: str) -> None:
    async with penstock.connect_async(database18, max_connections=2) as client:
        await client.create_queue("q")
        for number in range(12):
            await _cancel_twice(client, 0.01 * number, 0.002 * (number % 5))
            await asyncio.wait_for(client.send("q", number), 20)
        # Both connections can be had.
        async with client.transaction(), client.transaction() as transaction:
            await transaction.send("q", 1)


async def _cancel_twice(client: AsyncClient, after: float, again_after: float) -> None:
    sending = asyncio.create_task(client.send_many("q", range(30_000)))
    await asyncio.sleep(after)
    sending.cancel()
    await asyncio.sleep(again_after)
    sending.cancel()
    done, _ = await asyncio.wait({sending}, timeout=20)
    assert done, "it hangs"


def test_a_claim_by_a_known_token_is_not_repeated(database18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pulse would extend leases on messages that the caller never received."""
    from penstock._sync.connections import Own

    real = Own.fetch
    lost: list[str] = []

    def fetch(self: Own, call: Call[Any]) -> Any:
        found = real(self, call)
        if call.function == "consume_messages_batch" and not lost:
            lost.append(call.text)
            self.connection.close()
            raise psycopg.OperationalError("the connection is closed, after the commit")
        return found

    monkeypatch.setattr(Own, "fetch", fetch)
    with penstock.connect(database18) as client:
        client.create_queue("q")
        client.send_many("q", range(6))
        with pytest.raises(ConnectionLost):
            client.consume_batch("q", batch_size=3, token="me")  # noqa: S106
        # With a random token the claim is repeated: the leases of the first call run out by themselves.
        lost.clear()
        assert client.consume_batch("q", batch_size=3) == []
