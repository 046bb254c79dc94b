"""explain_delivery: a sentence for each state, with the facts that a person looks for."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from .conftest import Clock
from .engine import Engine, fingerprint


def shown(engine: Engine, when: datetime) -> str:
    """A time as the database writes it, to the second."""
    ((text,),) = engine.query("select date_trunc('second', %s)::text", when)
    assert isinstance(text, str)
    return text


def test_next_in_line(engine: Engine) -> None:
    engine.queue("q")
    text = engine.explain("q", engine.send("q"))
    assert "ready" in text
    assert "next" in text


def test_behind_others_of_its_own_and_more_urgent_priorities(engine: Engine) -> None:
    engine.queue("q")
    engine.send_many("q", [1, 2], priority=0)
    engine.send_many("q", [1, 2, 3])
    message_id = engine.send("q")
    engine.send_many("q", [1, 2, 3], priority=3)
    engine.send_many("q", [4, 5])
    assert "behind 5 others" in engine.explain("q", message_id)
    engine.take_many("q", 5)
    assert "next" in engine.explain("q", message_id)


def test_behind_very_many(engine18: Engine) -> None:
    engine18.queue("q")
    engine18.send_many("q", list(range(10001)))
    assert "behind" in engine18.explain("q", engine18.send("q"))


def test_a_quiet_tenant_is_not_behind_a_busy_one(engine: Engine) -> None:
    engine.queue("q")
    engine.send_many("q", list(range(100)), tenant="busy")
    text = engine.explain("q", engine.send("q", tenant="quiet"))
    assert "behind 1 other" in text


def test_delayed(engine: Engine) -> None:
    engine.queue("q")
    due = engine.now() + timedelta(hours=1)
    text = engine.explain("q", engine.send("q", deliver_after=due))
    assert "delayed until" in text
    assert shown(engine, due) in text


def test_due_but_no_consumer_came(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    due = engine.now() + timedelta(seconds=10)
    message_id = engine.send("q", deliver_after=due)
    clock.advance(11)
    text = engine.explain("q", message_id)
    assert "due since" in text
    assert shown(engine, due) in text


def test_waiting_for_the_next_attempt(engine: Engine) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    engine.nack(engine.take("q"), delay_seconds=60, error="connection refused")
    text = engine.explain("q", message_id)
    assert "attempt 2" in text
    assert shown(engine, engine.message("q", message_id).due_at) in text
    assert "connection refused" in text


def test_leased(engine: Engine) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    message = engine.take("q", "worker 7")
    text = engine.explain("q", message_id)
    assert f"leased by consumer {fingerprint('worker 7')} until" in text
    assert "worker 7" not in text
    assert shown(engine, message.vt) in text


def test_a_lease_that_ran_out(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    message = engine.take("q", "worker 7", vt_seconds=5)
    clock.advance(6)
    text = engine.explain("q", message_id)
    assert f"the lease of consumer {fingerprint('worker 7')} ran out" in text
    assert shown(engine, message.vt) in text


@pytest.mark.parametrize("state", ["ready", "scheduled"])
def test_paused(engine: Engine, state: str) -> None:
    engine.queue("q")
    due = "2999-01-01" if state == "scheduled" else None
    message_id = engine.send("q", deliver_after=due)
    engine.value("pause_queue", "q")
    text = engine.explain("q", message_id)
    assert "paused" in text
    assert shown(engine, engine.settings("q").paused_at) in text
    engine.value("resume_queue", "q")
    assert "paused" not in engine.explain("q", message_id)


def test_dead_because_it_was_rejected(engine: Engine) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    engine.reject(engine.take("q"), error="malformed")
    text = engine.explain("q", message_id)
    assert "dead" in text
    assert "rejected" in text
    assert "malformed" in text
    assert shown(engine, engine.message("q", message_id).moved_at) in text


def test_dead_because_no_attempts_were_left(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=1)
    message_id = engine.send("q")
    engine.nack(engine.take("q"), error="timeout")
    text = engine.explain("q", message_id)
    assert "dead" in text
    assert "no attempts" in text
    assert "timeout" in text


def test_dead_because_its_time_was_over(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    message_id = engine.send("q", ttl_seconds=5)
    clock.advance(6)
    assert "time to live" in engine.explain("q", message_id)
    engine.maintain()
    text = engine.explain("q", message_id)
    assert "dead" in text
    assert "time to live" in text


def test_done(engine: Engine) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    engine.ack(engine.take("q"))
    text = engine.explain("q", message_id)
    assert "done at" in text
    assert shown(engine, engine.message("q", message_id).completed_at) in text


@pytest.mark.parametrize("message_id", [999999, -1, None])
def test_unknown(engine: Engine, message_id: int | None) -> None:
    engine.queue("q")
    text = engine.value("explain_delivery", "q", message_id)
    assert "unknown" in text
    assert '"q"' in text
    if message_id is not None:
        assert str(message_id) in text


def test_no_longer_kept(engine: Engine) -> None:
    engine.queue("q", retain_completed_seconds=0)
    message_id = engine.send("q")
    engine.ack(engine.take("q"))
    assert "unknown" in engine.explain("q", message_id)


# What it says comes true: each state, with and without a time to live, with attempts left and without.


def bring(engine: Engine, state: str, ttl: int | None, last_attempt: bool) -> int:
    """A message of queue q in a state, for 60 s if it is scheduled or active, on its last attempt or not."""
    attempts = 1 if last_attempt else 3
    cap = 1 if state == "waiting" else None
    engine.queue("q", max_delivery_attempts=attempts, tenant_max_active=cap, visibility_timeout_seconds=60)
    if state == "waiting":
        engine.send("q", tenant="t")
        engine.take("q", vt_seconds=100000)
    due = engine.now() + timedelta(seconds=60) if state == "delayed" else None
    message_id = engine.send("q", tenant="t", ttl_seconds=ttl, deliver_after=due)
    if state in ("active", "retried"):
        message = engine.take("q")
        if state == "retried":
            engine.nack(message, delay_seconds=60, error="boom")
    expected = {"delayed": "scheduled", "retried": "scheduled"}.get(state, state)
    assert engine.state("q", message_id) == expected
    return message_id


@pytest.mark.parametrize(
    ("now", "paused"), [(now, paused) for now in (0, 40, 70) for paused in (False, True)]
)
@pytest.mark.parametrize("ttl", [None, 30, 65, 1000])
@pytest.mark.parametrize(
    ("state", "last_attempt"),
    # One that failed in its last attempt is a dead letter, and not retried.
    [
        (state, last)
        for state in ("ready", "waiting", "delayed", "retried", "active")
        for last in (False, True)
        if state != "retried" or not last
    ],
)
def test_what_it_says_comes_true(  # noqa: PLR0917 - each is a dimension
    engine18: Engine, clock18: Clock, state: str, ttl: int | None, last_attempt: bool, now: int, paused: bool
) -> None:
    engine, clock = engine18, clock18
    message_id = bring(engine, state, ttl, last_attempt)
    if paused:
        engine.value("pause_queue", "q")
    clock.advance(now)
    text = engine.explain("q", message_id)
    if "moves it to the dead letters" in text:
        by_consume = "the next consume or maintain()" in text
        assert by_consume is not (
            paused or state == "waiting" or (state != "active" and now < 60 and state != "ready")
        )
        if by_consume:
            assert engine.nothing_to_take("q")
        else:
            engine.maintain_all()
        dead = engine.message("q", message_id)
        assert dead.state == "dead"
        assert ("time to live" in text) or dead.reason == "no_attempts_left"
        return
    before = engine.state("q", message_id)
    engine.maintain_all()
    assert engine.state("q", message_id) != "dead"
    if "then it becomes a dead letter" in text:
        # Its time to live ends before it is due.
        clock.advance(65)
        assert engine.message("q", message_id).expires_at < engine.now()
        engine.maintain_all()
        assert engine.state("q", message_id) == "dead"
    elif "if this attempt fails it becomes a dead letter" in text:
        assert before == "active"
        ((token,),) = engine.query("select token from penstock.active where id = %s", message_id)
        assert engine.value("nack_message", "q", message_id, token)
        assert engine.state("q", message_id) == "dead"
    elif "to be retried" in text or "makes it ready" in text:
        assert engine.state("q", message_id) == "ready"
    elif before == "active":
        ((token,),) = engine.query("select token from penstock.active where id = %s", message_id)
        assert engine.value("nack_message", "q", message_id, token)
        assert engine.state("q", message_id) == "ready"


def test_attempts_that_were_added_count(engine: Engine, clock: Clock) -> None:
    """The limit of the message, not that of the queue."""
    engine.queue("q", max_delivery_attempts=1)
    message_id = engine.send("q")
    engine.nack(engine.take("q"))
    engine.value("add_retries", "q", 2)
    engine.take("q", vt_seconds=5)
    clock.advance(10)
    assert "to be retried" in engine.explain("q", message_id)
    engine.take("q", vt_seconds=5)
    clock.advance(10)
    assert (
        "(attempt 3, the last one): the next consume or maintain() moves it to the dead letters"
        in engine.explain("q", message_id)
    )
    engine.maintain_all()
    assert engine.message("q", message_id).reason == "no_attempts_left"
