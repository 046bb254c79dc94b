"""Workers: the processes that run tasks, and what each runs now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.dashboard.condition import state_of_worker
from penstock.dashboard.pages import View, page
from penstock.models import ListedWorker

__all__ = ["RunningTask", "WorkerRow", "WorkersPage", "workers"]


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task that a worker runs, as of its last report."""

    task: str
    queue: str
    message_id: int
    attempt: int
    since: datetime | None


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker. state: alive, stopping or lost."""

    consumer: str
    hostname: str
    pid: int
    version: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    held: int
    started_at: datetime
    seen_at: datetime
    state: str
    running: list[RunningTask]


@dataclass(frozen=True, slots=True)
class WorkersPage:
    """All workers, with the sums over those that are alive."""

    workers: list[WorkerRow]
    alive: int
    slots: int
    running: int


@page("/workers", template="workers.html", title="Workers")
async def workers(view: View) -> WorkersPage:
    """All workers, with what each runs now and for how long."""
    rows = [_row(each) for each in await view.client.list_workers()]
    alive = [each for each in rows if each.state != "lost"]
    return WorkersPage(
        workers=rows,
        alive=len(alive),
        slots=sum(each.concurrency for each in alive),
        running=sum(len(each.running) for each in alive),
    )


def _row(found: ListedWorker) -> WorkerRow:
    running = found.running if isinstance(found.running, list) else []
    return WorkerRow(
        consumer=found.consumer,
        hostname=found.hostname,
        pid=found.pid,
        version=found.version,
        queues=found.queues,
        tasks=found.tasks,
        concurrency=found.concurrency,
        held=found.held,
        started_at=found.started_at,
        seen_at=found.seen_at,
        state=state_of_worker(found),
        running=[_running(each) for each in running if isinstance(each, dict)],
    )


def _running(report: dict[str, Any]) -> RunningTask:
    """A worker of another version may report something else."""
    try:
        since = datetime.fromisoformat(str(report.get("since")))
    except ValueError:
        since = None
    message_id, attempt = report.get("message_id"), report.get("attempt")
    return RunningTask(
        task=str(report.get("task") or "?"),
        queue=str(report.get("queue") or ""),
        message_id=message_id if isinstance(message_id, int) else 0,
        attempt=attempt if isinstance(attempt, int) else 0,
        since=since if since is not None and since.tzinfo is not None else None,
    )
