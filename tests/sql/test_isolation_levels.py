"""Isolation levels: claiming needs READ COMMITTED, all else works in any and loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from ..conftest import Connect
from .engine import Engine

STRICT = ["repeatable read", "serializable"]
strict = pytest.mark.parametrize("level", STRICT)


def connect_at(connect: Connect, level: str) -> psycopg.Connection[Any]:
    """A connection whose every transaction has that level."""
    connection = connect()
    connection.execute("select set_config('default_transaction_isolation', %s, false)", (level,))
    return connection


@strict
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("consume_message", ["billing"]),
        ("consume_messages_batch", ["billing"]),
        ("maintain", []),
        ("sample", []),
        ("raise_floor", ["billing"]),
    ],
)
def test_what_needs_read_committed_says_so(
    engine: Engine, connect: Connect, level: str, function: str, arguments: list[str]
) -> None:
    engine.topic("orders", "billing")
    engine.publish("orders")
    strictly = Engine(connect_at(connect, level))
    with engine.unchanged(), pytest.raises(psycopg.Error) as caught:
        strictly.rows(function, *arguments)
    assert caught.value.sqlstate == "PN006"
    assert level.upper() in str(caught.value.diag.message_primary)
    assert caught.value.diag.message_hint


@pytest.mark.parametrize("level", ["read committed", "read uncommitted"])
def test_claiming_works_in_the_weak_levels(engine: Engine, sql: psycopg.Connection[Any], level: str) -> None:
    engine.queue("q")
    engine.send("q")
    with sql.transaction():
        sql.execute(f"set transaction isolation level {level}".encode())
        assert engine.ack(engine.take("q"))
    engine.maintain()


Step = Callable[[Engine], None]


def publish(engine: Engine) -> None:
    engine.publish("t", "again", tenant="acme")


def publish_mixed(engine: Engine) -> None:
    engine.send_many("q", ["again"], priorities=[2], tenants=["acme"])


def publish_with_key(engine: Engine) -> None:
    engine.send("q", "again", dedup_key="k")


def nack(engine: Engine) -> None:
    assert engine.value("nack_message", "q", 1, "holder")


def release(engine: Engine) -> None:
    assert engine.value("release_message", "q", 1, "holder")


def requeue(engine: Engine) -> None:
    assert engine.value("requeue_dlq_messages", "q", [2]) == 1


def add_retries(engine: Engine) -> None:
    assert engine.value("add_retries", "q", 2) == 1


ENTER = [publish, publish_mixed, publish_with_key, nack, release, requeue, add_retries]


@strict
@pytest.mark.parametrize("step", ENTER, ids=lambda step: step.__name__)
def test_what_enters_under_an_old_snapshot_is_above_the_floor(
    engine: Engine, connect: Connect, level: str, step: Step
) -> None:
    engine.topic("t", "q", max_delivery_attempts=2)
    engine.send_many("q", ["again", "again", "again"])
    engine.take("q", "holder")
    engine.reject(engine.take("q"))
    if step is add_retries:
        for _ in range(2):
            engine.nack(engine.take("q"))
    else:
        engine.ack(engine.take("q"))
    old = Engine(connect())
    with old.connection.transaction():
        old.connection.execute(f"set transaction isolation level {level}".encode())
        old.statistics("q")
        # Meanwhile messages come and go and the floor rises, out of sight of the old snapshot.
        for _ in range(2):
            engine.send_many("q", list(range(20)))
            for message in engine.take_many("q", 20):
                engine.ack(message)
            assert engine.value("raise_floor", "q")
        step(old)
    engine.value("raise_floor", "q")
    assert engine.take("q").payload == "again"


@strict
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("ack_message", ["q", 1, "holder"]),
        ("ack_messages", ["q", [1], ["holder"]]),
        ("reject_message", ["q", 1, "holder"]),
        ("extend_message_vt", ["q", 1, "holder", 60]),
        ("pulse", ["holder", 60]),
        ("cancel_message", ["q", 3]),
        ("purge_dlq", ["q"]),
        ("cleanup_queue_messages", ["q"]),
        ("create_topic", ["new"]),
        ("create_queue", ["new"]),
        ("alter_queue", ["q", 5]),
        ("pause_queue", ["q"]),
        ("resume_queue", ["q"]),
        ("get_message", ["q", 1]),
        ("list_messages", ["q"]),
        ("list_dlq_messages", []),
        ("explain_delivery", ["q", 3]),
        ("get_queue_statistics", []),
        ("cleanup_expired_exclusive_queues", []),
    ],
)
def test_all_else_works_in_the_strict_levels(
    engine: Engine, sql: psycopg.Connection[Any], level: str, function: str, arguments: list[Any]
) -> None:
    engine.topic("t", "q")
    engine.send_many("q", [1, 2, 3])
    engine.take("q", "holder")
    engine.reject(engine.take("q"))
    with sql.transaction():
        sql.execute(f"set transaction isolation level {level}".encode())
        rows = engine.rows(function, *arguments)
    if function in ("ack_message", "reject_message", "cancel_message"):
        assert vars(rows[0]) == {function: True}


@strict
@pytest.mark.parametrize(
    ("function", "arguments"),
    [("purge_queue", ["q"]), ("purge_all_messages", []), ("delete_queue", ["q"]), ("delete_topic", ["t"])],
)
def test_nothing_is_deleted_whole_under_a_snapshot_that_may_not_see_all(
    engine: Engine, sql: psycopg.Connection[Any], level: str, function: str, arguments: list[Any]
) -> None:
    engine.topic("t", "q")
    engine.send_many("q", [1, 2, 3])
    with sql.transaction():
        sql.execute(f"set transaction isolation level {level}".encode())
        with engine.refused("PN006"):
            engine.rows(function, *arguments)
    assert engine.statistics("q").pending_count == 3


@strict
def test_a_transaction_sees_its_own_messages(
    engine: Engine, sql: psycopg.Connection[Any], level: str
) -> None:
    engine.queue("q")
    with sql.transaction():
        sql.execute(f"set transaction isolation level {level}".encode())
        message_id = engine.send("q", dedup_key="k")
        assert engine.send("q", dedup_key="k") == message_id
        assert engine.statistics("q").pending_count == 1
        assert engine.value("cancel_message", "q", message_id)
    assert engine.states("q") == {}


@strict
def test_messages_of_strict_publishers_come_in_order(engine: Engine, connect: Connect, level: str) -> None:
    engine.queue("q")
    publisher = Engine(connect_at(connect, level))
    ids = [publisher.send("q", tenant="acme") for _ in range(10)]
    assert [m.message_id for m in engine.take_many("q", 10)] == ids
