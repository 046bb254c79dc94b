"""Whether workers live, and do what is due again and again."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.models import ListedWorker
from penstock.version import __version__
from penstock.wording import age, ago, count

from .facts import Facts, known
from .findings import Finding, Limits, many, ok, severity, shell

__all__ = ["parked", "schedules", "workers"]

SHOWN = 10
# What park_messages() calls the task of a message that has none.
NO_TASK = "(none)"


def workers(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    found, now = known(facts.workers), facts.engine_now
    alive = [worker for worker in found if worker.is_alive]
    covered = {name for worker in alive if not worker.stopping for name in worker.queues}
    lost = [worker for worker in found if not worker.is_alive and not covered.issuperset(worker.queues)]
    for worker in lost[:SHOWN]:
        missing = ", ".join(sorted(set(worker.queues) - covered))
        yield Finding(
            "workers",
            "warning",
            _name(worker),
            f"Seen last {ago(worker.seen_at, now)}, no goodbye, and no live worker takes from {missing}. "
            "What it held comes back when its leases run out.",
            "See on its machine what became of it, and start it again:",
            shell("penstock", "workers"),
        )
    if len(lost) > SHOWN:
        yield Finding("workers", "warning", None, f"{len(lost) - SHOWN} others were lost, too.")
    others = [worker for worker in alive if worker.version != __version__]
    for worker in others[:SHOWN]:
        yield Finding(
            "workers",
            "warning",
            _name(worker),
            f"It runs Penstock {worker.version}, and here is {__version__}.",
            "Deploy the same version everywhere, and restart it.",
        )
    if not lost and not others:
        replaced_count = len(found) - len(alive)
        replaced = f", {count(replaced_count, 'other')} lost and replaced" if replaced_count else ""
        yield ok("workers", f"{count(len(alive), 'live worker')}{replaced}.")


def _name(worker: ListedWorker) -> str:
    return f"worker {worker.pid} on {worker.hostname}"


def parked(facts: Facts, limits: Limits) -> Iterator[Finding]:
    found, now, fine = known(facts.parked), facts.engine_now, True
    for each in found:
        known_to = [
            worker
            for worker in known(facts.workers)
            if worker.is_alive and each.queue_name in worker.queues and each.task_name in worker.tasks
        ]
        status = severity((now - each.parked_since).total_seconds(), limits)
        if known_to or status == "ok":
            continue  # a live worker takes them out as soon as it has a free slot
        fine = False
        messages = many(each.parked_count, "message")
        if each.task_name == NO_TASK:
            text = f"{messages} without a task header, which no worker can run"
            advice = "Look at them, and cancel what is not wanted (penstock message cancel):"
        else:
            text = f"{messages} of task {each.task_name!r}, which no live worker knows"
            advice = "Start a worker that has this task; or look at them, and cancel what is not wanted:"
        yield Finding(
            "parked",
            status,
            f"queue {each.queue_name}",
            f"{text}; the oldest was published {ago(each.parked_since, now)}.",
            advice,
            shell("penstock", "message", "list", each.queue_name, "--state", "scheduled"),
        )
    if fine:
        number = sum(each.parked_count for each in found)
        messages = f"{count(number, 'message')}, of tasks that live workers know, or since a moment ago"
        yield ok("parked", f"{messages if number else 'None'}.")


def schedules(facts: Facts, limits: Limits) -> Iterator[Finding]:
    found, now, fine = known(facts.schedules), facts.engine_now, True
    for schedule in found:
        # The same rule as of `penstock schedule list`; the patience decides how bad it is.
        if not schedule.is_overdue(now):
            continue
        late = (now - schedule.next_at).total_seconds()
        fine = False
        yield Finding(
            "schedules",
            "problem" if severity(late, limits) == "problem" else "warning",
            f"schedule {schedule.name}",
            f"Due {age(late)} ago, and not sent: no worker of the app that declares it runs.",
            "Start that worker, or send it now by hand:",
            shell("penstock", "schedule", "run", schedule.name),
        )
    if fine:
        number = sum(schedule.paused_at is not None for schedule in found)
        held = f", {number} of them paused" if number else ""
        yield ok("schedules", f"{count(len(found), 'schedule')}{held}, none of them late.")
