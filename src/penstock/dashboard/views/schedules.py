"""Schedules: messages that are sent again and again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.dashboard.pages import Act, Done, Missing, View, action, page
from penstock.models import ListedSchedule

__all__ = [
    "ScheduleRow",
    "SchedulesPage",
    "delete_schedule",
    "pause_schedule",
    "resume_schedule",
    "run_schedule",
    "schedules",
]


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule. rhythm: when it is due, in words."""

    name: str
    queue_name: str
    rhythm: str
    payload: Any
    missed: str
    next_at: datetime
    last_tick: datetime | None
    paused_at: datetime | None
    is_overdue: bool


@dataclass(frozen=True, slots=True)
class SchedulesPage:
    """All schedules."""

    schedules: list[ScheduleRow]


@page("/schedules", template="schedules.html", title="Schedules")
async def schedules(view: View) -> SchedulesPage:
    """All schedules: when each was due last, and when it is due next."""
    now = await view.client.clock()
    return SchedulesPage([_row(each, now, view) for each in await view.client.list_schedules()])


def _row(found: ListedSchedule, now: datetime, view: View) -> ScheduleRow:
    return ScheduleRow(
        name=found.name,
        queue_name=found.queue_name,
        rhythm=_rhythm(found.definition),
        payload=view.redaction.apply(found.payload),
        missed=found.missed,
        next_at=found.next_at,
        last_tick=found.last_tick,
        paused_at=found.paused_at,
        is_overdue=found.is_overdue(now),
    )


def _rhythm(definition: Any) -> str:
    """`0 9 * * * Europe/Berlin`, or `every 60 s`."""
    if isinstance(definition, dict):
        if cron := definition.get("cron"):
            return f"{cron} {definition.get('tz') or 'UTC'}"
        if every := definition.get("every"):
            return f"every {every} s"
    return str(definition)


async def _note_queue(act: Act, schedule: str) -> None:
    """So that the audit shows the row to viewers of the queue only."""
    queues = {each.name: each.queue_name for each in await act.tx.list_schedules()}
    if schedule in queues:
        act.detail["queue"] = queues[schedule]


@action("/schedules/{schedule}/run", name="run_schedule")
async def run_schedule(act: Act, schedule: str) -> Done:
    """Send the message of a schedule now; the next due time does not change."""
    await _note_queue(act, schedule)
    found = await act.tx.run_schedule(schedule)
    act.detail["message_id"] = found
    return Done(f"Schedule {schedule} has sent message {found}.", data={"message_id": found})


@action("/schedules/{schedule}/pause", name="pause_schedule")
async def pause_schedule(act: Act, schedule: str) -> Done:
    """Pause a schedule: its times pass, and nothing is sent."""
    await _note_queue(act, schedule)
    await act.tx.pause_schedule(schedule)
    return Done(f"Schedule {schedule} is paused.")


@action("/schedules/{schedule}/resume", name="resume_schedule")
async def resume_schedule(act: Act, schedule: str) -> Done:
    """Resume a paused schedule at its first time from now on."""
    await _note_queue(act, schedule)
    await act.tx.resume_schedule(schedule)
    return Done(f"Schedule {schedule} goes on.")


@action("/schedules/{schedule}/delete", name="delete_schedule", needs="administer")
async def delete_schedule(act: Act, schedule: str) -> Done:
    """Delete a schedule."""
    await _note_queue(act, schedule)
    if not await act.tx.delete_schedule(schedule):
        raise Missing(f"There is no schedule {schedule}.")
    return Done(f"Schedule {schedule} was deleted. A worker that declares it makes it anew.")
