"""The promises at the end of section 5: one state, one lease, part of the caller's transaction."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from ..conftest import Connect
from .conftest import Clock
from .engine import Engine

STATES = ("scheduled", "ready", "active", "dead", "done")


def where(engine: Engine) -> dict[int, list[str]]:
    """The states that each message of queue q is in, by the tables."""
    places: dict[int, list[str]] = {}
    for state in STATES:
        for (message_id,) in engine.query(f"select id from penstock.{state}"):
            places.setdefault(message_id, []).append(state)
    return places


def check(engine: Engine, expected: dict[int, str]) -> None:
    """Each message is in one state, and all ways to look agree on it."""
    assert where(engine) == {message_id: [state] for message_id, state in expected.items()}
    assert engine.states("q") == expected
    for message_id, state in expected.items():
        assert engine.state("q", message_id) == state
    counted = Counter(expected.values())
    row = engine.statistics("q")
    assert row.pending_count == counted["ready"] + counted["scheduled"]
    assert row.delayed_count == counted["scheduled"]
    assert (row.processing_count, row.completed_count) == (counted["active"], counted["done"])
    assert row.dead_count == counted["dead"]


def test_a_message_is_in_exactly_one_state_all_its_life(engine: Engine, clock: Clock) -> None:
    engine.queue("q", max_delivery_attempts=3)
    other = engine.send("q", "other", deliver_after="2999-01-01")
    one = engine.send("q", "one", deliver_after=engine.now() + timedelta(seconds=5))
    expected = {other: "scheduled", one: "scheduled"}
    check(engine, expected)

    clock.advance(6)
    engine.maintain()
    check(engine, expected | {one: "ready"})
    message = engine.take("q")
    check(engine, expected | {one: "active"})
    engine.release(message)
    check(engine, expected | {one: "ready"})
    engine.nack(engine.take("q"), delay_seconds=5)
    check(engine, expected | {one: "scheduled"})
    clock.advance(6)
    engine.take("q", vt_seconds=5)
    check(engine, expected | {one: "active"})
    clock.advance(6)
    check(engine, expected | {one: "active"})
    engine.maintain()
    check(engine, expected | {one: "ready"})
    engine.nack(engine.take("q"))
    check(engine, expected | {one: "dead"})
    engine.value("add_retries", "q", 1)
    check(engine, expected | {one: "ready"})
    engine.reject(engine.take("q"))
    check(engine, expected | {one: "dead"})
    engine.value("requeue_dlq_messages", "q")
    check(engine, expected | {one: "ready"})
    engine.ack(engine.take("q"))
    check(engine, expected | {one: "done"})
    engine.value("cancel_message", "q", other)
    check(engine, {one: "done"})
    engine.value("cleanup_queue_messages", "q")
    check(engine, {})


def test_the_effect_of_a_handler_that_acks_in_its_transaction_is_exactly_once(
    engine: Engine, connect: Connect, sql: psycopg.Connection[Any]
) -> None:
    engine.queue("q")
    sql.execute("create temporary table effects (message_id bigint)")
    message_id = engine.send("q")
    message = engine.take("q", vt_seconds=0)
    # The lease has run out and another consumer has the message: both handlers finish.
    other = Engine(connect())
    again = other.take("q")
    with sql.transaction() as handler:
        sql.execute("insert into effects values (%s)", (message_id,))
        if not engine.ack(message):
            raise psycopg.Rollback(handler)
    assert sql.execute("select count(*) from effects").fetchall() == [(0,)]
    with sql.transaction():
        sql.execute("insert into effects values (%s)", (message_id,))
        assert engine.ack(again)
    assert sql.execute("select count(*) from effects").fetchall() == [(1,)]


def test_a_publish_commits_with_the_callers_own_writes_or_not_at_all(
    engine: Engine, sql: psycopg.Connection[Any]
) -> None:
    engine.topic("t", "q")
    sql.execute("create temporary table orders (id bigint primary key)")
    with sql.transaction():
        sql.execute("insert into orders values (1)")
        engine.publish("t", {"order": 1})
    with engine.refused("23505"):
        engine.publish("t", {"order": 1})
        sql.execute("insert into orders values (1)")
    assert [m.payload for m in engine.take_many("q", 10)] == [{"order": 1}]


def test_consume_and_publish_in_one_transaction_move_a_message_on_exactly_once(
    engine: Engine, sql: psycopg.Connection[Any]
) -> None:
    engine.queue("in")
    engine.queue("out")
    engine.send("in", "work")
    for fails in (True, False):
        with sql.transaction(force_rollback=fails):
            message = engine.take("in")
            engine.send("out", message.payload)
            assert engine.ack(message)
    assert engine.statistics("in").completed_count == 1
    assert [m.payload for m in engine.take_many("out", 10)] == ["work"]


@pytest.mark.parametrize("batch_size", [1, 4, 50])
def test_never_two_live_leases_for_a_message(engine: Engine, connect: Connect, batch_size: int) -> None:
    engine.queue("q")
    ids = engine.send_many("q", list(range(50)))
    consumers = [engine, Engine(connect()), Engine(connect())]
    got: list[int] = []
    while True:
        claimed = [m.message_id for c in consumers for m in c.take_many("q", batch_size, vt_seconds=3600)]
        if not claimed:
            break
        got += claimed
    assert sorted(got) == ids


def test_a_queue_where_a_long_transaction_reads_goes_on(engine: Engine, connect: Connect) -> None:
    engine.queue("q")
    reader = connect()
    with reader.transaction():
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from penstock.ready")
        for n in range(20):
            engine.send("q", n)
            message = engine.take("q")
            assert message.payload == n
            assert engine.ack(message)
            engine.maintain()
    assert engine.statistics("q").completed_count == 20
