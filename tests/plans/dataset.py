"""Queues of any size, filled past the API: a million messages in seconds."""

from __future__ import annotations

from typing import Any

import psycopg

QUEUES = """
select penstock.create_topic('t');
select penstock.create_queue('kept', 't');
select penstock.create_queue('lean', 't', retain_completed_seconds => 0);
select penstock.create_queue('idle');
select penstock.create_queue('late');
select penstock.create_queue('capped', retain_completed_seconds => 0, max_active => 20000);
select penstock.create_queue('seated', retain_completed_seconds => 0, tenant_max_active => 5);
select penstock.cancel_message('lean', penstock.send_message('lean', '1', tenant => 'a'))
"""

# Ranks above the floor, ids below the last of the sequence. Where tenants share the queue no rank is the id.
READY = """
insert into penstock.ready
    (queue_id, priority, rank, id, attempts, large, ranked_by_tenant, published_at, tenant, payload)
select
    q.id, n %% 4, %(base)s + n - (q.name = 'lean')::int, %(base)s + n, 0, false, q.name = 'lean',
    clock_timestamp(),
    case when q.name = 'lean' then chr(97 + n %% 5) else '' end, '{"n": 1}'
from penstock.queues q, generate_series(1, %(rows)s) n
where q.name = case when n %% 2 = 0 then 'lean' else 'kept' end
"""
# What "me" holds lies far apart: a worker has old and new messages in hand.
ACTIVE = """
insert into penstock.active
    (queue_id, sweep_queue_id, id, priority, attempts, large, vt, claimed_at, published_at, tenant, token,
     payload)
select
    q.id, q.id, %(base)s + n, 2, 1, false, clock_timestamp() + interval '1 hour', clock_timestamp(),
    clock_timestamp(), '', case (n - 1) / 2 %% (%(rows)s / 20) when 0 then 'me' else 'other' end, '{"n": 1}'
from penstock.queues q, generate_series(1, %(rows)s) n
where q.name = case when n %% 2 = 0 then 'lean' else 'kept' end
"""
# A queue with a cap, and one whose tenants have one: what "me" holds there makes room.
CAPPED = """
insert into penstock.ready
    (queue_id, priority, rank, id, attempts, large, ranked_by_tenant, published_at, tenant, payload)
select q.id, n %% 4, %(base)s + n, %(base)s + n, 0, false, false, clock_timestamp(), '', '{"n": 1}'
from penstock.queues q, generate_series(1, %(rows)s) n where q.name = 'capped';
insert into penstock.waiting
    (queue_id, sweep_queue_id, id, priority, redelivered, rank, attempts, large, published_at, tenant,
     payload)
select
    q.id, q.id, %(base)s + n, n %% 4, false, %(base)s + n, 0, false, clock_timestamp(),
    chr(97 + n %% 5), '{"n": 1}'
from penstock.queues q, generate_series(1, %(rows)s) n where q.name = 'seated';
insert into penstock.active
    (queue_id, sweep_queue_id, id, priority, attempts, permit, large, holds_tenant_permit, vt, claimed_at,
     published_at, tenant, token, payload)
select
    q.id, q.id, %(base)s + %(rows)s + n, 2, 1, case q.name when 'capped' then 2 end, false, q.name = 'seated',
    clock_timestamp() + interval '1 hour', clock_timestamp(), clock_timestamp(),
    case q.name when 'seated' then chr(97 + n %% 5) else '' end,
    case when n <= 10 then 'me' else 'other' end, '{"n": 1}'
from penstock.queues q, generate_series(1, 20) n where q.name in ('capped', 'seated');
insert into penstock.tenants (queue_id, tenant, permits)
select q.id, chr(97 + n), 5 from penstock.queues q, generate_series(0, 4) n where q.name = 'seated'
on conflict do nothing;
insert into penstock.waiting
    (queue_id, sweep_queue_id, id, priority, redelivered, rank, attempts, large, published_at, tenant,
     payload)
select
    q.id, q.id, %(base)s + 2 * %(rows)s + n, 2, false, %(base)s + %(rows)s, 0, false, clock_timestamp(),
    'new ' || n, '{"n": 1}'
from penstock.queues q, generate_series(1, 10) n where q.name = 'seated';
insert into penstock.line_checks (queue_id, seen_full, priority, rank, made_at, tenant)
select q.id, t.seen_full, 2, %(base)s + %(rows)s, clock_timestamp(), t.tenant
from penstock.queues q cross join (
    select false, 'new ' || n from generate_series(1, 10) n
    union all select true, chr(97 + n) from generate_series(0, 4) n
) t(seen_full, tenant)
where q.name = 'seated'
"""
SCHEDULED = """
insert into penstock.scheduled
    (queue_id, sweep_queue_id, id, priority, attempts, large, due_at, published_at, expires_at, tenant,
     payload)
select
    q.id, q.id, %(base)s + n, 2, 0, false, clock_timestamp() + interval '1 hour', clock_timestamp(),
    clock_timestamp() + interval '2 hours', '', '{"n": 1}'
from penstock.queues q, generate_series(1, %(rows)s) n
where q.name = case when n %% 2 = 0 then 'lean' else 'kept' end
"""
DEAD = """
insert into penstock.dead
    (queue_id, sweep_queue_id, id, priority, attempts, large, reason, moved_at, published_at, tenant, payload)
select q.id, q.id, %(base)s + n, 2, 3, false, 'failed', clock_timestamp(), clock_timestamp(), '', '{"n": 1}'
from penstock.queues q, generate_series(1, %(rows)s) n where q.name = 'kept'
"""
DONE = """
insert into penstock.done
    (queue_id, id, priority, attempts, completed_at, claimed_at, published_at, tenant, token, payload)
select q.id, %(base)s + n, 2, 1, clock_timestamp(), clock_timestamp(), clock_timestamp(), '', 'me', '{"n": 1}'
from penstock.queues q, generate_series(1, %(rows)s) n where q.name = 'kept'
"""

