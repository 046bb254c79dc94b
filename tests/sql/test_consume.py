"""Consuming: which messages a consumer gets, in which order, for how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from ..conftest import Connect
from .bad_input import Bad, expect
from .conftest import Clock
from .engine import Engine, fingerprint


def seconds(row: Any) -> float:
    """How long a lease was given for."""
    length: timedelta = row.vt - row.claimed_at
    return length.total_seconds()


def test_a_claim_returns_the_message_and_its_lease(engine: Engine) -> None:
    engine.queue("q")
    message_id = engine.send("q", {"a": [1, None]}, headers={"h": 1}, priority=1, tenant="acme")
    before = engine.now()
    message = engine.take("q", "worker 1")
    published_at = engine.message("q", message_id).published_at
    vt = message.vt
    assert before <= vt - timedelta(seconds=30) <= engine.now()
    assert vars(message) == {
        "message_id": message_id,
        "queue_name": "q",
        "payload": {"a": [1, None]},
        "body": None,
        "headers": {"h": 1},
        "consumer_token": "worker 1",
        "delivery_attempts": 1,
        "vt": vt,
        "published_at": published_at,
        "priority": 1,
        "tenant": "acme",
        "attempts_limit": None,
        "lost_deliveries": 0,
        "queue_capped": False,
    }
    row = engine.message("q", message_id)
    assert (row.state, row.consumer, row.vt) == ("active", fingerprint("worker 1"), vt)


def test_an_empty_queue_gives_no_row(engine: Engine) -> None:
    engine.queue("q")
    assert engine.rows("consume_message", "q") == []
    assert engine.rows("consume_messages_batch", "q") == []


def test_the_oldest_comes_first_and_each_comes_once(engine: Engine) -> None:
    engine.queue("q")
    ids = [engine.send("q") for _ in range(5)]
    assert [engine.take("q").message_id for _ in ids] == ids
    assert engine.nothing_to_take("q")


def test_a_batch_gives_up_to_its_size_in_order(engine: Engine) -> None:
    engine.queue("q")
    ids = engine.send_many("q", list(range(25)))
    assert [m.message_id for m in engine.rows("consume_messages_batch", "q")] == ids[:10]
    assert [m.message_id for m in engine.take_many("q", 12)] == ids[10:22]
    assert [m.message_id for m in engine.take_many("q", 10000)] == ids[22:]
    assert engine.take_many("q", 10) == []


def test_the_server_makes_a_token_for_each_claim(engine: Engine) -> None:
    engine.queue("q")
    engine.send_many("q", [1, 2, 3])
    one = engine.take("q")
    batch = engine.take_many("q", 2)
    assert one.consumer_token
    assert len({m.consumer_token for m in batch}) == 1
    assert one.consumer_token != batch[0].consumer_token
    assert engine.ack(one)
    assert all(engine.ack(message) for message in batch)


def test_a_queue_says_how_long_a_lease_runs_and_a_consumer_may_say_otherwise(engine: Engine) -> None:
    engine.queue("q", visibility_timeout_seconds=90)
    by_queue, by_consumer = engine.send_many("q", [1, 2])
    engine.take("q")
    engine.take("q", vt_seconds=7)
    assert seconds(engine.message("q", by_queue)) == 90
    assert seconds(engine.message("q", by_consumer)) == 7


def test_a_leased_message_is_invisible_until_its_lease_runs_out(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    first = engine.take("q", vt_seconds=60)
    clock.advance(50)
    assert engine.nothing_to_take("q")
    clock.advance(11)
    second = engine.take("q")
    assert (second.message_id, second.delivery_attempts) == (message_id, 2)
    assert second.consumer_token != first.consumer_token


def test_a_lease_of_no_time_is_over_at_once(engine: Engine) -> None:
    engine.queue("q")
    engine.send("q")
    assert [engine.take("q", vt_seconds=0).delivery_attempts for _ in range(3)] == [1, 2, 3]
    assert engine.nothing_to_take("q")


def test_a_claim_promotes_what_is_due_without_maintain(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    ids = [engine.send("q", deliver_after=engine.now() + timedelta(seconds=s)) for s in (30, 10, 20)]
    clock.advance(25)
    assert [m.message_id for m in engine.take_many("q", 10)] == [ids[1], ids[2]]
    clock.advance(10)
    assert engine.take("q").message_id == ids[0]


def test_a_claim_that_found_too_little_fills_up_from_both(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    lost = engine.send("q")
    engine.take("q", vt_seconds=10)
    due = engine.send("q", deliver_after=engine.now() + timedelta(seconds=10))
    clock.advance(11)
    ready = engine.send("q")
    assert {m.message_id for m in engine.take_many("q", 10)} == {lost, due, ready}


def test_a_claim_leaves_other_queues_alone(engine: Engine, clock: Clock) -> None:
    for queue in ("a", "b"):
        engine.queue(queue)
        engine.send(queue)
        engine.take(queue, vt_seconds=5)
    clock.advance(6)
    assert engine.take("a").delivery_attempts == 2
    assert engine.statistics("b").processing_count == 1


def test_two_consumers_at_once_get_different_messages_and_none_waits(
    engine: Engine, connect: Connect, sql: psycopg.Connection[Any]
) -> None:
    engine.queue("q")
    ids = engine.send_many("q", list(range(6)))
    other = Engine(connect())
    with sql.transaction(), other.connection.transaction():
        first = engine.take_many("q", 2)
        second = other.take_many("q", 3)
        third = engine.take_many("q", 5)
    assert [m.message_id for m in first] == ids[:2]
    assert [m.message_id for m in second] == ids[2:5]
    assert [m.message_id for m in third] == ids[5:]


def test_a_claim_that_rolls_back_never_was(engine: Engine, sql: psycopg.Connection[Any]) -> None:
    engine.queue("q")
    engine.send("q")
    with engine.unchanged(), sql.transaction(force_rollback=True):
        assert engine.take("q").delivery_attempts == 1
    assert engine.take("q").delivery_attempts == 1


def test_a_lease_runs_from_the_claim_not_from_the_begin_of_the_transaction(
    engine: Engine, clock: Clock, sql: psycopg.Connection[Any]
) -> None:
    engine.queue("q")
    with sql.transaction():
        engine.send("q")
        clock.advance(3600)
        message = engine.take("q", vt_seconds=60)
        assert message.vt > engine.now() + timedelta(seconds=50)
        assert engine.nothing_to_take("q")


def test_a_message_can_be_sent_taken_and_acked_in_one_transaction(
    engine: Engine, sql: psycopg.Connection[Any]
) -> None:
    engine.queue("q")
    with sql.transaction():
        engine.send("q", "x" * 5000)
        message = engine.take("q")
        assert len(message.payload) == 5000
        assert engine.ack(message)
    assert engine.state("q", message.message_id) == "done"


def test_leases_that_run_out_come_back_in_front_of_newer_messages(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    old = engine.send_many("q", [1, 2])
    engine.take_many("q", 2, vt_seconds=5)
    new = engine.send_many("q", [3, 4])
    clock.advance(6)
    engine.maintain()
    assert [m.message_id for m in engine.take_many("q", 10)] == old + new


@pytest.mark.parametrize("longest", [2592000])
def test_the_longest_lease(engine: Engine, longest: int) -> None:
    engine.queue("q", visibility_timeout_seconds=longest)
    message_id = engine.send("q")
    engine.take("q", vt_seconds=longest)
    assert seconds(engine.message("q", message_id)) == longest


@pytest.mark.parametrize(
    "bad",
    [
        expect("PN001", '"nope"').of("consume_message", "nope"),
        expect("PN001", "queue").of("consume_message", None),
        expect("PN001", '"Billing"').of("consume_message", "Billing"),
        expect("PN001", '"nope"').of("consume_messages_batch", "nope"),
        expect("PN004", "vt_seconds", "-1").of("consume_message", "billing", vt_seconds=-1),
        expect("PN004", "vt_seconds", "2592001").of("consume_message", "billing", vt_seconds=2592001),
        expect("PN004", "vt_seconds", "2147483647").of("consume_message", "billing", vt_seconds=2147483647),
        expect("PN004", "consumer_token").of("consume_message", "billing", ""),
        expect("PN004", "vt_seconds", "-1").of("consume_messages_batch", "billing", vt_seconds=-1),
        expect("PN004", "batch_size", "0").of("consume_messages_batch", "billing", batch_size=0),
        expect("PN004", "batch_size", "-1").of("consume_messages_batch", "billing", batch_size=-1),
        expect("PN004", "batch_size", "null").of("consume_messages_batch", "billing", batch_size=None),
        expect("PN004", "batch_size", "2147483647").of(
            "consume_messages_batch", "billing", batch_size=2147483647
        ),
        expect("PN004", "consumer_token").of("consume_messages_batch", "billing", ""),
    ],
)
def test_bad_input(house: Engine, bad: Bad) -> None:
    bad.check(house)
