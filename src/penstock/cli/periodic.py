"""The commands for periodic tasks: periodic list, pause, resume, run."""

# ruff: noqa: PLC0415 - psycopg is imported by the commands that connect, so that --help is quick

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from .connection import connect_or_embedded, dsn_option, json_option

if TYPE_CHECKING:
    from penstock._sync.api import Api
    from penstock.models import ListedSchedule

__all__ = ["periodic"]

HEADINGS = ("NAME", "TIMES", "QUEUE", "NEXT", "LAST", "STATE")


@click.group()
def periodic() -> None:
    """List, pause, resume and run periodic tasks."""


@periodic.command("list")
@dsn_option
@json_option
def list_(dsn: str | None, as_json: bool) -> None:
    """List periodic tasks: when each is due, when it was last, whether it is paused."""
    with _queue(dsn) as queue:
        schedules, now = queue.list_schedules(), queue.clock()
    if as_json:
        click.echo(json.dumps([_facts(schedule) for schedule in schedules], default=datetime.isoformat))
    elif schedules:
        _print_table([HEADINGS, *(_row(schedule, now) for schedule in schedules)])
    else:
        click.echo("There are no periodic tasks: a worker enters those of its app when it starts.", err=True)


@periodic.command()
@click.argument("name")
@dsn_option
def pause(name: str, dsn: str | None) -> None:
    """Let the times of a periodic task go by."""
    with _queue(dsn) as queue:
        queue.pause_schedule(name)
    click.echo(f"{name}: paused", err=True)


@periodic.command()
@click.argument("name")
@dsn_option
def resume(name: str, dsn: str | None) -> None:
    """Let a paused periodic task go on, at its next time from now."""
    from penstock.tasks.periodic import times_of

    with _queue(dsn) as queue:
        now, later = queue.clock(), None
        for schedule in queue.list_schedules():
            times = times_of(schedule.definition)
            # Times that went by in the pause with no worker there are not to be made up for.
            if schedule.name == name and schedule.paused_at and schedule.next_at <= now and times is not None:
                later = times.next_after(now)
        queue.resume_schedule(name, later)
    click.echo(f"{name}: goes on", err=True)


@periodic.command()
@click.argument("name")
@dsn_option
def run(name: str, dsn: str | None) -> None:
    """Enqueue a periodic task now, paused or not; prints the id of its message."""
    with _queue(dsn) as queue:
        message_id = queue.run_schedule(name)
    click.echo(message_id)


@contextmanager
def _queue(dsn: str | None) -> Iterator[Api]:
    with connect_or_embedded(dsn) as connection:
        from penstock import schema
        from penstock._sync.client import Client

        schema.check(connection)
        yield Client(dsn).using(connection)


def _facts(schedule: ListedSchedule) -> dict[str, Any]:
    return {"task": (schedule.headers or {}).get("task"), **asdict(schedule)}


def _row(schedule: ListedSchedule, now: datetime) -> tuple[str, ...]:
    from penstock.tasks.periodic import GRACE, times_of

    times = times_of(schedule.definition)
    if schedule.paused_at is not None:
        state = "paused"
    elif schedule.next_at + GRACE < now:
        state = "overdue: no worker has it"
    else:
        state = "active"
    return (
        schedule.name,
        json.dumps(schedule.definition) if times is None else str(times),
        schedule.queue_name,
        _shown(schedule.next_at),
        _shown(schedule.last_tick),
        state,
    )


def _shown(moment: datetime | None) -> str:
    return "-" if moment is None else moment.isoformat(sep=" ", timespec="seconds")


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
