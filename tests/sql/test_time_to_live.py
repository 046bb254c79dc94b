"""Time to live: what is not finished in time goes to the dead letters, as expired."""

from __future__ import annotations

from datetime import timedelta

import pytest

from .conftest import Clock
from .engine import Engine


def expired(engine: Engine, queue: str, message_id: int) -> bool:
    row = engine.message(queue, message_id)
    return bool(row.state == "dead" and row.reason == "expired")


@pytest.mark.parametrize("ended_by", ["consume", "maintain"])
def test_a_message_that_was_not_claimed_in_time_expires(engine: Engine, clock: Clock, ended_by: str) -> None:
    engine.queue("q")
    message_id = engine.send("q", ttl_seconds=60)
    clock.advance(50)
    engine.maintain()
    assert engine.state("q", message_id) == "ready"
    clock.advance(11)
    if ended_by == "consume":
        assert engine.nothing_to_take("q")
    else:
        assert engine.maintain()["expired"] == 1
    row = engine.message("q", message_id)
    assert (row.state, row.reason, row.delivery_attempts, row.last_error) == ("dead", "expired", 0, None)


def test_the_expired_are_passed_over_and_the_batch_is_full(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    ids = engine.send_many("q", list(range(30)), ttls=[60, None, 5] * 10)
    clock.advance(10)
    messages = engine.take_many("q", 20)
    assert [m.message_id for m in messages] == [i for n, i in enumerate(ids) if n % 3 != 2]
    assert engine.nothing_to_take("q")
    assert engine.statistics("q").dead_count == 10


def test_a_message_that_expires_before_it_is_due(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    message_id = engine.send("q", ttl_seconds=60, deliver_after=engine.now() + timedelta(seconds=600))
    clock.advance(61)
    assert engine.maintain()["expired"] == 1
    assert expired(engine, "q", message_id)


@pytest.mark.parametrize("ended_by", ["consume", "maintain"])
def test_a_message_that_is_due_and_expired_is_not_delivered(
    engine: Engine, clock: Clock, ended_by: str
) -> None:
    engine.queue("q")
    message_id = engine.send("q", ttl_seconds=60, deliver_after=engine.now() + timedelta(seconds=30))
    clock.advance(90)
    if ended_by == "maintain":
        engine.maintain()
    assert engine.nothing_to_take("q")
    assert expired(engine, "q", message_id)


def test_the_queue_says_how_long_and_a_message_may_say_otherwise(engine: Engine) -> None:
    engine.queue("q", message_ttl_seconds=60)
    lives = [engine.send("q"), engine.send("q", ttl_seconds=5), engine.send("q", ttl_seconds=6000)]
    rows = [engine.message("q", message_id) for message_id in lives]
    assert [(row.expires_at - row.published_at).total_seconds() for row in rows] == [60, 5, 6000]


def test_each_queue_of_a_topic_has_its_own(engine: Engine, clock: Clock) -> None:
    engine.topic("t", "forever")
    engine.queue("minute", topic_name="t", message_ttl_seconds=60)
    engine.queue("hour", topic_name="t", message_ttl_seconds=3600)
    message_id = engine.publish("t")
    clock.advance(61)
    engine.maintain()
    assert [engine.state(queue, message_id) for queue in ("forever", "minute", "hour")] == [
        "ready",
        "dead",
        "ready",
    ]


def test_null_is_forever(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    clock.advance(timedelta(days=3650).total_seconds())
    engine.maintain()
    assert engine.take("q").message_id == message_id


def test_the_longest_life_there_is(engine: Engine) -> None:
    engine.queue("q", message_ttl_seconds=2147483647)
    message_id = engine.send("q")
    assert engine.message("q", message_id).expires_at > engine.now() + timedelta(days=365 * 60)


def test_what_was_published_before_keeps_its_life(engine: Engine, clock: Clock) -> None:
    engine.queue("q", message_ttl_seconds=60)
    short = engine.send("q")
    engine.value("alter_queue", "q", message_ttl_seconds=3600)
    long = engine.send("q")
    clock.advance(61)
    engine.maintain()
    assert (engine.state("q", short), engine.state("q", long)) == ("dead", "ready")


def test_a_message_in_work_may_finish_late(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    engine.send("q", ttl_seconds=60)
    message = engine.take("q", vt_seconds=600)
    clock.advance(120)
    engine.maintain()
    assert engine.state("q", message.message_id) == "active"
    assert engine.ack(message)


@pytest.mark.parametrize("end", ["nack", "nack later", "lease", "release"])
def test_a_message_in_work_is_not_retried_after_its_time(engine: Engine, clock: Clock, end: str) -> None:
    engine.queue("q")
    message_id = engine.send("q", ttl_seconds=60)
    message = engine.take("q", vt_seconds=100)
    clock.advance(120)
    if end == "nack":
        assert engine.nack(message, error="late")
    elif end == "nack later":
        assert engine.nack(message, delay_seconds=60)
    elif end == "release":
        assert engine.release(message)
    assert engine.nothing_to_take("q")
    assert expired(engine, "q", message_id)


def test_a_retry_that_comes_too_late_expires(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    message_id = engine.send("q", ttl_seconds=60)
    engine.nack(engine.take("q"), delay_seconds=600, error="first")
    clock.advance(61)
    engine.maintain()
    assert expired(engine, "q", message_id)
    row = engine.message("q", message_id)
    assert (row.last_error, row.delivery_attempts) == ("first", 1)


def test_the_expired_of_a_paused_queue_expire(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    message_id = engine.send("q", ttl_seconds=5)
    engine.value("pause_queue", "q")
    clock.advance(6)
    engine.maintain()
    assert expired(engine, "q", message_id)


def test_thousands_expire(engine18: Engine, clock18: Clock) -> None:
    engine18.queue("q")
    engine18.send_many("q", list(range(2500)), ttl_seconds=5)
    clock18.advance(6)
    assert engine18.maintain_all()["expired"] == 2500
    assert engine18.statistics("q").dead_count == 2500
