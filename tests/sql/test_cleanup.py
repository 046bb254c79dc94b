"""Cleanup: cancel a message, empty a queue, forget what is completed."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from .bad_input import Bad, expect
from .conftest import ACTIVE, DEAD, DONE, READY, SCHEDULED
from .engine import Engine


def fill(engine: Engine, queue: str) -> dict[str, int]:
    """A message in each state, with everything a message can have."""
    ids = {}
    for state in ("active", "dead", "done", "ready"):
        ids[state] = engine.send(queue, "x" * 5000, dedup_key=state)
        if state != "ready":
            message = engine.take(queue)
        if state == "dead":
            engine.reject(message)
        if state == "done":
            engine.ack(message)
    ids["scheduled"] = engine.send(queue, "y" * 5000, dedup_key="later", deliver_after="2999-01-01")
    return ids


@pytest.mark.parametrize("state", ["ready", "scheduled"])
def test_cancel_takes_a_waiting_message_out_once(engine: Engine, state: str) -> None:
    engine.queue("q")
    other = engine.send("q")
    kept = engine.belongings()
    due = "2999-01-01" if state == "scheduled" else None
    message_id = engine.send("q", "x" * 5000, dedup_key="k", deliver_after=due, priority=3)
    assert engine.state("q", message_id) == state
    assert engine.value("cancel_message", "q", message_id) is True
    assert engine.value("cancel_message", "q", message_id) is False
    assert engine.belongings() == kept
    assert list(engine.states("q")) == [other]


@pytest.mark.parametrize("priority", [0, 1, 2, 3])
@pytest.mark.parametrize("raised", [False, True])
def test_cancel_finds_the_message_wherever_it_waits(engine: Engine, priority: int, raised: bool) -> None:
    engine.queue("q")
    ids = engine.send_many("q", list(range(5)), priority=priority, tenants=["a", "a", "b", "a", "c"])
    if raised:
        engine.ack(engine.take("q"))
        engine.value("raise_floor", "q")
    assert engine.value("cancel_message", "q", ids[3]) is True
    assert ids[3] not in [m.message_id for m in engine.take_many("q", 10)]


def test_cancel_in_one_queue_leaves_the_others(engine: Engine) -> None:
    engine.topic("t", "a", "b")
    message_id = engine.publish("t", "x" * 5000)
    assert engine.value("cancel_message", "a", message_id)
    assert engine.take("b").payload == "x" * 5000


def test_a_retry_that_waits_can_be_cancelled(engine: Engine) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    engine.nack(engine.take("q"), delay_seconds=60)
    assert engine.value("cancel_message", "q", message_id)
    assert engine.states("q") == {}


@pytest.mark.parametrize("message_id", [ACTIVE, DEAD, DONE, 999999, 0, -1, 2**63 - 1, None])
def test_cancel_of_what_does_not_wait(house: Engine, message_id: int | None) -> None:
    with house.unchanged():
        assert house.value("cancel_message", "billing", message_id) is False


@pytest.mark.parametrize("message_id", [READY, SCHEDULED])
def test_cancel_in_another_queue(house: Engine, message_id: int) -> None:
    with house.unchanged():
        assert house.value("cancel_message", "mail", message_id) is False


def test_purge_takes_what_is_unfinished_and_counts_it(engine: Engine) -> None:
    engine.queue("bystander")
    engine.send("bystander", "x" * 5000, dedup_key="ready")
    engine.queue("q")
    ids = fill(engine, "q")
    assert engine.value("purge_queue", "q") == 3
    assert engine.states("q") == {ids["dead"]: "dead", ids["done"]: "done"}
    assert engine.value("purge_queue", "q") == 0
    assert engine.take("bystander").payload == "x" * 5000
    assert engine.query("select distinct key from penstock.dedup") == [("ready",)]
    assert engine.send("q", dedup_key="ready") != ids["ready"]


def test_a_purged_lease_cannot_be_settled(engine: Engine) -> None:
    engine.queue("q")
    engine.send("q")
    message = engine.take("q")
    engine.value("purge_queue", "q")
    assert not engine.ack(message)


def test_purge_all_empties_every_queue_and_keeps_topics_and_queues(engine: Engine) -> None:
    engine.topic("t", "a", "b")
    engine.queue("c", max_active=100)
    kept = engine.belongings()
    engine.publish("t", "x" * 5000)
    for queue in ("a", "b", "c"):
        fill(engine, queue)
    engine.rows("purge_all_messages")
    engine.maintain()
    assert engine.belongings() == kept
    assert engine.publish("t") > 0
    assert engine.take("a").payload == 1


def test_purge_all_goes_page_by_page(engine18: Engine) -> None:
    """Each queue takes a lock, so a call purges 500 of them."""
    engine18.query("select count(penstock.create_queue('q' || n)) from generate_series(1, 1001) n")
    engine18.query("select count(penstock.send_message(q.name, '1')) from penstock.queues q")
    left = "select count(*) from penstock.ready"
    after, pages = 0, []
    while after is not None:
        after = engine18.value("purge_all_messages", after)
        pages.append(engine18.query(left)[0][0])
    assert pages == [501, 1, 0]


def test_cleanup_of_a_queue_removes_the_completed_only(engine: Engine) -> None:
    engine.topic("t", "q", "bystander")
    for queue in ("q", "bystander"):
        fill(engine, queue)
    engine.ack(engine.take("q"))
    assert engine.value("cleanup_queue_messages", "q") == 2
    assert engine.value("cleanup_queue_messages", "q") == 0
    assert sorted(engine.states("q").values()) == ["active", "dead", "scheduled"]
    assert engine.statistics("bystander").completed_count == 1


def test_cleanup_of_a_topic_removes_the_completed_of_its_queues(engine: Engine) -> None:
    engine.topic("t", "a", "b")
    engine.topic("other", "c")
    for queue in ("a", "b", "c"):
        fill(engine, queue)
    assert engine.value("cleanup_topic_messages", "t") == 2
    assert engine.value("cleanup_topic_messages", "t") == 0
    assert [engine.statistics(queue).completed_count for queue in "abc"] == [0, 0, 1]
    assert [engine.statistics(queue).pending_count for queue in "abc"] == [2, 2, 2]


def test_all_of_it_is_part_of_the_callers_transaction(engine: Engine, sql: psycopg.Connection[Any]) -> None:
    engine.topic("t", "q")
    ids = fill(engine, "q")
    for function, arguments in (
        ("cancel_message", ["q", ids["ready"]]),
        ("purge_queue", ["q"]),
        ("purge_all_messages", []),
        ("cleanup_queue_messages", ["q"]),
        ("cleanup_topic_messages", ["t"]),
    ):
        with engine.unchanged(), sql.transaction(force_rollback=True):
            engine.rows(function, *arguments)


@pytest.mark.parametrize(
    "bad",
    [
        expect("PN001", '"nope"').of("cancel_message", "nope", READY),
        expect("PN001", "queue").of("cancel_message", None, READY),
        expect("PN001", '"nope"').of("purge_queue", "nope"),
        expect("PN001", "queue").of("purge_queue", None),
        expect("PN001", '"nope"').of("cleanup_queue_messages", "nope"),
        expect("PN001", "queue").of("cleanup_queue_messages", None),
        expect("PN001", '"orders"').of("cleanup_queue_messages", "orders"),
        expect("PN002", '"nope"').of("cleanup_topic_messages", "nope"),
        expect("PN002", "topic").of("cleanup_topic_messages", None),
        expect("PN002", '"billing"').of("cleanup_topic_messages", "billing"),
    ],
)
def test_bad_input(house: Engine, bad: Bad) -> None:
    bad.check(house)
