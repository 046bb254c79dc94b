"""Which of many queues have work: whatever a claim would find, a look finds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from ..conftest import Connect
from .conftest import Clock
from .engine import Engine


def looked(engine: Engine, *names: str) -> list[str]:
    return sorted(engine.values("queues_with_work", list(names)))


def _ready(engine: Engine, _clock: Clock) -> None:
    engine.send("q")


def _urgent(engine: Engine, _clock: Clock) -> None:
    engine.send("q", priority=0)


def _last(engine: Engine, _clock: Clock) -> None:
    engine.send("q", priority=3)


def _due(engine: Engine, clock: Clock) -> None:
    engine.send("q", deliver_after=engine.now() + timedelta(seconds=30), priority=1)
    clock.advance(31)


def _lost(engine: Engine, clock: Clock) -> None:
    engine.send("q")
    engine.take("q", vt_seconds=5)
    clock.advance(6)


def _parked(engine: Engine, _clock: Clock) -> None:
    message_id = engine.send("q", headers={"task": "a"})
    held = engine.take("q")
    engine.values("park_messages", "q", [message_id], held.consumer_token, ["a"])


def _expired(engine: Engine, clock: Clock) -> None:
    engine.send("q", ttl_seconds=5)
    clock.advance(6)


WORK: list[Callable[[Engine, Clock], None]] = [_ready, _urgent, _last, _due, _lost, _parked, _expired]


@pytest.mark.parametrize("make", WORK, ids=lambda make: make.__name__)
def test_a_queue_with_work_is_found_among_idle_ones(
    make: Callable[[Engine, Clock], None], engine: Engine, clock: Clock
) -> None:
    for name in ("a", "q", "z"):
        engine.queue(name)
    assert looked(engine, "a", "q", "z") == []
    make(engine, clock)
    assert looked(engine, "a", "q", "z") == ["q"]
    assert looked(engine, "a", "z") == []


def test_what_is_held_or_due_later_is_no_work(engine: Engine) -> None:
    engine.queue("q")
    engine.send("q")
    engine.send("q", deliver_after=engine.now() + timedelta(seconds=30))
    engine.take("q")
    assert looked(engine, "q") == []


def test_a_paused_queue_is_not_returned(engine: Engine) -> None:
    engine.queue("q")
    engine.send("q")
    engine.rows("pause_queue", "q")
    assert looked(engine, "q") == []
    engine.rows("resume_queue", "q")
    assert looked(engine, "q") == ["q"]


def test_a_queue_that_a_claim_refuses_is_returned(engine: Engine, clock: Clock) -> None:
    engine.queue("mine")
    engine.queue("over", exclusive=True, keep_alive_seconds=5)
    assert looked(engine, "mine", "over", "unknown") == ["unknown"]
    clock.advance(6)
    assert looked(engine, "mine", "over") == ["over"]


def test_a_queue_that_the_caller_may_not_consume_from_is_returned(engine: Engine) -> None:
    engine.queue("open")
    engine.queue("shut")
    engine.connection.execute("create role looker in role penstock_consumer")
    try:
        engine.connection.execute("create role other in role penstock_consumer")
        engine.rows("grant_queue", "other", "shut", "consume")
        with engine.connection.transaction():
            engine.connection.execute("set local role looker")
            assert looked(engine, "open", "shut") == ["shut"]
        with engine.connection.transaction():
            engine.connection.execute("set local role other")
            assert looked(engine, "open", "shut") == []
    finally:
        engine.connection.execute("drop role if exists looker")
        engine.connection.execute("drop role if exists other")


def test_a_message_that_waits_for_its_tenant_is_work_once_there_is_a_permit(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    engine.send_many("q", [1, 2], tenant="t")
    held = engine.take("q")
    assert engine.count("waiting") == 1
    engine.nothing_to_take("q")
    engine.maintain_all()
    assert looked(engine, "q") == []
    engine.ack(held)
    assert looked(engine, "q") == ["q"]


def test_messages_that_another_session_had_locked_are_work(
    engine: Engine, clock: Clock, connect: Connect
) -> None:
    engine.queue("q")
    engine.send("q")
    held = engine.take("q", vt_seconds=5)
    clock.advance(6)
    other = connect()
    with other.transaction():
        other.execute("select from penstock.active for update")
        engine.maintain()
    assert looked(engine, "q") == ["q"]
    assert engine.take("q").message_id == held.message_id


def test_names_may_be_missing_and_repeated_but_no_array_of_arrays(engine: Engine) -> None:
    engine.queue("q")
    engine.send("q")
    assert engine.values("queues_with_work", ["q", None, "q"]) == ["q", "q"]
    assert engine.query("select * from penstock.queues_with_work(null)") == []
    with pytest.raises(psycopg.Error, match="queue_names must be a list"):
        engine.query("select * from penstock.queues_with_work('{{q},{q}}')")
