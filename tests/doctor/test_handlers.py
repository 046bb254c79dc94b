"""Handlers that hang, messages that a worker does not run, groups that cannot complete, empty shares."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

import penstock
from penstock.testing.clock import Clock

from .examining import Patient

WORKER, CONSUMER = "w", "consumer"


def register(
    queue: penstock.Client, name: str = "w", *, concurrency: int = 2, queues: tuple[str, ...] = ("billing",)
) -> None:
    queue.register_worker(
        name,
        hostname="host",
        pid=7,
        version=penstock.__version__,
        queues=list(queues),
        tasks=[],
        concurrency=concurrency,
    )


def run(queue: penstock.Client, message_id: int, minutes: float, task: str = "slow") -> dict[str, Any]:
    """What a worker tells of a handler."""
    since = queue.clock() - timedelta(minutes=minutes)
    return {
        "task": task,
        "queue": "billing",
        "message_id": message_id,
        "attempt": 1,
        "since": since.isoformat(),
    }


def beat(queue: penstock.Client, running: list[dict[str, Any]], held: int = 0, name: str = "w") -> None:
    queue.beat_worker(name, held=max(held, len(running)), running=running, stopping=False)


# Handlers


def test_a_long_handler_among_free_slots_is_fine_for_an_hour(
    patient: Patient, queue: penstock.Client
) -> None:
    register(queue)
    beat(queue, [run(queue, 1, 59)])
    found = patient.one("handlers")
    assert (found.status, found.subject) == ("ok", None)
    assert "59 min" in found.found
    beat(queue, [run(queue, 1, 61), run(queue, 2, 1, "quick")])
    found = patient.one("handlers")
    assert (found.status, found.subject) == ("warning", "worker 7 on host")
    assert "1 handler has run for 10 min or longer: 1x slow (since 20" in found.found
    assert "1 h 1 min ago" in found.found
    assert "quick" not in found.found
    assert "attempt_timeout" in (found.advice or "")
    assert found.command == "penstock workers --json"


def test_all_slots_taken_for_long(patient: Patient, queue: penstock.Client) -> None:
    register(queue)
    beat(queue, [run(queue, 1, 9), run(queue, 2, 11)])
    assert patient.one("handlers").status == "ok"
    beat(queue, [run(queue, 1, 11, "other"), run(queue, 2, 12)])
    found = patient.one("handlers")
    assert found.status == "warning"
    assert "2 handlers have run" in found.found
    assert "1x slow" in found.found
    assert "1x other" in found.found
    assert "They take all 2 slots." in found.found


def test_handlers_that_hang_while_messages_wait(
    patient: Patient, queue: penstock.Client, database: str
) -> None:
    """The messages are there, nothing is settled, and the worker is alive."""
    queue.send_many("billing", range(3))
    with Clock(database) as clock:
        clock.advance(360)
        register(queue)
        beat(queue, [run(queue, 1, 20)])
        found = patient.one("handlers")
        assert found.status == "problem"
        assert "3 messages of queue billing wait" in found.found
        assert "the last one was settled 6 min" in found.found
        # One that is settled is a sign that it gets on.
        message = queue.consume_one("billing")
        assert message is not None
        message.ack()
        assert patient.one("handlers").status == "ok"
        # A queue that is paused waits for no handler.
        clock.advance(360)
        beat(queue, [run(queue, 1, 20)])
        assert patient.one("handlers").status == "problem"
        queue.pause_queue("billing")
        assert patient.one("handlers").status == "ok"


def test_a_worker_that_is_gone_runs_nothing(patient: Patient, queue: penstock.Client, database: str) -> None:
    register(queue)
    beat(queue, [run(queue, 1, 1000), run(queue, 2, 1000)])
    assert patient.one("handlers").status == "warning"
    with Clock(database) as clock:
        clock.advance(31)
        assert patient.one("handlers").found == "None runs."


@pytest.mark.parametrize(
    "running", [None, 7, {"a": 1}, [1], [{"task": 1}], [{"task": "t", "queue": "q", "since": "soon"}]]
)
def test_what_is_not_understood_is_left_out(patient: Patient, queue: penstock.Client, running: Any) -> None:
    register(queue)
    queue.beat_worker("w", held=1, running=running, stopping=False)
    assert patient.wrong("handlers", "idle-leases") == []


# Leases


def test_messages_that_a_worker_holds_and_does_not_run(
    patient: Patient, queue: penstock.Client, database: str
) -> None:
    queue.send_many("billing", range(5))
    messages = queue.consume_batch("billing", batch_size=5, token=f"{WORKER}-2", visibility_timeout=86400)
    queue.send("billing", 1)
    # Of a consumer that is no worker: it does not report what it does.
    queue.consume_batch("billing", token=CONSUMER, visibility_timeout=86400)
    with Clock(database) as clock:
        register(queue)
        clock.advance(400)
        beat(queue, [run(queue, messages[0].id, 6)], held=5)
        (lease,) = queue.diagnose_leases()
        (worker,) = queue.list_workers()
        assert (lease.consumer, lease.queue_name, lease.idle_count) == (worker.consumer, "billing", 4)
        found = patient.one("idle-leases")
        assert (found.status, found.subject) == ("warning", "worker 7 on host")
        assert "4 messages of queue billing that it does not run, the first for 6 min" in found.found
        assert "It holds 5 in all, and runs 1." in found.found
        assert found.command == "penstock workers"
        clock.advance(3600)
        beat(queue, [run(queue, messages[0].id, 66)], held=5)
        assert patient.one("idle-leases").status == "problem"
        # What it runs is not idle; nor what was claimed just now.
        beat(queue, [run(queue, message.id, 1) for message in messages], held=5)
        assert patient.one("idle-leases").status == "ok"
        # A worker that runs more than it tells is left out.
        beat(queue, [run(queue, n, 1) for n in range(100)], held=500)
        assert queue.diagnose_leases() == []


def test_what_was_claimed_just_now_is_not_idle(patient: Patient, queue: penstock.Client) -> None:
    register(queue)
    queue.send_many("billing", range(5))
    queue.consume_batch("billing", token=WORKER, visibility_timeout=60)
    beat(queue, [], held=5)
    assert queue.diagnose_leases() == []


# Shares


def test_a_priority_without_a_permit(patient: Patient, queue: penstock.Client, database: str) -> None:
    queue.create_queue("it's capped", max_active=10, min_active=0, priority_shares=[0, 50, 50, 0])
    assert patient.one("shares").status == "ok"
    queue.send_many("it's capped", range(3), priority=3)
    queue.send("it's capped", 1, priority=1)
    with Clock(database) as clock:
        clock.advance(120)
        found = patient.one("shares")
        assert (found.status, found.subject) == ("problem", "queue it's capped")
        assert "3 messages wait in priority 3, the oldest published 2 min" in found.found
        assert "priority_shares 0,50,50,0 of max_active 10 and min_active 0" in found.found
        assert found.command == """penstock queue alter 'it'"'"'s capped' --priority-shares 0,40,50,10"""
        assert [m.priority for m in queue.consume_batch("it's capped")] == [1]
        # Two at once are mended by one command.
        queue.send("it's capped", 1, priority=0)
        commands = {finding.command for finding in patient.findings("shares")}
        assert {str(command).rpartition(" ")[2] for command in commands} == {"10,40,40,10"}
        queue.alter_queue("it's capped", priority_shares=[10, 40, 40, 10])
        assert patient.one("shares").status == "ok"
        assert sorted(m.priority for m in queue.consume_batch("it's capped")) == [0, 3]


def test_priorities_that_share_all_permits_lack_none(patient: Patient, queue: penstock.Client) -> None:
    queue.create_queue("shared", max_active=2, priority_shares=[0, 0, 0, 0])
    queue.create_queue("small", max_active=2)
    for name in ("shared", "small"):
        queue.send_many(name, range(3), priority=3)
    assert patient.one("shares").status == "ok"


# Groups


def group_of(queue: penstock.Client, total: int, **options: Any) -> tuple[int, list[int]]:
    group = queue.create_group(total, callback_queue="billing", callback_payload={}, **options)
    members = [
        queue.send("members", n, headers={"task": "t", "group": group, "position": n}) for n in range(total)
    ]
    return group, members


def ack(queue: penstock.Client, group: int, n: int) -> None:
    """Acks the next members, as a worker does."""
    claimed = queue.consume_batch("members", batch_size=n, token=WORKER)
    positions = [message.headers["position"] for message in claimed]
    queue.ack_tasks(
        "members", [m.id for m in claimed], "w", group_ids=[group] * len(claimed), positions=positions
    )


@pytest.fixture
def grouped(queue: penstock.Client) -> tuple[int, list[int]]:
    queue.create_queue("members", max_delivery_attempts=1)
    return group_of(queue, 5)


def test_a_group_that_gets_on(
    patient: Patient, queue: penstock.Client, grouped: tuple[int, list[int]], database: str
) -> None:
    assert patient.one("groups").found == "1 group under way, each of them gets on."
    with Clock(database) as clock:
        clock.advance(23 * 3600)
        ack(queue, grouped[0], 1)
        clock.advance(23 * 3600)
        assert patient.one("groups").status == "ok"
        (found,) = queue.diagnose_groups()
        assert (found.group_id, found.total, found.done_count, found.dead_count) == (grouped[0], 5, 1, 0)
        assert found.last_done_at is not None
        clock.advance(2 * 3600)
        stalled = patient.one("groups")
        assert (stalled.status, stalled.subject) == ("warning", f"group {grouped[0]}")
        assert "1 of 5 members are done. No sign of progress for 1 d 1 h" in stalled.found
        assert stalled.command == f"select penstock.delete_group({grouped[0]});"
        ack(queue, grouped[0], 4)
        assert queue.finish_groups() == [grouped[0]]
        assert patient.one("groups").status == "ok"


def test_a_group_with_a_member_among_the_dead_letters(
    patient: Patient, queue: penstock.Client, grouped: tuple[int, list[int]]
) -> None:
    # A second group is well, and a dead letter of no group, or of one that is gone, says nothing.
    group_of(queue, 2)
    queue.send("members", 1, headers={"group": 999, "position": 0}, priority=0)
    queue.send("members", 1, headers={"group": "x"}, priority=0)
    for _ in range(4):
        message = queue.consume_one("members")
        assert message is not None
        message.reject("no")
    found = patient.one("groups")
    assert (found.status, found.subject) == ("problem", f"group {grouped[0]}")
    assert "0 of 5 members are done. 2 members died in queue members, the first" in found.found
    assert found.command == "penstock dlq list members"
    queue.requeue_dlq_messages("members")
    assert patient.one("groups").status == "ok"


def test_a_group_whose_callback_has_no_queue(
    patient: Patient, queue: penstock.Client, grouped: tuple[int, list[int]]
) -> None:
    queue.delete_queue("billing")
    found = patient.one("groups")
    assert found.status == "problem"
    assert "The queue billing of its callback does not exist" in found.found
    queue.delete_group(grouped[0])
    assert patient.one("groups").status == "ok"


def test_many_groups_are_not_all_reported(patient: Patient, queue: penstock.Client) -> None:
    queue.create_queue("members", max_delivery_attempts=1)
    for _ in range(12):
        group_of(queue, 1)
    for message in queue.consume_batch("members", batch_size=100):
        message.reject("no")
    found = patient.findings("groups")
    assert len(found) == 11
    assert found[-1].found == "2 other groups cannot complete, too."
    assert {finding.status for finding in found} == {"problem"}


def test_diagnosis_is_cheap_whatever_there_is(queue: penstock.Client, database: str) -> None:
    """A group of many members, and many dead letters of it."""
    group = queue.create_group(200_000, callback_queue="billing", callback_payload={})
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute(
            "insert into penstock.group_results (group_id, position, message_id)"
            " select %s, n, n from generate_series(0, 150000) n",
            [group],
        )
        sql.execute(
            """insert into penstock.dead (queue_id, sweep_queue_id, id, priority, attempts, large, reason,
            moved_at, published_at, tenant, headers)
            select q.id, q.id, 1000000 + n, 2, 1, false, 'failed', clock_timestamp(), clock_timestamp(), '',
                jsonb_build_object('group', %s::bigint, 'position', 160000 + n)
            from penstock.queues q, generate_series(1, 20000) n where q.name = 'billing'""",
            [group],
        )
        sql.execute("analyze")
        plan = sql.execute(
            "explain (analyze, buffers, format json) select penstock.diagnose_groups()"
        ).fetchone()
        assert plan is not None
        top = plan[0][0]["Plan"]
        assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < 8000
    (found,) = queue.diagnose_groups()
    assert (found.done_count, found.dead_count) == (10_000, 1000)
