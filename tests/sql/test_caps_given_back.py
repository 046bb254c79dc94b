"""max_active: how a permit is given back, and what gives none back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ..conftest import Connect
from ..isolation.invariants import broken
from .conftest import Clock
from .engine import Engine, Row
from .occupancy import active, alter, at_level, free_permits, standing, take_all

# One line of permits, of priority 0: as many as max_active.
ALL_URGENT = {"min_active": 0, "priority_shares": [100, 0, 0, 0]}


@pytest.fixture(autouse=True)
def nothing_is_broken(engine: Engine) -> Iterator[None]:
    """At the end of each test permits and debts add up, and all other invariants hold."""
    yield
    assert broken(engine.connection) == []


def urgent(engine: Engine, number: int = 20) -> None:
    engine.send_many("q", list(range(number)), priority=0)


# how permits are given back


def ack(engine: Engine, message: Row) -> None:
    assert engine.ack(message)


def ack_with_result(engine: Engine, message: Row) -> None:
    assert engine.ack(message, result={"done": True})


def ack_batch(engine: Engine, message: Row) -> None:
    ids = engine.values("ack_messages", "q", [message.message_id, 999], [message.consumer_token] * 2)
    assert ids == [message.message_id]


def ack_batch_of_several_tokens(engine: Engine, message: Row) -> None:
    tokens = ["no_holder", message.consumer_token, None]
    ids = engine.values("ack_messages", "q", [998, message.message_id, 999], tokens)
    assert ids == [message.message_id]


def nack(engine: Engine, message: Row) -> None:
    assert engine.nack(message, delay_seconds=0)


def nack_with_delay(engine: Engine, message: Row) -> None:
    assert engine.nack(message, delay_seconds=60)


def nack_on_the_last_attempt(engine: Engine, message: Row) -> None:
    alter(engine, max_delivery_attempts=1)
    assert engine.nack(message)
    assert standing(engine)["dead"]


def release(engine: Engine, message: Row) -> None:
    assert engine.release(message)


def reject(engine: Engine, message: Row) -> None:
    assert engine.reject(message)


def purge(engine: Engine, message: Row) -> None:
    assert engine.value("purge_queue", "q") > 0
    urgent(engine)


def purge_all(engine: Engine, message: Row) -> None:
    engine.value("purge_all_messages")
    urgent(engine)


GIVING_BACK: list[Callable[[Engine, Row], None]] = [
    ack,
    ack_with_result,
    ack_batch,
    ack_batch_of_several_tokens,
    nack,
    nack_with_delay,
    nack_on_the_last_attempt,
    release,
    reject,
    purge,
    purge_all,
]


@pytest.mark.parametrize("settings", [{}, ALL_URGENT], ids=["pooled", "share"])
@pytest.mark.parametrize("give_back", GIVING_BACK)
def test_a_permit_is_given_back_at_once(
    engine: Engine, give_back: Callable[[Engine, Row], None], settings: dict[str, Any]
) -> None:
    engine.queue("q", max_active=1, **settings)
    urgent(engine)
    message = engine.take("q")
    assert engine.nothing_to_take("q")
    give_back(engine, message)
    assert free_permits(engine) == {0: 1}
    engine.take("q")
    assert engine.nothing_to_take("q")


@pytest.mark.parametrize("give_back", GIVING_BACK)
def test_a_permit_is_given_back_when_the_transaction_commits_and_not_if_it_does_not(
    engine: Engine, connect: Connect, give_back: Callable[[Engine, Row], None]
) -> None:
    engine.queue("q", max_active=1)
    urgent(engine)
    message = engine.take("q")
    other = Engine(connect())
    with engine.connection.transaction(force_rollback=True):
        give_back(engine, message)
        assert other.nothing_to_take("q")
    assert other.nothing_to_take("q")
    assert active(engine) == {0: 1}
    assert engine.ack(message)
    assert other.ack(other.take("q"))


def test_a_savepoint_that_is_rolled_back_undoes_what_was_given_and_taken(engine: Engine) -> None:
    engine.queue("q", max_active=2)
    urgent(engine)
    message = engine.take("q")
    with engine.connection.transaction():
        with engine.connection.transaction(force_rollback=True):
            engine.ack(message)
            assert len(take_all(engine)) == 2
        assert free_permits(engine) == {0: 1}
        with engine.connection.transaction(force_rollback=True):
            assert len(take_all(engine)) == 1
        assert len(take_all(engine)) == 1
    assert active(engine) == {0: 2}


def test_a_claim_that_is_rolled_back_takes_no_permit(engine: Engine) -> None:
    engine.queue("q", max_active=3)
    urgent(engine)
    for _ in range(5):
        with engine.connection.transaction(force_rollback=True):
            assert len(take_all(engine)) == 3
    assert free_permits(engine) == {0: 3}


def test_a_permit_may_be_taken_and_given_back_in_one_transaction(engine: Engine) -> None:
    engine.queue("q", max_active=1)
    urgent(engine, 5)
    with engine.connection.transaction():
        for n in range(5):
            message = engine.take("q")
            assert message.payload == n
            engine.ack(message)
    assert free_permits(engine) == {0: 1}


@pytest.mark.parametrize("attempts", [1, 3], ids=["last attempt", "more attempts"])
@pytest.mark.parametrize("retry_delay", [0, 60])
@pytest.mark.parametrize("by", ["consume", "maintain"])
def test_a_lease_that_is_over_gives_its_permit_back(
    engine: Engine, clock: Clock, by: str, retry_delay: int, attempts: int
) -> None:
    engine.queue("q", max_active=4, max_delivery_attempts=attempts, retry_delays=[retry_delay], **ALL_URGENT)
    urgent(engine)
    assert len(take_all(engine, vt_seconds=10)) == 4
    clock.advance(9)
    assert engine.nothing_to_take("q")
    clock.advance(2)
    if by == "maintain":
        assert engine.maintain()["leases taken back"] == 4
        assert free_permits(engine) == {0: 4}
    taken = engine.take_many("q", 100)
    assert len(taken) == 2
    assert [m.payload for m in taken] == ([0, 1] if attempts == 3 and retry_delay == 0 else [4, 5])
    assert len(take_all(engine)) == 2


def test_a_consume_that_got_less_than_it_may_takes_leases_back(engine: Engine, clock: Clock) -> None:
    """Expired leases do not limit a claim to another priority's share or to half of its batch."""
    engine.queue("q", max_active=10)
    engine.send_many("q", ["urgent"] * 8, priority=0)
    engine.send_many("q", ["normal"] * 8)
    take_all(engine, vt_seconds=10)
    clock.advance(11)
    payloads = [m.payload for m in engine.take_many("q", 5)]
    assert payloads == ["urgent"] * 4 + ["normal"]


