"""Sweeps: a slice costs the same, however many messages the slices before it have moved."""

from __future__ import annotations

from functools import partial

import psycopg

from ..case import Case, Connection
from ..filling import fill

# So many messages are left when the slice is measured.
LEFT = 2_000

SLICE = """select s.is_done
    from penstock.queues q
    cross join penstock._sweep(q.id, 'q', false, true, most => 1000, until => clock_timestamp()) s
    where q.name = 'q'"""

# When the time of message n came: within the last hour, in no order. So neighbours in the index are
# none in the table.
PAST = "clock_timestamp() - interval '1 hour' + mod(n * 7919::int8, 1000003) * interval '1 millisecond'"

STATES: dict[str, tuple[str, dict[str, str]]] = {
    "messages that are due": ("scheduled", {"sweep_queue_id": "q.id", "due_at": PAST}),
    "expired messages, ready": (
        "ready",
        {"rank": "i.id", "ranked_by_tenant": "false", "expires_at": PAST},
    ),
    "expired messages, waiting": (
        "waiting",
        {
            "sweep_queue_id": "q.id",
            "rank": "i.id",
            "redelivered": "false",
            "tenant": "'tenant'",
            "expires_at": PAST,
        },
    ),
}


def _half_swept(state: str, sql: Connection, size: int) -> None:
    """As many messages as the size were moved, while vacuum was held back. 2,000 are left."""
    table, columns = STATES[state]
    sql.execute(
        "select penstock.create_queue('q', tenant_max_active => %s)", [1 if table == "waiting" else None]
    )
    fill(sql, table, "q", size + LEFT, {"large": "false", **columns})
    with (
        psycopg.connect(sql.info.dsn) as holder,
        psycopg.connect(sql.info.dsn, autocommit=True) as sweeper,
    ):
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from penstock.queues")
        for _ in range(size // 1_000):
            sweeper.execute(SLICE)
        # The slice between two full sweeps.
        sweeper.execute("update penstock.floors set sweep_all_after = clock_timestamp() + interval '50 s'")


CASES = [
    Case(
        name=f"maintain(), a slice of 1,000 {state}",
        grows="messages moved before, with vacuum held back",
        law="constant",
        build=partial(_half_swept, state),
        call=SLICE,
        sizes=(1_000, 25_000),
        most=1.5,
        warm=0,
    )
    for state in STATES
]
