"""`with message:` and what may happen in it."""

# ruff: noqa: PLR0917 - fixtures are parameters, too

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from penstock import AsyncClient, AsyncMessage, LeaseLost
from tests.client.both import AsyncRunning, async_until
from tests.client.conftest import Clock
from tests.sql.engine import Engine, fingerprint


class Interrupt(BaseException):
    """As KeyboardInterrupt or SystemExit: not a failure of the work."""


@pytest.fixture
def message_id(engine18: Engine) -> int:
    """A message in the queue q, which may fail twice."""
    engine18.queue("q", max_delivery_attempts=2)
    return engine18.send("q", {"a": 1})


async def taken(client: AsyncClient, **options: Any) -> AsyncMessage[Any]:
    """The next message, of a consumer that goes on."""
    async for message in client.consume("q", wait=0, **options):
        return message
    raise AssertionError("there is none")


async def test_it_acks(client: AsyncClient, engine18: Engine, message_id: int) -> None:
    async with await taken(client) as message:
        assert message.payload == {"a": 1}
        assert engine18.state("q", message_id) == "active"
    assert engine18.state("q", message_id) == "done"
    assert not message.is_lost


async def test_it_acks_what_was_claimed_by_hand(
    client: AsyncClient, engine18: Engine, message_id: int
) -> None:
    (message,) = await client.consume_batch("q")
    async with message as same:
        assert same is message
    assert engine18.state("q", message_id) == "done"


async def test_it_nacks_with_the_error(
    client: AsyncClient, engine18: Engine, message_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with await taken(client):
        raise ValueError("no \0 such customer")
    async with await taken(client):
        raise KeyError
    row = engine18.message("q", message_id)
    assert (row.state, row.reason, row.last_error) == ("dead", "no_attempts_left", "KeyError")
    (first, second) = row.errors
    assert first["error"] == "ValueError: no \ufffd such customer"
    assert (first["attempt"], second["attempt"], second["error"]) == (1, 2, "KeyError")
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info[0] for record in logged if record.exc_info] == [ValueError, KeyError]
    assert all(f"message {message_id} of 'q'" in record.getMessage() for record in logged)


async def test_reraise(client: AsyncClient, engine18: Engine, message_id: int) -> None:
    with pytest.raises(ValueError, match=r"^wrong$"):
        async with await taken(client, reraise=True):
            raise ValueError("wrong")
    row = engine18.message("q", message_id)
    assert (row.state, row.last_error, row.delivery_attempts) == ("ready", "ValueError: wrong", 1)


