"""list_tenants: how a queue serves its tenants. list_permits: which consumers hold its permits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from .conftest import Clock
from .engine import Engine, fingerprint


@pytest.fixture
def compact18(engine18: Engine) -> Iterator[Engine]:
    """No test before has left blocks in done, and this one leaves none."""
    engine18.connection.execute("truncate penstock.done")
    yield engine18
    engine18.connection.execute("truncate penstock.done")


def test_counts_of_each_state(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=3)
    engine.send_many("q", list(range(10)), tenant="busy")
    engine.send_many("q", [1, 2], tenant="quiet")
    engine.send("q")
    engine.take_many("q", 3)
    rows = {row.tenant: row for row in engine.rows("list_tenants", "q")}
    counts = {name: (row.ready_count, row.waiting_count, row.active_count) for name, row in rows.items()}
    states = engine.query("""
        select nullif(x.tenant, ''), count(*) filter (where s = 'r'), count(*) filter (where s = 'w'),
            count(*) filter (where s = 'a')
        from (
            select tenant, 'r' as s from penstock.ready union all select tenant, 'w' from penstock.waiting
            union all select tenant, 'a' from penstock.active
        ) x group by 1
    """)
    assert counts == {name: tuple(numbers) for name, *numbers in states}
    assert next(iter(rows)) == "busy"
    assert all((row.tenant_max_active, row.is_estimate) == (3, False) for row in rows.values())
    assert sum(counts["busy"]) == 10


def test_shares_and_waiting_times_of_the_last_ten_minutes(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    engine.queue("other")
    engine.send_many("q", list(range(5)), tenant="long ago")
    for message in engine.take_many("q", 5):
        engine.ack(message)
    clock.advance(601)
    engine.send_many("q", list(range(3)), tenant="a")
    engine.send_many("other", list(range(3)), tenant="elsewhere")
    clock.advance(10)
    engine.send("q", tenant="b")
    clock.advance(10)
    for queue in ("q", "other"):
        for message in engine.take_many(queue, 5):
            engine.ack(message)
    rows = {row.tenant: row for row in engine.rows("list_tenants", "q")}
    assert rows.keys() == {"a", "b"}
    assert (rows["a"].served_count, rows["a"].served_share) == (3, 0.75)
    assert (rows["b"].served_count, rows["b"].served_share) == (1, 0.25)
    assert rows["a"].wait_p95_seconds == pytest.approx(20, abs=2)
    assert rows["b"].wait_p95_seconds == pytest.approx(10, abs=2)
    assert rows["b"].queue_wait_median_seconds == pytest.approx(20, abs=2)


def test_a_delay_that_was_asked_for_is_no_waiting_time(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    engine.send("q", tenant="a", deliver_after=engine.now() + timedelta(seconds=300))
    clock.advance(310)
    engine.ack(engine.take("q"))
    (row,) = engine.rows("list_tenants", "q")
    assert row.wait_p95_seconds < 60


def test_a_queue_that_keeps_no_history(engine: Engine) -> None:
    engine.queue("q", retain_completed_seconds=0)
    engine.send_many("q", [1, 2], tenant="a")
    engine.ack(engine.take("q"))
    (row,) = engine.rows("list_tenants", "q")
    assert (row.ready_count, row.served_count, row.served_share) == (1, None, None)


def test_pages(engine: Engine) -> None:
    engine.queue("q")
    for n in range(7):
        engine.send_many("q", list(range(n // 2 + 1)), tenant=f"tenant {n}")
    found, after = [], None
    for _ in range(10):
        page = engine.rows("list_tenants", "q", page_size=2, after=after)
        if not page:
            break
        found += [row.tenant for row in page]
        after = page[-1].cursor
    assert found == [f"tenant {n}" for n in (6, 4, 5, 2, 3, 0, 1)]


def test_a_large_backlog_is_estimated(engine18: Engine) -> None:
    engine18.queue("q")
    engine18.send_many("q", list(range(30000)), tenant="flood")
    for n in range(50):
        engine18.send_many("q", [1, 2], tenant=f"quiet {n}")
    rows = engine18.rows("list_tenants", "q", page_size=1000)
    assert rows[0].tenant == "flood"
    assert rows[0].is_estimate
    assert 29000 < rows[0].ready_count <= 30000
    quiet = {row.tenant: row.ready_count for row in rows[1:]}
    assert quiet == {f"quiet {n}": 2 for n in range(50)}


COMPLETE = """
    insert into penstock.done (id, completed_at, claimed_at, published_at, queue_id, attempts, priority,
        tenant, token, payload)
    select n, now() - %s::interval + n * %s::interval, now(), now(), q.id, 1, 2,
        case when n %% 4 = 0 then 'a' else 'b' end, 't', to_jsonb(repeat('x', 200))
    from penstock.queues q, generate_series(1, %s) n where q.name = %s returning 1
