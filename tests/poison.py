"""Messages that no publish lets in, or that a disk has damaged: put into the tables by hand."""

from __future__ import annotations

import time
from typing import Any

import psycopg

__all__ = ["ENDLESS", "damage", "slip_in"]

# 144 kB as stored, and more than 1 GB as text: PostgreSQL cannot send it.
ENDLESS = "(select jsonb_agg(1e131071::numeric) from generate_series(1, 9000))"

SLIP_IN = """
    with message as materialized (
        select nextval('penstock.message_ids') as id, {payload} as payload, q.id as queue_id
        from penstock.queues q where q.name = '{queue}'
    ), stored as (
        insert into penstock.payloads (id, payload) select id, payload from message
    ), referenced as (
        insert into penstock.payload_references (payload_id, queue_id) select id, queue_id from message
    )
    insert into penstock.ready
        (queue_id, priority, rank, id, attempts, large, ranked_by_tenant, published_at, tenant, headers)
    select queue_id, {priority}, id, id, 0, true, false, clock_timestamp(), '', {headers} from message
    returning id
"""


def slip_in(
    connection: psycopg.Connection[Any],
    queue: str,
    payload: str = ENDLESS,
    headers: str = "null",
    priority: int = 2,
) -> int:
    """A message that was stored before anything was checked; payload and headers are SQL. Its id."""
    statement = SLIP_IN.format(queue=queue, payload=payload, headers=headers, priority=priority)
    ((message_id,),) = connection.execute(statement.encode()).fetchall()
    assert isinstance(message_id, int)
    return message_id


def damage(connection: psycopg.Connection[Any], table: str) -> None:
    """What a table keeps out of line is gone: as if a part of its file were lost. For a superuser."""
    ((toast,),) = connection.execute(
        "select reltoastrelid::regclass::text from pg_class where oid = %s::regclass", [f"penstock.{table}"]
    ).fetchall()
    as_table = "update pg_class set relkind = '{}' where oid = '{}'::regclass"
    with connection.transaction():
        connection.execute("set local allow_system_table_mods = on")
        connection.execute(as_table.format("r", toast).encode())
    with connection.transaction():
        connection.execute("set local allow_system_table_mods = on")
        ((number,),) = connection.execute(
            f"with removed as (delete from {toast} returning 1) select count(*) from removed".encode()
        ).fetchall()
        assert number > 0, "there was something to damage"
        connection.execute(as_table.format("t", toast).encode())
    # Until vacuum has removed the rows, their index still finds them. Any snapshot holds vacuum back: that of
    # a worker's call, or of autovacuum that analyzes another table.
    ends = time.monotonic() + 30
    while True:
        connection.execute(f"vacuum penstock.{table}".encode())
        ((size,),) = connection.execute("select pg_relation_size(%s::regclass)", [toast]).fetchall()
        if size == 0:
            return
        assert time.monotonic() < ends, f"{toast} still has {size} bytes: a session holds back vacuum"
        time.sleep(0.05)
