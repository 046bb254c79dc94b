"""The command that lists the processes that run tasks: workers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from .connection import Session, with_session
from .output import age, count, facts

if TYPE_CHECKING:
    from penstock.models import ListedWorker

__all__ = ["workers"]

HEADINGS = ("WORKER", "VERSION", "QUEUES", "AT ONCE", "HELD", "RUNNING", "UP", "SEEN", "STATE")


@click.command()
@click.option("--alive", is_flag=True, help="Only those that are alive.")
@with_session
def workers(session: Session, alive: bool) -> None:
    """List the workers: where they run, and what they are busy with."""
    with session.connect() as queue:
        found, now = queue.list_workers(), queue.clock()
    empty = "There are no workers: penstock worker module:app"
    if alive and found:
        empty = f"No worker is alive; {count(len(found), 'is', 'are')} lost."
        found = [each for each in found if each.is_alive]
    if session.as_json:
        session.output.json([facts(each) for each in found])
        return
    session.output.table(HEADINGS, [_row(each, now) for each in found], empty=empty)


def _row(found: ListedWorker, now: datetime) -> tuple[Any, ...]:
    return (
        f"{found.hostname}:{found.pid}",
        found.version,
        found.queues,
        found.concurrency,
        found.held,
        _running(found),
        age(now - found.started_at),
        age(now - found.seen_at),
        "lost" if not found.is_alive else "stopping" if found.stopping else "alive",
    )


def _running(found: ListedWorker) -> str:
    """The tasks that it runs, those of one name counted."""
    running = found.running if isinstance(found.running, list) else []
    names = [str(each["task"]) for each in running if isinstance(each, dict) and each.get("task")]
    return ", ".join(f"{name} ({names.count(name)})" for name in dict.fromkeys(names))
