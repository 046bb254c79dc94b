"""Deduplication: a key refuses a second message while the first is not finished."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from .conftest import Clock
from .engine import Engine


@pytest.fixture
def keyed(engine: Engine) -> int:
    """A message of queue q with the key k."""
    engine.queue("q", max_delivery_attempts=2)
    return engine.send("q", "first", dedup_key="k")


@pytest.mark.parametrize(
    "state", ["ready", "active", "retried", "waiting for a retry", "released", "scheduled"]
)
def test_an_unfinished_message_refuses_a_second_one_and_gives_its_id(engine: Engine, state: str) -> None:
    engine.queue("q")
    due = "2999-01-01" if state == "scheduled" else None
    first = engine.send("q", dedup_key="k", deliver_after=due)
    if state not in ("ready", "scheduled"):
        message = engine.take("q")
        if state == "retried":
            engine.nack(message)
        elif state == "waiting for a retry":
            engine.nack(message, delay_seconds=60)
        elif state == "released":
            engine.release(message)
    with engine.unchanged():
        assert engine.send("q", "x" * 5000, dedup_key="k", priority=0) == first


def finish(engine: Engine, how: str, message_id: int, clock: Clock) -> None:
    if how == "ack":
        engine.ack(engine.take("q"))
    elif how == "ack_messages":
        engine.values("ack_messages", "q", [message_id], [engine.take("q").consumer_token])
    elif how == "reject":
        engine.reject(engine.take("q"))
    elif how == "last attempt":
        for _ in range(2):
            engine.nack(engine.take("q"))
    elif how == "last lease":
        for _ in range(2):
            engine.take("q", vt_seconds=5)
            clock.advance(6)
        assert engine.nothing_to_take("q")
    elif how == "cancel":
        engine.value("cancel_message", "q", message_id)
    elif how == "purge":
        engine.value("purge_queue", "q")
    elif how == "purge while leased":
        engine.take("q")
        engine.value("purge_queue", "q")
    else:
        engine.rows("purge_all_messages")


ENDS = [
    "ack",
    "ack_messages",
    "reject",
    "last attempt",
    "last lease",
    "cancel",
    "purge",
    "purge while leased",
    "purge all",
]


@pytest.mark.parametrize("how", ENDS)
def test_a_finished_message_frees_its_key(engine: Engine, keyed: int, how: str, clock: Clock) -> None:
    finish(engine, how, keyed, clock)
    assert engine.count("dedup") == 0
    second = engine.send("q", "second", dedup_key="k")
    assert second != keyed
    assert engine.take("q").payload == "second"


@pytest.mark.parametrize("ended_by", ["consume", "maintain"])
@pytest.mark.parametrize("delayed", [False, True])
def test_an_expired_message_frees_its_key(engine: Engine, clock: Clock, ended_by: str, delayed: bool) -> None:
    engine.queue("q")
    due = clock.now().replace(microsecond=0) if delayed else None
    first = engine.send("q", dedup_key="k", ttl_seconds=5, deliver_after=due)
    clock.advance(10)
    if ended_by == "consume":
        assert engine.nothing_to_take("q")
    else:
        engine.maintain()
    assert engine.state("q", first) == "dead"
    assert engine.send("q", dedup_key="k") != first


def test_a_deleted_queue_frees_its_keys(engine: Engine, keyed: int) -> None:
    engine.value("delete_queue", "q")
    engine.queue("q")
    assert engine.send("q", dedup_key="k") != keyed


def test_a_requeued_message_holds_its_key_again(engine: Engine, keyed: int) -> None:
    engine.reject(engine.take("q"))
    engine.value("requeue_dlq_messages", "q")
    assert engine.send("q", dedup_key="k") == keyed
    engine.ack(engine.take("q"))
    assert engine.send("q", dedup_key="k") != keyed


def test_retries_that_are_added_hold_the_key_again(engine: Engine, keyed: int) -> None:
    for _ in range(2):
        engine.nack(engine.take("q"))
    assert engine.value("add_retries", "q", 1) == 1
    assert engine.send("q", dedup_key="k") == keyed


def test_a_requeued_message_leaves_the_key_to_whom_took_it_meanwhile(engine: Engine, keyed: int) -> None:
    engine.reject(engine.take("q"))
    second = engine.send("q", "second", dedup_key="k")
    assert engine.value("requeue_dlq_messages", "q") == 1
    messages = {m.message_id: m for m in engine.take_many("q", 10)}
    assert set(messages) == {keyed, second}
    engine.ack(messages[keyed])
    assert engine.send("q", dedup_key="k") == second
    engine.ack(messages[second])
    assert engine.send("q", dedup_key="k") not in messages


def test_two_dead_letters_with_one_key_are_requeued_at_once(engine: Engine, keyed: int) -> None:
    engine.reject(engine.take("q"))
    second = engine.send("q", dedup_key="k")
    engine.reject(engine.take("q"))
    assert engine.value("requeue_dlq_messages", "q") == 2
    holder = engine.send("q", dedup_key="k")
    assert holder in (keyed, second)
    for message in engine.take_many("q", 10):
        engine.ack(message)
    assert engine.count("dedup") == 0


def test_a_purged_dead_letter_leaves_the_key_of_its_successor(engine: Engine, keyed: int) -> None:
    engine.reject(engine.take("q"))
    second = engine.send("q", dedup_key="k")
    assert engine.value("purge_dlq", "q") == 1
    assert engine.send("q", dedup_key="k") == second


def test_a_key_is_of_one_queue(engine: Engine, keyed: int) -> None:
    engine.queue("other")
    assert engine.send("other", dedup_key="k") != keyed
    assert engine.send("q", dedup_key="K") != keyed
    assert engine.send("q", dedup_key="k ", tenant="acme") != keyed


def test_messages_without_a_key_are_never_refused(engine: Engine) -> None:
    engine.queue("q")
    assert len({engine.send("q") for _ in range(3)}) == 3


def test_a_published_message_holds_its_key_until_all_queues_are_done(engine: Engine) -> None:
    engine.topic("t", "a", "b")
    first = engine.publish("t", dedup_key="k")
    engine.ack(engine.take("a"))
    with engine.unchanged():
        assert engine.publish("t", dedup_key="k") == first
    engine.ack(engine.take("b"))
    second = engine.publish("t", dedup_key="k")
    assert second != first
    assert [engine.state(queue, second) for queue in "ab"] == ["ready", "ready"]


def test_a_key_held_in_any_queue_refuses_in_all(engine: Engine) -> None:
    engine.topic("t", "a", "b", "c")
    direct = engine.send("b", dedup_key="k")
    with engine.unchanged():
        assert engine.publish("t", dedup_key="k") == direct
    engine.value("cancel_message", "b", direct)
    assert engine.publish("t", dedup_key="k") != direct


def test_a_batch_refuses_its_own_repeats(engine: Engine) -> None:
    engine.queue("q")
    ids = engine.send_many("q", ["a", "b", "a again", "none", "none"], dedup_keys=["a", "b", "a", None, None])
    assert ids[2] == ids[0]
    assert len(set(ids)) == 4
    assert [m.payload for m in engine.take_many("q", 10)] == ["a", "b", "none", "none"]


def test_a_batch_returns_the_ids_of_those_that_were_there(engine: Engine, keyed: int) -> None:
    ids = engine.send_many("q", ["new", "x" * 5000, "newer"], dedup_keys=["n", "k", None])
    assert ids[1] == keyed
    assert engine.count("payloads") == 0
    assert [m.message_id for m in engine.take_many("q", 10)] == [keyed, ids[0], ids[2]]


def test_a_key_for_a_whole_batch_takes_its_first_message(engine: Engine) -> None:
    engine.queue("q")
    ids = engine.send_many("q", ["first", "second"], dedup_key="k")
    assert ids[0] == ids[1]
    assert [m.payload for m in engine.take_many("q", 10)] == ["first"]


def test_a_rollback_frees_the_key(engine: Engine, sql: psycopg.Connection[Any]) -> None:
    engine.queue("q")
    with sql.transaction(force_rollback=True):
        first = engine.send("q", dedup_key="k")
    assert engine.send("q", dedup_key="k") != first


def test_a_rolled_back_ack_keeps_the_key(engine: Engine, keyed: int, sql: psycopg.Connection[Any]) -> None:
    message = engine.take("q")
    with sql.transaction(force_rollback=True):
        engine.ack(message)
    assert engine.send("q", dedup_key="k") == keyed
