"""Queues: calls for all queues take a bounded number of locks; the end of a queue costs by its messages."""

from __future__ import annotations

from ..case import Case, Connection


def _queues(sql: Connection, size: int) -> None:
    sql.execute("select count(penstock.create_queue('q' || n)) from generate_series(1, %s) n", [size])
    sql.execute("analyze")


def _ended(sql: Connection, size: int) -> None:
    """So many exclusive queues whose keep-alive has ended."""
    sql.execute(
        "select count(penstock.create_queue('q' || n, exclusive => true)) from generate_series(1, %s) n",
        [size],
    )
    sql.execute("update penstock.queues set keep_alive_until = now() - interval '1 minute'")
    sql.execute("analyze")


def _references(sql: Connection, size: int) -> None:
    """A queue with ten large payloads, beside another one with so many."""
    sql.execute("select penstock.create_queue('q'), penstock.create_queue('other')")
    sql.execute(
        "select penstock.send_messages('q', array_fill(to_jsonb(repeat(md5('x'), 100)), array[10]))",
    )
    sql.execute(
        """insert into penstock.payload_references
        select n, q.id from penstock.queues q, generate_series(1000, 1000 + %s) n where q.name = 'other'""",
        [size],
    )
    sql.execute("analyze")


def _topic(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_topic('t')")
    sql.execute("select count(penstock.create_queue('q' || n, 't')) from generate_series(1, %s) n", [size])
    sql.execute("analyze")


def _topic_among_others(sql: Connection, size: int) -> None:
    """A topic with 20 queues, and as many as the size that have no topic or another."""
    _topic(sql, 20)
    sql.execute("select penstock.create_topic('other')")
    sql.execute(
        "select count(penstock.create_queue('other' || n, case when n %% 2 = 0 then 'other' end))"
        " from generate_series(1, %s) n",
        [size],
    )
    sql.execute("analyze")


CASES = [
    Case(
        name="publish_message() to a topic with 20 queues",
        grows="other queues",
        law="constant",
        build=_topic_among_others,
        call="select penstock.publish_message('t', '1')",
        sizes=(200, 3_000),
        most=1.5,
    ),
    Case(
        name="publish_message()",
        grows="queues of the topic",
        law="linear",
        build=_topic,
        call="select penstock.publish_message('t', '1')",
        sizes=(50, 500),
        most=20,
    ),
    Case(
        name="maintain()",
        grows="queues",
        law="constant",
        build=_queues,
        call="select * from penstock.maintain()",
        sizes=(500, 3_000),
        most=1.5,
        cost="locks",
    ),
    Case(
        name="purge_all_messages()",
        grows="queues",
        law="constant, a page of 500 queues a call",
        build=_queues,
        call="select penstock.purge_all_messages()",
        sizes=(500, 3_000),
        most=1.2,
        cost="locks",
    ),
    Case(
        name="cleanup_expired_exclusive_queues()",
        grows="ended exclusive queues",
        law="constant, 500 queues a call",
        build=_ended,
        call="select penstock.cleanup_expired_exclusive_queues()",
        sizes=(500, 1_500),
        most=1.2,
        cost="locks",
    ),
    Case(
        name="delete_queue()",
        grows="large payloads of other queues",
        law="constant",
        build=_references,
        call="select penstock.delete_queue('q')",
        sizes=(1_000, 100_000),
        most=1.5,
    ),
]
