"""Exclusive queues: temporary, removed when no client keeps them alive."""

from __future__ import annotations

from datetime import timedelta

import pytest

from .bad_input import Bad, expect
from .conftest import Clock
from .engine import Engine


def test_an_exclusive_queue_works_until_its_keep_alive_ends(engine: Engine, clock: Clock) -> None:
    engine.topic("events")
    before = engine.now()
    engine.queue("mine", topic_name="events", exclusive=True, keep_alive_seconds=60)
    row = engine.settings("mine")
    assert row.exclusive
    assert before <= row.keep_alive_until - timedelta(seconds=60) <= engine.now()
    engine.publish("events")
    clock.advance(50)
    assert engine.take("mine").payload == 1
    clock.advance(11)
    with engine.refused("PN001", '"mine"'):
        engine.rows("consume_message", "mine")


def test_without_a_keep_alive_it_is_kept_for_some_time(engine: Engine) -> None:
    engine.queue("mine", exclusive=True)
    assert engine.settings("mine").keep_alive_until > engine.now() + timedelta(seconds=10)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("send_message", ["1"]),
        ("send_messages", ["{1}"]),
        ("consume_message", []),
        ("consume_messages_batch", []),
        ("nack_message", [1, "t"]),
        ("release_message", [1, "t"]),
        ("reject_message", [1, "t"]),
        ("extend_message_vt", [1, "t", 5]),
        ("batch_extend_message_vt", ["{1}", "t", 5]),
        ("extend_queue_keep_alive", [60]),
        ("alter_queue", []),
        ("pause_queue", []),
        ("list_messages", []),
        ("get_queue_statistics", []),
        ("requeue_dlq_messages", []),
        ("purge_queue", []),
        ("get_message", [1]),
        ("explain_delivery", [1]),
    ],
)
def test_once_ended_it_does_not_exist_for_any_session(
    engine: Engine, clock: Clock, function: str, arguments: list[object]
) -> None:
    engine.queue("mine", exclusive=True, keep_alive_seconds=60)
    engine.queue("paused", exclusive=True, keep_alive_seconds=600)
    engine.value("pause_queue", "paused")
    clock.advance(61)
    with engine.refused("PN001", '"mine"'):
        engine.rows(function, "mine", *arguments)


def test_a_topic_goes_on_without_the_ended_queue(engine: Engine, clock: Clock) -> None:
    engine.topic("events", "lasting")
    engine.queue("mine", topic_name="events", exclusive=True, keep_alive_seconds=60)
    clock.advance(61)
    message_id = engine.publish("events", "x" * 4000)
    assert engine.ack(engine.take("lasting"))
    assert engine.query("select count(*) from penstock.ready where id = %s", message_id) == [(0,)]
    assert engine.count("payloads") == 0


def test_extending_keeps_it_and_returns_until_when(engine: Engine, clock: Clock) -> None:
    engine.queue("mine", exclusive=True, keep_alive_seconds=60)
    clock.advance(50)
    before = engine.now()
    until = engine.value("extend_queue_keep_alive", "mine", 60)
    assert before <= until - timedelta(seconds=60) <= engine.now()
    assert engine.settings("mine").keep_alive_until == until
    clock.advance(50)
    assert engine.nothing_to_take("mine")


def test_cleanup_deletes_what_ended_and_counts_it(engine: Engine, clock: Clock) -> None:
    engine.queue("lasting")
    engine.queue("later", exclusive=True, keep_alive_seconds=600)
    kept = engine.belongings()
    for name in ("a", "b"):
        engine.queue(name, exclusive=True, keep_alive_seconds=60)
        engine.send(name, "x" * 4000, dedup_key="k")
    assert engine.value("cleanup_expired_exclusive_queues") == 0
    clock.advance(61)
    assert engine.value("cleanup_expired_exclusive_queues") == 2
    assert engine.value("cleanup_expired_exclusive_queues") == 0
    engine.maintain()
    assert engine.belongings() == kept


def test_maintain_deletes_what_ended(engine: Engine, clock: Clock) -> None:
    engine.queue("mine", exclusive=True, keep_alive_seconds=60)
    engine.send("mine")
    clock.advance(61)
    assert engine.maintain()["exclusive queue deleted"] == 1
    assert engine.count("queues") == engine.count("ready") == 0


def test_an_ended_queue_can_be_made_again_with_anything(engine: Engine, clock: Clock) -> None:
    engine.queue("mine", exclusive=True, keep_alive_seconds=60)
    engine.send("mine")
    clock.advance(61)
    engine.queue("mine", max_delivery_attempts=9)
    assert not engine.settings("mine").exclusive
    assert engine.states("mine") == {}


def test_creating_a_live_one_again_never_shortens_its_life(engine: Engine) -> None:
    first = engine.value("create_queue", "mine", exclusive=True, keep_alive_seconds=600)
    until = engine.settings("mine").keep_alive_until
    assert engine.value("create_queue", "mine", exclusive=True, keep_alive_seconds=60) == first
    assert engine.settings("mine").keep_alive_until == until
    engine.queue("mine", exclusive=True, keep_alive_seconds=6000)
    assert engine.settings("mine").keep_alive_until > until


def test_an_ended_queue_can_be_deleted(engine: Engine, clock: Clock) -> None:
    engine.queue("mine", exclusive=True, keep_alive_seconds=60)
    clock.advance(61)
    engine.value("delete_queue", "mine")
    assert engine.rows("list_queues") == []


@pytest.mark.parametrize("others", ["none", "lasting", "exclusive"])
def test_extending_an_unknown_queue_is_an_error_whatever_others_are(engine: Engine, others: str) -> None:
    if others != "none":
        engine.queue("other", exclusive=others == "exclusive")
    with engine.refused("PN001", '"nope"'):
        engine.value("extend_queue_keep_alive", "nope", 60)


@pytest.mark.parametrize(
    "bad",
    [
        expect("PN004", "keep_alive_seconds", "0").of("extend_queue_keep_alive", "session", 0),
        expect("PN004", "keep_alive_seconds", "-5").of("extend_queue_keep_alive", "session", -5),
        expect("PN004", "keep_alive_seconds", "null").of("extend_queue_keep_alive", "session", None),
        expect("PN004", "keep_alive_seconds", "2147483647").of(
            "extend_queue_keep_alive", "session", 2147483647
        ),
        expect("PN004", '"billing"').of("extend_queue_keep_alive", "billing", 60),
        expect("PN001", "queue").of("extend_queue_keep_alive", None, 60),
        expect("PN004", "keep_alive_seconds", "0").of(
            "create_queue", "new", exclusive=True, keep_alive_seconds=0
        ),
        expect("PN004", "keep_alive_seconds", "-1").of(
            "create_queue", "new", exclusive=True, keep_alive_seconds=-1
        ),
        expect("PN004", "keep_alive_seconds", "2147483647").of(
            "create_queue", "new", exclusive=True, keep_alive_seconds=2147483647
        ),
    ],
)
def test_bad_input(house: Engine, bad: Bad) -> None:
    bad.check(house)
