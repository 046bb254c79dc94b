"""The commands for periodic tasks: schedule list, run, pause, resume, delete."""

# ruff: noqa: PLC0415 - what computes times is imported by the commands that need it

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from .arguments import complete_schedule, confirm, yes_option
from .connection import Session, with_session
from .failures import NOT_FOUND, Failure
from .output import as_json, facts

if TYPE_CHECKING:
    from penstock._sync.api import Api
    from penstock.models import ListedSchedule

__all__ = ["schedule"]

HEADINGS = ("NAME", "TIMES", "QUEUE", "NEXT", "LAST", "STATE")


def name_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("name", shell_complete=complete_schedule)(command)


@click.group()
def schedule() -> None:
    """List, run, pause and resume periodic tasks."""


@schedule.command("list")
@with_session
def list_(session: Session) -> None:
    """List periodic tasks.

    When each is due, when it was last, whether it is paused.
    """
    with session.connect() as queue:
        found, now = queue.list_schedules(), queue.clock()
        queue_names = _queue_names(queue)
    if session.as_json:
        session.output.json([_facts(each) for each in found])
        return
    session.output.table(
        HEADINGS,
        [_row(each, now, queue_names) for each in found],
        empty="There are no periodic tasks: a worker enters those of its app when it starts.",
    )


@schedule.command()
@name_argument
@with_session
def run(session: Session, name: str) -> None:
    """Enqueue a periodic task now, paused or not.

    Prints the id of its message.
    """
    with session.connect() as queue:
        _find(queue, name)
        message_id = queue.run_schedule(name)
    if session.as_json:
        session.output.json({"name": name, "message_id": message_id})
    else:
        session.output.line(message_id)


@schedule.command()
@name_argument
@with_session
def pause(session: Session, name: str) -> None:
    """Let the times of a periodic task go by."""
    with session.connect() as queue:
        _find(queue, name)
        queue.pause_schedule(name)
    session.output.done(f"{name}: paused", name=name, paused=True)


@schedule.command()
@name_argument
@with_session
def resume(session: Session, name: str) -> None:
    """Let a paused periodic task go on, at its next time from now."""
    with session.connect() as queue:
        _find(queue, name)
        queue.resume_schedule(name)
    session.output.done(f"{name}: goes on", name=name, paused=False)


@schedule.command()
@name_argument
@yes_option
@with_session
def delete(session: Session, name: str, yes: bool) -> None:
    """Forget a periodic task that no app has any more.

    A worker that has it enters it again.
    """
    with session.connect() as queue:
        _find(queue, name)
        confirm(f"Delete schedule {name}?", yes=yes)
        deleted = queue.delete_schedule(name)
    session.output.done(f"{name}: deleted", name=name, deleted=deleted)


def _find(queue: Api, name: str) -> ListedSchedule:
    for found in queue.list_schedules():
        if found.name == name:
            return found
    raise Failure(f'schedule "{name}" does not exist (penstock schedule list shows those that do)', NOT_FOUND)


def _facts(found: ListedSchedule) -> dict[str, Any]:
    return {"task": (found.headers or {}).get("task"), **facts(found)}


def _queue_names(queue: Api) -> set[str] | None:
    """The queues that there are; None for a role that may list schedules, but not queues."""
    from psycopg.errors import InsufficientPrivilege

    try:
        return {each.name for each in queue.list_queues()}
    except InsufficientPrivilege:
        return None


def _row(found: ListedSchedule, now: datetime, queue_names: Collection[str] | None) -> tuple[Any, ...]:
    from penstock.tasks.periodic import times_of

    times = times_of(found.definition)
    if queue_names is not None and found.queue_name not in queue_names:
        state = "its queue is gone"
    elif found.paused_at is not None:
        state = "paused"
    elif found.is_overdue(now):
        state = "overdue: no worker has it"
    else:
        state = "active"
    shown = as_json(found.definition) if times is None else str(times)
    return (found.name, shown, found.queue_name, found.next_at, found.last_tick, state)
