"""What calls about all queues cost where most of the queues are idle: statements and blocks, not time."""

from __future__ import annotations

from typing import Any

import psycopg

from ..conftest import Connect
from .observed import Observed, Session

MANY = 5000


def create(sql: psycopg.Connection[Any], number: int) -> None:
    for first in range(0, number, 500):
        sql.execute(
            "select count(penstock.create_queue('q' || n)) from generate_series(%s::int, %s::int) n",
            [first, first + 499],
        )
    chores(sql)


def chores(sql: psycopg.Connection[Any]) -> None:
    """Until what is due once a minute is done."""
    for _ in range(100):
        sql.execute("select * from penstock.maintain()").fetchall()
        row = sql.execute("select done_at > now() - interval '1 minute' from penstock.upkeep").fetchone()
        if row == (True,):
            return
    raise AssertionError("the chores do not come to an end")


def begin_chores(sql: psycopg.Connection[Any]) -> None:
    sql.execute("update penstock.upkeep set done_at = '-infinity', after_queue = 0, after_group = 0")


def maintain(session: Session, call: str = "select * from penstock.maintain()") -> Observed:
    """The second call: the first one fills the caches of the session."""
    session.run(call)
    return session.observe(call)


def test_idle_queues(connect18: Connect) -> None:
    """Blocks: some 30 for each queue of a slice. Statements: far fewer than queues."""
    sql = connect18()
    create(sql, MANY)
    session = Session(connect18())
    seen = maintain(session)
    # A few queues whose probe was slow, because the machine was busy, are examined once more.
    assert len(seen.statements) < 150
    assert seen.blocks < 500 * 50
    # The statistics of the tables are those of a database without queues: the plans must not depend on them.
    sql.execute("vacuum analyze")
    analyzed = maintain(Session(connect18()))
    assert len(analyzed.statements) < 150
    assert analyzed.blocks < 500 * 50
    own = "select * from penstock.maintain('{q17}')"
    sql.execute(own).fetchall()
    sql.execute(own).fetchall()
    assert maintain(session, own).blocks < 500 * 50
    # Once a minute.
    begin_chores(sql)
    busiest = max((session.observe("select * from penstock.maintain()") for _ in range(3)), key=_blocks)
    assert len(busiest.statements) < 120
    assert busiest.blocks < 2 * 500 * 100
    # The queue of a callback is found by its key.
    assert maintain(session, "select penstock.create_group(3, 'q7', '{}', '{}')").blocks < 200
    statistics = maintain(session, "select * from penstock.get_queue_statistics()")
    assert len(statistics.statements) < 10
    assert statistics.blocks < MANY * 50


def test_open_groups(connect18: Connect) -> None:
    """One probe for each: results that were read before are not read again."""
    sql = connect18()
    sql.execute("select penstock.create_queue('then')")
    chores(sql)
    sql.execute(
        "select count(penstock.create_group(200, 'then', '{}', '{}')) from generate_series(1, 3000)"
    ).fetchall()
    # The last half is done: no position of the last sixteen is missing.
    sql.execute(
        """insert into penstock.group_results (group_id, position, message_id)
        select g.id, p, p from penstock.groups g, generate_series(100, 199) p"""
    )
    begin_chores(sql)
    chores(sql)
    assert sql.execute("select distinct missing from penstock.groups").fetchall() == [(99,)]
    begin_chores(sql)
    session = Session(connect18())
    seen = maintain(session)
    assert len(seen.statements) < 80
    assert seen.blocks < 3000 * 15


def _blocks(seen: Observed) -> int:
    return seen.blocks


def test_a_publish_to_many_queues_reads_few_blocks_of_each(connect18: Connect) -> None:
    """The row and its entries in the indexes: not one statement for each queue."""
    sql = connect18()
    sql.execute("select penstock.create_topic('t')")
    sql.execute("select count(penstock.create_queue('q' || n, 't')) from generate_series(1, 500) n")
    sql.execute("analyze")
    seen = maintain(Session(sql), "select penstock.publish_message('t', '1')")
    assert len(seen.statements) < 50
    assert seen.blocks < 500 * 6
