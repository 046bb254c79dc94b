# Written by tools/unasync.py from tests/client/asynchronous/test_messages.py:
# change that, run `make generate`.

"""`with message:` and what may happen in it."""

# ruff: noqa: PLR0917 - fixtures are parameters, too

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from penstock import Client, LeaseLost, Message
from tests.client.both import Running, until
from tests.client.conftest import Clock
from tests.sql.engine import Engine, fingerprint


class Interrupt(BaseException):
    """As KeyboardInterrupt or SystemExit: not a failure of the work."""


@pytest.fixture
def message_id(engine18: Engine) -> int:
    """A message in the queue q, which may fail twice."""
    engine18.queue("q", max_delivery_attempts=2)
    return engine18.send("q", {"a": 1})


def taken(client: Client, **options: Any) -> Message[Any]:
    """The next message, of a consumer that goes on."""
    for message in client.consume("q", wait=0, **options):
        return message
    raise AssertionError("there is none")


def test_it_acks(client: Client, engine18: Engine, message_id: int) -> None:
    with taken(client) as message:
        assert message.payload == {"a": 1}
        assert engine18.state("q", message_id) == "active"
    assert engine18.state("q", message_id) == "done"
    assert not message.is_lost


def test_it_acks_what_was_claimed_by_hand(client: Client, engine18: Engine, message_id: int) -> None:
    (message,) = client.consume_batch("q")
    with message as same:
        assert same is message
    assert engine18.state("q", message_id) == "done"


def test_it_nacks_with_the_error(
    client: Client, engine18: Engine, message_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    with taken(client):
        raise ValueError("no \0 such customer")
    with taken(client):
        raise KeyError
    row = engine18.message("q", message_id)
    assert (row.state, row.reason, row.last_error) == ("dead", "no_attempts_left", "KeyError")
    (first, second) = row.errors
    assert first["error"] == "ValueError: no \ufffd such customer"
    assert (first["attempt"], second["attempt"], second["error"]) == (1, 2, "KeyError")
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info[0] for record in logged if record.exc_info] == [ValueError, KeyError]
    assert all(f"message {message_id} of 'q'" in record.getMessage() for record in logged)


def test_reraise(client: Client, engine18: Engine, message_id: int) -> None:
    with pytest.raises(ValueError, match=r"^wrong$"), taken(client, reraise=True):
        raise ValueError("wrong")
    row = engine18.message("q", message_id)
    assert (row.state, row.last_error, row.delivery_attempts) == ("ready", "ValueError: wrong", 1)