def test_time_to_live_over_in_ready_takes_no_permit(engine: Engine, clock: Clock) -> None:
    engine.queue("q", max_active=2)
    engine.send_many("q", ["short"] * 5, ttl_seconds=10)
    engine.send("q", "long")
    held = engine.take("q", vt_seconds=5)
    clock.advance(11)
    assert [m.payload for m in take_all(engine)] == ["long"]
    engine.maintain()
    assert not engine.ack(held)
    assert standing(engine) == {"active": ["long"], "dead": ["short"] * 5}
    assert free_permits(engine) == {0: 1}


# what gives no permit back


def extend(engine: Engine, message: Row) -> None:
    assert engine.value("extend_message_vt", "q", message.message_id, message.consumer_token, 60)


def extend_batch(engine: Engine, message: Row) -> None:
    assert engine.rows("batch_extend_message_vt", "q", [message.message_id], message.consumer_token, 60)


def pulse(engine: Engine, message: Row) -> None:
    assert engine.value("pulse", message.consumer_token, 60) == 1


def stale(function: str) -> Callable[[Engine, Row], None]:
    def settle(engine: Engine, message: Row) -> None:
        assert engine.value(function, "q", message.message_id, "no_holder") is False

    return settle


def stale_batch(engine: Engine, message: Row) -> None:
    assert engine.values("ack_messages", "q", [message.message_id], ["no_holder"]) == []
    assert engine.values("ack_messages", "q", [message.message_id] * 2, ["a", "b"]) == []


def not_held(engine: Engine, message: Row) -> None:
    for function in ("ack_message", "nack_message", "release_message", "reject_message"):
        assert engine.value(function, "q", message.message_id + 1, message.consumer_token) is False


def cancel(engine: Engine, message: Row) -> None:
    assert engine.value("cancel_message", "q", message.message_id) is False
    assert engine.value("cancel_message", "q", message.message_id + 1) is True


def maintain(engine: Engine, message: Row) -> None:
    engine.maintain_all()
    engine.value("raise_floor", "q")


def pause_and_resume(engine: Engine, message: Row) -> None:
    engine.value("pause_queue", "q")
    engine.value("resume_queue", "q")


@pytest.mark.parametrize(
    "keep",
    [
        extend,
        extend_batch,
        pulse,
        *[stale(f) for f in ("ack_message", "nack_message", "release_message", "reject_message")],
        stale_batch,
        not_held,
        cancel,
        maintain,
        pause_and_resume,
    ],
    ids=lambda f: f.__qualname__.replace(".<locals>", ""),
)
def test_a_permit_is_kept(engine: Engine, keep: Callable[[Engine, Row], None]) -> None:
    engine.queue("q", max_active=1)
    urgent(engine)
    message = engine.take("q")
    keep(engine, message)
    assert free_permits(engine) == {}
    assert engine.nothing_to_take("q")
    assert engine.ack(message)
    assert free_permits(engine) == {0: 1}


def test_a_message_settled_twice_gives_one_permit_back(engine: Engine) -> None:
    engine.queue("q", max_active=2)
    urgent(engine)
    message, _ = take_all(engine)
    assert engine.ack(message)
    assert not engine.ack(message)
    assert not engine.reject(message)
    assert free_permits(engine) == {0: 1}
    held = take_all(engine)[0]
    ids = [held.message_id] * 3
    assert engine.values("ack_messages", "q", ids, [held.consumer_token] * 3) == [held.message_id]
    assert free_permits(engine) == {0: 1}


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("settle", [ack, ack_batch_of_several_tokens, nack, nack_with_delay, release, reject])
def test_permits_come_back_from_every_isolation_level(
    engine: Engine, connect: Connect, level: str, settle: Callable[[Engine, Row], None]
) -> None:
    engine.queue("q", max_active=1)
    urgent(engine)
    message = engine.take("q")
    strictly = at_level(connect, level)
    settle(strictly, message)
    assert free_permits(engine) == {0: 1}
    engine.value("raise_floor", "q")
    engine.take("q")
    assert engine.nothing_to_take("q")
