"""A message: its payload and headers, what happened to it, and why it is not running."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from penstock.dashboard.contents import MOST_READ, Content, bytes_content, json_content
from penstock.dashboard.pages import Download, View, page
from penstock.doctor.findings import shell
from penstock.errors import InvalidArgument
from penstock.operations import DeliveryExplanation, StoredMessage

from .messages import missing

__all__ = ["Event", "MessagePage", "MessageView", "message_page", "payload"]

FORMS = ("pretty", "raw", "hex")
MOST_DOWNLOADED = 64_000_000
"""A larger payload is not handed out: the process would have to hold it several times."""
MOST_ID_DIGITS = 18


@dataclass(frozen=True, slots=True)
class MessageView:
    """The facts about a message, without what has a place of its own on the page."""

    id: int
    queue: str
    state: str
    priority: int
    tenant: str | None
    task: str | None
    delivery_attempts: int
    published_at: datetime
    expires_at: datetime | None
    due_at: datetime | None
    leased_until: datetime | None
    claimed_at: datetime | None
    consumer: str | None
    dedup_key: str | None
    reason: str | None
    error_key: str | None
    moved_at: datetime | None
    completed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the message, or that will. text: a traceback, or nothing."""

    at: datetime
    kind: Literal["published", "failed", "due", "claimed", "lease", "expires", "dead", "done"]
    title: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class MessagePage:
    """A message. explanation: why it is not running; None if it is done."""

    message: MessageView
    form: str
    forms: tuple[str, ...]
    payload: Content | None
    headers: Content | None
    result: Content | None
    timeline: list[Event]
    explanation: DeliveryExplanation | None


@page(
    "/queues/{queue}/messages/{message}",
    template="message.html",
    title="Message {message} of {queue}",
    query={"show": f"How the payload is shown: {', '.join(FORMS)}."},
)
async def message_page(view: View, queue: str, message: str) -> MessagePage:
    """A message: its payload, headers and history, and why it is not running."""
    form = view.query.get("show") or FORMS[0]
    if form not in FORMS:
        raise InvalidArgument(f"show must be one of {', '.join(FORMS)}, not {form!r}")
    found = await _stored(view, queue, message, MOST_READ)
    body = found.body
    payload: Content | None
    if body is not None:
        payload = bytes_content(body, found.payload_size or 0, view.redaction, form)
    else:
        payload = json_content(found.payload_text, found.payload_size, view.redaction, form)
    headers = found.headers_text
    explanation = None
    if found.state != "done":
        explanation = await view.client.explain_delivery_data(queue, found.message_id)
    return MessagePage(
        message=_view(found),
        form=form if payload is None else payload.form,
        forms=FORMS if body is None else ("text", "hex"),
        payload=payload,
        headers=json_content(headers, None if headers is None else len(headers), view.redaction, "pretty"),
        result=json_content(found.result_text, found.result_size, view.redaction, "pretty"),
        timeline=_timeline(found),
        explanation=explanation,
    )


@page("/queues/{queue}/messages/{message}/payload", template="message.html", title="Payload of {message}")
async def payload(view: View, queue: str, message: str) -> Download:
    """The whole payload, as a file. What is redacted on pages is redacted here, too."""
    # One at a time: several large ones would not fit into memory.
    async with view.downloading:
        found = await _stored(view, queue, message, MOST_DOWNLOADED)
        name = f"{queue}-{found.message_id}"
        size = found.payload_size or 0
        if size > MOST_DOWNLOADED:
            command = shell("penstock", "message", "show", queue, str(found.message_id))
            raise InvalidArgument(
                f"The payload has {size:,} bytes: too many to download here. Read it with: {command}"
            )
        if found.body is not None:
            content = await asyncio.to_thread(view.redaction.in_bytes, found.body)
            return Download(f"{name}.bin", "application/octet-stream", content)
        content = await asyncio.to_thread(view.redaction.in_bytes, (found.payload_text or "null").encode())
        return Download(f"{name}.json", "application/json", content)


async def _stored(view: View, queue: str, message: str, most: int) -> StoredMessage:
    if not message.isdecimal() or len(message) > MOST_ID_DIGITS:
        raise missing(queue, message)
    found = await view.client.get_stored_message(queue, int(message), most_bytes=most)
    if found is None:
        raise missing(queue, message)
    return found


def _view(found: StoredMessage) -> MessageView:
    return MessageView(
        id=found.message_id,
        queue=found.queue_name,
        state=found.state,
        priority=found.priority,
        tenant=found.tenant,
        task=_task(found.headers_text),
        delivery_attempts=found.delivery_attempts,
        published_at=found.published_at,
        expires_at=found.expires_at,
        due_at=found.due_at,
        leased_until=found.leased_until,
        claimed_at=found.claimed_at,
        consumer=found.consumer,
        dedup_key=found.dedup_key,
        reason=found.reason,
        error_key=found.error_key,
        moved_at=found.moved_at,
        completed_at=found.completed_at,
    )


def _task(headers: str | None) -> str | None:
    """The task that the message calls."""
    try:
        task = json.loads(headers, parse_int=str).get("task") if headers else None
    except (ValueError, RecursionError, AttributeError):
        return None
    return task if isinstance(task, str) else None


def _timeline(found: StoredMessage) -> list[Event]:
    """What happened, and what will, in the order of time."""
    events = [Event(found.published_at, "published", "Published")]
    events += [
        Event(each.at, "failed", f"Attempt {each.attempt} failed", each.error) for each in found.errors
    ]
    if found.claimed_at is not None:
        events.append(Event(found.claimed_at, "claimed", f"Attempt {found.delivery_attempts} began"))
    if found.leased_until is not None:
        events.append(Event(found.leased_until, "lease", "The lease ends, unless it is extended"))
    if found.due_at is not None:
        events.append(Event(found.due_at, "due", "Due for delivery"))
    if found.expires_at is not None and found.state not in ("done", "dead"):
        events.append(Event(found.expires_at, "expires", "Its time to live is over"))
    if found.moved_at is not None:
        reason = (found.reason or "").replace("_", " ")
        events.append(Event(found.moved_at, "dead", f"Became a dead letter: {reason}"))
    if found.completed_at is not None:
        events.append(Event(found.completed_at, "done", "Completed"))
    return sorted(events, key=lambda each: each.at)
