"""get_queue_statistics: what waits for its tenant, and the breakdowns by priority and by tenant."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from ..conftest import Connect
from .bad_input import Bad, expect
from .conftest import Clock
from .engine import Engine, Row
from .occupancy import let_in


def by_priority(engine: Engine, queue: str) -> list[Row]:
    rows = engine.rows("get_queue_statistics", queue, "priority")
    assert [(row.queue_name, row.priority, row.tenant) for row in rows] == [
        (queue, priority, None) for priority in range(4)
    ]
    return rows


def by_tenant(engine: Engine, queue: str, **options: Any) -> dict[str | None, Row]:
    """The rows by tenant, in their order, which must be that of what is pending."""
    rows = engine.rows("get_queue_statistics", queue, "tenant", **options)
    assert {(row.queue_name, row.priority) for row in rows} <= {(queue, None)}
    pending = [row.pending_count for row in rows]
    assert pending == sorted(pending, reverse=True)
    assert len({row.tenant for row in rows}) == len(rows)
    return {row.tenant: row for row in rows}


def pending(engine: Engine, queue: str, **options: Any) -> dict[str | None, int]:
    return {tenant: row.pending_count for tenant, row in by_tenant(engine, queue, **options).items()}


def backlog(engine: Engine, queue: str, counts: dict[str | None, int], **options: Any) -> None:
    """So many messages of each tenant."""
    for tenant, count in counts.items():
        engine.send_many(queue, [1] * count, tenant=tenant, **options)


def test_what_waits_is_pending(engine: Engine, clock: Clock) -> None:
    engine.queue("q", tenant_max_active=2)
    backlog(engine, "q", {"acme": 5, None: 3})
    let_in(engine)
    engine.send("q", tenant="acme", deliver_after=engine.now() + timedelta(hours=1))
    clock.advance(50)
    row = engine.statistics("q")
    assert (row.waiting_count, row.delayed_count, row.pending_count, row.total_count) == (4, 1, 9, 9)
    assert (row.priority, row.tenant) == (None, None)
    engine.ack(engine.take("q"))
    row = engine.statistics("q")
    assert (row.waiting_count, row.pending_count, row.completed_count) == (3, 8, 1)


def test_the_oldest_may_be_one_that_waits(engine: Engine, clock: Clock) -> None:
    engine.queue("q", tenant_max_active=1)
    engine.send("q", tenant="acme")
    engine.take("q", vt_seconds=86400)
    engine.send("q", tenant="acme", priority=1)
    clock.advance(500)
    engine.send("q", tenant="other", priority=1)
    assert engine.statistics("q").oldest_pending_seconds >= 500
    assert by_priority(engine, "q")[1].oldest_pending_seconds >= 500
    rows = by_tenant(engine, "q")
    assert rows["acme"].oldest_pending_seconds >= 500
    assert rows["other"].oldest_pending_seconds < 100


def test_statistics_see_what_waits_after_maintain(engine: Engine, clock: Clock) -> None:
    engine.queue("q", tenant_max_active=1)
    backlog(engine, "q", {"acme": 4})
    engine.take("q", vt_seconds=86400)
    for _ in range(3):
        assert engine.statistics("q").waiting_count == 3
        assert by_priority(engine, "q")[2].waiting_count == 3
        assert by_tenant(engine, "q")["acme"].waiting_count == 3
        clock.advance(100)
        engine.maintain()


def in_all_states(engine: Engine) -> None:
    """Of tenant a, priority 1: 2 ready, 1 waits, 1 delayed, 1 active; of none, priority 3: 1 ready."""
    engine.queue("q", tenant_max_active=3)
    backlog(engine, "q", {"a": 4}, priority=1)
    let_in(engine)
    engine.take("q", vt_seconds=86400)
    engine.send("q", tenant="a", priority=1, deliver_after=engine.now() + timedelta(hours=1))
    engine.send_many("q", [1, 2, 3], priority=0)
    engine.reject(engine.take("q"))
    engine.ack(engine.take("q"))
    engine.ack(engine.take("q"))
    engine.send("q", priority=3)


def test_by_priority(engine: Engine, clock: Clock) -> None:
    in_all_states(engine)
    clock.advance(30)
    rows = by_priority(engine, "q")
    assert [row.pending_count for row in rows] == [0, 4, 0, 1]
    assert [row.waiting_count for row in rows] == [0, 1, 0, 0]
    assert [row.delayed_count for row in rows] == [0, 1, 0, 0]
    assert [row.processing_count for row in rows] == [0, 1, 0, 0]
    for row in rows:
        assert (row.completed_count, row.dead_count, row.total_count) == (None, None, None)
        assert (row.oldest_pending_seconds is None) == (row.pending_count == 0)
    assert 30 <= rows[1].oldest_pending_seconds < 90


def test_by_tenant(engine: Engine, clock: Clock) -> None:
    in_all_states(engine)
    clock.advance(30)
    rows = by_tenant(engine, "q")
    assert list(rows) == ["a", None]
    row = rows["a"]
    assert (row.pending_count, row.waiting_count, row.delayed_count, row.processing_count) == (4, 1, 1, 1)
    assert (row.completed_count, row.dead_count, row.total_count) == (None, None, None)
    assert 30 <= row.oldest_pending_seconds < 90
    row = rows[None]
    assert (row.pending_count, row.waiting_count, row.delayed_count, row.processing_count) == (1, 0, 0, 0)


def test_the_breakdowns_add_up_to_the_whole(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=5)
    engine.send_many(
        "q", list(range(60)), priorities=[0, 1, 2, 3] * 15, tenants=["a", "b", "c", None, "a"] * 12
    )
    engine.send_many("q", list(range(8)), tenants=list("abcdabcd"), deliver_after="2999-01-01")
    for message in engine.take_many("q", 9)[:3]:
        engine.nack(message)
    whole = engine.statistics("q")
    for rows in (by_priority(engine, "q"), list(by_tenant(engine, "q").values())):
        for column in ("pending_count", "waiting_count", "delayed_count", "processing_count"):
            assert sum(getattr(row, column) for row in rows) == getattr(whole, column), column


def test_the_top_tenants_are_those_with_the_most(engine: Engine) -> None:
    engine.queue("q")
    backlog(engine, "q", {"b": 3, "a": 7, None: 5, "c": 1, "d": 9})
    everything = {"d": 9, "a": 7, None: 5, "b": 3, "c": 1}
    assert pending(engine, "q") == everything
    assert list(pending(engine, "q", top=3).items()) == list(everything.items())[:3]
    assert pending(engine, "q", top=1) == {"d": 9}
    assert pending(engine, "q", top=1000) == everything


def test_the_priorities_of_a_tenant_count_together(engine: Engine) -> None:
    engine.queue("q")
    for priority in range(4):
        engine.send_many("q", [1, 2, 3], priority=priority, tenant="spread")
    engine.send_many("q", [1] * 5, tenant="one")
    assert list(pending(engine, "q").items()) == [("spread", 12), ("one", 5)]


def test_tenants_of_other_queues_do_not_count(engine: Engine) -> None:
    for queue in ("q", "other"):
        engine.queue(queue, tenant_max_active=2)
    backlog(engine, "other", {"a": 9, "b": 5, None: 5})
    backlog(engine, "q", {"a": 3})
    assert pending(engine, "q") == {"a": 3}
    engine.value("purge_queue", "q")
    assert pending(engine, "q") == {}


def test_a_tenant_with_nothing_pending_is_not_listed(engine: Engine) -> None:
    engine.queue("q")
    backlog(engine, "q", {"a": 2, "b": 1})
    engine.take_many("q", 2)
    assert set(by_tenant(engine, "q")) == {"a"}
    assert by_tenant(engine, "q")["a"].processing_count == 1


def test_a_tenant_that_only_has_free_permits_is_not_listed(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=2)
    backlog(engine, "q", {"a": 1, "b": 1})
    engine.ack(engine.take("q"))
    assert set(by_tenant(engine, "q")) == {"b"}


def test_a_queue_without_tenants_is_that_of_none(engine: Engine) -> None:
    engine.queue("q")
    engine.send_many("q", [1, 2, 3], priorities=[0, 2, 2])
    engine.nack(engine.take("q"))
    engine.take("q")
    row = by_tenant(engine, "q")[None]
    assert (row.pending_count, row.processing_count) == (2, 1)
    assert len(by_tenant(engine, "q")) == 1


def test_what_came_before_the_first_tenant_counts_as_of_none(engine: Engine) -> None:
    engine.queue("q")
    engine.send_many("q", [1] * 8, priorities=[1, 2] * 4)
    backlog(engine, "q", {"a": 5, None: 3})
    assert list(pending(engine, "q").items()) == [(None, 11), ("a", 5)]
    assert pending(engine, "q", top=1) == {None: 11}


def test_only_delayed(engine: Engine) -> None:
    engine.queue("q")
    later = engine.now() + timedelta(hours=1)
    backlog(engine, "q", {"a": 2, "b": 3}, deliver_after=later)
    rows = by_tenant(engine, "q")
    assert [(tenant, row.pending_count, row.delayed_count) for tenant, row in rows.items()] == [
        ("b", 3, 3),
        ("a", 2, 2),
    ]


def test_hostile_names_of_tenants(engine: Engine) -> None:
    names = ["'", '"', "\\", "%s", "{a,b}", "null", " ", "é", "日本", "\x01", "~", "x" * 255]
    engine.queue("q", tenant_max_active=1)
    backlog(engine, "q", {name: n for n, name in enumerate(names, 2)})
    assert pending(engine, "q", top=20) == {name: n for n, name in enumerate(names, 2)}


def test_a_breakdown_of_all_queues(engine: Engine) -> None:
    for queue in ("b", "a"):
        engine.queue(queue)
    backlog(engine, "b", {"x": 1, "y": 2})
    backlog(engine, "a", {"x": 3})
    rows = engine.rows("get_queue_statistics", None, "tenant", 1)
    assert [(row.queue_name, row.tenant, row.pending_count) for row in rows] == [("a", "x", 3), ("b", "y", 2)]
    rows = engine.rows("get_queue_statistics", breakdown="priority")
    assert [(row.queue_name, row.priority) for row in rows] == [(q, p) for q in "ab" for p in range(4)]


def test_a_tenant_with_a_little_everywhere_may_have_the_most(engine: Engine) -> None:
    engine.queue("q")
    for priority in range(4):
        tenants = [f"tenant {priority} {n}" for n in range(100)] * 2
        engine.send_many("q", [1] * 200, priority=priority, tenants=tenants)
        engine.send_many("q", [1], priority=priority, tenant="everywhere")
    assert pending(engine, "q", top=1) == {"everywhere": 4}
    rows = engine.rows("get_queue_statistics", "q", "tenant")
    assert [row.is_estimate for row in rows] == [False] * 10


# Beyond what is counted.


@pytest.mark.parametrize(("count", "is_estimate"), [(9999, False), (10000, True)])
def test_of_the_whole_10000_are_an_estimate(engine: Engine, count: int, is_estimate: bool) -> None:
    engine.queue("q")
    engine.send_many("q", [1] * count)
    found = engine.statistics("q")
    assert (found.pending_count, found.is_estimate) == (count, is_estimate)


def fill(engine: Engine, table: str, queue: str, ids: range, columns: dict[str, str]) -> None:
    """Rows past the API, with these ids."""
    columns = {
        **{"queue_id": "q.id", "id": "i", "priority": "2", "attempts": "0", "tenant": "''", "payload": "'1'"},
        **{"published_at": "clock_timestamp()", **columns},
    }
    engine.query(
        f"""insert into penstock.{table} ({", ".join(columns)}) select {", ".join(columns.values())}
        from penstock.queues q, generate_series(%s::int8, %s) i where q.name = %s returning 1""",
        ids[0],
        ids[-1],
        queue,
    )


def shrink(engine: Engine, table: str) -> None:
    """The tests share a database. Blocks that a test before left empty would be sampled, too."""
    engine.connection.execute(f"truncate penstock.{table}")


LATER = "clock_timestamp() + interval '1 hour'"
STATES = {
    "ready": ("pending_count", {"rank": "i", "large": "false", "ranked_by_tenant": "false"}),
    "waiting": (
        "waiting_count",
        {"sweep_queue_id": "q.id", "rank": "i", "large": "false", "redelivered": "false"},
    ),
    "scheduled": ("delayed_count", {"sweep_queue_id": "q.id", "large": "false", "due_at": LATER}),
    "active": (
        "processing_count",
        {
            **{"sweep_queue_id": "q.id", "large": "false", "vt": LATER, "token": "'me'"},
            **{"claimed_at": "clock_timestamp()"},
        },
    ),
    "dead": (
        "dead_count",
        {"sweep_queue_id": "q.id", "large": "false", "reason": "'failed'", "moved_at": "clock_timestamp()"},
    ),
    "done": (
        "completed_count",
        {"completed_at": "clock_timestamp()", "claimed_at": "clock_timestamp()", "token": "'me'"},
    ),
}


@pytest.mark.parametrize("state", list(STATES))
def test_long_states_are_estimated(engine18: Engine, state: str) -> None:
    """60,000 messages in bursts, between those of another queue; a small queue is exact beside them."""
    field, columns = STATES[state]
    shrink(engine18, state)
    for queue in ("q", "other", "small"):
        engine18.queue(queue)
    for start in range(0, 120_000, 2000):
        fill(engine18, state, "q", range(start + 1, start + 1001), columns)
        fill(engine18, state, "other", range(start + 1001, start + 2001), columns)
    fill(engine18, state, "small", range(120_001, 120_008), columns)
    for found in (
        {row.queue_name: row for row in engine18.rows("get_queue_statistics")},
        {queue: engine18.statistics(queue) for queue in ("q", "other", "small")},
    ):
        for queue in ("q", "other"):
            assert 45_000 < getattr(found[queue], field) < 75_000
            assert found[queue].is_estimate
        assert (getattr(found["small"], field), found["small"].is_estimate) == (7, False)


def fill_all(engine: Engine, state: str, each: int, columns: dict[str, str]) -> None:
    """So many messages of each queue, in turn: as they come, not one queue after the other."""
    columns = {
        **{"queue_id": "q.id", "id": "i", "priority": "2", "attempts": "0", "tenant": "''", "payload": "'1'"},
        **{"published_at": "clock_timestamp()", **columns},
    }
    engine.query(
        f"""insert into penstock.{state} ({", ".join(columns)}) select {", ".join(columns.values())}
        from generate_series(1, %s) i, penstock.queues q order by i, q.id returning 1""",
        each,
    )


@pytest.mark.parametrize("state", [state for state in STATES if state != "done"])
def test_many_long_queues(engine: Engine, state: str) -> None:
    """A small table is exact. Of a large one samples are taken, and short queues are exact."""
    field, columns = STATES[state]
    shrink(engine, state)
    shrink(engine, "done")
    queues = [f"q{n}" for n in range(60)]
    for queue in queues:
        engine.queue(queue)
    fill_all(engine, state, 30, columns)
    found = engine.rows("get_queue_statistics")
    assert {(getattr(row, field), row.is_estimate) for row in found} == {(30, False)}
    fill_all(
        engine, state, 1500, {**columns, "id": "i + 30", **({"rank": "i + 30"} if "rank" in columns else {})}
    )
    engine.queue("short")
    fill(engine, state, "short", range(5001, 5008), columns)
    rows = {row.queue_name: row for row in engine.rows("get_queue_statistics")}
    assert [
        row for row in rows.values() if not 800 < getattr(row, field) < 2600 and row.queue_name in queues
    ] == []
    assert all(rows[queue].is_estimate for queue in queues)
    total = sum(getattr(rows[queue], field) for queue in queues)
    assert 80_000 < total < 105_000
    assert [row.queue_name for row in rows.values()] == sorted(rows)
    assert (getattr(rows["short"], field), rows["short"].is_estimate) == (7, False)
    alone = engine.statistics("q7")
    assert (getattr(alone, field), alone.is_estimate) == (1530, False)


def test_completed_since_is_estimated(engine18: Engine) -> None:
    shrink(engine18, "done")
    engine18.queue("q")
    _, columns = STATES["done"]
    old = {**columns, "completed_at": "clock_timestamp() - interval '1 hour'"}
    fill(engine18, "done", "q", range(1, 60_001), old)
    fill(engine18, "done", "q", range(60_001, 180_001), columns)
    for minutes, least, most in ((120, 150_000, 210_000), (30, 95_000, 145_000)):
        since = engine18.now() - timedelta(minutes=minutes)
        (found,) = engine18.rows("get_queue_statistics", "q", completed_since=since)
        assert least < found.completed_count < most
        assert found.is_estimate
    (found,) = engine18.rows("get_queue_statistics", "q", completed_since=engine18.now())
    assert (found.completed_count, found.is_estimate) == (0, False)


def test_a_count_of_all_queues_with_many_days(engine18: Engine) -> None:
    """With 40 partitions the queues are counted together. A small history is exact."""
    shrink(engine18, "done")
    for queue in ("q", "small"):
        engine18.queue(queue)
    for week in range(6):
        engine18.query("select penstock._add_days(clock_timestamp() - make_interval(days => %s))", 7 * week)
    _, columns = STATES["done"]
    fill(engine18, "done", "small", range(1, 8), columns)
    counts = {row.queue_name: row for row in engine18.rows("get_queue_statistics")}
    assert [(row.completed_count, row.is_estimate) for row in counts.values()] == [(0, False), (7, False)]
    fill(engine18, "done", "q", range(8, 80_001), columns)
    with engine18.connection.transaction():
        counts = {row.queue_name: row for row in engine18.rows("get_queue_statistics")}
        ((locks,),) = engine18.query(
            """select count(*) from pg_locks l where l.pid = pg_backend_pid() and l.relation in (
                select i.inhrelid from pg_inherits i where i.inhparent = 'penstock.done'::regclass
            )"""
        )
    assert locks == 0
    assert 60_000 < counts["q"].completed_count < 100_000
    assert {row.is_estimate for row in counts.values()} == {True}


@pytest.mark.parametrize(("count", "is_estimate"), [(9999, False), (10000, True)])
def test_by_priority_10000_is_an_estimate(engine18: Engine, count: int, is_estimate: bool) -> None:
    engine18.queue("q")
    engine18.send_many("q", [1] * count, priority=1)
    rows = by_priority(engine18, "q")
    assert [row.is_estimate for row in rows] == [False, is_estimate, False, False]


@pytest.mark.parametrize(("count", "is_estimate"), [(999, False), (1000, True)])
@pytest.mark.parametrize("state", ["ready", "waiting", "delayed"])
def test_by_tenant_1000_are_an_estimate(engine18: Engine, state: str, count: int, is_estimate: bool) -> None:
    engine18.queue("q", tenant_max_active=1 if state == "waiting" else None)
    engine18.send("q", tenant="other", priority=0)
    if state == "waiting":
        engine18.send("q", tenant="a")
        let_in(engine18)
    later = engine18.now() + timedelta(hours=1) if state == "delayed" else None
    backlog(engine18, "q", {"a": count}, deliver_after=later)
    assert {row.is_estimate for row in by_tenant(engine18, "q").values()} == {is_estimate}


def test_a_priority_is_estimated_from_10000_on(engine: Engine) -> None:
    engine.queue("q")
    for priority, count in ((0, 9999), (1, 10000), (2, 20000)):
        engine.send_many("q", [1] * count, priority=priority)
    assert [row.pending_count for row in by_priority(engine, "q")] == [9999, 10000, 20000, 0]


def test_of_many_tenants_those_with_the_most_are_found(engine: Engine) -> None:
    """Neither the order of the names nor the order of arrival matters."""
    engine.queue("q")
    engine.send_many("q", [1] * 6000, tenants=[f"tenant {n:04}" for n in range(2000)] * 3)
    large: dict[str | None, int] = {"tenant 1234": 1500, "aaa": 700, "zzz": 40, "mmm": 20, "tenant 0007": 10}
    backlog(engine, "q", large)
    # Two of them have three more, as all do.
    expected = {name: n + (3 if str(name).startswith("tenant") else 0) for name, n in large.items()}
    assert pending(engine, "q", top=5) == expected
    # So many times the same: any will do.
    assert list(pending(engine, "q", top=8).items())[:5] == list(expected.items())
    assert set(list(pending(engine, "q", top=8).values())[5:]) == {3}


def test_a_large_tenant_is_estimated(engine: Engine) -> None:
    engine.queue("q")
    backlog(engine, "q", {"a": 5000, "b": 999, "c": 3000})
    assert list(pending(engine, "q").items()) == [("a", 5000), ("c", 3000), ("b", 999)]
    for message in engine.take_many("q", 600):
        engine.ack(message)
    assert pending(engine, "q") == {"a": 4800, "c": 2800, "b": 799}
    assert engine.statistics("q").pending_count == 8399


def test_what_was_cancelled_is_not_counted(engine: Engine) -> None:
    """The ranks of a tenant are far apart then: few are counted all the same."""
    engine.queue("q")
    ids = engine.send_many("q", [1] * 3000, tenant="a")
    backlog(engine, "q", {"b": 10})
    for message_id in ids[5:-5]:
        engine.value("cancel_message", "q", message_id)
    assert pending(engine, "q") == {"a": 10, "b": 10}


def test_of_many_that_wait_those_with_the_most_are_found(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    engine.send_many("q", [1] * 4000, tenants=[f"tenant {n:04}" for n in range(500)] * 8)
    # Among the others, as they come in.
    for _ in range(10):
        engine.send_many("q", [1] * 500, tenants=["~large", "~large", "~large", "~middle", None] * 100)
    let_in(engine)
    rows = by_tenant(engine, "q", top=3)
    assert next(iter(rows)) == "~large"
    assert rows["~large"].waiting_count == pytest.approx(2999, rel=0.2)
    assert rows["~middle"].waiting_count == rows[None].waiting_count == 999
    assert rows["~middle"].pending_count == 1000


def test_few_that_wait_are_found_behind_many(engine: Engine) -> None:
    """A sample misses most of them, the list of tenants does not."""
    engine.queue("q", tenant_max_active=1)
    small: dict[str | None, int] = {f"small {n}": 2 for n in range(8)}
    backlog(engine, "q", {"large": 6000})
    for tenant in small:
        backlog(engine, "q", {tenant: 3, "large": 300})
    assert len(engine.take_many("q", 20)) == 9
    found = pending(engine, "q")
    assert found.pop("large") == pytest.approx(8399, rel=0.2)
    assert found == small


def blocks(engine: Engine, breakdown: str) -> int:
    """How many blocks a breakdown of queue q touches, once its plans are made."""
    call = f"explain (analyze, buffers, format json) select penstock.get_queue_statistics('q', '{breakdown}')"
    plans = []
    for turn in range(6):
        # Autovacuum may have come by when plans were made: once they are made anew.
        if turn == 3:
            engine.connection.execute("discard plans")
        plans.append(engine.query(call)[0][0][0]["Plan"])
    return int(min(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in plans))


@pytest.mark.parametrize("breakdown", ["priority", "tenant"])
@pytest.mark.parametrize("settings", [{}, {"tenant_max_active": 1}], ids=["ready", "waiting"])
def test_the_cost_does_not_grow_with_the_backlog(
    engine18: Engine, breakdown: str, settings: dict[str, Any]
) -> None:
    engine18.connection.execute("vacuum")
    engine18.queue("q", **settings)

    tenants = [f"tenant {n % 5 if n % 2 else 7}" for n in range(10000)]
    engine18.send_many("q", [1] * 10000, tenants=tenants)
    engine18.send_many("q", [1] * 10000, tenants=tenants)
    short = blocks(engine18, breakdown)
    for _ in range(6):
        engine18.send_many("q", [1] * 10000, tenants=tenants)
    # By priority what waits is looked through up to 100,000.
    allowed = 4 if (breakdown, bool(settings)) == ("priority", True) else 1.5
    assert blocks(engine18, breakdown) < short * allowed


def test_what_its_tenants_have_in_other_queues_costs_nothing(engine: Engine) -> None:
    engine.connection.execute("vacuum")
    for queue in ("before", "q", "after"):
        engine.queue(queue)
    for queue in ("before", "after"):
        backlog(engine, queue, {"a": 10000, "b": 10000})
    engine.send("q", tenant="b", priority=0)
    backlog(engine, "q", {"a": 3, "b": 2})
    assert blocks(engine, "tenant") < 400
    assert pending(engine, "q") == {"a": 3, "b": 3}


def test_a_breakdown_does_not_walk_over_the_dead(
    engine18: Engine, clock18: Clock, connect18: Connect
) -> None:
    engine18.connection.execute("vacuum")
    engine18.queue("q", retain_completed_seconds=0)
    reader = connect18(autocommit=False)
    reader.execute("set transaction isolation level repeatable read")
    reader.execute("select count(*) from penstock.ready")
    for _ in range(10):
        engine18.send_many("q", [1] * 1000, tenants=list("abcde") * 200)
        claimed = engine18.take_many("q", 1000, "t", vt_seconds=1)
        engine18.values("ack_messages", "q", [m.message_id for m in claimed], ["t"] * 1000)
    clock18.advance(10)
    engine18.maintain_all()
    engine18.value("raise_floor", "q")
    backlog(engine18, "q", {"a": 3, "b": 2})
    for breakdown in ("priority", "tenant"):
        assert blocks(engine18, breakdown) < 200, breakdown
    assert pending(engine18, "q") == {"a": 3, "b": 2}


@pytest.mark.parametrize("breakdown", ["priority", "tenant"])
def test_a_breakdown_is_for_viewers_and_only_reads(
    engine: Engine, sql: psycopg.Connection[Any], breakdown: str
) -> None:
    in_all_states(engine)
    with engine.unchanged(), sql.transaction():
        sql.execute("set transaction read only")
        sql.execute("set local role penstock_viewer")
        assert len(engine.rows("get_queue_statistics", "q", breakdown)) > 1


@pytest.mark.parametrize(
    "bad",
    [
        *(
            expect("PN004", "breakdown", f'"{value}"', "priority", "tenant").of(
                "get_queue_statistics", "billing", value
            )
            for value in ("tenants", "", "PRIORITY", "state")
        ),
        *(
            expect("PN004", "top", "1 and 1000", shown).of(
                "get_queue_statistics", "billing", "tenant", top=value
            )
            for value, shown in ((0, "0"), (-1, "-1"), (1001, "1001"), (None, "null"))
        ),
        expect("PN001", '"nope"').of("get_queue_statistics", "nope", "tenant"),
        expect("PN001", '"nope"').of("get_queue_statistics", "nope", "priority"),
    ],
)
def test_bad_input(house: Engine, bad: Bad) -> None:
    bad.check(house)


def test_what_was_completed_since(engine: Engine, clock: Clock) -> None:
    for name in ("a", "b", "c"):
        engine.queue(name)
        engine.send_many(name, [1] * 5)
    for _ in range(3):
        engine.ack(engine.take("a"))
    clock.advance(10)
    since = engine.now()
    clock.advance(1)
    for name in ("a", "b", "b"):
        engine.ack(engine.take(name))
    counted = {row.queue_name: row for row in engine.rows("get_queue_statistics", completed_since=since)}
    assert {name: row.completed_count for name, row in counted.items()} == {"a": 1, "b": 2, "c": 0}
    assert (counted["a"].total_count, counted["a"].pending_count) == (2, 1)
    (alone,) = engine.rows("get_queue_statistics", "a", completed_since=since)
    assert (alone.completed_count, alone.total_count) == (1, 2)
    assert engine.statistics("a").completed_count == 4


def test_a_long_history_is_not_looked_through_for_what_was_completed_since(connect: Connect) -> None:
    sql = connect()
    engine = Engine(sql)
    engine.queue("q")
    engine.send("q")
    sql.execute(
        """insert into penstock.done
            (queue_id, id, priority, attempts, completed_at, claimed_at, published_at, tenant, token)
        select q.id, n, 2, 1, t.t, t.t, t.t, '', 'x'
        from penstock.queues q, generate_series(1, 100000) n,
            lateral (select %s::timestamptz - (100000 - n) * interval '5 ms' as t) t
        order by n""",
        [engine.now()],
    )
    sql.execute("vacuum penstock.done")
    engine.ack(engine.take("q"))
    (since,) = engine.query(
        "select max(completed_at) - interval '0.999 s' from penstock.done where token = 'x'"
    )
    scans = """
        select c.relname, pg_stat_get_xact_numscans(c.oid) from pg_class c
        where c.oid = 'penstock.done_default'::regclass
            or c.oid in (
                select i.indexrelid from pg_index i where i.indrelid = 'penstock.done_default'::regclass
            )
    """
    with sql.transaction():
        before = dict(engine.query(scans))
        engine.rows("get_queue_statistics", completed_since=since)
        scanned = {name for name, number in engine.query(scans) if number > before[name]}
    assert scanned == {"done_default_completed_at_idx"}
    (counted,) = engine.rows("get_queue_statistics", completed_since=since)
    assert counted.completed_count == 201
