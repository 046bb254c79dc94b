"""The order of delivery among fresh, failed, released and lost messages of a queue without tenants.

While fresh messages wait, messages that failed take at most every second delivery. Otherwise a storm of
retries would keep every healthy message from its first attempt.
"""

from __future__ import annotations

import pytest

from .conftest import Clock
from .engine import Engine, Row

FAILED = 10
FRESH = 60


def deliver(engine: Engine, number: int, batch_size: int) -> list[Row]:
    """Claims so many messages, in claims of one size; in the order in which the claims return them."""
    got: list[Row] = []
    while len(got) < number:
        claimed = engine.take_many("q", batch_size)
        assert claimed, f"nothing more after {len(got)} messages"
        got += claimed
    return got


def fail(engine: Engine, clock: Clock, messages: list[Row], delay: int) -> None:
    """Every message fails its attempt. With a delay, the delay is over afterwards and maintain() has run."""
    for message in messages:
        assert engine.nack(message, delay_seconds=delay, error="failed")
    if delay:
        clock.advance(delay + 1)
        engine.maintain_all()


def check_shares(delivered: list[Row], failed: set[int]) -> None:
    """After every delivery the failed ones have at most half, and each kind comes oldest first."""
    order = [message.message_id for message in delivered]
    number = 0
    for position, message_id in enumerate(order, 1):
        number += message_id in failed
        assert number <= (position + 1) // 2, (
            f"{number} of the first {position} deliveries were retries: {order}"
        )
    retries = [message_id for message_id in order if message_id in failed]
    others = [message_id for message_id in order if message_id not in failed]
    assert retries == sorted(retries)
    assert others == sorted(others)


@pytest.mark.parametrize("batch_size", [1, 10])
@pytest.mark.parametrize("delay", [0, 5], ids=["at once", "delayed"])
def test_failed_messages_take_at_most_every_second_delivery(
    engine: Engine, clock: Clock, delay: int, batch_size: int
) -> None:
    engine.queue("q", max_delivery_attempts=0)
    ids = engine.send_many("q", list(range(FAILED + FRESH)))
    fail(engine, clock, engine.take_many("q", FAILED), delay)
    delivered = deliver(engine, FAILED + FRESH, batch_size)
    failed = set(ids[:FAILED])
    check_shares(delivered, failed)
    last = max(n for n, message in enumerate(delivered, 1) if message.message_id in failed)
    assert last <= 2 * FAILED + 2, "failed messages take about every second delivery until none is left"


@pytest.mark.parametrize("batch_size", [1, 10])
@pytest.mark.parametrize("delay", [0, 5], ids=["at once", "delayed"])
def test_gaps_among_the_fresh_messages_do_not_let_retries_in(
    engine: Engine, clock: Clock, delay: int, batch_size: int
) -> None:
    """Most of what was sent is cancelled: the messages that are left stand far apart."""
    engine.queue("q", max_delivery_attempts=0)
    ids = engine.send_many("q", list(range(FAILED + 10 * FRESH)))
    taken = engine.take_many("q", FAILED)
    for n, message_id in enumerate(ids[FAILED:]):
        if n % 10:
            assert engine.value("cancel_message", "q", message_id)
    fail(engine, clock, taken, delay)
    delivered = deliver(engine, FAILED + FRESH, batch_size)
    check_shares(delivered, set(ids[:FAILED]))


@pytest.mark.parametrize("batch_size", [1, 10])
@pytest.mark.parametrize("delay", [0, 2], ids=["at once", "delayed"])
def test_messages_that_fail_over_and_over_leave_half_of_the_deliveries(
    engine: Engine, clock: Clock, delay: int, batch_size: int
) -> None:
    """A storm: what failed once fails at each delivery, and is due again before the fresh ones are done."""
    engine.queue("q", max_delivery_attempts=0)
    ids = engine.send_many("q", list(range(2 * FAILED + FRESH)))
    storm = set(ids[: 2 * FAILED])
    fail(engine, clock, engine.take_many("q", 2 * FAILED), delay)
    retries = done = 0
    while done < FRESH:
        claimed = engine.take_many("q", batch_size)
        again = [message for message in claimed if message.message_id in storm]
        retries += len(again)
        done += len(claimed) - len(again)
        assert retries <= done + batch_size // 2 + 2, f"{retries} retries beside {done} fresh messages"
        fail(engine, clock, again, delay)
        for message in claimed:
            if message.message_id not in storm:
                engine.ack(message)


