"""Topics: create, list, delete."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from .bad_input import Bad, expect
from .engine import Engine


def test_create_returns_the_id_and_the_same_id_again(engine: Engine) -> None:
    first = engine.value("create_topic", "orders")
    other = engine.value("create_topic", "returns")
    assert engine.value("create_topic", "orders") == first != other
    assert engine.count("topics") == 2


@pytest.mark.parametrize("twin", ["Orders", "orders ", " orders", "örders"])
def test_names_are_compared_to_the_letter(engine: Engine, twin: str) -> None:
    assert engine.value("create_topic", "orders") != engine.value("create_topic", twin)


def test_list_shows_topics_by_name_with_the_number_of_their_queues(engine: Engine) -> None:
    before = engine.now()
    engine.topic("b", "b1", "b2")
    engine.topic("a")
    engine.queue("of no topic")
    rows = engine.rows("list_topics")
    assert [(row.name, row.queue_count) for row in rows] == [("a", 0), ("b", 2)]
    assert rows[1].id == engine.value("create_topic", "b")
    assert before <= rows[1].created_at <= rows[0].created_at <= engine.now()


def test_no_topics_no_rows(engine: Engine) -> None:
    assert engine.rows("list_topics") == []


def test_delete_takes_its_queues_and_messages_in_every_state_and_nothing_else(engine: Engine) -> None:
    engine.topic("stays", "stays too")
    engine.publish("stays", "x" * 4000, dedup_key="k")
    kept = engine.belongings()
    engine.topic("goes", "q1", "q2")
    for payload in ("active", "dead", "done", "x" * 4000):
        engine.publish("goes", payload)
    engine.publish("goes", "keyed", dedup_key="k")
    engine.publish("goes", "later", deliver_after="2999-01-01")
    engine.take("q1")
    engine.reject(engine.take("q1"))
    engine.ack(engine.take("q1"))
    engine.value("delete_topic", "goes")
    engine.maintain()
    assert engine.belongings() == kept


def test_a_deleted_topic_comes_back_empty_under_another_id(engine: Engine) -> None:
    first = engine.value("create_topic", "orders")
    engine.queue("billing", topic_name="orders")
    engine.value("delete_topic", "orders")
    assert engine.value("create_topic", "orders") != first
    assert engine.rows("list_queues") == []


def test_create_and_delete_belong_to_the_callers_transaction(
    engine: Engine, sql: psycopg.Connection[Any]
) -> None:
    engine.topic("old", "q")
    engine.publish("old")
    with engine.unchanged(), sql.transaction(force_rollback=True):
        engine.value("create_topic", "new")
        engine.value("delete_topic", "old")


@pytest.mark.parametrize(
    "bad",
    [
        expect("PN004", "topic_name", "null").of("create_topic", None),
        expect("PN004", "topic_name", "0").of("create_topic", ""),
        expect("PN004", "topic_name", "256").of("create_topic", "x" * 256),
        expect("PN004", "topic_name", "100000").of("create_topic", "😀" * 100000),
        expect("PN002", '"nope"').of("delete_topic", "nope"),
        expect("PN002", '""').of("delete_topic", ""),
        expect("PN002", "topic").of("delete_topic", None),
        expect("PN002", '"Orders"').of("delete_topic", "Orders"),
        expect("PN002", '"billing"').of("delete_topic", "billing"),
        expect("PN002", '"nope"').of("cleanup_topic_messages", "nope"),
    ],
)
def test_bad_input(house: Engine, bad: Bad) -> None:
    bad.check(house)


def test_a_message_of_a_topic_reaches_queues_of_every_kind(engine: Engine) -> None:
    """Queues without tenants get it by one statement, the others one by one."""
    engine.topic("t", "plain")
    engine.queue("other", topic_name="t")
    engine.queue("brief", topic_name="t", message_ttl_seconds=60)
    engine.queue("small", topic_name="t", max_payload_bytes=1000)
    engine.queue("shared", topic_name="t")
    engine.queue("capped", topic_name="t", tenant_max_active=1)
    engine.queue("paused", topic_name="t")
    engine.value("pause_queue", "paused")
    engine.send("shared", tenant="a")
    engine.take("shared")
    ids = engine.values("publish_messages", "t", [Jsonb(1), Jsonb([2])], headers=Jsonb({"h": 1}), priority=1)
    for queue in ("plain", "other", "brief", "small", "shared"):
        taken = engine.take_many(queue, 10)
        assert [(row.message_id, row.payload) for row in taken] == [(ids[0], 1), (ids[1], [2])], queue
        assert {(row.priority, str(row.headers)) for row in taken} == {(1, "{'h': 1}")}
    assert engine.take("capped").message_id == ids[0]
    assert set(engine.states("paused").values()) == {"ready"}
    brief = engine.query("select id from penstock.queues where name = 'brief'")
    assert engine.query("select distinct queue_id from penstock.active where expires_at > now()") == brief
    engine.values("publish_messages", "t", None, bodies=[b"body"])
    assert [engine.take(queue).body for queue in ("plain", "small", "shared")] == [b"body"] * 3
    with engine.refused("PN005", '"small"'):
        engine.publish("t", "x" * 1200)
    assert engine.nothing_to_take("plain")


def test_a_publish_to_many_queues_reads_few_blocks_for_each(engine18: Engine) -> None:
    engine18.value("create_topic", "t")
    engine18.query("select count(penstock.create_queue('q' || n, 't')) from generate_series(1, 200) n")
    engine18.connection.execute("analyze penstock.queues")
    engine18.publish("t")
    explain = "explain (analyze, buffers, format json) select penstock.publish_message('t', '1')"
    plan = engine18.query(explain)[0][0][0]["Plan"]
    # An index entry and a row for each queue, and now and then a new page. Before PostgreSQL 17 a look-up of
    # many keys goes down the index once for each of them.
    blocks = 5 if engine18.connection.info.server_version >= 170000 else 9
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= blocks * 200
