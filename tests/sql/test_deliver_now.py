"""deliver_message_now: a delayed message, a retry or a parked message becomes ready before it is due."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from .conftest import Clock
from .engine import Engine


def later(engine: Engine) -> Any:
    return engine.now() + timedelta(hours=1)


def test_a_delayed_message_goes_behind_all_others(engine: Engine) -> None:
    engine.queue("q")
    delayed = engine.send("q", deliver_after=later(engine))
    first = engine.send("q")
    assert engine.value("deliver_message_now", "q", delayed) is True
    assert engine.state("q", delayed) == "ready"
    assert [engine.take("q").message_id, engine.take("q").message_id] == [first, delayed]


def test_a_retry_keeps_its_attempts_and_its_errors(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=2)
    message_id = engine.send("q")
    engine.nack(engine.take("q"), delay_seconds=3600, error="boom")
    assert engine.value("deliver_message_now", "q", message_id) is True
    message = engine.take("q")
    assert message.delivery_attempts == 2
    engine.nack(message, error="again")
    assert engine.message("q", message_id).last_error == "again"
    assert engine.state("q", message_id) == "dead"


def test_a_parked_message_goes_to_the_front(engine: Engine) -> None:
    engine.queue("q")
    parked = engine.send("q")
    engine.take("q", "worker")
    engine.rows("park_messages", "q", [parked], "worker", ["unknown"])
    engine.send("q")
    assert engine.state("q", parked) == "scheduled"
    assert engine.value("deliver_message_now", "q", parked) is True
    assert engine.take("q").message_id == parked


def test_a_message_over_the_cap_of_its_tenant_waits(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    engine.send("q", tenant="a")
    delayed = engine.send("q", tenant="a", deliver_after=later(engine))
    engine.take("q")
    assert engine.value("deliver_message_now", "q", delayed) is True
    assert engine.state("q", delayed) == "waiting"


def test_a_message_whose_time_to_live_is_over_becomes_a_dead_letter(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    message_id = engine.send("q", deliver_after=later(engine), ttl_seconds=10)
    clock.advance(11)
    assert engine.value("deliver_message_now", "q", message_id) is True
    assert engine.message("q", message_id).reason == "expired"


def test_only_scheduled_messages(engine: Engine) -> None:
    engine.queue("q")
    ready = engine.send("q")
    with engine.unchanged():
        assert engine.value("deliver_message_now", "q", ready) is False
        assert engine.value("deliver_message_now", "q", 999) is False
        assert engine.values("deliver_messages_now", "q", [ready, None]) == []


def test_many_at_once_each_once(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=10)
    ids = [engine.send("q", n, tenant="a", deliver_after=later(engine)) for n in range(3)]
    moved = engine.values("deliver_messages_now", "q", [ids[2], ids[0], ids[0], ids[1], 999])
    assert sorted(moved) == ids
    assert [engine.take("q").message_id for _ in ids] == ids
    assert engine.nothing_to_take("q")


def test_an_idle_consumer_is_woken(engine: Engine, sql: psycopg.Connection[Any]) -> None:
    """The session that watches a queue and is idle holds these two keys."""
    engine.queue("q")
    message_id = engine.send("q", deliver_after=later(engine))
    with psycopg.connect(sql.info.dsn, autocommit=True) as idle:
        idle.execute("select pg_advisory_lock_shared(hashtextextended('q', 1346719318))")
        idle.execute("select pg_advisory_lock(hashtextextended('q', 1346719317))")
        ((channel,),) = engine.query("select penstock.channel('q')")
        idle.execute(f'listen "{channel}"'.encode())
        engine.value("deliver_message_now", "q", message_id)
        assert [notice.payload for notice in idle.notifies(timeout=5, stop_after=1)] == [str(message_id)]


def test_an_old_snapshot_is_refused(engine: Engine) -> None:
    engine.queue("q")
    message_id = engine.send("q", deliver_after=later(engine))
    engine.connection.execute("set default_transaction_isolation = 'repeatable read'")
    with pytest.raises(psycopg.errors.Error, match="READ COMMITTED"):
        engine.value("deliver_message_now", "q", message_id)
