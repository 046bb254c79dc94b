"""Schedules: the caller that moves a schedule sends its message, once for each tick."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from .bad_input import Bad, expect
from .conftest import Clock
from .engine import Engine, Row

Sql = psycopg.Connection[Any]

FIRST = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = FIRST + timedelta(hours=1)
THIRD = FIRST + timedelta(hours=2)
HOURLY = {"every": 3600}


@pytest.fixture
def queue(engine: Engine) -> Engine:
    engine.value("declare_queue", "q")
    return engine


def put(engine: Engine, next_at: datetime = FIRST, **changes: Any) -> datetime:
    values: dict[str, Any] = {
        "name": "nightly",
        "queue_name": "q",
        "payload": {"n": 1},
        "headers": {"task": "clean"},
        "priority": 1,
        "tenant": "acme",
        "ttl_seconds": 60,
        "definition": HOURLY,
        "missed": "skip",
        "next_at": next_at,
    }
    in_force = engine.value("put_schedule", **(values | changes))
    assert isinstance(in_force, datetime)
    return in_force


def advance(engine: Engine, expected: datetime, next_at: datetime, *ticks: datetime) -> list[int]:
    return engine.values("advance_schedule", "nightly", expected, next_at, list(ticks))


def the_one(engine: Engine) -> Row:
    return engine.row("list_schedules")


def version(engine: Engine) -> list[Any]:
    return engine.query("select xmin::text, ctid::text from penstock.schedules")


def test_a_schedule_is_listed(queue: Engine) -> None:
    assert put(queue) == FIRST
    created_at = the_one(queue).created_at
    assert vars(the_one(queue)) == {
        **{"name": "nightly", "queue_name": "q", "payload": {"n": 1}, "headers": {"task": "clean"}},
        **{"priority": 1, "tenant": "acme", "ttl_seconds": 60, "definition": HOURLY, "missed": "skip"},
        **{"next_at": FIRST, "last_tick": None, "paused_at": None, "created_at": created_at},
    }
    assert abs(queue.now() - created_at) < timedelta(minutes=1)


def test_the_same_again_keeps_the_time_and_writes_nothing(queue: Engine) -> None:
    put(queue)
    before = version(queue)
    assert put(queue, SECOND) == FIRST
    assert version(queue) == before


@pytest.mark.parametrize(
    "change",
    [
        {"payload": {"n": 2}},
        {"headers": None},
        {"priority": 3},
        {"tenant": None},
        {"ttl_seconds": None},
        {"missed": "all"},
        {"queue_name": "other"},
    ],
)
def test_a_change_that_is_not_of_the_definition_keeps_the_time(queue: Engine, change: dict[str, Any]) -> None:
    queue.value("declare_queue", "other")
    put(queue)
    before = vars(the_one(queue))
    assert put(queue, SECOND, **change) == FIRST
    assert vars(the_one(queue)) == before | change


def test_another_definition_takes_another_time(queue: Engine) -> None:
    put(queue)
    assert put(queue, THIRD, definition={"every": 60}) == THIRD
    assert (the_one(queue).definition, the_one(queue).next_at) == ({"every": 60}, THIRD)


def test_the_caller_that_moves_a_schedule_sends(queue: Engine) -> None:
    put(queue)
    (message_id,) = advance(queue, FIRST, SECOND, FIRST)
    message = queue.take("q")
    assert (message.message_id, message.payload, message.priority, message.tenant) == (
        *(message_id, {"n": 1}, 1),
        "acme",
    )
    assert message.headers == {"task": "clean", "tick": "2030-01-01T00:00:00+00:00"}
    details = queue.message("q", message_id)
    assert details.expires_at - details.published_at == timedelta(seconds=60)
    assert (the_one(queue).next_at, the_one(queue).last_tick) == (SECOND, FIRST)


def test_the_second_caller_sends_nothing(queue: Engine) -> None:
    put(queue)
    advance(queue, FIRST, SECOND, FIRST)
    with queue.unchanged():
        assert advance(queue, FIRST, SECOND, FIRST) == []
        assert advance(queue, FIRST, THIRD, FIRST) == []
        assert queue.values("advance_schedule", "another", FIRST, SECOND, [FIRST]) == []
    assert len(advance(queue, SECOND, THIRD, SECOND)) == 1


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns"])
def test_a_message_for_each_tick_in_utc(queue: Engine, sql: Sql, zone: str) -> None:
    sql.execute("select set_config('timezone', %s, false)", (zone,))
    put(queue, headers=None, tenant=None)
    ticks = [FIRST, FIRST + timedelta(seconds=1), FIRST + timedelta(microseconds=1500000)]
    ids = advance(queue, FIRST, SECOND, *ticks)
    messages = queue.take_many("q", 10)
    assert [message.message_id for message in messages] == ids
    assert [list(message.headers) for message in messages] == [["tick"]] * 3
    told = [message.headers["tick"] for message in messages]
    assert [datetime.fromisoformat(tick) for tick in told] == ticks
    assert all(tick.endswith("+00:00") for tick in told)
    assert the_one(queue).last_tick == ticks[2]


def test_times_that_are_skipped(queue: Engine) -> None:
    put(queue)
    assert advance(queue, FIRST, THIRD) == []
    assert (the_one(queue).next_at, the_one(queue).last_tick) == (THIRD, None)


def test_while_it_is_paused_its_times_go_by(queue: Engine) -> None:
    put(queue)
    advance(queue, FIRST, SECOND, FIRST)
    queue.value("pause_schedule", "nightly")
    paused_at = the_one(queue).paused_at
    assert paused_at is not None
    queue.value("pause_schedule", "nightly")
    assert the_one(queue).paused_at == paused_at
    assert advance(queue, SECOND, THIRD, SECOND) == []
    assert (the_one(queue).next_at, the_one(queue).last_tick) == (THIRD, FIRST)
    assert put(queue, payload={"n": 2}) == THIRD
    assert the_one(queue).paused_at == paused_at
    queue.value("resume_schedule", "nightly")
    assert (the_one(queue).next_at, the_one(queue).paused_at) == (THIRD, None)
    assert len(advance(queue, THIRD, THIRD + timedelta(1), THIRD)) == 1


def test_times_of_a_pause_are_not_sent_after_it(queue: Engine, clock: Clock) -> None:
    """Where no caller advanced it meanwhile, whatever ticks the next one computes."""
    now = clock.now()
    put(queue, now, missed="all")
    queue.value("pause_schedule", "nightly")
    clock.advance(7200)
    queue.value("resume_schedule", "nightly")
    next_at = the_one(queue).next_at
    assert abs(next_at - clock.now()) < timedelta(minutes=1)
    later = next_at + timedelta(hours=1)
    ticks = [now + timedelta(hours=n) for n in range(3)]
    assert advance(queue, next_at, later, *ticks, next_at, later) != []
    assert [datetime.fromisoformat(m.headers["tick"]) for m in queue.take_many("q", 10)] == [later]


def test_one_that_goes_on_at_a_time_of_the_past_sends_from_there(queue: Engine, clock: Clock) -> None:
    put(queue, clock.now())
    queue.value("pause_schedule", "nightly")
    clock.advance(7200)
    queue.value("resume_schedule", "nightly")
    queue.value("pause_schedule", "nightly")
    past = clock.now() - timedelta(hours=1)
    queue.value("resume_schedule", "nightly", past)
    assert len(advance(queue, past, FIRST, past, clock.now())) == 2


def test_to_resume_one_that_is_not_paused_changes_nothing(queue: Engine, clock: Clock) -> None:
    past = clock.now() - timedelta(hours=3)
    put(queue, past)
    queue.value("resume_schedule", "nightly")
    assert the_one(queue).next_at == past
    assert len(advance(queue, past, FIRST, past)) == 1


def test_it_may_go_on_at_another_time(queue: Engine) -> None:
    put(queue)
    queue.value("pause_schedule", "nightly")
    queue.value("resume_schedule", "nightly", THIRD)
    assert (the_one(queue).next_at, the_one(queue).paused_at) == (THIRD, None)


@pytest.mark.parametrize("paused", [True, False])
def test_run_now_moves_nothing(queue: Engine, clock: Clock, paused: bool) -> None:
    put(queue)
    if paused:
        queue.value("pause_schedule", "nightly")
    before = vars(the_one(queue))
    message_id = queue.value("run_schedule", "nightly")
    message = queue.take("q")
    assert (message.message_id, message.payload, message.headers["task"]) == (message_id, {"n": 1}, "clean")
    assert abs(datetime.fromisoformat(message.headers["tick"]) - clock.now()) < timedelta(minutes=1)
    assert vars(the_one(queue)) == before


def test_a_deleted_one_sends_nothing(queue: Engine) -> None:
    put(queue)
    assert queue.value("delete_schedule", "nightly") is True
    assert queue.value("delete_schedule", "nightly") is False
    assert advance(queue, FIRST, SECOND, FIRST) == []
    assert queue.rows("list_schedules") == []


def test_a_rolled_back_tick_is_still_due(queue: Engine, sql: Sql) -> None:
    put(queue)
    with sql.transaction(force_rollback=True):
        assert len(advance(queue, FIRST, SECOND, FIRST)) == 1
    assert queue.nothing_to_take("q")
    assert len(advance(queue, FIRST, SECOND, FIRST)) == 1


def test_a_queue_that_is_gone(queue: Engine) -> None:
    put(queue)
    queue.value("delete_queue", "q")
    with queue.refused("PN001", '"q"'):
        advance(queue, FIRST, SECOND, FIRST)
    with queue.refused("PN001", '"q"'):
        queue.value("run_schedule", "nightly")
    assert the_one(queue).next_at == FIRST


def test_schedules_are_listed_by_name(queue: Engine) -> None:
    for name in ("b", "a", "x" * 255, "say \"hi\" 'there'"):
        put(queue, name=name)
    assert [row.name for row in queue.rows("list_schedules")] == sorted(
        ["b", "a", "x" * 255, "say \"hi\" 'there'"]
    )


NULL: Any = None
GOOD: dict[str, Any] = {
    **{"name": "new", "queue_name": "billing", "payload": {}, "headers": None, "priority": 2, "tenant": None},
    **{"ttl_seconds": None, "definition": {}, "missed": "skip", "next_at": FIRST},
}


def of_put(*names: str, sqlstate: str = "PN004", **changes: Any) -> Any:
    return expect(sqlstate, *names).of("put_schedule", **(GOOD | changes))


@pytest.mark.parametrize(
    "bad",
    [
        of_put("name", "null", name=None),
        of_put("name", "256", name="x" * 256),
        of_put("name", "0", name=""),
        of_put("nope", sqlstate="PN001", queue_name="nope"),
        of_put("queue", sqlstate="PN001", queue_name=None),
        of_put("payload", "null", payload=None),
        of_put("headers", "5", headers="5"),
        of_put("priority", "4", priority=4),
        of_put("priority", "null", priority=None),
        of_put("tenant", "256", tenant="x" * 256),
        of_put("ttl_seconds", "0", ttl_seconds=0),
        of_put("definition", "null", definition=None),
        of_put("missed", "some", missed="some"),
        of_put("missed", "null", missed=None),
        of_put("next_at", "null", next_at=None),
        of_put("next_at", "infinity", next_at="infinity"),
        of_put("next_at", "1 to 9999", "200000-01-01", next_at="200000-01-01 00:00Z"),
        of_put("next_at", "1 to 9999", "4000-01-01", "BC", next_at="4000-01-01 00:00Z BC"),
        expect("PN004", "next_at", "9999").of("advance_schedule", "s", FIRST, "10000-01-01 00:00Z", []),
        expect("PN004", "next_at", "9999").of("resume_schedule", "nope", "0001-01-01 00:00Z BC"),
        expect("PN004", "expected", "null").of("advance_schedule", "s", NULL, FIRST, []),
        expect("PN004", "next_at", "-infinity").of("advance_schedule", "s", FIRST, "-infinity", []),
        expect("PN004", "next_at", "later").of("advance_schedule", "s", FIRST, FIRST, []),
        expect("PN004", "ticks", "null").of("advance_schedule", "s", FIRST, SECOND, NULL),
        expect("PN004", "ticks", "10001").of("advance_schedule", "s", FIRST, SECOND, [FIRST] * 10001),
        expect("PN004", "tick", "null").of("advance_schedule", "s", FIRST, SECOND, "{null}"),
        expect("PN004", "tick", "infinity").of("advance_schedule", "s", FIRST, SECOND, "{infinity}"),
        expect("PN004", '"nope"', "exist").of("pause_schedule", "nope"),
        expect("PN004", '"nope"', "exist").of("resume_schedule", "nope"),
        expect("PN004", '"nope"', "exist").of("run_schedule", "nope"),
        expect("PN004", "next_at", "infinity").of("resume_schedule", "nope", "infinity"),
    ],
)
def test_bad_input_is_refused(house: Engine, bad: Bad) -> None:
    bad.check(house)