# In the queue late: ten leases that ran out, and ten messages that are due.
LATE = """
insert into penstock.active
    (queue_id, sweep_queue_id, id, priority, attempts, large, vt, claimed_at, published_at, tenant, token,
     payload)
select
    q.id, q.id, %(base)s + n, 2, 1, false, clock_timestamp() - interval '1 second', clock_timestamp(),
    clock_timestamp(), '', 'late', '1'
from penstock.queues q, generate_series(1, 10) n where q.name = 'late';
insert into penstock.scheduled
    (queue_id, sweep_queue_id, id, priority, attempts, large, due_at, published_at, tenant, payload)
select
    q.id, q.id, %(base)s + 10 + n, 2, 0, false, clock_timestamp() - interval '1 second', clock_timestamp(),
    '', '1'
from penstock.queues q, generate_series(1, 10) n where q.name = 'late'
"""


class Dataset:
    """Queues: kept, lean, capped, seated are filled, idle is empty, in late something is always due."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        # What is analyzed, and when, is what the tests are about.
        for (name,) in connection.execute(
            """select c.oid::regclass::text from pg_class c
            where c.relnamespace = 'penstock'::regnamespace and c.relkind = 'r'"""
        ).fetchall():
            connection.execute(f"alter table {name} set (autovacuum_enabled = off)")
        for statement in QUEUES.strip().split(";"):
            connection.execute(statement)
        connection.execute("select * from penstock.maintain()").fetchall()
        self.execute(LATE, 20, 0)
        self.raise_floors()

    def _take_ids(self, n: int) -> int:
        """Draws so many ids: the last one before them."""
        row = self._connection.execute(
            "select setval('penstock.message_ids', last_value + %s) from penstock.message_ids", [n + 1]
        ).fetchone()
        assert row is not None
        return int(row[0]) - n

    def execute(self, statements: str, ids: int, rows: int) -> None:
        """Runs statements, with so many ids drawn for them."""
        base = self._take_ids(ids)
        with self._connection.transaction():
            for statement in statements.split(";"):
                self._connection.execute(statement, {"base": base, "rows": rows})

    def fill(self, rows: int) -> None:
        """So many ready, a tenth of that (but 40) in each other state."""
        few = max(rows // 10, 40)
        self.execute(READY, rows, rows)
        for statement in (ACTIVE, SCHEDULED, DEAD, DONE):
            self.execute(statement, few, few)
        self.execute(CAPPED, few + 20, few)

    def empty(self) -> None:
        """All gone, as rows that vacuum has not removed, and the floors raised past them."""
        for table in ("ready", "waiting", "dead", "done"):
            self._connection.execute(f"delete from penstock.{table}")
        for table in ("active", "scheduled"):
            self._connection.execute(
                f"""delete from penstock.{table}
                where queue_id <> (select id from penstock.queues where name = 'late')"""
            )
        self.raise_floors()

    def raise_floors(self) -> None:
        self._connection.execute("select penstock.raise_floor(name) from penstock.queues").fetchall()

    def analyze(self) -> None:
        self._connection.execute("analyze")

    def analyze_as_if_empty(self) -> None:
        """What analyze leaves of tables that are empty: no statistics, and no rows."""
        self._connection.execute(
            """delete from pg_statistic where starelid in
            (select oid from pg_class where relnamespace = 'penstock'::regnamespace)"""
        )
        self._connection.execute(
            """update pg_class set reltuples = 0, relpages = 0
            where relnamespace = 'penstock'::regnamespace and relkind in ('r', 'i')"""
        )

    def params(self) -> dict[str, Any]:
        return params_of(self._connection)


def params_of(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """Ten ids that "me" holds in each queue, or ten without a holder; the last ready of two queues."""
    queues = {"held": "kept", "lean": "lean", "capped": "capped", "seated": "seated"}
    held = {name: _held(connection, queue) for name, queue in queues.items()}
    return held | {f"ready_{queue}": _last_ready(connection, queue) for queue in ("kept", "lean")}


def _last_ready(connection: psycopg.Connection[Any], queue: str) -> int:
    row = connection.execute(
        """select max(r.id) from penstock.ready r join penstock.queues q on q.id = r.queue_id
        where q.name = %s""",
        [queue],
    ).fetchone()
    assert row is not None
    return row[0] or 2_000_000_000


def _held(connection: psycopg.Connection[Any], queue: str) -> list[int]:
    rows = connection.execute(
        """select a.id from penstock.active a join penstock.queues q on q.id = a.queue_id
        where q.name = %s and a.token = 'me' order by a.id desc limit 10""",
        [queue],
    ).fetchall()
    return [row[0] for row in rows] or list(range(2_000_000_000, 2_000_000_010))
