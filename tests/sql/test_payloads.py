"""Payloads: what comes out is what went in, however large, stored once, and gone with its last reader."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from ..conftest import Connect
from .conftest import Clock
from .engine import Engine
from .waiting import start_blocked

LARGE = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=20000))


def noise(size: int) -> bytes:
    """Bytes that do not compress."""
    return random.Random(size).randbytes(size)


@pytest.fixture
def three(engine: Engine) -> Engine:
    """A topic with three queues."""
    engine.topic("t", "a", "b", "c")
    return engine


@pytest.mark.parametrize(
    "payload",
    [
        None,
        True,
        0,
        -1.5,
        12345678901234567890123456789,
        "",
        "text",
        [],
        {},
        [1, [2, [None]]],
        {"a": {"b": ["c", {"": None}]}},
        "🚰 'quoted' \"double\" \\ \n",
        list(range(1000)),
        LARGE,
        {"key": LARGE, "list": [LARGE]},
    ],
    ids=lambda payload: repr(payload)[:20].encode("ascii", "replace").decode(),
)
def test_json_comes_back_as_it_was(engine: Engine, payload: Any) -> None:
    engine.queue("q")
    message_id = engine.send("q", payload)
    message = engine.take("q")
    assert message.payload == payload
    assert message.body is None
    assert engine.message("q", message_id).payload == payload


@pytest.mark.parametrize("size", [0, 1, 1499, 1500, 1501, 2000, 8000, 100000])
def test_bytes_come_back_as_they_were(engine: Engine, size: int) -> None:
    engine.queue("q")
    body = noise(size)
    message_id = engine.send_body("q", body)
    message = engine.take("q")
    assert message.body == body
    assert message.payload is None
    assert engine.message("q", message_id).body == body
    assert engine.reject(message)
    assert engine.rows("list_dlq_messages", "q")[0].body == body


def test_a_body_of_twenty_megabytes(engine18: Engine) -> None:
    engine18.queue("q")
    body = noise(20_000_000)
    engine18.send_body("q", body)
    message = engine18.take("q")
    assert message.body == body
    assert engine18.ack(message)
    assert engine18.count("payloads") == 0


def test_a_document_of_twenty_megabytes(engine18: Engine) -> None:
    engine18.queue("q")
    payload = [LARGE] * 1000
    engine18.send("q", payload)
    assert engine18.take("q").payload == payload


def test_a_large_payload_is_stored_once_for_all_queues(three: Engine) -> None:
    message_id = three.publish("t", LARGE)
    assert three.query("select id from penstock.payloads") == [(message_id,)]
    assert [three.take(queue).payload for queue in "abc"] == [LARGE] * 3


def test_a_small_payload_needs_no_place_of_its_own(three: Engine) -> None:
    three.publish("t", "small")
    assert three.count("payloads") == 0


@pytest.mark.parametrize("order", ["abc", "cab", "bca"])
def test_a_large_payload_is_removed_after_the_last_ack(three: Engine, order: str) -> None:
    three.publish("t", LARGE)
    for queue in order:
        assert three.count("payloads") == 1
        message = three.take(queue)
        assert message.payload == LARGE
        three.ack(message)
    assert three.count("payloads") == three.count("payload_references") == 0


@pytest.mark.parametrize(
    "last",
    [
        "ack",
        "ack_messages",
        "cancel",
        "cancel later",
        "purge",
        "purge all",
        "reject and purge",
        "delete",
        "delete topic",
    ],
)
def test_however_the_last_queue_lets_go(three: Engine, last: str) -> None:
    message_id = three.publish("t", LARGE, deliver_after="2999-01-01" if last == "cancel later" else None)
    if last == "cancel later":
        for queue in "bc":
            three.value("cancel_message", queue, message_id)
    else:
        for queue in "bc":
            three.ack(three.take(queue))
    assert three.count("payloads") == 1
    if last == "ack":
        three.ack(three.take("a"))
    elif last == "ack_messages":
        three.values("ack_messages", "a", [message_id], [three.take("a").consumer_token])
    elif last.startswith("cancel"):
        three.value("cancel_message", "a", message_id)
    elif last == "purge":
        three.value("purge_queue", "a")
    elif last == "purge all":
        three.rows("purge_all_messages")
    elif last == "reject and purge":
        three.reject(three.take("a"))
        assert three.rows("list_dlq_messages", "a")[0].payload == LARGE
        three.value("purge_dlq", "a")
    elif last == "delete":
        three.value("delete_queue", "a")
    else:
        three.value("delete_topic", "t")
    if last.startswith("delete"):
        three.maintain()
    assert three.count("payloads") == three.count("payload_references") == 0


def test_a_large_payload_survives_every_way_back(engine: Engine, clock: Clock) -> None:
    engine.queue("q", max_delivery_attempts=3)
    engine.send("q", LARGE)
    engine.release(engine.take("q"))
    engine.nack(engine.take("q"))
    engine.nack(engine.take("q"), delay_seconds=10)
    clock.advance(11)
    engine.take("q", vt_seconds=5)
    clock.advance(6)
    engine.maintain()
    assert [row.payload for row in engine.rows("list_dlq_messages", "q")] == [LARGE]
    engine.value("requeue_dlq_messages", "q")
    message = engine.take("q")
    assert message.payload == LARGE
    assert engine.message("q", message.message_id).payload == LARGE
    engine.ack(message)
    assert engine.count("payloads") == 0


def test_small_and_large_in_one_batch(three: Engine) -> None:
    payloads = ["small", LARGE, None, None, 7]
    bodies = [None, None, b"bytes", noise(5000), None]
    wrapped = [None if p is None else Jsonb(p) for p in payloads]
    ids = three.values("publish_messages", "t", wrapped, bodies=bodies)
    assert three.query("select id from penstock.payloads order by id") == [(ids[1],), (ids[3],)]
    for queue in "abc":
        messages = three.take_many(queue, 10)
        assert [(m.payload, m.body) for m in messages] == list(zip(payloads, bodies, strict=True))
        for message in messages:
            three.ack(message)
    assert three.count("payloads") == 0


def test_two_queues_that_let_go_at_the_same_time_leave_it_to_maintain(
    engine: Engine, connect: Connect
) -> None:
    engine.topic("t", "a", "b")
    engine.publish("t", LARGE)
    one, two = Engine(connect()), Engine(connect())
    with one.connection.transaction(), two.connection.transaction():
        assert one.ack(one.take("a"))
        assert two.ack(two.take("b"))
    engine.maintain()
    assert engine.count("payloads") == engine.count("payload_references") == 0


@pytest.mark.parametrize("others", [0, 1])
def test_a_queue_deleted_while_a_publish_waits_for_it_leaves_nothing_behind(
    engine: Engine, connect: Connect, sql: psycopg.Connection[Any], others: int
) -> None:
    engine.topic("t", "goes", *["stays"] * others)
    publisher, watcher = Engine(connect()), Engine(connect())
    with sql.transaction():
        engine.value("delete_queue", "goes")
        future = start_blocked(watcher, publisher, lambda: publisher.publish("t", LARGE, dedup_key="k"))
    message_id = future.result(30)
    if others:
        assert engine.take("stays").message_id == message_id
        engine.value("purge_queue", "stays")
    engine.maintain()
    assert [engine.count(table) for table in ("payloads", "payload_references", "dedup")] == [0, 0, 0]


def test_dead_letters_that_maintain_removes_take_their_payload_along(engine: Engine, clock: Clock) -> None:
    engine.queue("q", retain_dead_seconds=60)
    engine.send("q", LARGE)
    engine.reject(engine.take("q"))
    clock.advance(121)
    engine.maintain()
    assert engine.count("dead") == engine.count("payloads") == 0


@pytest.mark.parametrize("limit", [1, 100, 1400, 1500, 1501, 2000, 100000])
def test_a_body_at_the_limit_is_taken_and_one_byte_more_refused(engine: Engine, limit: int) -> None:
    engine.queue("q", max_payload_bytes=limit)
    engine.send_body("q", b"x" * limit)
    with engine.refused("PN005", str(limit), str(limit + 1), '"q"'):
        engine.send_body("q", b"x" * (limit + 1))


@pytest.mark.parametrize("limit", [100, 1000, 2000, 100000])
def test_json_over_the_limit_is_refused(engine: Engine, limit: int) -> None:
    engine.queue("q", max_payload_bytes=limit)
    engine.send("q", "x" * (limit - 50))
    with engine.refused("PN005", str(limit), '"q"'):
        engine.send("q", "x" * (limit + 1))


def test_one_message_over_the_limit_refuses_the_batch(engine: Engine) -> None:
    engine.queue("q", max_payload_bytes=3000)
    with engine.refused("PN005", "3000", '"q"'):
        engine.send_many("q", ["small", "x" * 3001, "small"])
    engine.send_many("q", ["x" * 2900] * 10)


def test_one_queue_that_refuses_refuses_for_all(engine: Engine) -> None:
    engine.topic("t", "wide")
    engine.queue("narrow", topic_name="t", max_payload_bytes=3000)
    with engine.refused("PN005", "3000", '"narrow"'):
        engine.publish("t", LARGE, dedup_key="k")
    engine.send("wide", LARGE)


def test_a_lowered_limit_leaves_what_waits(engine: Engine) -> None:
    engine.queue("q")
    engine.send("q", LARGE)
    engine.value("alter_queue", "q", max_payload_bytes=100)
    engine.nack(engine.take("q"))
    assert engine.take("q").payload == LARGE
    with engine.refused("PN005", "100"):
        engine.send("q", LARGE)


def test_headers_and_results_may_be_large(engine: Engine) -> None:
    engine.queue("q")
    message_id = engine.send("q", headers={"h": LARGE})
    message = engine.take("q")
    assert message.headers == {"h": LARGE}
    engine.ack(message, result={"r": LARGE})
    assert engine.message("q", message_id).result == {"r": LARGE}


def test_a_done_message_keeps_a_small_payload_and_lets_go_of_a_large_one(engine: Engine) -> None:
    engine.topic("t", "a", "b")
    small, large = engine.publish("t", "small"), engine.publish("t", LARGE)
    for message in engine.take_many("a", 2):
        engine.ack(message)
    assert engine.message("a", small).payload == "small"
    assert engine.message("a", large).state == "done"
    assert engine.message("b", large).payload == LARGE


def test_large_payloads_that_expire_are_dead_letters_with_payload(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    engine.send("q", LARGE, ttl_seconds=10)
    engine.send("q", LARGE, ttl_seconds=10, deliver_after=engine.now() + timedelta(seconds=60))
    clock.advance(11)
    engine.maintain()
    assert [row.payload for row in engine.rows("list_dlq_messages", "q")] == [LARGE, LARGE]


def test_a_deleted_queue_frees_the_payloads_of_every_state(engine: Engine) -> None:
    engine.topic("t", "q", "kept", max_delivery_attempts=1)
    engine.queue("capped", tenant_max_active=1)
    for _ in range(2):
        engine.publish("t", LARGE)
    engine.nack(engine.take("q"))
    engine.take("q")
    engine.publish("t", LARGE)
    engine.publish("t", LARGE, deliver_after="2999-01-01")
    for _ in range(2):
        engine.send("capped", LARGE, tenant="a")
    assert sorted(engine.states("q").values()) == ["active", "dead", "ready", "scheduled"]
    assert sorted(engine.states("capped").values()) == ["waiting", "waiting"]
    for queue in ("q", "capped"):
        engine.value("delete_queue", queue)
    engine.maintain()
    kept = engine.value("create_queue", "kept", "t", max_delivery_attempts=1)
    assert engine.query("select distinct queue_id from penstock.payload_references") == [(kept,)]
    assert engine.count("payloads") == engine.count("payload_references") == 4


def test_a_single_message_is_measured_as_in_a_batch(engine: Engine) -> None:
    engine.queue("q", max_payload_bytes=2000)
    engine.rows("send_messages", "q", [Jsonb("x" * 1988)])
    engine.send("q", "x" * 1988)
    with pytest.raises(psycopg.Error, match="a payload of 2001 bytes is over the limit of 2000 bytes"):
        engine.send("q", "x" * 1989)
