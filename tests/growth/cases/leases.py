"""Leases: a heartbeat costs by the caller's own leases, and leases that ran out are taken back in slices."""

from __future__ import annotations

import psycopg

from ..case import Case, Connection
from ..filling import draw_ids


def _lease(sql: Connection, number: int, token: str, seconds: int) -> None:
    """Messages of queue q that a token holds, 10 ms apart, in no order."""
    base = draw_ids(sql, number)
    sql.execute(
        """insert into penstock.active
            (queue_id, sweep_queue_id, id, vt, claimed_at, published_at, attempts, priority, large, tenant,
            token, payload)
        select
            q.id, q.id, %(base)s::int8 + n,
            now() + make_interval(secs => %(seconds)s + 0.01 * (n * 7919::int8 %% %(number)s)), now(), now(),
            1, 2, false, '', %(token)s, '1'
        from penstock.queues q, generate_series(1, %(number)s) n where q.name = 'q'""",
        {"base": base, "number": number, "token": token, "seconds": seconds},
    )
    sql.execute("analyze penstock.active")


def _others(sql: Connection, size: int) -> None:
    """Ten leases of the caller, the first messages, and as many as the size of others."""
    sql.execute("select penstock.create_queue('q')")
    _lease(sql, 10, "me", 3600)
    _lease(sql, size, "other", 3600)


SLICE = """select s.is_done
    from penstock.queues q
    cross join penstock._sweep(q.id, 'q', false, false, most => 1000, until => clock_timestamp()) s
    where q.name = 'q'"""


def _half_taken_back(sql: Connection, size: int) -> None:
    """As many leases as the size were taken back, while vacuum was held back. 2,000 leases are left."""
    sql.execute("select penstock.create_queue('q')")
    _lease(sql, size + 2_000, "other", -86_400)
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
        name="pulse() of 10 messages by name",
        grows="leases of other tokens in the queue",
        law="constant",
        build=_others,
        call="""select penstock.pulse(
            'me', 60, array_fill('q'::text, array[10]), array(select {base} + n from generate_series(1, 10) n)
        )""",
        sizes=(1_000, 100_000),
        most=1.5,
    ),
    Case(
        name="maintain(), a slice of 1,000 leases that ran out",
        grows="leases taken back before, with vacuum held back",
        law="constant",
        build=_half_taken_back,
        call=SLICE,
        sizes=(1_000, 25_000),
        most=1.5,
        # A first call marks dead index entries once the snapshot is gone.
        warm=0,
    ),
]
