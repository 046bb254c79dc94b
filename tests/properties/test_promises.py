"""Promises that the state machine found broken once, each in its smallest form."""

from __future__ import annotations

from collections import Counter
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


def test_a_claim_under_a_cap_that_was_lowered_waits_for_what_was_settled_under_a_snapshot(sql18: Sql) -> None:
    """A permit that repays a debt is not delivered on, whichever session returns it."""
    sql18.execute("select penstock.create_queue('q', max_active => 12, priority_shares => '{0,0,100,0}')")
    sql18.execute("select penstock.send_messages('q', '{1,2,3,4,5,6,7,8}')")
    held = column(sql18, "select message_id from penstock.consume_messages_batch('q', 'me', 30, 6)")
    assert len(held) == 6
    sql18.execute("select penstock.alter_queue('q', max_active => 4)")
    with sql18.transaction():
        sql18.execute("set transaction isolation level repeatable read")
        sql18.execute("select penstock.ack_message('q', %s, 'me')", [held[0]])
    assert delivery(sql18) == []


def test_a_tenant_permit_that_repays_a_debt_is_not_taken_after_a_settle_under_a_snapshot(sql18: Sql) -> None:
    sql18.execute("select penstock.create_queue('q', tenant_max_active => 3)")
    sql18.execute("select penstock.send_messages('q', '{1,2,3,4,5,6}', tenant => 'x')")
    held = column(sql18, "select message_id from penstock.consume_messages_batch('q', 'me', 30, 6)")
    assert len(held) == 3
    sql18.execute("select penstock.alter_queue('q', tenant_max_active => 1)")
    with sql18.transaction():
        sql18.execute("set transaction isolation level repeatable read")
        sql18.execute("select penstock.ack_message('q', %s, 'me')", [held[0]])
    assert delivery(sql18) == []


def test_the_successor_of_an_expired_message_is_delivered_at_once(sql18: Sql) -> None:
    sql18.execute(
        """create or replace function penstock.clock() returns timestamptz language sql volatile
        as $$ select current_setting('penstock.now')::timestamptz $$"""
    )
    sql18.execute("set penstock.now = '2026-01-01 12:00:00Z'")
    sql18.execute("select penstock.create_queue('q', tenant_max_active => 1)")
    sql18.execute("select penstock.send_message('q', '1', ttl_seconds => 10)")
    sql18.execute("select penstock.send_message('q', '2')")
    sql18.execute("set penstock.now = '2026-01-01 12:00:20Z'")
    assert delivery(sql18) == [2]


def test_those_of_no_tenant_have_their_turn_after_their_backlog_is_gone(sql: Sql) -> None:
    """What waited before the first tenant came does not hold back what comes when it is cancelled."""
    ids = column(sql, "select penstock.send_messages('q', '{1,2,3,4,5}')")
    sql.execute("select penstock.send_messages('q', '{11,12,13,14,15,16}', tenant => 'x')")
    sql.execute("select penstock.cancel_message('q', id) from unnest(%s::bigint[]) id", [ids])
    sql.execute("select penstock.send_message('q', '6')")
    assert delivery(sql)[:2] == [11, 6]


MIXED = "priorities => '{2,0,3,1,2,0,3}'"
"""So many, and so many kinds, that a sort of them is not the order in which they came."""


def test_dead_letters_come_back_in_order(sql: Sql) -> None:
    """Into a queue without tenants in which nothing waits."""
    sql.execute(f"select penstock.send_messages('q', '{{1,2,3,4,5,6,7}}', {MIXED})")
    for message_id in column(sql, "select message_id from penstock.consume_messages_batch('q', 'me')"):
        sql.execute("select penstock.reject_message('q', %s, 'me')", [message_id])
    assert column(sql, "select penstock.requeue_dlq_messages('q')") == [7]
    assert delivery(sql) == [2, 6, 4, 1, 5, 3, 7]


def test_what_is_due_comes_in_in_order(sql: Sql) -> None:
    """Into a queue without tenants in which nothing waits."""
    later = "deliver_after => clock_timestamp() + interval '1 h'"
    sql.execute(f"select penstock.send_messages('q', '{{1,2,3,4,5,6,7}}', {MIXED}, {later})")
    sql.execute("update penstock.scheduled set due_at = due_at - interval '2 h'")
    assert delivery(sql) == [2, 6, 4, 1, 5, 3, 7]


def test_at_most_one_comes_back_to_a_rank_besides_the_tenants_own(sql: Sql) -> None:
    """Also where several come back at once."""
    sql.execute("select penstock.send_messages('q', '{1,2,3,4}', tenant => 'x')")
    held = column(sql, "select message_id from penstock.consume_messages_batch('q', 'me')")
    sql.execute("select penstock.send_message('q', '10', tenant => 'y')")
    waiting = column(sql, "select penstock.send_messages('q', '{5,6,7}', tenant => 'x')")
    sql.execute("select penstock.release_message('q', %s, 'me')", [held[2]])
    sql.execute("select penstock.release_message('q', %s, 'me')", [held[3]])
    sql.execute("select penstock.cancel_message('q', %s)", [waiting[1]])
    sql.execute("update penstock.active set vt = vt - interval '1 h'")
    sql.execute("select * from penstock.maintain()").fetchall()
    ranks = column(sql, "select rank from penstock.ready where tenant = 'x'")
    assert len(ranks) == 6
    assert max(Counter(ranks).values()) == 2


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
