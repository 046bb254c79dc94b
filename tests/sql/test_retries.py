"""Retries: how many attempts a message has, and how long it waits before each."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from .conftest import Clock
from .engine import Engine


def delay(engine: Engine, message_id: int) -> float:
    """How long a message waits, counted from the failure before, which must have left an error."""
    row = engine.message("q", message_id)
    if row.state == "ready":
        return 0
    assert row.state == "scheduled"
    waits: timedelta = row.due_at - datetime.fromisoformat(row.errors[-1]["at"])
    return waits.total_seconds()


def test_retry_delays_apply_in_turn_and_the_last_repeats(engine: Engine, clock: Clock) -> None:
    engine.queue("q", max_delivery_attempts=0, retry_delays=[10, 0, 300])
    message_id = engine.send("q")
    waited = []
    for _ in range(5):
        engine.nack(engine.take("q"), error="failed")
        waited.append(delay(engine, message_id))
        clock.advance(waited[-1] + 1)
    assert waited == [10, 0, 300, 300, 300]


def test_retry_delays_apply_to_leases_that_run_out(engine: Engine, clock: Clock) -> None:
    engine.queue("q", retry_delays=[100, 200])
    message_id = engine.send("q")
    waited = []
    for _ in range(2):
        engine.take("q", vt_seconds=5)
        clock.advance(6)
        engine.maintain()
        waited.append(delay(engine, message_id))
        clock.advance(waited[-1] + 1)
    assert waited == [100, 200]


def test_a_delay_of_the_caller_goes_before_the_retry_delays(engine: Engine) -> None:
    engine.queue("q", retry_delays=[100])
    message_id = engine.send("q")
    engine.nack(engine.take("q"), delay_seconds=7, error="failed")
    assert delay(engine, message_id) == 7


def test_no_delay_of_the_caller_is_zero_seconds_too(engine: Engine) -> None:
    engine.queue("q", retry_delays=[100])
    message_id = engine.send("q")
    engine.nack(engine.take("q"), delay_seconds=0)
    assert engine.state("q", message_id) == "ready"


def test_altered_delays_hold_for_the_next_failure(engine: Engine) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    engine.nack(engine.take("q"))
    assert delay(engine, message_id) == 0
    engine.value("alter_queue", "q", retry_delays=[5, 50])
    engine.nack(engine.take("q"), error="failed")
    assert delay(engine, message_id) == 50


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_a_message_is_delivered_max_delivery_attempts_times(engine: Engine, attempts: int) -> None:
    engine.queue("q", max_delivery_attempts=attempts)
    message_id = engine.send("q")
    for _ in range(attempts):
        assert engine.state("q", message_id) == "ready"
        engine.nack(engine.take("q"))
    assert engine.state("q", message_id) == "dead"


def test_no_limit_is_no_limit(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=0)
    message_id = engine.send("q")
    for attempt in range(1, 51):
        message = engine.take("q")
        assert message.delivery_attempts == attempt
        engine.nack(message)
    assert engine.state("q", message_id) == "ready"


@pytest.mark.parametrize("taken_by", ["consume", "maintain"])
def test_attempts_count_crashes_too(engine: Engine, clock: Clock, taken_by: str) -> None:
    engine.queue("q", max_delivery_attempts=2)
    message_id = engine.send("q")
    for _ in range(2):
        engine.take("q", vt_seconds=5)
        clock.advance(6)
    if taken_by == "consume":
        assert engine.nothing_to_take("q")
    else:
        assert engine.maintain()["leases taken back"] == 1
    row = engine.message("q", message_id)
    assert (row.state, row.reason, row.delivery_attempts) == ("dead", "no_attempts_left", 2)
    assert len(row.errors) == 2
    assert row.last_error


def test_a_lowered_limit_holds_for_what_is_on_its_way(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=9)
    message_id = engine.send("q")
    engine.nack(engine.take("q"))
    engine.value("alter_queue", "q", max_delivery_attempts=2)
    engine.nack(engine.take("q"))
    assert engine.state("q", message_id) == "dead"


def test_a_raised_limit_holds_for_what_is_on_its_way(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=1)
    message_id = engine.send("q")
    message = engine.take("q")
    engine.value("alter_queue", "q", max_delivery_attempts=2)
    engine.nack(message)
    assert engine.state("q", message_id) == "ready"


@pytest.mark.parametrize(
    ("backoff", "base", "expected"),
    [
        (1.0, 30, [30, 30, 30, 30]),
        (2.0, 10, [10, 20, 40, 80]),
        (1.5, 100, [100, 150, 225, 337.5]),
        (100.0, 1000, [1000, 100000, 2592000, 2592000]),
        (2.0, 0, [0, 0, 0, 0]),
    ],
)
def test_a_lease_grows_by_visibility_backoff_with_each_attempt(
    engine: Engine, backoff: float, base: int, expected: list[float]
) -> None:
    engine.queue("q", max_delivery_attempts=0, visibility_timeout_seconds=base, visibility_backoff=backoff)
    message_id = engine.send("q")
    leases = []
    for _ in expected:
        message = engine.take("q")
        row = engine.message("q", message_id)
        leases.append((row.vt - row.claimed_at).total_seconds())
        engine.nack(message)
    assert leases == expected


def test_backoff_counts_from_the_lease_that_the_consumer_asks_for(engine: Engine) -> None:
    engine.queue("q", visibility_backoff=3)
    message_id = engine.send("q")
    engine.nack(engine.take("q"))
    engine.take("q", vt_seconds=7)
    row = engine.message("q", message_id)
    assert row.vt - row.claimed_at == timedelta(seconds=21)


def test_backoff_survives_many_attempts(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=0, visibility_backoff=100.0)
    message_id = engine.send("q")
    engine.query("update penstock.ready set attempts = 1000000 returning 1")
    engine.take("q")
    row = engine.message("q", message_id)
    assert row.vt - row.claimed_at == timedelta(days=30)
