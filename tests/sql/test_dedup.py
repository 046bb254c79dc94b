"""Deduplication: a key refuses a second message while the first is not finished."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from ..isolation.rewriting import anchoring
from .conftest import Clock
from .engine import Engine


@pytest.fixture(params=["plain", "anchored"], autouse=True)
def kind(request: pytest.FixtureRequest, sql: psycopg.Connection[Any]) -> Iterator[str]:
    """No take anchors its key, or every take does."""
    with anchoring(sql, always=request.param == "anchored"):
        yield request.param


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
    assert engine.held_keys() == 0
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
    assert engine.held_keys() == 0


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


# A message that is over, and no sweep has seen it.


def hold_back(engine: Engine) -> None:
    """The next message of tenant t waits: another one of it is active."""
    engine.send("q", "other", tenant="t")
    engine.maintain_all()
    engine.take("q", vt_seconds=100000)


def queue_for(engine: Engine, state: str) -> None:
    """The queue q, with a cap for each tenant where the state needs one."""
    cap = 1 if state in ("waiting", "ready with permit") else None
    engine.queue("q", max_delivery_attempts=2, tenant_max_active=cap)


def over(engine: Engine, clock: Clock, state: str) -> tuple[int, str]:
    """A message of queue q with the key k that is over, in a state, and the reason with which it ends."""
    if state == "waiting":
        hold_back(engine)
    ttl = None if "last attempt" in state else 5
    due = clock.now() + timedelta(hours=1) if state == "scheduled" else None
    first = engine.send("q", "x" * 5000, dedup_key="k", ttl_seconds=ttl, deliver_after=due, tenant="t")
    if state == "ready with permit":
        engine.maintain_all()
    elif state == "scheduled for a retry":
        engine.nack(engine.take("q"), delay_seconds=60)
    elif state == "ready for a retry":
        engine.nack(engine.take("q"))
    elif state == "active":
        engine.take("q", vt_seconds=2)
    elif state == "active, last attempt":
        engine.nack(engine.take("q"))
        engine.take("q", vt_seconds=2)
    assert state.startswith(engine.state("q", first) or "gone")
    clock.advance(10)
    return first, "expired" if ttl else "no_attempts_left"


OVER = [
    "ready",
    "ready with permit",
    "ready for a retry",
    "waiting",
    "scheduled",
    "scheduled for a retry",
    "active",
    "active, last attempt",
]


@pytest.mark.parametrize("state", OVER)
def test_a_message_that_is_over_refuses_none(engine: Engine, clock: Clock, state: str) -> None:
    queue_for(engine, state)
    first, reason = over(engine, clock, state)
    second = engine.send("q", "second", dedup_key="k")
    assert second != first
    ended = engine.message("q", first)
    assert (ended.state, ended.reason, ended.payload) == ("dead", reason, "x" * 5000)
    assert ended.last_error == ("the lease ran out" if state.startswith("active") else None)
    assert engine.query("select id from penstock.dedup where id is not null") == [(second,)]
    assert engine.send("q", dedup_key="k") == second
    assert engine.take("q").message_id == second


@pytest.mark.parametrize("state", OVER)
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_under_an_old_snapshot_it_refuses_until_it_was_swept(
    engine: Engine, clock: Clock, sql: psycopg.Connection[Any], state: str, isolation: str
) -> None:
    queue_for(engine, state)
    first, _ = over(engine, clock, state)
    with sql.transaction():
        sql.execute(f"set transaction isolation level {isolation}".encode())
        assert engine.send("q", dedup_key="k") == first
    engine.maintain_all()
    assert engine.send("q", dedup_key="k") != first


@pytest.mark.parametrize("state", OVER)
@pytest.mark.parametrize("function", ["requeue_dlq_messages", "add_retries"])
def test_a_dead_letter_that_comes_back_takes_the_key_of_one_that_is_over(
    engine: Engine, clock: Clock, state: str, function: str
) -> None:
    queue_for(engine, state)
    dead = engine.send("q", "dead", dedup_key="k", ttl_seconds=1000)
    for _ in range(2):
        engine.nack(engine.take("q"))
    first, _ = over(engine, clock, state)
    assert engine.value(function, "q", [dead] if function == "requeue_dlq_messages" else 1) == 1
    assert engine.message("q", dead).dedup_key == "k"
    assert engine.state("q", first) == "dead"
    assert engine.query("select id from penstock.dedup where id is not null") == [(dead,)]
    assert engine.send("q", dedup_key="k") == dead
    # Its own time to live counts from now on.
    clock.advance(1001)
    assert engine.send("q", dedup_key="k") != dead


@pytest.mark.parametrize("state", ["active", "retried"])
def test_a_lease_that_is_over_with_attempts_left_still_refuses(
    engine: Engine, clock: Clock, state: str
) -> None:
    engine.queue("q", max_delivery_attempts=0 if state == "active" else 3)
    first = engine.send("q", dedup_key="k")
    if state == "retried":
        engine.nack(engine.take("q"))
    engine.take("q", vt_seconds=2)
    clock.advance(10)
    with engine.unchanged():
        assert engine.send("q", dedup_key="k") == first
    assert engine.take("q").message_id == first


def test_a_lease_that_runs_refuses_though_the_time_to_live_is_over(engine: Engine, clock: Clock) -> None:
    engine.queue("q", max_delivery_attempts=1)
    first = engine.send("q", dedup_key="k", ttl_seconds=5)
    message = engine.take("q", vt_seconds=60)
    clock.advance(10)
    with engine.unchanged():
        assert engine.send("q", dedup_key="k") == first
    assert engine.ack(message)


def test_the_time_to_live_of_the_queue_counts(engine: Engine, clock: Clock) -> None:
    engine.queue("q", message_ttl_seconds=5)
    first = engine.send("q", dedup_key="k")
    longer = engine.send("q", dedup_key="longer", ttl_seconds=60)
    each = engine.send_many("q", [1, 2], dedup_keys=["x", "y"], ttls=[None, 60])
    clock.advance(10)
    assert engine.send("q", dedup_key="k") != first
    assert engine.send("q", dedup_key="longer") == longer
    again = engine.send_many("q", [1, 2], dedup_keys=["x", "y"])
    assert again[0] != each[0]
    assert again[1] == each[1]


def test_a_batch_takes_the_keys_of_all_that_are_over(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    keys = [f"k{n}" for n in range(50)]
    first = engine.send_many("q", [1] * 50, dedup_keys=keys, ttls=[5 if n % 2 else 60 for n in range(50)])
    clock.advance(10)
    second = engine.send_many("q", [1] * 100, dedup_keys=[*keys, *keys])
    assert second[:50] == second[50:]
    assert [a == b for a, b in zip(first, second, strict=False)] == [n % 2 == 0 for n in range(50)]
    assert len(engine.states("q")) == 75


def test_in_a_topic_one_that_is_not_over_refuses_in_all_queues(engine: Engine, clock: Clock) -> None:
    engine.topic("t", "a", "b", "c")
    short = engine.send("a", dedup_key="k", ttl_seconds=5)
    held = engine.send("b", dedup_key="k")
    clock.advance(10)
    with engine.unchanged():
        assert engine.publish("t", dedup_key="k") == held
    engine.value("cancel_message", "b", held)
    second = engine.publish("t", dedup_key="k")
    assert second not in (short, held)
    assert [engine.state(queue, second) for queue in "abc"] == ["ready"] * 3
    assert engine.state("a", short) == "dead"


def test_in_a_topic_each_queue_has_a_time_to_live(engine: Engine, clock: Clock) -> None:
    engine.topic("t", "a", "b")
    engine.value("alter_queue", "a", message_ttl_seconds=5)
    first = engine.publish("t", dedup_key="k")
    clock.advance(10)
    assert engine.publish("t", dedup_key="k") == first
    engine.value("alter_queue", "b", message_ttl_seconds=5)
    assert engine.publish("t", dedup_key="k") == first
    engine.ack(engine.take("b"))
    second = engine.publish("t", dedup_key="k")
    assert second != first
    assert engine.states("a") == {first: "dead", second: "ready"}


def test_ending_a_message_hands_on_its_tenant_permit(engine: Engine, clock: Clock) -> None:
    """What it held goes to the next message of its tenant."""
    queue_for(engine, "ready with permit")
    over(engine, clock, "ready with permit")
    waiting = engine.send("q", "waits", tenant="t")
    assert engine.state("q", waiting) == "waiting"
    engine.send("q", dedup_key="k", tenant="other")
    assert engine.state("q", waiting) == "ready"


def rows_of_keys(engine: Engine) -> int:
    ((rows,),) = engine.query("select count(*) from penstock.dedup")
    return int(rows)


def test_nothing_is_left_of_a_key_ten_minutes_after_its_message(
    engine: Engine, clock: Clock, kind: str
) -> None:
    engine.queue("q")
    engine.send_many("q", [1, 2, 3], dedup_keys=["a", "b", "c"])
    engine.ack(engine.take("q"))
    engine.ack(engine.take("q"))
    assert rows_of_keys(engine) == (6 if kind == "anchored" else 1)
    clock.advance(9 * 60)
    engine.maintain_all()
    assert rows_of_keys(engine) == (6 if kind == "anchored" else 1)
    engine.value("cancel_message", "q", engine.send("q", dedup_key="b"))
    clock.advance(2 * 60)
    assert engine.maintain_all().get("dedup keys removed", 0) == (1 if kind == "anchored" else 0)
    clock.advance(9 * 60)
    assert engine.maintain_all().get("dedup keys removed", 0) == (1 if kind == "anchored" else 0)
    # The third message holds its key all the while.
    assert engine.send("q", dedup_key="c") == engine.take("q").message_id
    assert rows_of_keys(engine) == (2 if kind == "anchored" else 1)


def test_a_key_whose_transaction_committed_late_is_removed_in_the_next_hour(
    engine: Engine, clock: Clock
) -> None:
    """The other passes of an hour examine only what has become free since the pass before."""
    engine.queue("q")
    engine.maintain_all()
    message = engine.send("q", dedup_key="k")
    engine.value("cancel_message", "q", message)
    engine.query(
        "update penstock.dedup set freed_at = freed_at - interval '50 minutes' where freed_at is not null"
        " returning 1"
    )
    clock.advance(3601)
    engine.maintain_all()
    assert rows_of_keys(engine) == 0


def test_many_keys_leave_nothing(engine: Engine, clock: Clock) -> None:
    """More than a pass of maintain() removes at once."""
    engine.queue("q")
    engine.send_many("q", [0] * 2500, dedup_keys=[str(n) for n in range(2500)])
    messages = engine.take_many("q", 2500)
    engine.rows("ack_messages", "q", [m.message_id for m in messages], [m.consumer_token for m in messages])
    assert engine.held_keys() == 0
    clock.advance(11 * 60)
    engine.maintain_all()
    assert rows_of_keys(engine) == 0
