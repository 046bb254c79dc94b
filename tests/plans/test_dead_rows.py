"""While an old snapshot holds back vacuum, no call walks over the rows that were deleted meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from ..conftest import Connect
from .calls import CALLS, FLOORS, LEASES, ORDER, PAYLOADS, SWEEP, Call, check
from .dataset import params_of
from .observed import Session

DEAD_ROWS = 20_000
BATCH = 100

# Those that read a range: it must begin where the living do. A walk over the dead touches a block for each:
# thousands. The bounds leave room for what depends on the time, such as leases that ended in the last second.
RANGES = [
    Call(
        "statistics",
        "select * from penstock.get_queue_statistics('lean')",
        300,
        SWEEP | {"done": {"done_key"}, "dead": {"dead_pkey"}},
        rows=None,
    ),
    Call("pulse", "select penstock.pulse('me', 60, '{lean}')", 300, FLOORS | LEASES),
    Call(
        "consume a new line",
        "select * from penstock.consume_messages_batch('lines', 'x')",
        450,
        SWEEP | PAYLOADS,
        400,
    ),
    Call("list", "select * from penstock.list_messages('lean', 'ready')", 60, ORDER),
]


@pytest.fixture
def turned_over(connect18: Connect) -> Iterator[psycopg.Connection[Any]]:
    """Queues through which 20,000 messages went while another session held an old snapshot.

    With leases of a second: what is leased until later cannot be told from what was, but has been acked.
    """
    sql = connect18()
    sql.execute("select penstock.create_topic('t')")
    sql.execute("select penstock.create_queue('kept', 't', retry_delays => '{1}')")
    sql.execute("select penstock.create_queue('lean', 't', retain_completed_seconds => 0)")
    sql.execute("select penstock.create_queue('idle'), penstock.create_queue('late')")
    sql.execute("select penstock.create_queue('capped', retain_completed_seconds => 0, max_active => 1000)")
    sql.execute(
        "select penstock.create_queue('seated', retain_completed_seconds => 0, tenant_max_active => 40)"
    )
    sql.execute("select penstock.create_queue('lines', tenant_max_active => 1)")
    sql.execute("select * from penstock.maintain()").fetchall()
    reader = connect18(autocommit=False)
    reader.execute("set transaction isolation level repeatable read")
    reader.execute("select count(*) from penstock.ready")
    payloads = "array_fill('1'::jsonb, array[%s])"
    for n in range(DEAD_ROWS // BATCH):
        for queue in ("kept", "lean") if n % 10 == 0 else ("lean",):
            sql.execute(f"select penstock.send_messages(%s, {payloads})", [queue, BATCH])
            sql.execute(
                """select penstock.ack_messages(%(queue)s, c.ids[3:], c.tokens[3:]),
                    (select count(penstock.nack_message(%(queue)s, i, 'x', 1)) from unnest(c.ids[:2]) i)
                from (
                    select array_agg(message_id) as ids, array_agg(consumer_token) as tokens
                    from penstock.consume_messages_batch(%(queue)s, 'x', 1, %(batch)s)
                ) c""",
                {"queue": queue, "batch": BATCH},
            ).fetchall()
        turn_over_caps(sql)
        if n % 5 == 0:
            sql.execute("select * from penstock.maintain()").fetchall()
    for _ in range(3):
        sql.execute("select * from penstock.maintain()").fetchall()
    yield sql
    reader.rollback()


def turn_over_caps(sql: psycopg.Connection[Any]) -> None:
    """A hundred messages through each queue with a cap, twenty of those of tenants by way of waiting."""
    for queue, tenants in (("capped", None), ("seated", ["a"] * 60 + ["b", "c", "d", "e", None] * 8)):
        sql.execute(
            "select penstock.send_messages(%s, array_fill('1'::jsonb, array[100]), tenants => %s)",
            [queue, tenants],
        )
        while sql.execute(
            """select penstock.ack_messages(%(queue)s, c.ids, c.tokens)
            from (
                select array_agg(message_id) as ids, array_agg(consumer_token) as tokens
                from penstock.consume_messages_batch(%(queue)s, 'x', 1, 100)
            ) c
            where c.ids is not null""",
            {"queue": queue},
        ).fetchall():
            pass
    # Twenty checks of a line that no session has looked at, and as many of a line that is full.
    for level in ("repeatable read", "read committed"):
        with sql.transaction():
            sql.execute(f"set transaction isolation level {level}")
            for _ in range(20):
                sql.execute("select penstock.send_messages('lines', '{1,2}', tenant => 'a')")
    sql.execute("select count(*) from penstock.consume_messages_batch('lines', 'x')").fetchall()
    sql.execute("select penstock.purge_queue('lines')")


@pytest.mark.slow
def test_calls_do_not_walk_over_the_dead(turned_over: psycopg.Connection[Any], connect18: Connect) -> None:
    """As many blocks as in a new database, with a little waiting and with nothing."""
    sql = turned_over
    sql.execute("select pg_stat_force_next_flush()").fetchall()
    dead = sql.execute(
        "select relname, n_dead_tup from pg_stat_user_tables where relname in ('ready', 'active', 'permits')"
    ).fetchall()
    checks = "select n_dead_tup from pg_stat_user_tables where relname = 'line_checks'"
    assert sql.execute(checks).fetchall()[0][0] > DEAD_ROWS / BATCH * 20
    sql.execute("select penstock.send_message('lines', '1', tenant => 'b')")
    assert all(n > DEAD_ROWS * 0.9 for _, n in dead), f"there is nothing to walk over: {dead}"
    # What came back from a nack is delivered first: out of the way.
    for queue in ("kept", "lean"):
        sql.execute("select penstock.purge_queue(%s)", [queue])
        sql.execute("select penstock.raise_floor(%s)", [queue])
    found = [f"empty: {problem}" for problem in check(Session(connect18()), params_of(sql), RANGES + CALLS)]
    for queue in ("kept", "lean", "capped", "seated"):
        sql.execute("select penstock.send_messages(%s, array_fill('1'::jsonb, array[30]))", [queue])
        sql.execute("select * from penstock.consume_messages_batch(%s, 'me', 3600, 10)", [queue]).fetchall()
    found += [
        f"20 waiting: {problem}" for problem in check(Session(connect18()), params_of(sql), RANGES + CALLS)
    ]
    assert not found, "\n".join(found)