@pytest.mark.parametrize("reraise", [False, True])
@pytest.mark.parametrize("error", [Interrupt, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_releases(
    client: Client, engine18: Engine, message_id: int, error: type[BaseException], reraise: bool
) -> None:
    with pytest.raises(error), taken(client, reraise=reraise):
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
def test_what_is_settled_in_the_block_stays_so(
    client: Client,
    engine18: Engine,
    message_id: int,
    settle: str,
    arguments: dict[str, Any],
    state: str,
    raises: type[BaseException] | None,
) -> None:
    message = taken(client)
    try:
        with message:
            getattr(message, settle)(**arguments)
            before = engine18.message("q", message_id)
            if raises is not None:
                raise raises("later")
    except Interrupt:
        assert raises is Interrupt
    after = engine18.message("q", message_id)
    assert after == before
    assert after.state == state


def test_settled_through_the_client(client: Client, engine18: Engine, message_id: int) -> None:
    with taken(client, reraise=True) as message:
        client.ack(message)
    assert engine18.state("q", message_id) == "done"
    engine18.send("q")
    with taken(client, reraise=True) as message:
        assert client.ack_many([message]) == []
    assert set(engine18.states("q").values()) == {"done"}


@pytest.mark.parametrize("again", ["ack", "nack", "reject", "release"])
@pytest.mark.parametrize("first", ["ack", "nack", "reject", "release"])
def test_the_second_one_is_refused(
    client: Client, engine18: Engine, message_id: int, first: str, again: str
) -> None:
    message = taken(client)
    getattr(message, first)()
    before = engine18.message("q", message_id)
    with pytest.raises(LeaseLost, match=f"{again}_message.*message {message_id} of 'q'"):
        getattr(message, again)()
    with pytest.raises(LeaseLost):
        message.extend(1)
    assert engine18.message("q", message_id) == before


def test_a_second_block_acks_no_more(client: Client, engine18: Engine, message_id: int) -> None:
    message = taken(client, reraise=True)
    with message:
        pass
    with message:
        pass
    assert engine18.state("q", message_id) == "done"


@pytest.mark.parametrize("reraise", [False, True])
def test_a_lease_that_ended_in_the_block(
    client: Client,
    engine18: Engine,
    clock18: Clock,
    message_id: int,
    reraise: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    message = taken(client, reraise=reraise)
    lost: LeaseLost | None = None
    try:
        with message:
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
def test_settling_in_a_block_whose_lease_ended(
    client: Client, engine18: Engine, clock18: Clock, message_id: int, settle: str
) -> None:
    message = taken(client)
    clock18.advance(31)
    other = engine18.take("q")
    with message:
        with pytest.raises(LeaseLost):
            getattr(message, settle)()
        assert message.is_lost
    assert engine18.message("q", message_id).consumer == fingerprint(other.consumer_token)


def test_the_others_go_on_when_one_fails(client: Client, engine18: Engine) -> None:
    engine18.queue("q", max_delivery_attempts=1)
    ids = client.send_many("q", range(5))
    for message in client.consume("q", wait=0):
        with message:
            if message.payload % 2:
                raise ValueError(f"odd {message.payload}")
    states = engine18.states("q")
    assert [states[message_id] for message_id in ids] == ["done", "dead", "done", "dead", "done"]
    assert engine18.message("q", ids[3]).last_error == "ValueError: odd 3"


def test_a_very_long_error(client: Client, engine18: Engine, message_id: int) -> None:
    with taken(client):
        raise ValueError("ü" * 1_000_000)
    last = engine18.message("q", message_id).last_error
    assert last.startswith("ValueError: ü")


def test_an_error_that_has_no_text(client: Client, engine18: Engine, message_id: int) -> None:
    class NastyError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even a text")

    with taken(client):
        raise NastyError
    row = engine18.message("q", message_id)
    assert row.state == "ready"
    assert "NastyError" in row.last_error


# Leases


def test_a_lease_is_kept_while_the_block_runs_and_for_those_that_wait(
    client: Client, engine18: Engine
) -> None:
    engine18.queue("q")
    ids = client.send_many("q", range(3))
    seen = []
    for message in client.consume("q", visibility_timeout=1, auto_extend=True, wait=0):
        with message:
            seen.append((message.id, message.attempt))
            if message.id == ids[0]:
                end = time.monotonic() + 4

                def undisturbed(end: float = end) -> bool:
                    assert engine18.nothing_to_take("q")
                    return time.monotonic() > end

                until(undisturbed)
                assert not message.is_lost
                row = engine18.message("q", message.id)
                assert row.vt > engine18.now()
                assert message.leased_until - message.published_at > timedelta(seconds=3)
                # No lease is longer than was asked for, however often it was extended.
                assert row.vt - engine18.now() <= timedelta(seconds=2)
    assert seen == [(message_id, 1) for message_id in ids]
    assert set(engine18.states("q").values()) == {"done"}


def test_a_lease_is_kept_in_a_block_that_goes_on_after_the_iteration(
    client: Client, engine18: Engine, message_id: int
) -> None:
    """As in programs that hand messages to tasks or threads of their own."""
    for message in client.consume("q", visibility_timeout=3, auto_extend=True, wait=0):
        message.__enter__()
    at_first = message.leased_until
    until(lambda: message.leased_until > at_first)
    message.__exit__(None, None, None)
    assert engine18.state("q", message_id) == "done"


def test_what_is_being_acked_with_others_is_not_lost(
    client: Client, engine18: Engine, message_id: int, sql18: psycopg.Connection[Any]
) -> None:
    """An extension at this moment finds no lease: the ack ended it, but has not been reported yet."""
    message = taken(client)
    with sql18.transaction():
        sql18.execute("lock table penstock.queues in access exclusive mode")
        acking = Running(lambda: client.ack_many([message]))
        until(lambda: message._lease.is_settling)
        message._lease.lose()
    assert acking.result() == []
    assert not message.is_lost
    assert not message._lease.is_settling
    assert engine18.state("q", message_id) == "done"


def test_without_auto_extend_it_is_not_kept(client: Client, engine18: Engine, message_id: int) -> None:
    message = taken(client, visibility_timeout=1)
    with message:
        until(lambda: not engine18.nothing_to_take("q"))
        assert message.is_lost
    assert engine18.message("q", message_id).state == "active"


def test_what_is_out_of_its_block_is_not_kept(client: Client, engine18: Engine, message_id: int) -> None:
    """Handed out and forgotten: it comes back after its lease."""
    for message in client.consume("q", visibility_timeout=1, auto_extend=True, wait=0):
        assert message.attempt == 1
        until(lambda: not engine18.nothing_to_take("q"))
        assert message.is_lost
        break
    assert engine18.message("q", message_id).delivery_attempts == 2


def test_extending_by_hand_keeps_the_message(client: Client, engine18: Engine, message_id: int) -> None:
    with taken(client, visibility_timeout=1, reraise=True) as message:
        before = message.leased_until
        assert message.extend(timedelta(seconds=60)) == before + timedelta(seconds=60)
        assert message.leased_until == engine18.message("q", message_id).vt
        until(lambda: engine18.now() > before)
        assert not message.is_lost
    assert engine18.state("q", message_id) == "done"


def test_one_that_is_locked_does_not_cost_the_others_their_lease(client: Client, engine18: Engine) -> None:
    """Acked in a transaction that takes its time: an extension of that lease waits."""
    engine18.queue("slow")
    engine18.queue("q")
    engine18.send("slow")
    message_id = engine18.send("q")
    options: dict[str, Any] = {"visibility_timeout": 1, "auto_extend": True, "wait": 0}
    for slow in client.consume("slow", **options):
        with slow, client.transaction() as transaction:
            transaction.ack(slow)
            for message in client.consume("q", **options):
                with message:
                    end = time.monotonic() + 2.5
                    until(lambda end=end: time.monotonic() > end)  # type: ignore[misc]
                    assert not message.is_lost
                    assert engine18.nothing_to_take("q")
    assert engine18.state("q", message_id) == "done"
    assert set(engine18.states("slow").values()) == {"done"}