"""


def test_a_long_history_is_sampled(compact18: Engine) -> None:
    compact18.queue("q")
    compact18.query(COMPLETE, "20 minutes", "0.004 s", 300_000, "q")
    compact18.query("""
        select brin_summarize_new_values(i.indexrelid)
        from pg_inherits p join pg_index i on i.indrelid = p.inhrelid join pg_class c on c.oid = i.indexrelid
        join pg_am a on a.oid = c.relam where p.inhparent = 'penstock.done'::regclass and a.amname = 'brin'
    """)
    compact18.query("""
        insert into penstock.samples (at, taken_at, recent, last_id, completed, rolled_to)
        select t, t, '{}', 1, 2500, array[t, t]
        from generate_series(now() - interval '15 minutes', now(), '10 s') t returning 1
    """)
    blocks = """
        select sum(pg_stat_get_xact_blocks_fetched(inhrelid)) from pg_inherits
        where inhparent = 'penstock.done'::regclass
    """
    with compact18.connection.transaction():
        ((before,),) = compact18.query(blocks)
        rows = {row.tenant: row for row in compact18.rows("list_tenants", "q")}
        ((after,),) = compact18.query(blocks)
    assert rows["b"].served_share == pytest.approx(0.75, abs=0.02)
    assert rows["a"].served_count + rows["b"].served_count == pytest.approx(150_000, rel=0.05)
    assert after - before < 4000, "a third of the blocks of ten minutes: half of 11,000"


def test_messages_in_space_that_was_used_before_are_counted(compact18: Engine) -> None:
    """A queue that keeps its messages briefly leaves space at the beginning of a day."""
    for queue in ("brief", "q"):
        compact18.queue(queue)
        compact18.query(COMPLETE, "1 hour", "0.1 s", 15_000, queue)
    compact18.query("""
        delete from penstock.done using penstock.queues q
        where queue_id = q.id and q.name = 'brief' returning 1
    """)
    compact18.connection.execute("vacuum penstock.done")
    compact18.send_many("q", list(range(20)), tenant="now")
    for message in compact18.take_many("q", 20):
        compact18.ack(message)
    rows = {row.tenant: row.served_count for row in compact18.rows("list_tenants", "q")}
    assert rows == {"now": 20}


def test_no_messages(engine: Engine) -> None:
    engine.queue("q")
    assert engine.rows("list_tenants", "q") == []
    assert engine.rows("list_permits", "q") == []


def test_permits_by_priority(engine: Engine) -> None:
    engine.queue("q", max_active=10, min_active=0)
    engine.value("register_worker", "w1", "host", 7, "1", ["q"], [], 1)
    ids = engine.send_many("q", [1, 2, 3], priority=0)
    engine.take_many("q", 2, "w1")
    engine.take_many("q", 1, "w2")
    rows = engine.rows("list_permits", "q")
    first = [row for row in rows if row.priority == 0]
    assert [(row.status, row.permit_count, row.consumer) for row in first] == [
        ("held", 2, fingerprint("w1")),
        ("held", 1, fingerprint("w2")),
        ("free", 1, None),
    ]
    assert [(row.hostname, row.pid) for row in first] == [("host", 7), (None, None), (None, None)]
    assert [row.message_ids for row in first] == [ids[:2], ids[2:], None]
    assert first[0].since == engine.message("q", ids[0]).claimed_at
    assert [(row.priority, row.status, row.permit_count) for row in rows[3:]] == [
        (1, "free", 3),
        (2, "free", 2),
        (3, "free", 1),
    ]


def test_shared_permits_debts_and_deferred_ones(engine: Engine) -> None:
    engine.queue("q", max_active=4, priority_shares=[0, 0, 0, 0])
    engine.send_many("q", list(range(4)))
    messages = [engine.take("q", "w") for _ in range(4)]
    engine.value("alter_queue", "q", max_active=2)
    assert [(row.priority, row.status, row.permit_count) for row in engine.rows("list_permits", "q")] == [
        (None, "held", 4),
        (None, "free", 0),
        (None, "debt", 2),
    ]
    with engine.connection.transaction():
        engine.connection.execute("set transaction isolation level repeatable read")
        engine.ack(messages[0])
    assert [(row.status, row.permit_count) for row in engine.rows("list_permits", "q")] == [
        ("held", 3),
        ("free", 0),
        ("deferred", 1),
        ("debt", 2),
    ]
