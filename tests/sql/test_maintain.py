"""maintain(): whatever is due, from as many processes as there are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from ..conftest import Connect
from .conftest import Clock
from .engine import Engine


def test_it_says_what_it_did_for_which_queue(engine: Engine, clock: Clock) -> None:
    for queue in ("a", "b"):
        engine.queue(queue)
    engine.send_many("a", [1, 2], deliver_after=engine.now() + timedelta(seconds=5))
    engine.send("b")
    engine.take("b", vt_seconds=5)
    engine.send("b", ttl_seconds=5)
    clock.advance(6)
    did = {(row.action, row.queue_name): row.affected for row in engine.rows("maintain")}
    assert did["promoted", "a"] == 2
    assert did["leases taken back", "b"] == 1
    assert did["expired", "b"] == 1


def test_with_nothing_to_do_it_does_nothing(engine: Engine) -> None:
    engine.queue("idle")
    engine.send("idle", deliver_after="2999-01-01")
    engine.maintain()
    before = engine.belongings()
    # How long it took to look at a queue says whether to raise its floor, too.
    assert set(engine.maintain()) <= {"floor raised"}
    assert engine.belongings() == before


def test_what_is_done_is_not_done_again(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    engine.send("q", deliver_after=engine.now() + timedelta(seconds=5))
    clock.advance(6)
    assert engine.maintain()["promoted"] == 1
    assert "promoted" not in engine.maintain()


def test_one_at_a_time_and_the_others_do_not_wait(
    engine: Engine, connect: Connect, clock: Clock, sql: psycopg.Connection[Any]
) -> None:
    engine.queue("q")
    engine.send("q", deliver_after=engine.now() + timedelta(seconds=5))
    clock.advance(6)
    other = Engine(connect(options="-c lock_timeout=10s"))
    with sql.transaction():
        assert engine.maintain()["promoted"] == 1
        assert other.rows("maintain") == []
    assert engine.statistics("q").pending_count == 1


def test_locked_rows_are_left_for_the_next_call(engine: Engine, connect: Connect, clock: Clock) -> None:
    engine.queue("q")
    ids = engine.send_many("q", [1, 2])
    messages = engine.take_many("q", 2, vt_seconds=5)
    clock.advance(6)
    other = Engine(connect())
    with other.connection.transaction():
        assert other.ack(messages[0])
        assert engine.maintain()["leases taken back"] == 1
    assert [engine.state("q", i) for i in ids] == ["done", "ready"]


def test_thousands_come_due(engine18: Engine, clock18: Clock) -> None:
    engine18.queue("q")
    engine18.send_many("q", list(range(3500)), deliver_after=engine18.now() + timedelta(seconds=5))
    clock18.advance(6)
    assert engine18.maintain_all()["promoted"] == 3500


def test_thousands_of_leases_run_out(engine18: Engine, clock18: Clock) -> None:
    engine18.queue("q")
    engine18.send_many("q", list(range(3500)))
    engine18.take_many("q", 3500, vt_seconds=5)
    clock18.advance(6)
    assert engine18.maintain_all()["leases taken back"] == 3500
    assert engine18.statistics("q").pending_count == 3500


@pytest.mark.parametrize("found_by", ["maintain", "consume"])
def test_what_was_committed_late_is_found_within_a_minute_or_so(
    engine: Engine, connect: Connect, clock: Clock, found_by: str
) -> None:
    engine.queue("q")
    engine.send("q", "other", deliver_after=engine.now() + timedelta(seconds=2))
    late = Engine(connect())
    clock.join(late.connection)
    with late.connection.transaction():
        late.send("q", "late", deliver_after=engine.now() + timedelta(seconds=1))
        clock.advance(10)
        assert engine.maintain()["promoted"] == 1
        clock.advance(5)
        engine.maintain()
    if found_by == "maintain":
        clock.advance(61)
        engine.maintain()
    else:
        clock.advance(91)
    assert "late" in [m.payload for m in engine.take_many("q", 10)]


def test_a_lease_committed_late_is_found_within_a_minute(
    engine: Engine, connect: Connect, clock: Clock
) -> None:
    engine.queue("q")
    ids = engine.send_many("q", [1, 2])
    engine.take("q", vt_seconds=2)
    late = Engine(connect())
    clock.join(late.connection)
    with late.connection.transaction():
        late.take("q", vt_seconds=1)
        clock.advance(10)
        assert engine.maintain()["leases taken back"] == 1
    clock.advance(61)
    engine.maintain()
    assert engine.states("q") == dict.fromkeys(ids, "ready")


def test_a_paused_queue_is_looked_after(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    engine.send("q")
    engine.take("q", vt_seconds=5)
    engine.send("q", deliver_after=engine.now() + timedelta(seconds=5))
    engine.value("pause_queue", "q")
    clock.advance(6)
    did = engine.maintain()
    assert (did["promoted"], did["leases taken back"]) == (1, 1)


@pytest.mark.parametrize("found_by", ["maintain", "consume"])
def test_a_clock_that_is_set_back_does_no_harm(engine: Engine, clock: Clock, found_by: str) -> None:
    engine.queue("q")
    clock.advance(7200)
    engine.send("q")
    engine.take("q", vt_seconds=5)
    clock.advance(10)
    assert engine.maintain()["leases taken back"] == 1
    clock.advance(-7200)
    message = engine.take("q", vt_seconds=5)
    delayed = engine.send("q", deliver_after=engine.now() + timedelta(seconds=5))
    clock.advance(6)
    if found_by == "maintain":
        engine.maintain()
    assert {m.message_id for m in engine.take_many("q", 10)} == {message.message_id, delayed}


def test_the_floor_rises_and_nothing_falls_below(engine: Engine) -> None:
    engine.queue("q")
    engine.send_many("q", list(range(100)))
    for message in engine.take_many("q", 60):
        engine.ack(message)
    assert engine.value("raise_floor", "q") is True
    assert engine.value("raise_floor", "q") is False
    assert [m.payload for m in engine.take_many("q", 100)] == list(range(60, 100))


def test_the_floor_rises_over_an_empty_queue(engine: Engine) -> None:
    engine.queue("q")
    held = [engine.send("q", n) for n in range(5)]
    messages = engine.take_many("q", 5)
    assert engine.value("raise_floor", "q") is True
    for message in messages[:2]:
        engine.nack(message)
    engine.release(messages[2])
    engine.reject(messages[3])
    engine.value("requeue_dlq_messages", "q")
    new = engine.send("q", "new")
    assert sorted(m.message_id for m in engine.take_many("q", 10)) == [*held[:4], new]


def test_maintain_raises_the_floor_of_queues_with_traffic(engine: Engine) -> None:
    engine.queue("q")
    engine.send_many("q", list(range(100)))
    engine.take_many("q", 60)
    assert engine.maintain()["floor raised"] == 1


def test_a_publisher_that_stays_open_keeps_the_floor_down(engine: Engine, connect: Connect) -> None:
    engine.queue("q")
    engine.queue("other")
    for queue in ("q", "other"):
        engine.send_many(queue, list(range(10)))
        engine.take_many(queue, 5)
    slow = Engine(connect())
    with slow.connection.transaction():
        slow.send("q", "slow")
        assert engine.value("raise_floor", "q") is False
        assert engine.value("raise_floor", "other") is True
    assert engine.value("raise_floor", "q") is True
    assert "slow" in [m.payload for m in engine.take_many("q", 10)]


def test_raise_floor_of_an_unknown_queue(house: Engine) -> None:
    with house.refused("PN001", '"nope"'):
        house.value("raise_floor", "nope")
