"""Operations: a bulk action on dead letters is a row that batches advance. It can be cancelled, resumed."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ..conftest import Connect
from ..growth.filling import fill_dead
from .conftest import Clock
from .engine import Engine, Row
from .waiting import start_blocked


def die(engine: Engine, queue: str, number: int = 1, error: str = "boom 1") -> list[int]:
    ids = engine.send_many(queue, list(range(number)))
    for message in engine.take_many(queue, number):
        engine.reject(message, error=error)
    return ids


def start(engine: Engine, action: str = "redrive", queue: str = "q", **options: Any) -> int:
    operation_id = engine.value("start_operation", action, queue, **options)
    assert isinstance(operation_id, int)
    return operation_id


def advance(engine: Engine, operation_id: int, batch_size: int = 1000) -> Row:
    return engine.row("advance_operation", operation_id, batch_size)


def drain(engine: Engine, operation_id: int, batch_size: int = 1000) -> Row:
    """Advances until the end."""
    for _ in range(100):
        operation = advance(engine, operation_id, batch_size)
        if operation.finished_at is not None:
            return operation
    raise AssertionError(f"it does not come to an end: {operation}")


def test_a_redrive_in_batches(engine: Engine) -> None:
    engine.queue("q")
    ids = die(engine, "q", 5)
    operation_id = start(engine, who="ann")
    planned = engine.row("get_operation", operation_id)
    assert (planned.state, planned.total_count, planned.total_is_estimate) == ("planned", 5, False)
    assert (planned.who, planned.role_name, planned.started_at) == ("ann", "postgres", None)
    assert engine.states("q") == dict.fromkeys(ids, "dead")
    counts = []
    for state in ("running", "running", "done"):
        operation = advance(engine, operation_id, 2)
        counts.append(operation.done_count)
        assert operation.state == state
    assert counts == [2, 4, 5]
    assert operation.finished_at is not None
    assert engine.states("q") == dict.fromkeys(ids, "ready")
    assert [engine.take("q").delivery_attempts for _ in ids] == [1] * 5


def test_a_group_only(engine: Engine) -> None:
    engine.queue("q")
    engine.queue("other")
    wanted = die(engine, "q", 3)
    kept = die(engine, "q", 2, "another")
    elsewhere = die(engine, "other")
    operation = drain(engine, start(engine, error_key="boom <n>"), 2)
    assert (operation.total_count, operation.done_count, operation.state) == (3, 3, "done")
    assert engine.states("q") == {**dict.fromkeys(wanted, "ready"), **dict.fromkeys(kept, "dead")}
    assert engine.states("other") == dict.fromkeys(elsewhere, "dead")


@pytest.mark.parametrize("error_key", [None, "boom <n>"])
def test_a_delete(engine: Engine, error_key: str | None) -> None:
    engine.queue("q")
    die(engine, "q", 5)
    operation = drain(engine, start(engine, "delete", error_key=error_key), 2)
    assert (operation.done_count, operation.state, operation.failed_count) == (5, "done", 0)
    assert engine.states("q") == {}


@pytest.mark.parametrize("error_key", [None, "boom <n>"])
def test_a_letter_that_dies_again_is_not_redriven_again(engine: Engine, error_key: str | None) -> None:
    engine.queue("q")
    ids = die(engine, "q", 5)
    operation_id = start(engine, error_key=error_key)
    for _ in range(2):
        advance(engine, operation_id, 2)
        for message in engine.take_many("q", 2):
            engine.reject(message, error="boom 2")
    operation = drain(engine, operation_id, 2)
    assert (operation.done_count, operation.state) == (5, "done")
    assert engine.states("q") == {**dict.fromkeys(ids[:4], "dead"), ids[4]: "ready"}


@pytest.mark.parametrize("error_key", [None, "boom <n>"])
def test_it_stops_itself_when_the_letters_die_again(engine: Engine, error_key: str | None) -> None:
    engine.queue("q")
    die(engine, "q", 40)
    operation_id = start(engine, error_key=error_key)
    advance(engine, operation_id, 10)
    for message in engine.take_many("q", 10):
        engine.reject(message, error="boom 2")
    operation = advance(engine, operation_id, 10)
    assert (operation.state, operation.done_count, operation.failed_count) == ("stopped", 20, 10)
    assert "10 messages died" in operation.note
    assert engine.statistics("q").dead_count == 30
    with engine.unchanged():
        assert advance(engine, operation_id).state == "stopped"


@pytest.mark.parametrize("error_key", [None, "(failed)"])
def test_it_stops_itself_however_many_die(engine18: Engine, error_key: str | None) -> None:
    """A tenth of the redriven letters may be more than a count reads at once."""
    engine18.queue("q")
    fill_dead(engine18.connection, "q", 1)
    operation_id = start(engine18, error_key=error_key)
    fill_dead(engine18.connection, "q", 1)
    advance(engine18, operation_id, 1)
    engine18.connection.execute("update penstock.operations set done_count = 150000")
    fill_dead(engine18.connection, "q", 16_000)
    operation = advance(engine18, operation_id, 1)
    assert (operation.state, operation.failed_count) == ("stopped", 15_001)


def test_deaths_of_another_error_do_not_stop_it(engine: Engine) -> None:
    engine.queue("q")
    die(engine, "q", 40)
    operation_id = start(engine, error_key="boom <n>")
    advance(engine, operation_id, 10)
    for message in engine.take_many("q", 10):
        engine.reject(message, error="another")
    assert advance(engine, operation_id, 10).state == "running"


def test_the_canary_comes_first_and_the_others_when_it_is_done(engine: Engine) -> None:
    engine.queue("q")
    ids = die(engine, "q", 3)
    operation_id = start(engine, with_canary=True)
    operation = advance(engine, operation_id)
    assert (operation.state, operation.canary_id, operation.done_count) == ("canary", ids[0], 1)
    assert advance(engine, operation_id).state == "canary"
    canary = engine.take("q")
    assert canary.message_id == ids[0]
    assert advance(engine, operation_id).done_count == 1
    engine.ack(canary)
    operation = advance(engine, operation_id)
    assert (operation.state, operation.done_count) == ("done", 3)


def test_a_canary_that_dies_again_stops_it(engine: Engine) -> None:
    engine.queue("q")
    ids = die(engine, "q", 3)
    operation_id = start(engine, with_canary=True)
    advance(engine, operation_id)
    engine.reject(engine.take("q"), error="boom 2")
    operation = advance(engine, operation_id)
    assert (operation.state, operation.failed_count) == ("stopped", 1)
    assert operation.note == f"message {ids[0]}, the canary, died again"
    assert engine.states("q") == dict.fromkeys(ids, "dead")


@pytest.mark.parametrize("ends", ["cancel_message", "delete_dlq_messages"])
def test_a_canary_that_is_gone_proves_nothing(engine: Engine, ends: str) -> None:
    engine.queue("q")
    ids = die(engine, "q", 3)
    operation_id = start(engine, with_canary=True)
    advance(engine, operation_id)
    if ends == "cancel_message":
        assert engine.value("cancel_message", "q", ids[0])
    else:
        engine.reject(engine.take("q"), error="boom 2")
        assert engine.value("delete_dlq_messages", "q", [ids[0]]) == 1
    operation = advance(engine, operation_id)
    assert (operation.state, operation.done_count) == ("stopped", 1)
    assert operation.note == f"message {ids[0]}, the canary, was deleted, or is not kept any more"
    assert engine.states("q") == dict.fromkeys(ids[1:], "dead")


def test_a_canary_of_a_queue_without_history(engine: Engine) -> None:
    engine.queue("q", retain_completed_seconds=0)
    die(engine, "q", 3)
    operation_id = start(engine, with_canary=True)
    advance(engine, operation_id)
    engine.ack(engine.take("q"))
    assert drain(engine, operation_id).done_count == 3


def test_a_canary_of_nothing(engine: Engine) -> None:
    engine.queue("q")
    assert advance(engine, start(engine, with_canary=True)).state == "done"


def test_a_rate(engine: Engine, clock: Clock) -> None:
    """Never a burst: not at the beginning, and not after a pause."""
    engine.queue("q")
    die(engine, "q", 100)
    operation_id = start(engine, per_second=10)
    assert advance(engine, operation_id).done_count == 1
    done = 1
    for _ in range(20):
        clock.advance(0.25)
        done = advance(engine, operation_id).done_count
    assert 49 <= done <= 56
    clock.advance(3600)
    assert advance(engine, operation_id).done_count <= done + 10


def test_cancel(engine: Engine) -> None:
    engine.queue("q")
    die(engine, "q", 5)
    planned, running = start(engine), start(engine)
    assert engine.value("cancel_operation", planned) is True
    assert engine.row("get_operation", planned).state == "cancelled"
    advance(engine, running, 2)
    assert engine.value("cancel_operation", running) is True
    operation = advance(engine, running, 2)
    assert (operation.state, operation.done_count) == ("cancelled", 2)
    assert operation.finished_at is not None
    assert engine.value("cancel_operation", running) is False
    assert engine.value("cancel_operation", 999) is False


def test_cancel_does_not_wait_for_a_batch(engine: Engine, connect: Connect) -> None:
    """The batch under way is completed, and ends the operation."""
    engine.queue("q")
    die(engine, "q", 5)
    operation_id = start(engine)
    holder, driver = connect(autocommit=False), Engine(connect())
    holder.execute("select pg_advisory_xact_lock(1346719315, id) from penstock.queues")
    batch = start_blocked(engine, driver, lambda: advance(driver, operation_id, 2))
    engine.connection.execute("set lock_timeout = '2s'")
    assert engine.value("cancel_operation", operation_id) is True
    holder.rollback()
    operation = batch.result(timeout=10)
    assert (operation.state, operation.done_count) == ("cancelled", 2)


def test_a_second_driver_gets_no_row(engine: Engine, connect: Connect) -> None:
    engine.queue("q")
    die(engine, "q", 5)
    operation_id = start(engine)
    other = connect(autocommit=False)
    assert other.execute(
        "select done_count from penstock.advance_operation(%s, 2)", [operation_id]
    ).fetchall() == [(2,)]
    assert engine.rows("advance_operation", operation_id) == []
    other.commit()
    assert advance(engine, operation_id).done_count == 5


def test_a_driver_that_fails_leaves_all_as_it_was(engine: Engine, connect: Connect) -> None:
    engine.queue("q")
    die(engine, "q", 5)
    operation_id = start(engine)
    other = connect(autocommit=False)
    with engine.unchanged():
        other.execute("select from penstock.advance_operation(%s, 2)", [operation_id])
        other.rollback()
    assert drain(engine, operation_id).done_count == 5


def test_letters_that_another_session_requeues_are_left_to_it(engine: Engine, connect: Connect) -> None:
    engine.queue("q")
    ids = die(engine, "q", 3)
    other = connect(autocommit=False)
    other.execute("select penstock.delete_dlq_messages('q', %s)", [[ids[1]]])
    operation = drain(engine, start(engine))
    assert (operation.done_count, operation.note) == (2, "other sessions had locked 1 of the dead letters")
    assert drain(engine, start(engine, "delete", error_key="boom <n>")).note == operation.note
    other.rollback()
    assert engine.states("q") == {ids[0]: "ready", ids[1]: "dead", ids[2]: "ready"}


def test_the_queue_is_deleted_meanwhile(engine: Engine) -> None:
    engine.queue("q")
    die(engine, "q", 3)
    operation_id = start(engine)
    engine.value("delete_queue", "q")
    operation = advance(engine, operation_id)
    assert (operation.state, operation.note) == ("stopped", "the queue was deleted")


def test_lists(engine: Engine) -> None:
    engine.queue("q")
    ids = [start(engine) for _ in range(3)]
    drain(engine, ids[1])
    assert [row.id for row in engine.rows("list_operations")] == ids[::-1]
    assert [row.id for row in engine.rows("list_operations", unfinished=True)] == [ids[2], ids[0]]
    assert [row.id for row in engine.rows("list_operations", page_size=1, before_id=ids[2])] == [ids[1]]
    assert engine.rows("get_operation", 999) == []


def test_ended_operations_are_kept_for_30_days(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    ended, planned = start(engine), start(engine)
    drain(engine, ended)
    clock.advance(29 * 86400)
    engine.maintain_all()
    assert [row.id for row in engine.rows("list_operations")] == [planned, ended]
    clock.advance(2 * 86400)
    assert engine.maintain_all()["operations removed"] == 1
    assert [row.id for row in engine.rows("list_operations")] == [planned]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("purge", "q"), "action must be redrive or delete"),
        ((None, "q"), "action must be redrive or delete"),
        (("redrive", "q", None, 0), "per_second must be between"),
        (("delete", "q", None, None, True), "with_canary"),
        (("redrive", "none"), "none"),
    ],
)
def test_refused(engine: Engine, arguments: tuple[Any, ...], message: str) -> None:
    engine.queue("q")
    with engine.unchanged(), pytest.raises(psycopg.errors.Error, match=message):
        engine.value("start_operation", *arguments)


def test_an_unknown_operation(engine: Engine) -> None:
    with pytest.raises(psycopg.errors.Error, match="operation 999 does not exist"):
        engine.rows("advance_operation", 999)


def test_a_list_makes_each_operation_once(engine: Engine) -> None:
    """Not once for each column: there are 21 of them."""
    engine.queue("q")
    die(engine, "q")
    for _ in range(5):
        start(engine)
    with engine.connection.transaction(force_rollback=True):
        engine.query("select set_config('track_functions', 'all', true)")
        assert len(engine.rows("list_operations")) == 5
        calls = engine.query(
            "select calls from pg_stat_xact_user_functions where schemaname = 'penstock' and funcname = %s",
            "_readable_text",
        )
    assert calls == [(5,)]
