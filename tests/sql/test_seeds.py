"""What the five documents that the design unites ask for, each in its own words."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from .conftest import ACTIVE, DEAD, Clock
from .engine import Engine

DAY = 86400


# 000 and 001: the work queue that is like SQS


def test_000_the_oldest_that_has_not_aged_out_is_not_locked_and_is_visible(
    engine: Engine, clock: Clock
) -> None:
    engine.queue("plugin", max_delivery_attempts=0, message_ttl_seconds=DAY)
    engine.send("plugin", "aged out")
    clock.advance(DAY - 60)
    engine.send("plugin", "taken")
    oldest = [engine.take("plugin", vt_seconds=600).payload for _ in range(2)]
    assert oldest == ["aged out", "taken"]
    engine.send("plugin", "next")
    clock.advance(120)
    assert engine.take("plugin").payload == "next"
    clock.advance(600)
    payloads = [m.payload for m in engine.take_many("plugin", 10)]
    assert "aged out" not in payloads
    assert "taken" in payloads


def test_000_messages_are_retried_forever_unless_marked_as_failed(engine: Engine, clock: Clock) -> None:
    engine.queue("plugin", max_delivery_attempts=0, visibility_timeout_seconds=10)
    message_id = engine.send_body("plugin", b"\x00raw")
    for attempt in range(1, 30):
        message = engine.take("plugin")
        assert (message.delivery_attempts, message.body) == (attempt, b"\x00raw")
        clock.advance(11)
    engine.reject(engine.take("plugin"), error="invalid job")
    row = engine.message("plugin", message_id)
    assert (row.state, row.reason) == ("dead", "failed")
    clock.advance(11)
    assert engine.nothing_to_take("plugin")


def test_001_what_aged_out_is_removed_after_a_month(engine: Engine, clock: Clock) -> None:
    engine.queue("plugin", message_ttl_seconds=DAY)
    message_id = engine.send("plugin")
    clock.advance(DAY + 1)
    engine.maintain()
    assert engine.message("plugin", message_id).reason == "expired"
    clock.advance(29 * DAY)
    engine.maintain()
    assert engine.state("plugin", message_id) == "dead"
    clock.advance(2 * DAY)
    engine.maintain()
    assert engine.state("plugin", message_id) is None


def test_001_the_visibility_timeout_may_grow_and_its_base_be_the_clients(engine: Engine) -> None:
    engine.queue("plugin", visibility_backoff=2, max_delivery_attempts=0)
    message_id = engine.send("plugin")
    leases = []
    for _ in range(3):
        message = engine.take("plugin", vt_seconds=10)
        row = engine.message("plugin", message_id)
        leases.append((row.vt - row.claimed_at).total_seconds())
        engine.nack(message)
    assert leases == [10, 20, 40]


# 002: the task queue


def test_002_a_task_with_one_attempt_ends_after_the_first_error_and_add_retries_revives_it(
    engine: Engine,
) -> None:
    engine.queue("task", max_delivery_attempts=1)
    message_id = engine.send("task", {"custom": "payload"})
    engine.nack(engine.take("task"), error="refused")
    assert engine.message("task", message_id).reason == "no_attempts_left"
    assert engine.value("add_retries", "task", 1) == 1
    assert engine.ack(engine.take("task"))


def test_002_progressive_delays_after_a_refusal(engine: Engine, clock: Clock) -> None:
    engine.queue("task", max_delivery_attempts=4, retry_delays=[10, 100, 600])
    engine.send("task")
    for delay in (10, 100, 600):
        engine.nack(engine.take("task"))
        clock.advance(delay - 5)
        assert engine.nothing_to_take("task")
        clock.advance(6)
    assert engine.take("task").delivery_attempts == 4


def test_002_a_lost_task_is_picked_up_by_any_living_processor(engine: Engine, clock: Clock) -> None:
    engine.queue("task", visibility_timeout_seconds=60)
    engine.send("task")
    engine.take("task", "pod that dies")
    clock.advance(61)
    message = engine.take("task", "pod that lives")
    assert message.delivery_attempts == 2
    assert engine.ack(message)


def test_002_a_task_not_completed_in_time_is_closed_as_expired_and_can_come_back(
    engine: Engine, clock: Clock
) -> None:
    engine.queue("task", max_delivery_attempts=3)
    message_id = engine.send("task", ttl_seconds=60)
    engine.nack(engine.take("task"))
    clock.advance(61)
    engine.maintain()
    assert engine.message("task", message_id).reason == "expired"
    assert engine.value("add_retries", "task", 3) == 1
    assert engine.take("task").message_id == message_id


# 003: priorities and organizations


def test_003_within_a_priority_no_organization_waits_for_another(engine: Engine) -> None:
    engine.queue("service")
    for organization, number in (("companya", 50), ("companyb", 5), ("companyc", 1)):
        engine.send_many("service", [organization] * number, tenant=organization, priority=1)
    first = Counter(m.tenant for m in engine.take_many("service", 9))
    assert first == {"companya": 4, "companyb": 4, "companyc": 1}


def test_003_within_an_organization_only_the_date_of_creation_counts(engine: Engine) -> None:
    engine.queue("service")
    ids = [engine.send("service", tenant="companya") for _ in range(10)]
    assert [m.message_id for m in engine.take_many("service", 10)] == ids


def test_003_without_a_pulse_a_message_is_moved_on(engine: Engine, clock: Clock) -> None:
    engine.queue("service", max_delivery_attempts=1)
    ids = engine.send_many("service", ["alive", "silent"])
    engine.take("service", "alive", vt_seconds=30)
    engine.take("service", "silent", vt_seconds=30)
    for _ in range(3):
        clock.advance(20)
        engine.value("pulse", "alive", 30)
        engine.maintain()
    assert [engine.state("service", i) for i in ids] == ["active", "dead"]


# 004: the names of the API


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("create_topic", ["new"]),
        ("delete_topic", ["orders"]),
        ("list_topics", []),
        ("create_queue", ["new", "orders", False, 5, None]),
        ("create_queue", ["new", "orders", True, 5, 60]),
        ("delete_queue", ["billing"]),
        ("extend_queue_keep_alive", ["session", 60]),
        ("list_queues", []),
        ("get_queue_statistics", ["billing"]),
        ("publish_message", ["orders", {"n": 1}, None]),
        ("publish_message", ["orders", {"n": 1}, "2999-01-01"]),
        ("consume_message", ["billing", "token", 30]),
        ("consume_messages_batch", ["billing", "token", 30, 10]),
        ("ack_message", ["billing", ACTIVE, "worker"]),
        ("nack_message", ["billing", ACTIVE, "worker", 5]),
        ("release_message", ["billing", ACTIVE, "worker"]),
        ("extend_message_vt", ["billing", ACTIVE, "worker", 5]),
        ("batch_extend_message_vt", ["billing", [ACTIVE, DEAD], "worker", 5]),
        ("list_dlq_messages", []),
        ("requeue_dlq_messages", ["billing"]),
        ("purge_dlq", []),
        ("cleanup_queue_messages", ["billing"]),
        ("cleanup_topic_messages", ["orders"]),
        ("cleanup_expired_exclusive_queues", []),
        ("purge_all_messages", []),
    ],
)
def test_004_every_function_takes_the_arguments_of_the_document_in_their_order(
    house: Engine, function: str, arguments: list[Any]
) -> None:
    assert house.rows(function, *arguments) is not None


NAMED: list[tuple[str, dict[str, Any]]] = [
    ("create_topic", {"topic_name": "new"}),
    (
        "create_queue",
        {"queue_name": "n", "topic_name": "orders", "exclusive": True, "max_delivery_attempts": 1},
    ),
    ("extend_queue_keep_alive", {"queue_name": "session", "keep_alive_seconds": 60}),
    ("publish_message", {"topic_name": "orders", "payload": {}, "deliver_after": None}),
    ("consume_message", {"queue_name": "billing", "consumer_token": "t", "vt_seconds": 1}),
    (
        "consume_messages_batch",
        {"queue_name": "billing", "consumer_token": "t", "vt_seconds": 1, "batch_size": 2},
    ),
    ("ack_message", {"queue_name": "billing", "message_id": ACTIVE, "token": "worker"}),
    ("nack_message", {"queue_name": "billing", "message_id": ACTIVE, "token": "worker", "delay_seconds": 1}),
    ("release_message", {"queue_name": "billing", "message_id": ACTIVE, "token": "worker"}),
    (
        "extend_message_vt",
        {"queue_name": "billing", "message_id": ACTIVE, "token": "worker", "extension_seconds": 1},
    ),
    (
        "batch_extend_message_vt",
        {"queue_name": "billing", "message_ids": [ACTIVE], "token": "worker", "extension_seconds": 1},
    ),
    ("requeue_dlq_messages", {"queue_name": "billing"}),
]


@pytest.mark.parametrize(("function", "arguments"), NAMED)
def test_004_the_names_of_parameters_are_part_of_the_api(
    house: Engine, function: str, arguments: dict[str, Any]
) -> None:
    assert house.rows(function, **arguments) is not None


def test_004_deleting_a_topic_deletes_all_below_it(house: Engine) -> None:
    house.value("delete_topic", "orders")
    assert {row.name for row in house.rows("list_queues")}.isdisjoint({"billing", "audit"})
    assert house.rows("list_dlq_messages") == []


def test_004_nack_beyond_the_attempts_goes_to_the_dead_letters_with_the_error(engine: Engine) -> None:
    engine.topic("t", "q", max_delivery_attempts=3)
    message_id = engine.publish("t", {"n": 1})
    for n in range(3):
        engine.nack(engine.take("q"), error=f"try {n}")
    (letter,) = engine.rows("list_dlq_messages")
    assert (letter.queue_name, letter.message_id, letter.payload) == ("q", message_id, {"n": 1})
    assert (letter.delivery_attempts, letter.last_error) == (3, "try 2")


def test_004_a_delayed_message_waits_for_its_time(engine: Engine, clock: Clock) -> None:
    engine.topic("t", "q")
    engine.publish("t", deliver_after=engine.now() + timedelta(seconds=60))
    assert engine.nothing_to_take("q")
    clock.advance(61)
    assert engine.ack(engine.take("q"))
