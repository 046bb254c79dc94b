"""Messages that workers could not run, and that no live worker takes out."""

from __future__ import annotations

import penstock

from .examining import Patient


def park(queue: penstock.Client, number: int, task_name: str) -> None:
    """So many messages that a worker met and did not know."""
    queue.send_many("billing", range(number))
    messages = queue.consume_batch("billing", batch_size=number)
    ids = [message.id for message in messages]
    assert queue.park_messages("billing", ids, messages[0].token, [task_name] * number) == ids


def live_worker(queue: penstock.Client, *tasks: str) -> None:
    queue.register_worker(
        "w", hostname="h", pid=1, version=penstock.__version__, queues=["billing"], tasks=tasks, concurrency=1
    )


def test_tasks_that_no_live_worker_knows(patient: Patient, queue: penstock.Client) -> None:
    assert patient.one("parked").found == "None."
    park(queue, 3, "moved away")
    live_worker(queue, "other")
    assert patient.one("parked").status == "ok"
    found = patient.one("parked", patience=0)
    assert (found.status, found.subject) == ("problem", "queue billing")
    assert found.found.startswith("3 messages of task 'moved away', which no live worker knows; the oldest")
    assert found.command == "penstock message list billing --state scheduled"
    live_worker(queue, "other", "moved away")
    assert patient.one("parked", patience=0).status == "ok"


def test_messages_without_a_task_header(patient: Patient, queue: penstock.Client) -> None:
    park(queue, 1, "")
    live_worker(queue, "other")
    found = patient.one("parked", patience=0)
    assert found.found.startswith("1 message without a task header, which no worker can run")


def test_parked_messages_are_reported_by_queue_and_task(queue: penstock.Client) -> None:
    park(queue, 2, "a")
    park(queue, 1, "b")
    told = [(each.queue_name, each.task_name, each.parked_count) for each in queue.diagnose_parked()]
    assert told == [("billing", "a", 2), ("billing", "b", 1)]
    assert all(each.lost_count == 0 for each in queue.diagnose_parked())
    assert all(each.next_due_at > each.parked_since for each in queue.diagnose_parked())
