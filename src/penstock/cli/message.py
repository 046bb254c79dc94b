"""The commands for single messages: message list, show, explain, cancel, deliver-now."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from .arguments import message_argument, page_options, payload_option, priority_name, queue_argument
from .connection import Session, with_session
from .failures import FAILED, NOT_FOUND, Failure
from .output import age, ago, as_json, facts, moment

if TYPE_CHECKING:
    from penstock._sync.api import Api
    from penstock.models import ListedMessage, MessageDetails, State

__all__ = ["message", "print_message"]

HEADINGS = ("ID", "STATE", "PRIORITY", "TENANT", "ATTEMPTS", "AGE", "WHAT")
STATES = ("active", "ready", "waiting", "scheduled", "dead", "done")


@click.group()
def message() -> None:
    """List, show, explain and cancel messages."""


@message.command("list")
@queue_argument
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@page_options
@with_session
def list_(session: Session, queue_name: str, state: State | None, most: int, after: str | None) -> None:
    """List messages of a queue, whatever their state.

    Those that run first, then those that come next.
    """
    with session.connect() as queue:
        found = queue.list_messages(queue_name, state=state, page_size=most, after=after)
        now = queue.clock()
    if session.as_json:
        session.output.json(found)
        return
    empty = f"There are no such messages in queue {queue_name}."
    session.output.table(HEADINGS, [_row(each, now) for each in found], empty=empty)
    if len(found) == most:
        session.output.note(f"There may be more: --after {found[-1].cursor!r}")


@message.command()
@queue_argument
@message_argument
@payload_option
@with_session
def show(session: Session, queue_name: str, message_id: int, payload: bool) -> None:
    """Show a message: its state, its payload and its errors."""
    with session.connect() as queue:
        found = _find(queue, queue_name, message_id)
    print_message(session, found, only_payload=payload)


@message.command()
@queue_argument
@message_argument
@with_session
def explain(session: Session, queue_name: str, message_id: int) -> None:
    """Say why a message is not running."""
    with session.connect() as queue:
        found = queue.explain_delivery_data(queue_name, message_id)
    if session.as_json:
        session.output.json({"queue_name": queue_name, "message_id": message_id, **facts(found)})
    else:
        session.output.line(found.explanation)
    if found.state is None:
        raise Failure(exit_code=NOT_FOUND)


@message.command()
@queue_argument
@message_argument
@with_session
def cancel(session: Session, queue_name: str, message_id: int) -> None:
    """Take a message out of a queue before it is delivered."""
    with session.connect() as queue:
        if not queue.cancel_message(queue_name, message_id):
            # A publisher may ask for the result of a message, but not look at it.
            found = queue.get_result(queue_name, message_id)
            if found is None:
                raise _missing(queue_name, message_id)
            raise Failure(
                f"message {message_id} does not wait in queue {queue_name}: it is {found.state}", FAILED
            )
    session.output.done(
        f"message {message_id} cancelled", queue_name=queue_name, message_id=message_id, cancelled=True
    )


@message.command("deliver-now")
@queue_argument
@message_argument
@with_session
def deliver_now(session: Session, queue_name: str, message_id: int) -> None:
    """Make a delayed, failed or parked message ready now."""
    with session.connect() as queue:
        if not queue.deliver_message_now(queue_name, message_id):
            found = queue.get_result(queue_name, message_id)
            if found is None:
                raise _missing(queue_name, message_id)
            raise Failure(
                f"message {message_id} of queue {queue_name} is not scheduled: it is {found.state}", FAILED
            )
    session.output.done(
        f"message {message_id} is ready", queue_name=queue_name, message_id=message_id, delivered=True
    )


def _find(queue: Api, queue_name: str, message_id: int) -> MessageDetails:
    found = queue.get_message(queue_name, message_id)
    if found is None:
        raise _missing(queue_name, message_id)
    return found


def _missing(queue_name: str, message_id: int) -> Failure:
    return Failure(
        f"there is no message {message_id} in queue {queue_name}, or it is not kept any more", NOT_FOUND
    )


def _row(found: ListedMessage, now: datetime) -> tuple[Any, ...]:
    return (
        found.message_id,
        found.state,
        priority_name(found.priority),
        found.tenant,
        found.delivery_attempts,
        age(now - found.published_at),
        _what(found, now),
    )


def _what(found: ListedMessage, now: datetime) -> str:
    """What the state of a message knows of it."""
    if found.leased_until is not None:
        if found.leased_until < now:
            return f"its lease is over since {age(now - found.leased_until)}: consumer {found.consumer}"
        return f"leased for {age(found.leased_until - now)}: consumer {found.consumer}"
    if found.moved_at is not None:
        return f"{found.reason}, {ago(found.moved_at, now)}"
    if found.completed_at is not None:
        return ago(found.completed_at, now)
    if found.due_at is None:
        return ""
    return "due" if found.due_at <= now else f"due in {age(found.due_at - now)}"


def print_message(session: Session, found: MessageDetails, *, only_payload: bool) -> None:
    if only_payload:
        session.output.payload(found.payload, end="")
    elif session.as_json:
        session.output.json(facts(found))
    else:
        session.output.record(_shown(found))


def _shown(found: MessageDetails) -> dict[str, Any]:
    """The fields that are set; errors with a line each, the payload last."""
    fields = facts(found)
    errors = [f"attempt {each.attempt}, {moment(each.at)}: {each.error or '-'}" for each in found.errors]
    payload, body = fields.pop("payload"), fields.pop("body", None)
    shown = {name: value for name, value in fields.items() if value not in (None, "", (), {})}
    shown.pop("last_error", None)
    shown["priority"] = priority_name(found.priority)
    if errors:
        shown["errors"] = "\n".join(errors)
    if found.result is not None:
        shown["result"] = as_json(found.result)
    shown["payload"] = found.payload if body is not None else as_json(payload)
    return {name.replace("_", " "): value for name, value in shown.items()}
