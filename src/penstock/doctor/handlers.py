"""Whether what workers hold gets on: handlers that hang, leases that idle, groups that cannot complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.diagnoses import GroupDiagnosis, QueueDiagnosis
from penstock.models import ListedWorker
from penstock.wording import age, ago, count

from .facts import Facts, known
from .findings import SEVERE, Finding, Limits, Status, many, ok, severity, shell

__all__ = ["groups", "handlers", "idle_leases"]

SHOWN = 10
TASKS_SHOWN = 3
# From so many times the patience on, a handler runs for long: 10 minutes, unless told otherwise.
LONG = 2
# A group without progress for so long.
STALLED = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _Run:
    """A handler that runs, as its worker has reported."""

    task: str
    queue: str
    since: datetime


def handlers(facts: Facts, limits: Limits) -> Iterator[Finding]:
    """A long handler alone is fine. It is not where it keeps messages waiting, or takes all slots."""
    now, fine, longest = facts.engine_now, True, 0.0
    queues = {queue.queue_name: queue for queue in known(facts.queues)}
    for worker in known(facts.workers):
        runs = sorted(_runs(worker), key=lambda run: run.since) if worker.is_alive else []
        if not runs:
            continue
        lasts = (now - runs[0].since).total_seconds()
        longest = max(longest, lasts)
        old = [run for run in runs if (now - run.since).total_seconds() >= LONG * limits.patience]
        if not old:
            continue
        stuck = [
            queues[name] for name in worker.queues if name in queues and _is_stuck(queues[name], now, limits)
        ]
        all_taken = len(old) >= worker.concurrency
        if not stuck and not all_taken and lasts < SEVERE * limits.patience:
            continue
        fine = False
        waiting = "; ".join(
            f"{many(queue.ready_count or 0, 'message')} of queue {queue.queue_name} "
            f"{'waits' if queue.ready_count == 1 else 'wait'}, and "
            + (
                "nothing was ever settled there"
                if queue.last_settled_at is None
                else f"the last one was settled {ago(queue.last_settled_at, now)}"
            )
            for queue in stuck[:TASKS_SHOWN]
        )
        slots = f" They take all {worker.concurrency} slots." if all_taken and worker.concurrency > 1 else ""
        yield Finding(
            "handlers",
            "problem" if stuck else "warning",
            _name(worker),
            f"{count(len(old), 'handler has', 'handlers have')} run for {age(LONG * limits.patience)} or "
            f"longer: {_listed(old, now)}.{slots}" + (f" Meanwhile {waiting}." if waiting else ""),
            "If they hang, restart the worker: its messages are delivered again. Give the task an "
            "attempt_timeout, and see what it waits for. What each worker runs:",
            shell("penstock", "workers", "--json"),
        )
    if fine:
        yield ok("handlers", f"The longest handler has run for {age(longest)}." if longest else "None runs.")


def _runs(worker: ListedWorker) -> Iterator[_Run]:
    """The report of a worker, as far as it is understood."""
    for run in worker.running if isinstance(worker.running, list) else []:
        match run:
            case {"task": str(task), "queue": str(queue), "since": str(since)}:
                try:
                    at = datetime.fromisoformat(since)
                except ValueError:
                    continue
                if at.tzinfo is not None:
                    yield _Run(task, queue, at)


def _is_stuck(queue: QueueDiagnosis, now: datetime, limits: Limits) -> bool:
    """Whether messages wait for some time and nothing has been settled meanwhile."""
    if queue.paused_at or not queue.ready_count or queue.waiting_since is None:
        return False
    signs = [queue.waiting_since, *([queue.last_settled_at] if queue.last_settled_at else [])]
    return (now - max(signs)).total_seconds() >= limits.patience


def _listed(runs: list[_Run], now: datetime) -> str:
    """The tasks, most frequent first, each with its oldest run."""
    counted = Counter(run.task for run in runs)
    oldest = {run.task: run.since for run in reversed(runs)}
    listed = [
        f"{number}x {task} (since {oldest[task]:%Y-%m-%d %H:%M:%S} UTC, {ago(oldest[task], now)})"
        for task, number in counted.most_common(TASKS_SHOWN)
    ]
    others = len(counted) - len(listed)
    return ", ".join(listed) + (f", and {count(others, 'other task')}" if others else "")


def _name(worker: ListedWorker) -> str:
    return f"worker {worker.pid} on {worker.hostname}"


def idle_leases(facts: Facts, limits: Limits) -> Iterator[Finding]:
    now, fine = facts.engine_now, True
    workers = {worker.consumer: worker for worker in known(facts.workers)}
    for lease in known(facts.leases):
        lasts = (now - lease.idle_since).total_seconds()
        status = severity(lasts, limits)
        worker = workers.get(lease.consumer)
        if status == "ok" or worker is None:
            continue
        fine = False
        number = len(list(_runs(worker)))
        yield Finding(
            "idle-leases",
            status,
            _name(worker),
            f"It holds {many(lease.idle_count, 'message')} of queue {lease.queue_name} that it does not run, "
            f"the first for {age(lasts)}. It holds {worker.held} in all, and runs {number}. "
            "No other worker can take them meanwhile.",
            "It keeps their leases: restart it, and they are delivered again. See its log for what it could "
            "not report, and which slots are taken:",
            shell("penstock", "workers"),
        )
    if fine:
        yield ok("idle-leases", "No live worker holds messages for long that it does not run.")


def groups(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    now, found = facts.engine_now, known(facts.groups)
    wrong = [finding for group in found if (finding := _judge(group, now)) is not None]
    yield from wrong[:SHOWN]
    if len(wrong) > SHOWN:
        worst: Status = "problem" if any(f.status == "problem" for f in wrong[SHOWN:]) else "warning"
        yield Finding(
            "groups", worst, None, f"{count(len(wrong) - SHOWN, 'other group')} cannot complete, too."
        )
    if not wrong:
        yield ok("groups", f"{many(len(found), 'group')} under way, each of them gets on.")


def _judge(group: GroupDiagnosis, now: datetime) -> Finding | None:
    subject = f"group {group.group_id}"
    progress = f"{group.done_count} of {group.total} members are done."
    forget = f"select penstock.delete_group({group.group_id});"
    if not group.has_callback_queue:
        return Finding(
            "groups",
            "problem",
            subject,
            f"{progress} The queue {group.callback_queue} of its callback does not exist: it cannot be sent.",
            "Create the queue, or forget the group:",
            forget,
        )
    if group.dead_count and group.dead_queue is not None and group.dead_since is not None:
        return Finding(
            "groups",
            "problem",
            subject,
            f"{progress} {many(group.dead_count, 'member')} died in queue {group.dead_queue}, the first "
            f"{ago(group.dead_since, now)}: the callback is sent when all members are done.",
            f"Bring them back when the cause is gone, or forget the group ({forget}). What they died of:",
            shell("penstock", "dlq", "list", group.dead_queue),
        )
    last = group.last_done_at or group.created_at
    if now - last < STALLED:
        return None
    return Finding(
        "groups",
        "warning",
        subject,
        f"{progress} No sign of progress for {age(now - last)}: members may have been cancelled, purged or "
        "never sent, or no worker runs them.",
        "If its members are gone, it never completes. Forget it:",
        forget,
    )