@pytest.mark.parametrize("delay", [0, 5], ids=["at once", "delayed"])
def test_every_message_of_a_storm_has_its_turn(engine: Engine, clock: Clock, delay: int) -> None:
    engine.queue("q", max_delivery_attempts=0)
    storm = set(engine.send_many("q", list(range(FAILED))))
    fail(engine, clock, engine.take_many("q", FAILED), delay)
    engine.send_many("q", list(range(6 * FAILED)))
    tried: set[int] = set()
    for _ in range(4 * FAILED):
        message = engine.take("q")
        if message.message_id in storm:
            tried.add(message.message_id)
            fail(engine, clock, [message], delay)
        else:
            engine.ack(message)
    assert tried == storm


@pytest.mark.parametrize("delay", [0, 5], ids=["at once", "delayed"])
@pytest.mark.parametrize("taken_before", [0, 1, 7])
def test_a_lone_retry_is_delivered_among_the_next_two(
    engine: Engine, clock: Clock, delay: int, taken_before: int
) -> None:
    engine.queue("q")
    engine.send_many("q", list(range(FRESH)))
    message = engine.take("q")
    deliver(engine, taken_before, 1)
    fail(engine, clock, [message], delay)
    assert message.message_id in {row.message_id for row in deliver(engine, 2, 1)}


def test_an_ordinary_retry_is_soon_delivered_though_messages_come_in_all_the_time(
    engine: Engine, clock: Clock
) -> None:
    """One message in five fails once. No retry waits for the fresh messages that stand in line."""
    engine.queue("q")
    engine.send_many("q", list(range(FRESH)))
    failed_at: dict[int, int] = {}
    for n in range(FRESH):
        engine.send("q")
        message = engine.take("q")
        if message.message_id in failed_at:
            assert n - failed_at.pop(message.message_id) <= 4
            engine.ack(message)
        elif n % 5 == 0:
            failed_at[message.message_id] = n
            fail(engine, clock, [message], 0)
        else:
            engine.ack(message)
    assert len(failed_at) <= 2


@pytest.mark.parametrize("batch_size", [1, 10])
def test_a_released_message_goes_to_the_front(engine: Engine, clock: Clock, batch_size: int) -> None:
    engine.queue("q", max_delivery_attempts=0)
    engine.send_many("q", list(range(FAILED + FRESH)))
    taken = engine.take_many("q", FAILED)
    fail(engine, clock, taken[1:], 0)
    assert engine.release(taken[0])
    first, *_ = engine.take_many("q", batch_size)
    assert first.message_id == taken[0].message_id
    assert first.delivery_attempts == 1


@pytest.mark.parametrize("batch_size", [1, 10])
@pytest.mark.parametrize("number", [1, 3])
def test_a_message_whose_lease_ran_out_for_the_first_time_goes_to_the_front(
    engine: Engine, clock: Clock, number: int, batch_size: int
) -> None:
    """Its worker was lost: that says nothing about the message."""
    engine.queue("q", max_delivery_attempts=0)
    engine.send_many("q", list(range(FAILED + FRESH)))
    lost = engine.take_many("q", number, vt_seconds=5)
    fail(engine, clock, engine.take_many("q", FAILED - number), 0)
    clock.advance(6)
    assert engine.maintain()["leases taken back"] == number
    delivered = deliver(engine, number, batch_size)
    expected = {message.message_id for message in lost}
    assert {message.message_id for message in delivered[:number]} == expected


def test_a_retry_does_not_go_before_more_urgent_messages(engine: Engine, clock: Clock) -> None:
    engine.queue("q", max_delivery_attempts=0)
    engine.send_many("q", list(range(FAILED)), priority=2)
    fail(engine, clock, engine.take_many("q", FAILED), 0)
    urgent = engine.send_many("q", list(range(FAILED)), priority=1)
    assert [message.message_id for message in deliver(engine, FAILED, 1)] == urgent


@pytest.mark.parametrize("batch_size", [1, 10])
def test_tenants_take_turns_whatever_failed(engine: Engine, clock: Clock, batch_size: int) -> None:
    """The failed messages of one tenant take one turn more than those of others, and no more."""
    engine.queue("q", max_delivery_attempts=0)
    engine.send_many("q", list(range(3 * FAILED)), tenant="noisy")
    fail(engine, clock, engine.take_many("q", 2 * FAILED), 0)
    quiet = engine.send_many("q", list(range(FAILED)), tenant="quiet")
    delivered = [message.message_id for message in deliver(engine, 3 * FAILED, batch_size)]
    assert [message_id for message_id in delivered if message_id in set(quiet)] == quiet
    for n, message_id in enumerate(quiet, 1):
        assert delivered.index(message_id) + 1 <= 3 * n + 2
