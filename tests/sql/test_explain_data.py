"""explain_delivery_data: the facts of the sentence that explain_delivery() says."""

from __future__ import annotations

from datetime import timedelta

from .conftest import Clock
from .engine import Engine, Row, fingerprint


def explain(engine: Engine, message_id: int, queue: str = "q") -> Row:
    row = engine.row("explain_delivery_data", queue, message_id)
    assert row.explanation == engine.explain(queue, message_id)
    return row


def test_next_and_behind(engine: Engine) -> None:
    engine.queue("q")
    first, _, third = engine.send_many("q", [1, 2, 3])
    row = explain(engine, first)
    assert (row.state, row.cause, row.ahead, row.ahead_is_limit, row.remedies) == (
        *("ready", "next", 0, False),
        [],
    )
    row = explain(engine, third)
    assert (row.cause, row.ahead, row.cap) == ("behind", 2, None)


def test_paused(engine: Engine) -> None:
    engine.queue("q")
    ready = engine.send("q")
    delayed = engine.send("q", deliver_after=engine.now() + timedelta(hours=1))
    engine.value("pause_queue", "q")
    paused_at = engine.settings("q").paused_at
    row = explain(engine, ready)
    assert (row.cause, row.paused_at, row.remedies) == ("paused", paused_at, ["resume_queue"])
    row = explain(engine, delayed)
    assert (row.cause, row.paused_at) == ("delayed", paused_at)
    assert row.remedies == ["deliver_message_now", "resume_queue"]


def test_max_active(engine: Engine) -> None:
    engine.queue("q", max_active=10, min_active=0)
    ids = engine.send_many("q", list(range(3)), priority=2)
    for _ in range(2):
        engine.take("q")
    row = explain(engine, ids[2])
    assert (row.cause, row.cap, row.cap_value, row.quota, row.taken) == ("max_active", "max_active", 10, 2, 2)
    assert (row.ahead, row.remedies) == (0, ["alter_queue"])


def test_a_priority_without_permits(engine: Engine) -> None:
    engine.queue("q", max_active=10, min_active=0, priority_shares=[50, 50, 0, 0])
    row = explain(engine, engine.send("q"))
    assert (row.cause, row.quota, row.taken, row.cap_value) == ("no_permits", 0, 0, 10)


def test_tenant_max_active(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=2)
    ids = engine.send_many("q", list(range(4)), tenant="a")
    engine.take_many("q", 2)
    row = explain(engine, ids[3])
    assert (row.state, row.cause, row.cap, row.cap_value, row.quota, row.taken, row.ahead) == (
        *("waiting", "tenant_max_active", "tenant_max_active", 2, 2, 2, 1),
    )


def test_delayed_due_and_expired(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    due = engine.now() + timedelta(seconds=10)
    delayed = engine.send("q", deliver_after=due)
    mortal = engine.send("q", deliver_after=due, ttl_seconds=20)
    row = explain(engine, delayed)
    assert (row.state, row.cause, row.until) == ("scheduled", "delayed", due)
    clock.advance(11)
    row = explain(engine, delayed)
    assert (row.cause, row.since, row.until, row.remedies) == ("due", due, None, ["maintain"])
    clock.advance(10)
    row = explain(engine, mortal)
    assert (row.cause, row.since) == ("expired", engine.message("q", mortal).expires_at)


def test_a_retry_and_a_parked_message(engine: Engine) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    engine.nack(engine.take("q"), delay_seconds=60, error="boom")
    row = explain(engine, message_id)
    assert (row.cause, row.attempt, row.error) == ("retry", 2, "boom")
    assert (row.until, row.remedies) == (engine.message("q", message_id).due_at, ["deliver_message_now"])
    parked = engine.send("q")
    engine.take("q", "w")
    engine.rows("park_messages", "q", [parked], "w", ["unknown"])
    row = explain(engine, parked)
    assert (row.cause, row.task_name) == ("parked", "unknown")


def test_leased_and_lost(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    message = engine.take("q", "w", vt_seconds=5)
    row = explain(engine, message_id)
    assert (row.state, row.cause, row.until, row.consumer, row.attempt) == (
        *("active", "leased", message.vt, fingerprint("w"), 1),
    )
    clock.advance(6)
    row = explain(engine, message_id)
    assert (row.cause, row.since) == ("lease_over", message.vt)


def test_dead_done_and_unknown(engine: Engine) -> None:
    engine.queue("q")
    dead = engine.send("q")
    engine.reject(engine.take("q"), error="boom")
    row = explain(engine, dead)
    assert (row.state, row.cause, row.error, row.remedies) == (
        *("dead", "failed", "boom", ["requeue_dlq_messages"]),
    )
    done = engine.send("q")
    engine.ack(engine.take("q"))
    row = explain(engine, done)
    assert (row.state, row.cause, row.since) == ("done", "done", engine.message("q", done).completed_at)
    row = explain(engine, 999)
    assert (row.state, row.cause, row.remedies) == (None, "unknown", [])
