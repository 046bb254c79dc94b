"""Queues: create, alter, pause, resume, delete, list."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from .bad_input import Bad, expect
from .engine import Engine

DEFAULTS: dict[str, Any] = {
    "max_delivery_attempts": 3,
    "visibility_timeout_seconds": 30,
    "visibility_backoff": 1.0,
    "retry_delays": [0],
    "message_ttl_seconds": None,
    "retain_completed_seconds": 86400,
    "retain_dead_seconds": 2592000,
    "max_payload_bytes": 256000000,
    "max_active": None,
    "min_active": 5,
    "priority_shares": [40, 30, 20, 10],
    "tenant_max_active": None,
    "notify": True,
}

OTHERS: dict[str, Any] = {
    "max_delivery_attempts": 0,
    "visibility_timeout_seconds": 60,
    "visibility_backoff": 1.5,
    "retry_delays": [1, 10, 60],
    "message_ttl_seconds": 86400,
    "retain_completed_seconds": 0,
    "retain_dead_seconds": 3600,
    "max_payload_bytes": 1000,
    "max_active": 100,
    "min_active": 0,
    "priority_shares": [100, 0, 0, 0],
    "tenant_max_active": 7,
    "notify": False,
}

# A setting, a value that it may not have, and how the message shows that value.
WRONG: list[tuple[str, Any, str]] = [
    ("max_delivery_attempts", -1, "-1"),
    ("max_delivery_attempts", 2147483647, "2147483647"),
    ("visibility_timeout_seconds", -1, "-1"),
    ("visibility_timeout_seconds", 2147483647, "2147483647"),
    ("visibility_backoff", 0.99, "0.99"),
    ("visibility_backoff", -1.0, "-1"),
    ("visibility_backoff", float("inf"), "Infinity"),
    ("visibility_backoff", float("nan"), "NaN"),
    ("retry_delays", [], "{}"),
    ("retry_delays", [-1], "-1"),
    ("retry_delays", [1, None], "NULL"),
    ("retry_delays", [2147483647], "2147483647"),
    ("retry_delays", [[1, 2], [3, 4]], "{{1,2},{3,4}}"),
    ("message_ttl_seconds", -1, "-1"),
    ("retain_completed_seconds", -1, "-1"),
    ("retain_dead_seconds", -1, "-1"),
    ("max_payload_bytes", 0, "0"),
    ("max_payload_bytes", -1, "-1"),
    ("max_payload_bytes", 256000001, "256000001"),
    ("max_active", -1, "-1"),
    ("min_active", -1, "-1"),
    ("priority_shares", [], "{}"),
    ("priority_shares", [50, 50], "{50,50}"),
    ("priority_shares", [40, 30, 20, 9], "{40,30,20,9}"),
    ("priority_shares", [140, -20, -10, -10], "-20"),
    ("priority_shares", [50, 50, None, None], "NULL"),
    ("priority_shares", [25, 25, 25, 25, 0], "{25,25,25,25,0}"),
    ("priority_shares", [[50, 50], [0, 0]], "{{50,50},{0,0}}"),
    ("tenant_max_active", -1, "-1"),
]

NEVER_NULL = [name for name, value in DEFAULTS.items() if value is not None]


def shown(engine: Engine, queue: str) -> dict[str, Any]:
    """The settings of a queue as list_queues() shows them."""
    row = vars(engine.settings(queue))
    return {name: row[name] for name in DEFAULTS}


def test_create_returns_the_id_and_the_same_id_again(engine: Engine) -> None:
    first = engine.value("create_queue", "billing")
    other = engine.value("create_queue", "audit")
    assert engine.value("create_queue", "billing") == first != other
    assert engine.count("queues") == 2


def test_the_defaults_are_those_of_the_design(engine: Engine) -> None:
    engine.queue("q")
    assert shown(engine, "q") == DEFAULTS
    row = engine.settings("q")
    assert (row.topic_name, row.exclusive, row.keep_alive_until, row.paused_at) == (None, False, None, None)


def test_every_setting_is_kept_and_shown(engine: Engine) -> None:
    engine.queue("q", **OTHERS)
    assert shown(engine, "q") == OTHERS
    assert engine.value("create_queue", "q", **OTHERS) == engine.settings("q").id


def test_list_shows_queues_by_name_with_their_topic(engine: Engine) -> None:
    before = engine.now()
    engine.topic("orders", "b")
    engine.queue("a")
    rows = engine.rows("list_queues")
    assert [(row.name, row.topic_name) for row in rows] == [("a", None), ("b", "orders")]
    assert rows[0].id == engine.value("create_queue", "a")
    assert before <= rows[1].created_at <= rows[0].created_at


@pytest.mark.parametrize("setting", OTHERS)
def test_another_setting_is_an_error_that_names_the_difference(engine: Engine, setting: str) -> None:
    engine.queue("q")
    other = OTHERS[setting]
    shown_value = str(other).lower().removesuffix(".0") if not isinstance(other, list) else str(other)
    with engine.refused("PN003", '"q"', setting, shown_value):
        engine.queue("q", **{setting: other})


def test_another_topic_or_exclusive_is_an_error_that_names_the_difference(engine: Engine) -> None:
    engine.topic("orders", "q")
    engine.topic("returns")
    with engine.refused("PN003", '"q"', "topic_name", "orders", "returns"):
        engine.queue("q", topic_name="returns")
    with engine.refused("PN003", '"q"', "topic_name", "orders"):
        engine.queue("q")
    with engine.refused("PN003", '"q"', "exclusive"):
        engine.queue("q", topic_name="orders", exclusive=True)


def test_all_differences_are_named_at_once(engine: Engine) -> None:
    engine.queue("q")
    with engine.refused("PN003", *OTHERS):
        engine.queue("q", **OTHERS)


def test_a_queue_gets_what_is_published_from_its_creation_on(engine: Engine) -> None:
    engine.topic("orders", "early")
    engine.publish("orders")
    engine.queue("late", topic_name="orders")
    later = engine.publish("orders")
    assert list(engine.states("late")) == [later]


@pytest.mark.parametrize("setting", OTHERS)
def test_alter_changes_one_setting_and_no_other(engine: Engine, setting: str) -> None:
    engine.queue("q")
    engine.queue("bystander")
    engine.value("alter_queue", "q", **{setting: OTHERS[setting]})
    assert shown(engine, "q") == DEFAULTS | {setting: OTHERS[setting]}
    assert shown(engine, "bystander") == DEFAULTS


def test_alter_with_nulls_changes_nothing(engine: Engine) -> None:
    engine.queue("q", **OTHERS)
    with engine.unchanged():
        engine.value("alter_queue", "q")
        engine.value("alter_queue", "q", **dict.fromkeys(OTHERS))


@pytest.mark.parametrize("setting", ["message_ttl_seconds", "max_active", "tenant_max_active"])
def test_alter_to_zero_takes_a_limit_away(engine: Engine, setting: str) -> None:
    engine.queue("q", **OTHERS)
    engine.value("alter_queue", "q", **{setting: 0})
    assert shown(engine, "q") == OTHERS | {setting: None}


def test_altered_settings_are_the_ones_to_create_with(engine: Engine) -> None:
    engine.queue("q")
    engine.value("alter_queue", "q", **OTHERS)
    assert engine.value("create_queue", "q", **OTHERS) == engine.settings("q").id
    with engine.refused("PN003", '"q"'):
        engine.queue("q")


def test_delete_takes_all_that_belongs_to_it_and_nothing_else(engine: Engine) -> None:
    engine.topic("orders", "stays")
    engine.send("stays", "x" * 4000, dedup_key="k")
    kept = engine.belongings()
    engine.queue("goes", topic_name="orders")
    for payload in ("active", "dead", "done", "x" * 4000):
        engine.send("goes", payload)
    engine.send("goes", "keyed", dedup_key="k")
    engine.send("goes", "later", deliver_after="2999-01-01")
    engine.take("goes")
    engine.reject(engine.take("goes"))
    engine.ack(engine.take("goes"))
    engine.value("delete_queue", "goes")
    engine.maintain()
    assert engine.belongings() == kept


def test_a_deleted_queue_comes_back_empty(engine: Engine) -> None:
    engine.queue("q")
    old = engine.send("q", dedup_key="k")
    engine.value("delete_queue", "q")
    engine.queue("q", max_delivery_attempts=9)
    assert engine.states("q") == {}
    assert engine.send("q", dedup_key="k") != old


def test_a_message_of_a_deleted_queue_cannot_be_settled(engine: Engine) -> None:
    engine.queue("q")
    engine.send("q")
    message = engine.take("q")
    engine.value("delete_queue", "q")
    with engine.refused("PN001", '"q"'):
        engine.ack(message)


def test_a_paused_queue_takes_messages_and_gives_none(engine: Engine) -> None:
    engine.queue("q")
    first = engine.send("q")
    held = engine.take("q")
    engine.value("pause_queue", "q")
    engine.send("q")
    assert engine.nothing_to_take("q")
    assert engine.take_many("q", 10) == []
    assert engine.ack(held)
    assert engine.statistics("q").pending_count == 1
    engine.value("resume_queue", "q")
    assert engine.take("q").message_id > first


def test_pause_is_shown_and_pausing_again_keeps_the_time(engine: Engine) -> None:
    engine.queue("q")
    engine.queue("bystander")
    before = engine.now()
    engine.value("pause_queue", "q")
    paused_at = engine.settings("q").paused_at
    assert before <= paused_at <= engine.now()
    engine.value("pause_queue", "q")
    assert engine.settings("q").paused_at == paused_at
    assert engine.settings("bystander").paused_at is None
    engine.value("resume_queue", "q")
    assert engine.settings("q").paused_at is None
    engine.value("resume_queue", "q")


@pytest.mark.parametrize("function", ["pause_queue", "resume_queue"])
@pytest.mark.parametrize("others", ["none", "running", "paused"])
def test_pause_and_resume_of_an_unknown_queue_are_errors_whatever_others_do(
    engine: Engine, function: str, others: str
) -> None:
    if others != "none":
        engine.queue("other")
    if others == "paused":
        engine.value("pause_queue", "other")
    with engine.refused("PN001", '"nope"'):
        engine.value(function, "nope")


def test_all_of_it_belongs_to_the_callers_transaction(engine: Engine, sql: psycopg.Connection[Any]) -> None:
    engine.queue("old")
    engine.send("old")
    with engine.unchanged(), sql.transaction(force_rollback=True):
        engine.queue("new")
        engine.value("alter_queue", "old", max_active=5)
        engine.value("pause_queue", "old")
        engine.value("delete_queue", "old")


@pytest.mark.parametrize(("setting", "value", "named"), WRONG)
def test_create_refuses_a_wrong_setting(house: Engine, setting: str, value: Any, named: str) -> None:
    with house.refused("PN004", setting, named):
        house.queue("new", **{setting: value})


@pytest.mark.parametrize(("setting", "value", "named"), WRONG)
def test_alter_refuses_a_wrong_setting_and_keeps_all(
    house: Engine, setting: str, value: Any, named: str
) -> None:
    with house.refused("PN004", setting, named):
        house.value("alter_queue", "billing", **({"min_active": 1} | {setting: value}))


@pytest.mark.parametrize("setting", [*NEVER_NULL, "exclusive"])
def test_create_refuses_null_where_it_means_nothing(house: Engine, setting: str) -> None:
    with house.refused("PN004", setting, "null"):
        house.queue("new", **{setting: None})


@pytest.mark.parametrize("delays", ["[0:1]={1,2}", "[5:6]={1,2}"])
@pytest.mark.parametrize("end", ["nack", "lease"])
def test_retry_delays_count_from_the_first_whatever_their_subscripts(
    engine: Engine, delays: str, end: str
) -> None:
    engine.queue("q", retry_delays=delays)
    engine.send("q")
    message = engine.take("q", vt_seconds=0 if end == "lease" else 30)
    assert engine.maintain() if end == "lease" else engine.nack(message, error="failed")
    row = engine.message("q", message.message_id)
    assert row.state == "scheduled"
    assert row.due_at - datetime.fromisoformat(row.errors[-1]["at"]) == timedelta(seconds=1)


@pytest.mark.parametrize(
    "bad",
    [
        expect("PN004", "queue_name", "null").of("create_queue", None),
        expect("PN004", "queue_name", "0").of("create_queue", ""),
        expect("PN004", "queue_name", "256").of("create_queue", "x" * 256),
        expect("PN004", "queue_name", "256").of("create_queue", "ü" * 256),
        expect("PN002", '"nope"').of("create_queue", "new", "nope"),
        expect("PN002", '""').of("create_queue", "new", ""),
        expect("PN004", "keep_alive_seconds", '"new"').of("create_queue", "new", keep_alive_seconds=5),
        *(
            expect("PN001", '"nope"').of(function, "nope")
            for function in ("alter_queue", "delete_queue", "pause_queue", "resume_queue")
        ),
        *(
            expect("PN001", "queue").of(function, None)
            for function in ("alter_queue", "delete_queue", "pause_queue", "resume_queue")
        ),
        expect("PN001", '"nope"').of("alter_queue", "nope", max_active=-1),
        expect("PN001", '"orders"').of("delete_queue", "orders"),
    ],
)
def test_bad_input(house: Engine, bad: Bad) -> None:
    bad.check(house)
