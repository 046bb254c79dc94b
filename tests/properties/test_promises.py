"""Promises that the state machine found broken once, each in its smallest form."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

Sql = psycopg.Connection[Any]


def column(sql: Sql, query: str, *params: Any) -> list[Any]:
    return [row[0] for row in sql.execute(query, params)]


def delivery(sql: Sql) -> list[Any]:
    """The payloads of the queue in the order of delivery."""
    return column(sql, "select payload from penstock.consume_messages_batch('q', 'all', 30, 100)")


@pytest.fixture
def sql(sql18: Sql) -> Sql:
    sql18.execute("select penstock.create_queue('q')")
    return sql18


def test_a_call_does_not_deliver_a_message_twice(sql: Sql) -> None:
    """Not even with a lease of no length, which has run out when the same call looks again."""
    sql.execute("select penstock.send_messages('q', '{1,2}')")
    rows = sql.execute("select payload, delivery_attempts from penstock.consume_messages_batch('q', 'me', 0)")
    assert rows.fetchall() == [(1, 1), (2, 1)]


def test_the_time_to_live_is_the_same_after_each_requeue(sql: Sql) -> None:
    sql.execute(
        """create or replace function penstock.clock() returns timestamptz language sql volatile
        as $$ select current_setting('penstock.now')::timestamptz $$"""
    )
    sql.execute("set penstock.now = '2026-01-01 12:00:00Z'")
    message_id = column(sql, "select penstock.send_message('q', '1', ttl_seconds => 60)")[0]
    for minute in range(1, 4):
        sql.execute(f"set penstock.now = '2026-01-01 12:0{minute}:30Z'")
        sql.execute("select * from penstock.maintain()").fetchall()
        assert column(sql, "select penstock.requeue_dlq_messages('q')") == [1]
        left = column(
            sql, "select expires_at - penstock.clock() from penstock.get_message('q', %s)", message_id
        )
        assert left == [timedelta(seconds=60)]
        sql.execute(f"set penstock.now = '2026-01-01 12:0{minute}:59Z'")
        assert column(sql, "select message_id from penstock.consume_message('q', 'me')") == [message_id]
        assert column(sql, "select penstock.reject_message('q', %s, 'me')", message_id) == [True]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_what_is_sent_under_a_snapshot_is_not_overtaken(sql: Sql, level: str) -> None:
    """By what its tenant sends later, in a queue with tenants."""
    sql.execute("select penstock.send_message('q', '\"of a tenant\"', tenant => 'x')")
    with sql.transaction():
        sql.execute(f"set transaction isolation level {level}")
        sql.execute("select penstock.send_message('q', '1')")
    sql.execute("select penstock.send_message('q', '2')")
    assert [payload for payload in delivery(sql) if payload in (1, 2)] == [1, 2]


def test_what_comes_back_is_not_overtaken(sql: Sql) -> None:
    """By what its tenant sends later, in a queue with tenants."""
    sql.execute("select penstock.send_messages('q', '{11,12}', tenant => 'x')")
    sql.execute("select penstock.send_message('q', '1')")
    rows = sql.execute("select message_id, payload from penstock.consume_messages_batch('q', 'me', 30, 2)")
    ids = {payload: message_id for message_id, payload in rows}
    assert ids.keys() == {11, 1}
    sql.execute("select penstock.nack_message('q', %s, 'me', 0)", [ids[1]])
    sql.execute("select penstock.send_message('q', '2')")
    assert [payload for payload in delivery(sql) if payload in (1, 2)] == [1, 2]


def test_lists_of_what_is_ready_begin_where_the_living_do(sql: Sql) -> None:
    """In delivery order, page by page, also after the floor was raised."""
    sql.execute("select penstock.send_messages('q', '{1,2,3,4,5}')")
    sql.execute("select * from penstock.consume_messages_batch('q', 'me', 30, 2)").fetchall()
    sql.execute("select penstock.raise_floor('q')")
    first = sql.execute("select message_id, cursor from penstock.list_messages('q', 'ready', 2)").fetchall()
    second = sql.execute(
        "select message_id, cursor from penstock.list_messages('q', 'ready', 2, %s)", [first[-1][1]]
    ).fetchall()
    assert [message_id for message_id, _ in first + second] == sorted(
        column(sql, "select message_id from penstock.list_messages('q', 'ready')")
    )
