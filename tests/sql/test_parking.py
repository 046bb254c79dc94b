"""Parked messages: out of the line, under the name of a task, until a worker asks for it or time is over."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from .conftest import Clock
from .engine import Engine, Row


def sent(engine: Engine, task: str | None, number: int, **options: object) -> list[int]:
    """So many messages of a task."""
    headers = {} if task is None else {"headers": {"task": task}}
    return engine.send_many("q", list(range(number)), **headers, **options)


def park(engine: Engine, messages: list[Row], task: str | None = "a") -> list[int]:
    ids = [message.message_id for message in messages]
    token = messages[0].consumer_token
    return sorted(engine.values("park_messages", "q", ids, token, [task] * len(ids)))


def parked(engine: Engine, number: int, task: str = "a", **options: object) -> list[int]:
    """So many messages that a worker met and could not run."""
    ids = sent(engine, task, number, **options)
    assert park(engine, engine.take_many("q", number), task) == ids
    return ids


def asked(engine: Engine, *tasks: str, **options: object) -> list[int]:
    """The ids that a worker gets that knows these tasks."""
    return [row.message_id for row in engine.rows("consume_tasks", "q", list(tasks), **options)]


def test_a_parked_message_waits_for_a_worker_that_knows_its_task(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=0)
    ids = parked(engine, 3)
    assert engine.take_many("q", 10) == []
    assert {engine.state("q", one) for one in ids} == {"scheduled"}
    assert engine.explain("q", ids[0]).startswith('parked: the worker that claimed it does not know task "a"')
    assert asked(engine, "b", "c") == []
    claimed = engine.rows("consume_tasks", "q", ["b", "a"])
    assert [row.message_id for row in claimed] == ids
    assert {row.delivery_attempts for row in claimed} == {1}, "the first delivery did not count"


def test_a_token_that_does_not_hold_a_message_parks_nothing(engine: Engine) -> None:
    engine.queue("q")
    (message_id,) = sent(engine, "a", 1)
    engine.take("q", "holder")
    assert engine.values("park_messages", "q", [message_id, 999], "other", ["a", "a"]) == []
    assert engine.state("q", message_id) == "active"


def test_a_message_without_a_task_is_parked_under_no_name(engine: Engine) -> None:
    engine.queue("q")
    ids = sent(engine, None, 2)
    messages = engine.take_many("q", 2)
    assert park(engine, messages, None) == ids
    assert [(row.task_name, row.parked_count) for row in engine.rows("diagnose_parked")] == [("(none)", 2)]


def test_a_parked_message_that_no_worker_takes_is_ready_again_in_front(engine: Engine, clock: Clock) -> None:
    engine.queue("q", max_delivery_attempts=0)
    ids = parked(engine, 2)
    later = sent(engine, "b", 2)
    clock.advance(60 * 1.26)
    engine.maintain_all()
    assert [row.message_id for row in engine.take_many("q", 10)] == [*ids, *later]


def test_parked_for_longer_each_time_up_to_an_hour(engine: Engine, clock: Clock) -> None:
    engine.queue("q", max_delivery_attempts=0)
    (message_id,) = parked(engine, 1)
    delays = []
    for _ in range(9):
        delays.append((engine.message("q", message_id).due_at - engine.now()).total_seconds())
        clock.advance(delays[-1] + 1)
        engine.maintain_all()
        assert park(engine, engine.take_many("q", 1)) == [message_id]
    assert 59 <= delays[0] <= 75
    assert all(after >= before * 0.8 for before, after in pairwise(delays))
    assert 3599 <= delays[-1] <= 4500


def test_the_time_to_live_of_a_parked_message(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    (message_id,) = parked(engine, 1, ttl_seconds=10)
    clock.advance(11)
    engine.maintain_all()
    assert (engine.state("q", message_id), asked(engine, "a")) == ("dead", [])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_size": 3}, (3, 0)),
        ({"task_limits": [2, 1]}, (2, 1)),
        ({"task_lanes": [1, 2], "lane_limits": [1, 3]}, (1, 3)),
        ({"task_limits": [1, 5], "task_lanes": [1, 1], "lane_limits": [4]}, (1, 3)),
    ],
)
def test_no_more_come_back_than_there_is_room_for(
    engine: Engine, options: dict[str, object], expected: tuple[int, int]
) -> None:
    engine.queue("q", max_delivery_attempts=0)
    of_a, of_b = parked(engine, 5, "a"), parked(engine, 5, "b")
    found = asked(engine, "a", "b", **options)
    assert (len({*found} & {*of_a}), len({*found} & {*of_b})) == expected


def test_those_that_were_lost_come_back_only_as_the_worker_says(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=0)
    ids = sent(engine, "a", 3)
    assert len(engine.take_many("q", 3, vt_seconds=0)) == 3
    engine.maintain_all()
    messages = engine.take_many("q", 3)
    assert {message.lost_deliveries for message in messages} == {1}
    assert park(engine, messages) == ids
    assert [row.lost_count for row in engine.rows("diagnose_parked")] == [3]
    assert asked(engine, "a") == []
    assert asked(engine, "a", lost_most=2) == ids[:2]


def test_a_claim_parks_what_its_worker_cannot_run(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=0)
    others = [*sent(engine, "b", 700), *sent(engine, None, 5)]
    mine = sent(engine, "a", 3)
    assert asked(engine, "a", batch_size=2, task_limits=[2], park_others=True) == mine[:2]
    assert engine.statistics("q").processing_count == 2, "the worker never holds the others"
    assert {engine.state("q", one) for one in others} == {"scheduled"}
    assert engine.state("q", mine[2]) in ("ready", "scheduled")
    assert asked(engine, "a", park_others=True) == mine[2:]
    assert asked(engine, "b", batch_size=1000) == others[:700], "the oldest first"


def test_a_paused_queue_and_one_without_permits_leave_parked_messages_alone(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=0, max_active=2, priority_shares=[0, 0, 0, 0])
    ids = parked(engine, 1)
    engine.value("pause_queue", "q")
    assert asked(engine, "a") == []
    engine.value("resume_queue", "q")
    sent(engine, "b", 4)
    assert len(engine.take_many("q", 1)) + len(engine.take_many("q", 1)) == 2
    assert asked(engine, "a") == []
    assert engine.state("q", ids[0]) == "scheduled"


def test_tenants_share_the_line_of_a_task(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=0)
    noisy = parked(engine, 50, tenant="noisy")
    (quiet,) = parked(engine, 1, tenant="quiet")
    first = asked(engine, "a", batch_size=2)
    assert quiet in first
    assert len({*first} & {*noisy}) == 1


def test_parked_messages_keep_their_dedup_key(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=0)
    message_id = engine.send("q", headers={"task": "a"}, dedup_key="k")
    assert park(engine, engine.take_many("q", 1)) == [message_id]
    assert engine.send("q", dedup_key="k") == message_id
    assert asked(engine, "a") == [message_id]


def test_purged_and_cancelled(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=0)
    first, _second = parked(engine, 2)
    assert engine.value("cancel_message", "q", first)
    assert engine.value("purge_queue", "q") == 1
    assert asked(engine, "a") == []


def test_statistics_count_parked_messages_as_delayed(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=0)
    parked(engine, 3)
    row = engine.statistics("q")
    assert (row.pending_count, row.delayed_count, row.processing_count) == (3, 3, 0)
    assert engine.rows("diagnose_parked")[0].next_due_at - engine.now() < timedelta(minutes=2)
