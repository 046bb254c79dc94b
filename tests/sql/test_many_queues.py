"""Many queues: maintain() examines those of the caller at once, and the others in turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from ..isolation.rewriting import DEFINITION, rewrite
from .conftest import Clock
from .engine import Engine

SLICE = 500


def create(engine: Engine, number: int) -> None:
    """So many queues: q1, q2, and so on."""
    engine.query("select count(penstock.create_queue('q' || n)) from generate_series(1, %s) n", number)


def settle_down(engine: Engine) -> None:
    """What is due once a minute is done, for all queues: the calls that follow only examine."""
    for _ in range(100):
        engine.rows("maintain")
        ((is_done,),) = engine.query("select done_at > '-infinity' and after_queue = 0 from penstock.upkeep")
        if is_done:
            return
    raise AssertionError("the chores do not come to an end")


def did(engine: Engine, queue: str, *names: str) -> set[str]:
    """What one call did in a queue."""
    rows = engine.rows("maintain", *([list(names)] if names else []))
    return {row.action for row in rows if row.queue_name == queue}


@pytest.fixture
def enough_time(engine18: Engine) -> Iterator[None]:
    """Each call examines its whole slice, however slow the machine is."""
    ((definition,),) = engine18.query(DEFINITION, "maintain")
    for limit in (
        "clock_timestamp() + interval '40 ms'",
        "else interval '80 ms' end\n            )\n        loop",
    ):
        rewrite(
            engine18.connection, "maintain", limit, limit.replace("40 ms", "20 s").replace("80 ms", "20 s")
        )
    yield
    engine18.connection.execute(definition)


@pytest.mark.usefixtures("enough_time")
@pytest.mark.parametrize("number", [SLICE, SLICE + 1, 3 * SLICE - 10])
def test_each_queue_has_its_turn(engine18: Engine, clock18: Clock, number: int) -> None:
    create(engine18, number)
    settle_down(engine18)
    due = engine18.now() + timedelta(seconds=5)
    engine18.query(
        "select count(penstock.send_message(q.name, '1', deliver_after => %s)) from penstock.queues q", due
    )
    clock18.advance(10)
    promoted: list[str] = []
    for _ in range(100):
        promoted += [row.queue_name for row in engine18.rows("maintain") if row.action == "promoted"]
        if len(promoted) == number:
            break
    assert len(set(promoted)) == len(promoted) == number
    # Now that nothing is due: each queue is examined once in so many calls.
    calls = -(-number // SLICE)
    watched = [f"q{n}" for n in range(1, number + 1, 100)]
    for queue in watched:
        delay(engine18, queue)
    clock18.advance(10)
    found = [
        row.queue_name for _ in range(calls) for row in engine18.rows("maintain") if row.action == "promoted"
    ]
    assert sorted(found) == sorted(watched)


def lease(engine: Engine, queue: str) -> str:
    engine.send(queue)
    engine.take(queue, "lost", vt_seconds=5)
    return "leases taken back"


def delay(engine: Engine, queue: str) -> str:
    engine.send(queue, deliver_after=engine.now() + timedelta(seconds=5), priority=0)
    return "promoted"


def expiry(engine: Engine, queue: str) -> str:
    engine.send(queue, ttl_seconds=5)
    return "expired"


def delayed_expiry(engine: Engine, queue: str) -> str:
    engine.send(queue, ttl_seconds=5, deliver_after=engine.now() + timedelta(hours=1))
    return "expired"


def dead_letter(engine: Engine, queue: str) -> str:
    engine.value("alter_queue", queue, retain_dead_seconds=1)
    engine.send(queue)
    engine.reject(engine.take(queue))
    return "dead letters removed"


def completed(engine: Engine, queue: str) -> str:
    engine.value("alter_queue", queue, retain_completed_seconds=1)
    engine.send(queue)
    engine.ack(engine.take(queue))
    return "completed removed"


def keep_alive(engine: Engine, queue: str) -> str:
    engine.value("delete_queue", queue)
    engine.queue(queue, exclusive=True, keep_alive_seconds=5)
    return "exclusive queue deleted"


@pytest.mark.parametrize(
    "prepare",
    [lease, delay, expiry, delayed_expiry, dead_letter, completed, keep_alive],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("queue", ["q1", "q1200"])
def test_what_is_due_in_an_unattended_queue_is_found(
    engine18: Engine, clock18: Clock, queue: str, prepare: Any
) -> None:
    create(engine18, 1200)
    settle_down(engine18)
    expected = prepare(engine18, queue)
    clock18.advance(70)
    found: set[str] = set()
    for _ in range(6):  # three slices; retention comes once a minute, over several calls
        found |= did(engine18, queue)
    assert expected in found


@pytest.mark.parametrize("prepare", [lease, delay, expiry, keep_alive], ids=lambda f: f.__name__)
def test_the_queues_of_the_caller_are_examined_at_once(
    engine18: Engine, clock18: Clock, prepare: Any
) -> None:
    """Among thousands, and also if another caller has examined a slice a moment ago."""
    create(engine18, 5000)
    settle_down(engine18)
    queues = [f"q{n}" for n in range(250, 5000, SLICE)]
    for queue in queues:
        expected = prepare(engine18, queue)
    clock18.advance(10)
    done = {row.queue_name for row in engine18.rows("maintain", ["q1"]) if row.action == expected}
    # One for each slice; but queues that were made anew have ids next to each other.
    assert len(done) <= 1 or prepare is keep_alive
    for queue in queues:
        rows = engine18.rows("maintain", ["no such queue", queue, "q1"])
        done |= {row.queue_name for row in rows if row.action == expected}
        assert queue in done


def test_the_floor_of_the_caller_rises_at_once(engine18: Engine) -> None:
    """Also while the floors of many other queues are low, and another session uses one of them."""
    create(engine18, 1000)
    settle_down(engine18)
    for queue in (*(f"q{n}" for n in range(1, 60)), "q999"):
        engine18.send_many(queue, [1] * 3)
        engine18.ack(engine18.take(queue))
    assert "floor raised" in did(engine18, "q999", "q999")


def test_many_callers_examine_the_others_twice_a_second(engine18: Engine) -> None:
    create(engine18, 100)
    began_at = time.time()
    seen: set[int] = set()
    for _ in range(200):
        engine18.rows("maintain", ["q1"])
        seen.add(engine18.query("select last_value from penstock.examined_at")[0][0])
    assert 1 <= len(seen) <= 1 + (time.time() - began_at) / 0.5
    assert all(began_at - 1 <= each / 1000 <= time.time() + 1 for each in seen)


def test_a_clock_that_was_set_back_stops_no_turn(engine18: Engine, clock18: Clock) -> None:
    create(engine18, 100)
    settle_down(engine18)
    delay(engine18, "q77")
    clock18.advance(10)
    engine18.query("select setval('penstock.examined_at', %s)", int((time.time() + 3600) * 1000))
    assert did(engine18, "q77", "q1") == {"promoted"}


def test_a_caller_with_very_many_queues(engine18: Engine, clock18: Clock) -> None:
    """A call examines a part of them; all have their turn."""
    create(engine18, 1200)
    settle_down(engine18)
    delay(engine18, "q600")
    clock18.advance(10)
    names = [f"q{n}" for n in range(1, 1201)]
    for _ in range(200):
        if did(engine18, "q600", *names) == {"promoted"}:
            return
    raise AssertionError("the queue has not had its turn")


@pytest.mark.slow
def test_a_slice_with_more_work_is_examined_again_soon(engine18: Engine, clock18: Clock) -> None:
    """A backlog in one slice neither waits for the turns of all others, nor stops them: by a coin."""
    create(engine18, 5000)
    settle_down(engine18)
    due = engine18.now() + timedelta(seconds=5)
    for n in range(4):
        engine18.query(
            """select count(*) from penstock.send_messages(
                %s, array(select to_jsonb(n) from generate_series(1, 60000) n), deliver_after => %s
            )""",
            f"q{2000 + n}",
            due,
        )
    delay(engine18, "q4999")
    clock18.advance(10)
    promoted = unfinished = returns = 0
    for _ in range(2000):
        rows = engine18.rows("maintain")
        promoted += sum(row.affected for row in rows if row.action == "promoted")
        if any(row.action == "unfinished" for row in rows):
            unfinished += 1
            # What the next call draws: the same turn once more, or the next one.
            returns += engine18.query("select is_called from penstock.examined_slices") == [(False,)]
        if promoted == 4 * 60000 + 1:
            break
    assert promoted == 4 * 60000 + 1
    assert 0 < returns < unfinished, f"{returns} of {unfinished}"


def test_an_idle_call_writes_nothing(engine18: Engine) -> None:
    """Unless a probe was slow, because the machine was busy: the call takes that for dead rows."""
    create(engine18, 40)
    settle_down(engine18)
    for names in ([], [["q1"]]):
        assert any(writes_nothing(engine18, *names) for _ in range(20))


def writes_nothing(engine: Engine, *names: list[str]) -> bool:
    with engine.connection.transaction():
        engine.rows("maintain", *names)
        return engine.query("select pg_current_xact_id_if_assigned()") == [(None,)]


def test_statistics_of_many_queues(engine18: Engine, clock18: Clock) -> None:
    """A queue is empty only if all counts are 0: each state alone is seen."""
    create(engine18, 30)
    for priority in range(4):
        engine18.send(f"q{1 + priority}", priority=priority)
        later = engine18.now() + timedelta(hours=1)
        engine18.send(f"q{5 + priority}", priority=priority, deliver_after=later)
    engine18.send("q9")
    engine18.take("q9")
    engine18.send("q10")
    engine18.reject(engine18.take("q10"))
    engine18.send("q11")
    engine18.ack(engine18.take("q11"))
    engine18.queue("capped", tenant_max_active=1)
    engine18.send_many("capped", [1, 2], tenant="a")
    engine18.rows("maintain")
    engine18.ack(engine18.take("capped"))
    clock18.advance(1)
    since = engine18.now()
    for completed_since in (None, since - timedelta(seconds=30), since):
        rows = engine18.rows("get_queue_statistics", completed_since=completed_since)
        assert len(rows) == 31
        for row in rows:
            (alone,) = engine18.rows("get_queue_statistics", row.queue_name, completed_since=completed_since)
            row.oldest_pending_seconds = alone.oldest_pending_seconds = row.oldest_pending_seconds is not None
            assert row == alone
    names = [row.queue_name for row in rows]
    assert names == sorted(names)
