"""The history: a sample, and reading it."""

from __future__ import annotations

from ..case import Case, Connection
from ..filling import fill_active, fill_dead, fill_done, fill_ready


def _sampled(sql: Connection) -> None:
    """A sample was taken, and the next one is due."""
    sql.execute("select penstock.sample()")
    sql.execute(
        "update penstock.samples set at = at - interval '20 seconds', "
        "taken_at = taken_at - interval '10 seconds'"
    )


def _long(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q')")
    fill_ready(sql, "q", size)
    fill_active(sql, "q", size)
    fill_dead(sql, "q", size)
    _sampled(sql)


def _done_before(sql: Connection, size: int) -> None:
    """Messages that were completed long before the last sample, and some after it."""
    sql.execute("select penstock.create_queue('q')")
    fill_done(sql, "q", size, days=1)
    sql.execute("select brin_summarize_new_values('penstock.done_default_completed_at_idx')")
    _sampled(sql)
    fill_done(sql, "q", 1000)


def _queues(sql: Connection, size: int) -> None:
    sql.execute("select count(penstock.create_queue('q' || n)) from generate_series(1, %s) n", [size])
    sql.execute("select count(penstock.send_message('q' || n, '1')) from generate_series(1, %s) n", [size])
    _sampled(sql)


def _others(sql: Connection, size: int) -> None:
    """Each queue has ten minutes of history."""
    _queues(sql, size)
    sql.execute("select penstock._add_history(0, clock_timestamp() - interval '3 hours')")
    sql.execute(
        """insert into penstock.history
        select h.queue_id, 0, false, h.at - interval '10 seconds' * n, h.oldest_at, 10, 1, 0, 0, 0, 0, 1,
            1, 1, 0, 0, '{1,2}', '{1,1}', '{1,2}', '{1,1}'
        from penstock.history h, generate_series(1, 60) n where h.tier = 0"""
    )
    sql.execute("analyze penstock.history")


CASES = [
    Case(
        name="sample()",
        grows="messages in each state of a queue, from 40,000 on",
        law="constant",
        build=_long,
        call="select penstock.sample()",
        sizes=(40_000, 150_000),
        most=1.3,
    ),
    Case(
        name="sample()",
        grows="messages that were completed before",
        law="constant",
        build=_done_before,
        call="select penstock.sample()",
        sizes=(20_000, 200_000),
        most=1.3,
    ),
    Case(
        name="sample()",
        grows="queues",
        law="linear",
        build=_queues,
        call="select penstock.sample()",
        sizes=(500, 2_000),
        most=4.6,
    ),
    Case(
        name="queue_history()",
        grows="queues with a history",
        law="constant",
        build=_others,
        call="select * from penstock.queue_history('q1')",
        sizes=(50, 500),
        most=1.3,
    ),
    Case(
        name="overview_history()",
        grows="queues",
        law="linear",
        build=_others,
        call="select * from penstock.overview_history()",
        sizes=(100, 500),
        most=5.5,
    ),
]
