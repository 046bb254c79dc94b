"""maintain() does a slice of what is due, and each call is brief: no queue waits for what others have due."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from .conftest import Clock
from .engine import Engine

QUEUES = 30
EACH = 3000
# Generous: two cores are shared. Before, one call took as long as all queues together.
LONGEST_CALL_SECONDS = 1.2


def fill(engine: Engine, queue: str, number: int, seconds: float, priority: int = 2) -> None:
    """So many messages that are due in so many seconds."""
    engine.query(
        """
        select count(*) from penstock.send_messages(
            %s, array(select to_jsonb(n) from generate_series(1, %s) n), deliver_after => %s, priority => %s
        )
        """,
        queue,
        number,
        engine.now() + timedelta(seconds=seconds),
        priority,
    )


def fill_all(engine: Engine, clock: Clock) -> int:
    """Every queue has a lot that is due now, and the last queue a single message: its id."""
    for n in range(QUEUES):
        engine.queue(f"busy{n}")
        fill(engine, f"busy{n}", EACH, 5)
    engine.queue("lone")
    lone = engine.send("lone", deliver_after=engine.now() + timedelta(seconds=6))
    clock.advance(10)
    return lone


def ready(engine: Engine) -> int:
    return sum(row.pending_count - row.delayed_count for row in engine.rows("get_queue_statistics"))


@pytest.mark.slow
def test_each_call_is_brief_and_no_queue_waits_for_others(engine18: Engine, clock18: Clock) -> None:
    lone = fill_all(engine18, clock18)
    took: list[float] = []
    promoted = 0
    seen_after = 0
    while promoted < QUEUES * EACH + 1:
        assert len(took) < 1000
        began_at = time.monotonic()
        did = engine18.maintain()
        took.append(time.monotonic() - began_at)
        promoted += did.get("promoted", 0)
        if not seen_after and engine18.state("lone", lone) == "ready":
            seen_after = len(took)
    assert max(took) < LONGEST_CALL_SECONDS, f"calls took {[round(seconds, 2) for seconds in took]} s"
    assert seen_after <= 2, f"call {seen_after} promoted the message of the quiet queue"
    assert engine18.maintain().get("promoted", 0) == 0
    assert engine18.nothing_to_take("lone") is False


@pytest.mark.slow
def test_all_is_done_under_a_statement_timeout(engine18: Engine, clock18: Clock) -> None:
    """What one call has done is kept, whatever becomes of the next one."""
    fill_all(engine18, clock18)
    engine18.connection.execute("set statement_timeout = '1200ms'")
    calls = promoted = 0
    while promoted < QUEUES * EACH + 1:
        calls += 1
        assert calls < 1000
        promoted += engine18.maintain().get("promoted", 0)
    engine18.connection.execute("reset statement_timeout")


def test_what_is_urgent_is_promoted_first(engine18: Engine, clock18: Clock) -> None:
    engine18.queue("q")
    fill(engine18, "q", 20_000, 5, priority=3)
    urgent = engine18.send("q", deliver_after=engine18.now() + timedelta(seconds=6), priority=0)
    clock18.advance(10)
    engine18.maintain()
    assert engine18.state("q", urgent) == "ready"
    assert engine18.take("q").message_id == urgent


def test_a_consume_promotes_what_is_urgent_first(engine18: Engine, clock18: Clock) -> None:
    """Without a maintainer, too."""
    engine18.queue("q")
    fill(engine18, "q", 20_000, 5, priority=3)
    urgent = engine18.send("q", deliver_after=engine18.now() + timedelta(seconds=6), priority=0)
    clock18.advance(10)
    assert engine18.take("q").message_id == urgent


def test_leases_that_ran_out_are_taken_back_though_much_is_due(engine18: Engine, clock18: Clock) -> None:
    engine18.queue("q")
    message_id = engine18.send("q", priority=0)
    engine18.take("q", vt_seconds=5)
    fill(engine18, "q", 20_000, 4, priority=3)
    clock18.advance(10)
    for _ in range(2):
        engine18.maintain()
    assert engine18.state("q", message_id) == "ready"
