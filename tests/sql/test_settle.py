"""Settling: ack, nack, release, reject, and that a stale token changes nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from .bad_input import Bad, expect
from .conftest import ACTIVE, DEAD, DONE, READY, SCHEDULED, Clock
from .engine import Engine, Row, fingerprint


@pytest.fixture
def held(engine: Engine) -> Row:
    """A message of queue q that a consumer holds."""
    engine.queue("q")
    engine.send("q", {"n": 1}, headers={"h": 1}, tenant="acme", priority=1)
    return engine.take("q", "holder")


def test_ack_completes_a_message_once(engine: Engine, held: Row) -> None:
    before = engine.now()
    assert engine.ack(held)
    assert not engine.ack(held)
    row = engine.message("q", held.message_id)
    assert (row.state, row.payload, row.headers, row.tenant) == ("done", {"n": 1}, {"h": 1}, "acme")
    assert (row.consumer, row.delivery_attempts, row.result) == (fingerprint("holder"), 1, None)
    assert before <= row.completed_at <= engine.now()
    assert engine.nothing_to_take("q")


@pytest.mark.parametrize("result", [{"total": 3}, [1, 2], "text", 0, False, None])
def test_ack_keeps_the_result(engine: Engine, held: Row, result: Any) -> None:
    assert engine.ack(held, result=Jsonb(result))
    assert engine.message("q", held.message_id).result == result


def test_ack_without_history_keeps_nothing(engine: Engine) -> None:
    engine.queue("q", retain_completed_seconds=0)
    before = engine.belongings()
    engine.send("q", "x" * 5000, dedup_key="k")
    assert engine.ack(engine.take("q"), result={"lost": True})
    assert engine.belongings() == before


def test_acks_in_a_batch_return_what_was_held(engine: Engine) -> None:
    engine.queue("q")
    ids = engine.send_many("q", list(range(5)))
    engine.take_many("q", 3, "mine")
    engine.take("q", "theirs")
    tokens = ["mine"] * 5
    assert sorted(engine.values("ack_messages", "q", ids, tokens)) == ids[:3]
    assert [engine.state("q", i) for i in ids] == ["done"] * 3 + ["active", "ready"]
    assert engine.values("ack_messages", "q", ids, tokens) == []


def test_acks_in_a_batch_compare_tokens_pair_by_pair(engine: Engine) -> None:
    engine.queue("q")
    ids = engine.send_many("q", list(range(4)))
    for token in "abcd":
        engine.take("q", token)
    acked = engine.values("ack_messages", "q", ids, ["a", "c", "b", "d"])
    assert sorted(acked) == [ids[0], ids[3]]


@pytest.mark.parametrize("tokens", [["t", "t"], ["t", None], [None, "t"], ["t", ""]])
def test_acks_of_the_same_message_twice_in_a_batch_count_once(
    engine: Engine, tokens: list[str | None]
) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    engine.take("q", "t")
    assert engine.values("ack_messages", "q", [message_id, message_id], tokens) == [message_id]
    assert engine.statistics("q").completed_count == 1


@pytest.mark.parametrize("tokens", [["t", "t", "t"], ["t", "u", "t"]], ids=["one token", "two tokens"])
def test_acks_in_a_batch_keep_each_result_with_its_message(engine: Engine, tokens: list[str]) -> None:
    engine.queue("q")
    ids = engine.send_many("q", [1, 2, 3])
    for token in tokens:
        engine.take("q", token)
    backwards = list(reversed(ids))
    results = [{"of": message_id} for message_id in backwards]
    engine.values("ack_messages", "q", backwards, list(reversed(tokens)), results)
    assert [engine.message("q", i).result for i in ids] == [{"of": i} for i in ids]


@pytest.mark.parametrize("ids", ["{1,2}", "[0:1]={1,2}", "[5:6]={1,2}"])
@pytest.mark.parametrize("tokens", ["{t,t}", "[0:1]={t,t}", "{t,u}", "[7:8]={t,u}"])
def test_arrays_may_begin_anywhere(engine: Engine, ids: str, tokens: str) -> None:
    engine.queue("q")
    engine.send_many("q", [1, 2])
    for token in "tu" if "u" in tokens else "tt":
        engine.take("q", token)
    acked = engine.values("ack_messages", "q", ids, tokens, "[-3:-2]={10,20}")
    assert sorted(acked) == [1, 2]
    assert [engine.message("q", message_id).result for message_id in (1, 2)] == [10, 20]


def test_acks_of_nothing_do_nothing(house: Engine) -> None:
    with house.unchanged():
        assert house.values("ack_messages", "billing", [], []) == []
        assert house.values("ack_messages", "billing", [None], ["worker"]) == []
        assert house.values("ack_messages", "billing", [ACTIVE], [None]) == []


def test_ack_is_part_of_the_callers_transaction(
    engine: Engine, held: Row, sql: psycopg.Connection[Any]
) -> None:
    with engine.unchanged(), sql.transaction(force_rollback=True):
        assert engine.ack(held)
    assert engine.ack(held)


def test_a_late_ack_counts_until_the_lease_is_taken_back(engine: Engine, held: Row, clock: Clock) -> None:
    clock.advance(3600)
    assert engine.ack(held)
    assert engine.nothing_to_take("q")


@pytest.mark.parametrize("taken_by", ["consume", "maintain"])
@pytest.mark.parametrize("call", ["ack", "nack", "release", "reject", "extend", "pulse"])
def test_a_stale_token_changes_nothing(
    engine: Engine, held: Row, clock: Clock, taken_by: str, call: str
) -> None:
    clock.advance(31)
    if taken_by == "consume":
        assert engine.take("q", "next").message_id == held.message_id
    else:
        engine.maintain()
    with engine.unchanged():
        if call == "extend":
            assert engine.value("extend_message_vt", "q", held.message_id, "holder", 5) is None
        elif call == "pulse":
            assert engine.value("pulse", "holder", 60) == 0
        else:
            assert getattr(engine, call)(held) is False


def test_nack_gives_the_message_back_for_another_attempt(engine: Engine, held: Row) -> None:
    assert engine.nack(held, error="no luck")
    assert not engine.nack(held)
    again = engine.take("q")
    assert (again.message_id, again.delivery_attempts) == (held.message_id, 2)
    assert (again.payload, again.headers, again.tenant, again.priority) == ({"n": 1}, {"h": 1}, "acme", 1)
    assert again.published_at == held.published_at


def test_nack_with_a_delay_waits(engine: Engine, held: Row, clock: Clock) -> None:
    before = engine.now()
    assert engine.nack(held, delay_seconds=60)
    row = engine.message("q", held.message_id)
    assert row.state == "scheduled"
    assert before <= row.due_at - timedelta(seconds=60) <= engine.now()
    clock.advance(50)
    assert engine.nothing_to_take("q")
    clock.advance(11)
    assert engine.take("q").delivery_attempts == 2


def test_nack_without_delay_goes_to_the_front(engine: Engine) -> None:
    engine.queue("q")
    ids = engine.send_many("q", list(range(5)))
    engine.nack(engine.take("q"))
    assert [m.message_id for m in engine.take_many("q", 10)] == ids


def test_a_retry_after_a_delay_goes_to_the_front(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    ids = engine.send_many("q", list(range(5)))
    engine.nack(engine.take("q"), delay_seconds=5)
    clock.advance(6)
    engine.maintain()
    assert [m.message_id for m in engine.take_many("q", 10)] == ids


def test_nack_on_the_last_attempt_goes_to_the_dead_letters(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=2)
    message_id = engine.send("q")
    assert engine.nack(engine.take("q"), error="first")
    assert engine.nack(engine.take("q"), error="second", delay_seconds=60)
    row = engine.message("q", message_id)
    assert (row.state, row.reason, row.delivery_attempts) == ("dead", "no_attempts_left", 2)
    assert row.last_error == "second"
    assert [(e["attempt"], e["error"]) for e in row.errors] == [(1, "first"), (2, "second")]


def test_release_gives_the_message_back_with_the_attempt_not_counted(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=1)
    ids = engine.send_many("q", [1, 2])
    for _ in range(5):
        message = engine.take("q")
        assert (message.message_id, message.delivery_attempts) == (ids[0], 1)
        assert engine.release(message)
        assert not engine.release(message)
    assert engine.message("q", ids[0]).errors == []


def test_release_keeps_the_attempts_that_did_count(engine: Engine) -> None:
    engine.queue("q")
    engine.send("q")
    engine.nack(engine.take("q"))
    engine.release(engine.take("q"))
    assert engine.take("q").delivery_attempts == 2


def test_reject_goes_to_the_dead_letters_now(engine: Engine, held: Row) -> None:
    before = engine.now()
    assert engine.reject(held, error="malformed")
    assert not engine.reject(held)
    row = engine.message("q", held.message_id)
    assert (row.state, row.reason, row.delivery_attempts) == ("dead", "failed", 1)
    assert row.last_error == "malformed"
    assert before <= row.moved_at <= engine.now()


@pytest.mark.parametrize("call", ["nack", "reject"])
def test_no_error_given_none_recorded(engine: Engine, call: str) -> None:
    engine.queue("q", max_delivery_attempts=1)
    engine.send("q")
    message = engine.take("q")
    assert getattr(engine, call)(message)
    row = engine.message("q", message.message_id)
    assert (row.state, row.last_error, row.errors) == ("dead", None, [])


def test_the_last_ten_errors_are_kept(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=12)
    engine.send("q")
    for attempt in range(1, 13):
        engine.nack(engine.take("q"), error=f"error {attempt}")
    (letter,) = engine.rows("list_dlq_messages", "q")
    assert [e["attempt"] for e in letter.errors] == list(range(3, 13))
    assert letter.last_error == "error 12"


def test_an_error_of_32000_characters_or_none_is_kept_whole(engine: Engine) -> None:
    engine.queue("q")
    long = ("stack trace\n" * 3000)[:32000]
    engine.send("q")
    engine.nack(engine.take("q"), error="")
    engine.reject(engine.take("q"), error=long)
    (letter,) = engine.rows("list_dlq_messages", "q")
    assert [e["error"] for e in letter.errors] == ["", long]
    assert letter.last_error == long


@pytest.mark.parametrize("call", ["ack", "nack", "release", "reject"])
def test_all_of_it_is_part_of_the_callers_transaction(
    engine: Engine, held: Row, sql: psycopg.Connection[Any], call: str
) -> None:
    with engine.unchanged(), sql.transaction(force_rollback=True):
        assert getattr(engine, call)(held)


@pytest.mark.parametrize("call", ["ack", "nack", "release", "reject"])
def test_a_paused_queue_lets_consumers_finish(engine: Engine, held: Row, call: str) -> None:
    engine.value("pause_queue", "q")
    assert getattr(engine, call)(held)


NOT_HELD = [
    ("billing", ACTIVE, "no_holder"),
    ("billing", ACTIVE, "WORKER"),
    ("billing", ACTIVE, ""),
    ("billing", ACTIVE, None),
    ("billing", DEAD, "worker"),
    ("billing", DONE, "worker"),
    ("billing", SCHEDULED, "worker"),
    ("billing", READY, "worker"),
    ("billing", 999999, "worker"),
    ("billing", 0, "worker"),
    ("billing", -1, "worker"),
    ("billing", 2**63 - 1, "worker"),
    ("billing", None, "worker"),
    ("audit", ACTIVE, "worker"),
]


@pytest.mark.parametrize(("queue", "message_id", "token"), NOT_HELD)
@pytest.mark.parametrize("function", ["ack_message", "nack_message", "release_message", "reject_message"])
def test_what_a_token_does_not_hold_it_cannot_settle(
    house: Engine, function: str, queue: str, message_id: int | None, token: str | None
) -> None:
    with house.unchanged():
        assert house.value(function, queue, message_id, token) is False


@pytest.mark.parametrize(
    "bad",
    [
        *(
            expect("PN001", '"nope"').of(function, "nope", ACTIVE, "worker")
            for function in ("ack_message", "nack_message", "release_message", "reject_message")
        ),
        *(
            expect("PN001", "queue").of(function, None, ACTIVE, "worker")
            for function in ("ack_message", "nack_message", "release_message", "reject_message")
        ),
        expect("PN001", '"nope"').of("ack_messages", "nope", [ACTIVE], ["worker"]),
        expect("PN001", '"nope"').of("ack_messages", "nope", [], []),
        expect("PN004", "2 ids", "1 tokens").of("ack_messages", "billing", [ACTIVE, READY], ["worker"]),
        expect("PN004", "0 ids", "1 tokens").of("ack_messages", "billing", [], ["worker"]),
        expect("PN004", "1 ids", "0 tokens").of("ack_messages", "billing", [ACTIVE], []),
        expect("PN004", "null").of("ack_messages", "billing", None, ["worker"]),
        expect("PN004", "null").of("ack_messages", "billing", [ACTIVE], None),
        expect("PN004", "2 results").of("ack_messages", "billing", [ACTIVE], ["worker"], [{}, {}]),
        expect("PN004", "delay_seconds", "-1").of(
            "nack_message", "billing", ACTIVE, "worker", delay_seconds=-1
        ),
        expect("PN004", "delay_seconds", "2147483647").of(
            "nack_message", "billing", ACTIVE, "worker", delay_seconds=2147483647
        ),
        expect("22P05").of("ack_message", "billing", ACTIVE, "worker", result='"\\u0000"'),
    ],
)
def test_bad_input(house: Engine, bad: Bad) -> None:
    bad.check(house)
