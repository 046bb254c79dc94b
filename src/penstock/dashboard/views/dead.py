"""Dead letters by error; a group, its samples, and what to do with it: redrive as a plan, or delete."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from penstock.dashboard.pages import Act, Done, View, action, page
from penstock.errors import InvalidArgument
from penstock.models import DeadLetter
from penstock.operations import DeadLetterGroup, Operation, OperationAction
from penstock.wording import count, shown

__all__ = ["DeadPage", "Letter", "dead", "delete_letters", "redrive_letters"]

PAGE_SIZE = 50
SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter in the list of a group."""

    queue: str
    message_id: int
    tenant: str | None
    delivery_attempts: int
    reason: str
    last_error: str | None
    published_at: datetime
    moved_at: datetime


@dataclass(frozen=True, slots=True)
class DeadPage:
    """Groups of dead letters; of one group, its newest letters. next_after: the cursor of the next page."""

    queue: str
    error: str
    groups: list[DeadLetterGroup]
    letters: list[Letter]
    unfinished: list[Operation]
    queues: list[str]
    next_after: str | None


@page(
    "/dead",
    template="dead.html",
    title="Dead letters",
    query={
        "queue": "Only of this queue.",
        "error": "Only the group with this error_key; needs queue.",
        "after": "The cursor of the page before.",
    },
)
async def dead(view: View) -> DeadPage:
    """Dead letters, grouped by queue and error."""
    queue, error = view.query.get("queue", ""), view.query.get("error", "")
    after = view.query.get("after") or None
    if error and not queue:
        raise InvalidArgument("A group needs the name of its queue: queue must be given.")
    reading = await view.live.reading()
    unfinished = [
        each
        for each in await view.client.list_operations(unfinished=True)
        if not queue or each.queue_name == queue
    ]
    groups: list[DeadLetterGroup] = []
    letters: list[Letter] = []
    if error:
        found = await view.client.list_dlq_messages(queue, error_key=error, page_size=SAMPLES, after=after)
        letters = [_letter(each) for each in found]
        groups = [each for each in await _groups_of(view, queue) if each.error_key == error]
        cursor = found[-1].cursor if len(found) == SAMPLES else None
    else:
        groups = await view.client.list_dlq_groups(queue or None, page_size=PAGE_SIZE, after=after)
        cursor = groups[-1].cursor if len(groups) == PAGE_SIZE else None
    return DeadPage(
        queue=queue,
        error=error,
        groups=groups,
        letters=letters,
        unfinished=unfinished,
        queues=sorted(each.name for each in reading.queues.values() if each.dead or each.name == queue),
        next_after=cursor,
    )


async def _groups_of(view: View, queue: str) -> list[DeadLetterGroup]:
    return await view.client.list_dlq_groups(queue, page_size=1000)


def _letter(found: DeadLetter) -> Letter:
    return Letter(
        queue=found.queue_name,
        message_id=found.message_id,
        tenant=found.tenant,
        delivery_attempts=found.delivery_attempts,
        reason=found.reason,
        last_error=found.last_error,
        published_at=found.published_at,
        moved_at=found.moved_at,
    )


FIELDS = {
    "queue": "The name of the queue.",
    "error": "The error_key of the group; all dead letters of the queue without it.",
}


@action(
    "/dead/redrive",
    name="redrive",
    fields={
        **FIELDS,
        "per_second": "At most so many a second.",
        "canary": "on: one first, the others when that one is done.",
    },
)
async def redrive_letters(act: Act) -> Done:
    """Requeue dead letters in batches. It stops by itself if they die again."""
    text = act.text("per_second")
    if text and (not re.fullmatch("[0-9]{1,7}", text) or not 1 <= int(text) <= 1_000_000):
        raise InvalidArgument(f"per_second must be 1 to 1,000,000, not {shown(text)}")
    return await _start(
        act, "redrive", int(text) if text else None, act.text("canary").lower() in ("on", "true", "1")
    )


@action("/dead/delete", name="delete_letters", needs="administer", fields=FIELDS)
async def delete_letters(act: Act) -> Done:
    """Delete dead letters in batches."""
    return await _start(act, "delete", None, False)


async def _start(act: Act, what: OperationAction, per_second: int | None, canary: bool) -> Done:
    queue, error = act.text("queue"), act.form.get("error") or None
    if not queue:
        raise InvalidArgument("queue must be given.")
    operation_id = await act.tx.start_operation(
        what, queue, error_key=error, per_second=per_second, with_canary=canary, who=act.access.name
    )
    act.detail.update(queue=queue, operation_id=operation_id)
    planned = await act.tx.get_operation(operation_id)
    assert planned is not None
    number = count(planned.total_count, "dead letter")
    verb = "redriven" if what == "redrive" else "deleted"
    estimate = "about " if planned.total_is_estimate else ""
    return Done(
        f"{estimate}{number} of queue {queue} will be {verb}.",
        go=("operations", operation_id),
        data={"operation_id": operation_id, "total_count": planned.total_count},
    )
