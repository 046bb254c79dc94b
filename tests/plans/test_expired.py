"""Messages whose time to live is over, and that no sweep has seen: how many there are costs no other call."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from penstock.embedded import Server

from ..conftest import Connect
from .calls import BY_KEY, FLOORS, ORDER, PAYLOADS, SWEEP, Call, check
from .dataset import Dataset
from .observed import Session

# In one queue, of one batch: their times to live end at one time.
EXPIRED = """
insert into penstock.ready
    (queue_id, priority, rank, id, attempts, large, ranked_by_tenant, published_at, expires_at,
     tenant, dedup_key, payload)
select
    q.id, 2, %(base)s::int8 + n, %(base)s::int8 + n, 0, false, false, '2020-01-01', '2020-01-02', '',
    'ready ' || n, '1'
from penstock.queues q, generate_series(1, %(rows)s) n where q.name = 'expired';
insert into penstock.waiting
    (queue_id, sweep_queue_id, id, priority, redelivered, rank, attempts, large, published_at, expires_at,
     tenant, dedup_key, payload)
select
    q.id, q.id, %(base)s::int8 + %(rows)s + n, 2, false, %(base)s::int8 + n, 0, false, '2020-01-01',
    '2020-01-02', 'a', 'waiting ' || n, '1'
from penstock.queues q, generate_series(1, %(rows)s) n where q.name = 'expired';
insert into penstock.scheduled
    (queue_id, sweep_queue_id, id, priority, attempts, large, due_at, published_at, expires_at,
     tenant, dedup_key, payload)
select
    q.id, q.id, %(base)s::int8 + 2 * %(rows)s + n, 2, 0, false, '2999-01-01', '2020-01-01',
    '2020-01-02', '', 'scheduled ' || n, '1'
from penstock.queues q, generate_series(1, %(rows)s) n where q.name = 'expired';
insert into penstock.active
    (queue_id, sweep_queue_id, id, priority, attempts, large, vt, claimed_at, published_at, expires_at,
     tenant, token, dedup_key, payload)
select
    q.id, q.id, %(base)s::int8 + 3 * %(rows)s + n, 2, 1, false, '2020-01-02', '2020-01-01',
    '2020-01-01', '2020-01-02', '', 'me', 'active ' || n, '1'
from penstock.queues q, generate_series(1, %(rows)s) n where q.name = 'expired';
insert into penstock.dedup (queue_id, key, id, expires_at)
select queue_id, dedup_key, id, expires_at from penstock.ready where dedup_key is not null
union all select queue_id, dedup_key, id, expires_at from penstock.waiting where dedup_key is not null
union all select queue_id, dedup_key, id, expires_at from penstock.scheduled where dedup_key is not null
union all select queue_id, dedup_key, id, expires_at from penstock.active where dedup_key is not null
"""
ENDED = (
    BY_KEY
    | FLOORS
    | {
        "ready": {"ready_order", "ready_expiry", "ready_tenant"},
        "scheduled": {"scheduled_pkey"},
        "waiting": {"waiting_pkey", "waiting_floor"},
        "dedup": {"dedup_pkey"},
        "dead": {"dead_pkey"},
    }
)
CALLS = [
    Call(
        "send with the key of a message that is over",
        "select penstock.send_messages('expired', array_fill('1'::jsonb, array[8]),"
        " dedup_keys => '{ready 7,ready 8,waiting 7,waiting 8,scheduled 7,scheduled 8,active 7,active 8}')",
        700,
        ENDED,
    ),
    Call(
        "consume from a queue in which none is over",
        "select * from penstock.consume_messages_batch('idle', 'x')",
        60,
        ORDER | SWEEP | PAYLOADS,
    ),
    Call(
        "sweep of a queue in which none is over",
        "select * from penstock.consume_messages_batch('late', 'x', null, 30)",
        800,
        ORDER | SWEEP | PAYLOADS,
    ),
]


@pytest.mark.parametrize("analyzed", [False, True])
def test_what_is_over_in_one_queue_is_found_by_its_key(
    connect: Connect, server: Server, analyzed: bool
) -> None:
    """Before PostgreSQL 17 a plan that was made for an empty table may filter by the ids instead."""
    connection: psycopg.Connection[Any] = connect()
    data = Dataset(connection)
    connection.execute("select penstock.create_queue('expired', max_delivery_attempts => 0)")
    found: dict[str, list[str]] = {}
    old = Session(connect())
    for rows in (20, 20_000):
        with connection.transaction():
            for table in ("ready", "waiting", "scheduled", "active", "dedup"):
                connection.execute(
                    f"""delete from penstock.{table}
                    where queue_id = (select id from penstock.queues where name = 'expired')"""
                )
        data.execute(EXPIRED, 4 * rows, rows)
        if analyzed:
            data.analyze()
        sessions = {"new": Session(connect())} | ({"old": old} if server.version >= 17 else {})
        for name, session in sessions.items():
            for problem in check(session, data.params(), CALLS):
                found.setdefault(problem, []).append(f"({rows}; {name} session)")
    assert not found, "\n".join(f"{problem}: {' '.join(stages)}" for problem, stages in found.items())