@pytest.mark.parametrize("reraise", [False, True])
@pytest.mark.parametrize("error", [Interrupt, KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_an_interrupt_releases(
    client: AsyncClient, engine18: Engine, message_id: int, error: type[BaseException], reraise: bool
) -> None:
    with pytest.raises(error):
        async with await taken(client, reraise=reraise):
            raise error
    row = engine18.message("q", message_id)
    assert (row.state, row.delivery_attempts, row.errors) == ("ready", 0, [])


@pytest.mark.parametrize(
    ("settle", "arguments", "state"),
    [
        ("ack", {}, "done"),
        ("ack", {"result": 1}, "done"),
        ("nack", {}, "ready"),
        ("nack", {"delay": 60, "error": "mine"}, "scheduled"),
        ("reject", {}, "dead"),
        ("reject", {"error": "mine"}, "dead"),
        ("release", {}, "ready"),
    ],
)
@pytest.mark.parametrize("raises", [None, ValueError, Interrupt])
async def test_what_is_settled_in_the_block_stays_so(
    client: AsyncClient,
    engine18: Engine,
    message_id: int,
    settle: str,
    arguments: dict[str, Any],
    state: str,
    raises: type[BaseException] | None,
) -> None:
    message = await taken(client)
    try:
        async with message:
            await getattr(message, settle)(**arguments)
            before = engine18.message("q", message_id)
            if raises is not None:
                raise raises("later")
    except Interrupt:
        assert raises is Interrupt
    after = engine18.message("q", message_id)
    assert after == before
    assert after.state == state


async def test_settled_through_the_client(client: AsyncClient, engine18: Engine, message_id: int) -> None:
    async with await taken(client, reraise=True) as message:
        await client.ack(message)
    assert engine18.state("q", message_id) == "done"
    engine18.send("q")
    async with await taken(client, reraise=True) as message:
        assert await client.ack_many([message]) == []
    assert set(engine18.states("q").values()) == {"done"}


@pytest.mark.parametrize("again", ["ack", "nack", "reject", "release"])
@pytest.mark.parametrize("first", ["ack", "nack", "reject", "release"])
async def test_the_second_one_is_refused(
    client: AsyncClient, engine18: Engine, message_id: int, first: str, again: str
) -> None:
    message = await taken(client)
    await getattr(message, first)()
    before = engine18.message("q", message_id)
    with pytest.raises(LeaseLost, match=f"{again}_message.*message {message_id} of 'q'"):
        await getattr(message, again)()
    with pytest.raises(LeaseLost):
        await message.extend(1)
    assert engine18.message("q", message_id) == before


async def test_a_second_block_acks_no_more(client: AsyncClient, engine18: Engine, message_id: int) -> None:
    message = await taken(client, reraise=True)
    async with message:
        pass
    async with message:
        pass
    assert engine18.state("q", message_id) == "done"


@pytest.mark.parametrize("reraise", [False, True])
async def test_a_lease_that_ended_in_the_block(
    client: AsyncClient,
    engine18: Engine,
    clock18: Clock,
    message_id: int,
    reraise: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    message = await taken(client, reraise=reraise)
    lost: LeaseLost | None = None
    try:
        async with message:
            clock18.advance(31)
            other = engine18.take("q")
            assert other.delivery_attempts == 2
    except LeaseLost as exc:
        lost = exc
    assert (lost is not None) == reraise
    assert message.is_lost
    row = engine18.message("q", message_id)
    assert (row.state, row.consumer) == ("active", fingerprint(other.consumer_token))
    assert reraise or any("is over" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("settle", ["ack", "nack", "reject", "release"])
async def test_settling_in_a_block_whose_lease_ended(
    client: AsyncClient, engine18: Engine, clock18: Clock, message_id: int, settle: str
) -> None:
    message = await taken(client)
    clock18.advance(31)
    other = engine18.take("q")
    async with message:
        with pytest.raises(LeaseLost):
            await getattr(message, settle)()
        assert message.is_lost
    assert engine18.message("q", message_id).consumer == fingerprint(other.consumer_token)


async def test_the_others_go_on_when_one_fails(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q", max_delivery_attempts=1)
    ids = await client.send_many("q", range(5))
    async for message in client.consume("q", wait=0):
        async with message:
            if message.payload % 2:
                raise ValueError(f"odd {message.payload}")
    states = engine18.states("q")
    assert [states[message_id] for message_id in ids] == ["done", "dead", "done", "dead", "done"]
    assert engine18.message("q", ids[3]).last_error == "ValueError: odd 3"


async def test_a_very_long_error(client: AsyncClient, engine18: Engine, message_id: int) -> None:
    async with await taken(client):
        raise ValueError("ü" * 1_000_000)
    last = engine18.message("q", message_id).last_error
    assert last.startswith("ValueError: ü")


async def test_an_error_that_has_no_text(client: AsyncClient, engine18: Engine, message_id: int) -> None:
    class NastyError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even a text")

    async with await taken(client):
        raise NastyError
    row = engine18.message("q", message_id)
    assert row.state == "ready"
    assert "NastyError" in row.last_error


# Leases


async def test_a_lease_is_kept_while_the_block_runs_and_for_those_that_wait(
    client: AsyncClient, engine18: Engine
) -> None:
    engine18.queue("q")
    ids = await client.send_many("q", range(3))
    seen = []
    async for message in client.consume("q", visibility_timeout=1, auto_extend=True, wait=0):
        async with message:
            seen.append((message.id, message.attempt))
            if message.id == ids[0]:
                end = time.monotonic() + 4

                def undisturbed(end: float = end) -> bool:
                    assert engine18.nothing_to_take("q")
                    return time.monotonic() > end

                await async_until(undisturbed)
                assert not message.is_lost
                row = engine18.message("q", message.id)
                assert row.vt > engine18.now()
                assert message.leased_until - message.published_at > timedelta(seconds=3)
                # No lease is longer than was asked for, however often it was extended.
                assert row.vt - engine18.now() <= timedelta(seconds=2)
    assert seen == [(message_id, 1) for message_id in ids]
    assert set(engine18.states("q").values()) == {"done"}


async def test_a_lease_is_kept_in_a_block_that_goes_on_after_the_iteration(
    client: AsyncClient, engine18: Engine, message_id: int
) -> None:
    """As in programs that hand messages to tasks or threads of their own."""
    async for message in client.consume("q", visibility_timeout=3, auto_extend=True, wait=0):
        await message.__aenter__()
    at_first = message.leased_until
    await async_until(lambda: message.leased_until > at_first)
    await message.__aexit__(None, None, None)
    assert engine18.state("q", message_id) == "done"


async def test_what_is_being_acked_with_others_is_not_lost(
    client: AsyncClient, engine18: Engine, message_id: int, sql18: psycopg.Connection[Any]
) -> None:
    """An extension at this moment finds no lease: the ack ended it, but has not been reported yet."""
    message = await taken(client)
    with sql18.transaction():
        sql18.execute("lock table penstock.queues in access exclusive mode")
        acking = AsyncRunning(lambda: client.ack_many([message]))
        await async_until(lambda: message._lease.is_settling)
        message._lease.lose()
    assert await acking.result() == []
    assert not message.is_lost
    assert not message._lease.is_settling
    assert engine18.state("q", message_id) == "done"


async def test_without_auto_extend_it_is_not_kept(
    client: AsyncClient, engine18: Engine, message_id: int
) -> None:
    message = await taken(client, visibility_timeout=1)
    async with message:
        await async_until(lambda: not engine18.nothing_to_take("q"))
        assert message.is_lost
    assert engine18.message("q", message_id).state == "active"


async def test_what_is_out_of_its_block_is_not_kept(
    client: AsyncClient, engine18: Engine, message_id: int
) -> None:
    """Handed out and forgotten: it comes back after its lease."""
    async for message in client.consume("q", visibility_timeout=1, auto_extend=True, wait=0):
        assert message.attempt == 1
        await async_until(lambda: not engine18.nothing_to_take("q"))
        assert message.is_lost
        break
    assert engine18.message("q", message_id).delivery_attempts == 2


async def test_extending_by_hand_keeps_the_message(
    client: AsyncClient, engine18: Engine, message_id: int
) -> None:
    async with await taken(client, visibility_timeout=1, reraise=True) as message:
        before = message.leased_until
        assert await message.extend(timedelta(seconds=60)) == before + timedelta(seconds=60)
        assert message.leased_until == engine18.message("q", message_id).vt
        await async_until(lambda: engine18.now() > before)
        assert not message.is_lost
    assert engine18.state("q", message_id) == "done"


async def test_one_that_is_locked_does_not_cost_the_others_their_lease(
    client: AsyncClient, engine18: Engine
) -> None:
    """Acked in a transaction that takes its time: an extension of that lease waits."""
    engine18.queue("slow")
    engine18.queue("q")
    engine18.send("slow")
    message_id = engine18.send("q")
    options: dict[str, Any] = {"visibility_timeout": 1, "auto_extend": True, "wait": 0}
    async for slow in client.consume("slow", **options):
        async with slow, client.transaction() as transaction:
            await transaction.ack(slow)
            async for message in client.consume("q", **options):
                async with message:
                    end = time.monotonic() + 2.5
                    await async_until(lambda end=end: time.monotonic() > end)  # type: ignore[misc]
                    assert not message.is_lost
                    assert engine18.nothing_to_take("q")
    assert engine18.state("q", message_id) == "done"
    assert set(engine18.states("slow").values()) == {"done"}
