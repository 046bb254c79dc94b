"""Settling: the ack of a batch takes time in proportion to the batch."""

from __future__ import annotations

from ..case import Case, Connection
from ..filling import draw_ids

IDS = "(select array_agg({base} + i order by i % 7, i) from generate_series(1, {size}) i)"
"""The ids of all messages, not in order."""
TOKENS = "array_fill('t'::text, array[{size}])"
RESULTS = "array_fill('1'::jsonb, array[{size}])"
GROUPS = "array_fill(1::int8, array[{size}]), (select array_agg(i) from generate_series(0, {size} - 1) i)"


def fill_active(sql: Connection, queue: str, number: int, dedup_key: str | None = None) -> None:
    """Messages that the token `t` holds. `dedup_key` begins the key of each; every 16th is anchored."""
    base = draw_ids(sql, number)
    sql.execute(
        """insert into penstock.active
            (
                queue_id, sweep_queue_id, id, priority, attempts, large, vt, claimed_at, published_at, tenant,
                token, dedup_key, payload
            )
        select
            q.id, q.id, %(base)s::int8 + n, 2, 1, false, clock_timestamp() + interval '1 hour',
            clock_timestamp(), clock_timestamp(), '', 't', %(key)s || n, '1'
        from penstock.queues q, generate_series(1, %(number)s) n where q.name = %(queue)s""",
        {"base": base, "number": number, "queue": queue, "key": dedup_key},
    )
    sql.execute(
        """with keyed as (
            select a.queue_id, a.dedup_key, a.id, a.id %% 16 = 0 as is_anchored from penstock.active a
            where a.dedup_key is not null and a.id > %s
        )
        insert into penstock.dedup (queue_id, key, use, id)
        select k.queue_id, k.dedup_key, 0, case when not k.is_anchored then k.id end from keyed k
        union all
        select k.queue_id, k.dedup_key, k.id, k.id from keyed k where k.is_anchored""",
        [base],
    )
    sql.execute("analyze penstock.active, penstock.dedup")


def _leased(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q')")
    fill_active(sql, "q", size)


def _leased_in_a_group(sql: Connection, size: int) -> None:
    _leased(sql, size)
    sql.execute("select penstock.create_group(%s::int, 'q', '1', null)", [size])
    # One message was lost, so not all are acked.
    sql.execute(
        "update penstock.active set token = 'another' where id = (select min(id) + 6 from penstock.active)"
    )


def _keyed(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q')")
    fill_active(sql, "q", size, "key-")


CASES = [
    Case(
        name="ack_messages() with results",
        grows="messages in the batch",
        law="linear",
        build=_leased,
        call=f"select count(*) from penstock.ack_messages('q', {IDS}, {TOKENS}, {RESULTS})",
        sizes=(1_000, 15_000),
        most=45,
        cost="milliseconds",
    ),
    Case(
        name="ack_tasks() of a group",
        grows="messages in the batch",
        law="linear",
        build=_leased_in_a_group,
        call=f"select count(*) from penstock.ack_tasks('q', {IDS}, 't', {RESULTS}, {GROUPS})",
        sizes=(1_000, 15_000),
        most=45,
        cost="milliseconds",
    ),
    Case(
        name="ack_messages() with dedup keys",
        grows="messages in the batch",
        law="linear",
        build=_keyed,
        call=f"select count(*) from penstock.ack_messages('q', {IDS}, {TOKENS})",
        sizes=(1_000, 15_000),
        most=45,
        cost="milliseconds",
    ),
    Case(
        name="purge_queue() with dedup keys, the sixth call of a session",
        grows="messages in the queue",
        law="linear",
        build=_keyed,
        call="select penstock.purge_queue('q')",
        sizes=(1_000, 15_000),
        most=45,
        cost="milliseconds",
        warm=6,
    ),
]
