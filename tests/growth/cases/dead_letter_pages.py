"""A page of dead letters costs the same, however many there are and however deep it lies."""

from __future__ import annotations

from ..case import Case, Connection
from ..filling import draw_ids


def _dead(sql: Connection, size: int) -> None:
    """Dead letters, half of them before the page that is measured."""
    sql.execute("select penstock.create_queue('q')")
    base = draw_ids(sql, size)
    sql.execute(
        """insert into penstock.dead
            (queue_id, sweep_queue_id, priority, id, attempts, large, published_at, tenant, payload, reason,
                moved_at)
        select q.id, q.id, 2, %(base)s::int8 + n, 1, false, now(), '', '1', 'failed', now()
        from penstock.queues q, generate_series(1, %(size)s) n where q.name = 'q'""",
        {"base": base, "size": size},
    )
    sql.execute("analyze penstock.dead")


CASES = [
    Case(
        name=f"{function}() of 100",
        grows="dead letters of the queue",
        law="constant",
        build=_dead,
        call=f"select * from penstock.{function}('q', 100, {{base}} + {{size}} / 2)",
        sizes=(1_000, 50_000),
        most=1.5,
    )
    for function in ("requeue_dlq_page", "purge_dlq_page")
]
