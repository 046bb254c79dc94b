"""Messages in any number, put past the API: a million in seconds. The floors and the sequence stay true."""

from __future__ import annotations

from .case import Connection


def draw_ids(sql: Connection, number: int) -> int:
    """Draws so many ids: the last one before them."""
    row = sql.execute(
        "select setval('penstock.message_ids', case when is_called then last_value else 0 end + %s) "
        "from penstock.message_ids",
        [number],
    ).fetchone()
    assert row is not None
    return int(row[0]) - number


def fill_ready(sql: Connection, queue: str, number: int) -> None:
    """Ready messages of a queue without tenants: the rank is the id."""
    base = draw_ids(sql, number)
    sql.execute(
        """insert into penstock.ready
            (queue_id, priority, rank, id, attempts, large, ranked_by_tenant, published_at, tenant, payload)
        select
            q.id, 2, %(base)s::int8 + n, %(base)s::int8 + n, 0, false, false, clock_timestamp(), '', '1'
        from penstock.queues q, generate_series(1, %(number)s) n where q.name = %(queue)s""",
        {"base": base, "number": number, "queue": queue},
    )
    sql.execute("analyze penstock.ready")
