"""maintain() does a slice of what is due, and each call is brief: no queue waits for what others have due."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from ..conftest import Connect
from ..isolation.rewriting import DEFINITION, rewrite
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


@contextmanager
def slowed(engine: Engine, function: str, statement: str, seconds: str) -> Iterator[None]:
    """Before a statement of a function the time passes that much work or a busy machine would take."""
    ((definition,),) = engine.query(DEFINITION, function)
    rewrite(engine.connection, function, statement, f"perform pg_sleep({seconds}); {statement}")
    try:
        yield
    finally:
        engine.connection.execute(definition)


def calls(engine: Engine, action: str, number: int) -> list[float]:
    """Calls maintain() until it has done so much of one kind: how long each call took."""
    took: list[float] = []
    done = 0
    while done < number:
        assert len(took) < 1000, f"{done} of {number} after {len(took)} calls"
        began_at = time.monotonic()
        done += engine.maintain().get(action, 0)
        took.append(time.monotonic() - began_at)
    assert done == number
    return took


def test_many_complete_groups(engine18: Engine) -> None:
    """Workers that finish them are gone. Each callback takes a millisecond, all of them a second."""
    engine18.queue("then")
    engine18.maintain_all()
    engine18.query(
        """
        with made as materialized (
            select penstock.create_group(2, 'then', '{}', '{"task": "t"}') as id from generate_series(1, 1000)
        ), results as (
            insert into penstock.group_results (group_id, position, message_id)
            select m.id, p, m.id from made m, generate_series(0, 1) p
        )
        select count(*) from made
        """
    )
    engine18.query("update penstock.upkeep set done_at = '-infinity' returning 1")
    with slowed(engine18, "_send", "return (penstock._publish(", "0.001"):
        took = calls(engine18, "groups finished", 1000)
    assert max(took) < 0.6, f"calls took {[round(seconds, 2) for seconds in took]} s"
    assert engine18.count("ready") == 1000
    assert engine18.count("groups") == engine18.count("group_results") == 0


def test_queues_whose_examination_takes_long(engine18: Engine) -> None:
    """Two milliseconds each: all of them have their turn, and none is left out for long."""
    engine18.query("select count(penstock.create_queue('q' || n)) from generate_series(1, 500) n")
    engine18.maintain_all()
    due = engine18.now()
    engine18.query(
        "select count(penstock.send_message(q.name, '1', deliver_after => %s)) from penstock.queues q",
        due + timedelta(seconds=1),
    )
    engine18.query("update penstock.scheduled set due_at = %s returning 1", due)
    with slowed(engine18, "_examine", "return query", "0.002 * cardinality(queue_ids)"):
        took = calls(engine18, "promoted", 500)
    assert max(took) < 0.6, f"calls took {[round(seconds, 2) for seconds in took]} s"


def test_floors_of_many_busy_queues_rise_while_vacuum_is_held_back(
    engine18: Engine, connect18: Connect
) -> None:
    engine18.query("select count(penstock.create_queue('q' || n)) from generate_series(1, 300) n")
    engine18.maintain_all()
    holder = connect18()
    holder.execute("begin isolation level repeatable read")
    holder.execute("select 1")
    engine18.query(
        """
        select count(*) from penstock.queues q
        cross join lateral penstock.send_messages(q.name, array_fill('1'::jsonb, array[101]))
        """
    )
    engine18.query(
        """
        with claimed as (
            select m.* from penstock.queues q
            cross join lateral penstock.consume_messages_batch(q.name, batch_size => 100) m
        )
        select count(penstock.ack_message(c.queue_name, c.message_id, c.consumer_token)) from claimed c
        """
    )
    raised: Counter[str] = Counter()
    for _ in range(12):
        raised.update(row.queue_name for row in engine18.rows("maintain") if row.action == "floor raised")
    assert len(raised) == 300
