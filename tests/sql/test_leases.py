"""Leases: hold a message for longer, one, many, or all that a worker has."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from .bad_input import Bad, expect
from .conftest import ACTIVE, DEAD, DONE, READY, SCHEDULED, Clock
from .engine import Engine


def test_extend_adds_to_the_lease_and_returns_its_new_end(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    engine.send("q")
    message = engine.take("q", "t", vt_seconds=30)
    vt = engine.value("extend_message_vt", "q", message.message_id, "t", 60)
    assert vt == message.vt + timedelta(seconds=60)
    assert engine.message("q", message.message_id).vt == vt
    clock.advance(80)
    engine.maintain()
    assert engine.nothing_to_take("q")
    clock.advance(11)
    assert engine.take("q").delivery_attempts == 2


def test_extend_again_and_again(engine: Engine) -> None:
    engine.queue("q")
    engine.send("q")
    message = engine.take("q", "t")
    for _ in range(3):
        vt = engine.value("extend_message_vt", "q", message.message_id, "t", 2592000)
    assert vt == message.vt + timedelta(days=90)


def test_extending_a_batch_returns_what_the_token_holds(engine: Engine) -> None:
    engine.queue("q")
    ids = engine.send_many("q", list(range(4)))
    mine = engine.take_many("q", 2, "mine")
    theirs = engine.take("q", "theirs")
    rows = engine.rows("batch_extend_message_vt", "q", [*ids, ids[0], None, 999], "mine", 60)
    assert {row.message_id: row.vt for row in rows} == {
        m.message_id: m.vt + timedelta(seconds=60) for m in mine
    }
    assert len(rows) == 2
    assert engine.message("q", theirs.message_id).vt == theirs.vt


def test_extending_nothing_does_nothing(house: Engine) -> None:
    with house.unchanged():
        assert house.rows("batch_extend_message_vt", "billing", [], "worker", 60) == []


def test_pulse_renews_all_that_a_token_holds_in_every_queue(engine: Engine, clock: Clock) -> None:
    for queue in ("a", "b", "c"):
        engine.queue(queue)
        engine.send_many(queue, [1, 2, 3])
        engine.take_many(queue, 2, "worker", vt_seconds=30)
        engine.take(queue, "other", vt_seconds=30)
    clock.advance(20)
    before = engine.now()
    assert engine.value("pulse", "worker", 60) == 6
    after = engine.now()
    leases = engine.query("select token, vt from penstock.active")
    for token, vt in leases:
        renewed = before <= vt - timedelta(seconds=60) <= after
        assert renewed == (token == "worker")  # noqa: S105
    clock.advance(20)
    engine.maintain()
    assert {token for (token,) in engine.query("select token from penstock.active")} == {"worker"}


def test_pulse_may_be_for_some_queues_only(engine: Engine) -> None:
    for queue in ("a", "b"):
        engine.queue(queue)
        engine.send(queue)
        engine.take(queue, "worker")
    assert engine.value("pulse", "worker", 60, ["a"]) == 1
    assert engine.value("pulse", "worker", 60, []) == 0
    assert engine.value("pulse", "worker", 60, None) == 2


def test_pulse_may_be_for_some_messages_only(engine: Engine) -> None:
    """A message of a topic has the same id in each queue: the name tells them apart."""
    engine.topic("t", "a", "b")
    first, second = (engine.publish("t") for _ in range(2))
    for queue in ("a", "b"):
        engine.take_many(queue, 2, "worker")
    assert engine.value("pulse", "worker", 600, ["b", "a", "b"], [first, second, first]) == 2
    end = engine.now() + timedelta(seconds=500)
    renewed = engine.query(
        "select q.name, a.id from penstock.active a join penstock.queues q on q.id = queue_id where vt > %s",
        end,
    )
    assert set(renewed) == {("a", second), ("b", first)}
    assert engine.value("pulse", "other", 600, ["a"], [first]) == 0
    assert engine.value("pulse", "worker", 600, ["a", "b"], [None, -1]) == 0
    assert engine.value("pulse", "worker", 600, [], []) == 0


def test_pulse_renews_a_lease_that_ran_out_but_was_not_taken_back(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    engine.send("q")
    message = engine.take("q", "worker", vt_seconds=5)
    clock.advance(60)
    assert engine.value("pulse", "worker", 30) == 1
    assert engine.nothing_to_take("q")
    assert engine.ack(message)


def test_pulse_sets_the_end_it_does_not_add(engine: Engine) -> None:
    engine.queue("q")
    engine.send("q")
    message = engine.take("q", "worker", vt_seconds=3600)
    assert engine.value("pulse", "worker", 10) == 1
    assert engine.message("q", message.message_id).vt < message.vt


def test_pulse_of_zero_seconds_lets_go(engine: Engine) -> None:
    engine.queue("q")
    engine.send("q")
    engine.take("q", "worker", vt_seconds=3600)
    assert engine.value("pulse", "worker", 0) == 1
    assert engine.take("q").delivery_attempts == 2


@pytest.mark.parametrize("token", ["no_holder", "", None])
def test_pulse_of_a_token_that_holds_nothing(house: Engine, token: str | None) -> None:
    with house.unchanged():
        assert house.value("pulse", token, 60) == 0


def test_extensions_are_part_of_the_callers_transaction(engine: Engine, sql: psycopg.Connection[Any]) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    engine.take("q", "t")
    with engine.unchanged(), sql.transaction(force_rollback=True):
        engine.value("extend_message_vt", "q", message_id, "t", 60)
        engine.value("pulse", "t", 600)


@pytest.mark.parametrize(
    ("queue", "message_id", "token"),
    [
        ("billing", ACTIVE, "no_holder"),
        ("billing", ACTIVE, ""),
        ("billing", ACTIVE, None),
        ("billing", None, "worker"),
        ("billing", DEAD, "worker"),
        ("billing", DONE, "worker"),
        ("billing", SCHEDULED, "worker"),
        ("billing", READY, "worker"),
        ("billing", -1, "worker"),
        ("billing", 2**63 - 1, "worker"),
        ("audit", ACTIVE, "worker"),
    ],
)
def test_what_a_token_does_not_hold_it_cannot_extend(
    house: Engine, queue: str, message_id: int | None, token: str | None
) -> None:
    with house.unchanged():
        assert house.value("extend_message_vt", queue, message_id, token, 60) is None
        assert house.rows("batch_extend_message_vt", queue, [message_id], token, 60) == []


@pytest.mark.parametrize(
    "bad",
    [
        expect("PN001", '"nope"').of("extend_message_vt", "nope", ACTIVE, "worker", 60),
        expect("PN001", "queue").of("extend_message_vt", None, ACTIVE, "worker", 60),
        expect("PN001", '"nope"').of("batch_extend_message_vt", "nope", [ACTIVE], "worker", 60),
        *(
            expect("PN004", "extension_seconds", shown).of(
                "extend_message_vt", "billing", ACTIVE, "worker", value
            )
            for value, shown in ((0, "0"), (-1, "-1"), (2147483647, "2147483647"), (None, "null"))
        ),
        expect("PN004", "extension_seconds", "-1").of(
            "batch_extend_message_vt", "billing", [ACTIVE], "worker", -1
        ),
        expect("PN004", "message_ids", "null").of("batch_extend_message_vt", "billing", None, "worker", 60),
        *(
            expect("PN004", "vt_seconds", shown).of("pulse", "worker", value)
            for value, shown in ((-1, "-1"), (2147483647, "2147483647"), (None, "null"))
        ),
        expect("PN004", "1 message_ids", "0 queue_names").of("pulse", "worker", 60, None, [ACTIVE]),
        expect("PN004", "2 message_ids", "1 queue_names").of(
            "pulse", "worker", 60, ["billing"], [ACTIVE, ACTIVE]
        ),
        expect("PN001", '"nope"').of("pulse", "worker", 60, ["nope"], [ACTIVE]),
    ],
)
def test_bad_input(house: Engine, bad: Bad) -> None:
    bad.check(house)


def test_pulse_of_an_unknown_queue_is_an_error(engine: Engine) -> None:
    engine.queue("q")
    engine.send("q")
    engine.take("q", "me")
    with engine.refused("PN001", '"nope"'):
        engine.value("pulse", "me", 60, ["q", "nope"])
