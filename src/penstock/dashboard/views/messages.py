"""The messages of a queue in one state, a page at a time, and what can be done with those that are ticked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

from penstock.dashboard.pages import Act, Done, Missing, View, action, page
from penstock.errors import InvalidArgument
from penstock.models import ListedMessage, State
from penstock.wording import count, shown

__all__ = [
    "MessagesPage",
    "StateCount",
    "cancel_messages",
    "delete_dead_letters",
    "deliver_now",
    "message_ids",
    "messages",
    "requeue_dead_letters",
]

PAGE_SIZE = 50
MOST_IDS = 1000
# As people read them: what runs first, what is over last.
STATES: tuple[State, ...] = ("ready", "waiting", "scheduled", "active", "dead", "done")


@dataclass(frozen=True, slots=True)
class StateCount:
    """How many messages are in a state at the newest tick; None if it is not known."""

    state: State
    count: int | None
    is_estimate: bool


@dataclass(frozen=True, slots=True)
class MessagesPage:
    """A page of messages. next_after: the cursor of the next page, None after the last one."""

    queue: str
    state: State
    states: list[StateCount]
    messages: list[ListedMessage]
    next_after: str | None
    page_size: int


@page(
    "/queues/{queue}/messages",
    template="messages.html",
    title="Messages of {queue}",
    query={
        "state": f"One of {', '.join(STATES)}.",
        "after": "The cursor of the page before.",
        "page_size": f"Up to 500; {PAGE_SIZE} by default.",
    },
)
async def messages(view: View, queue: str) -> MessagesPage:
    """The messages of a queue in one state."""
    state = view.query.get("state") or "ready"
    if state not in get_args(State):
        raise InvalidArgument(f"state must be one of {', '.join(STATES)}, not {shown(state)}")
    given = view.query.get("page_size") or str(PAGE_SIZE)
    if not given.isdecimal() or not 1 <= int(given[:9]) <= 500:
        raise InvalidArgument(f"page_size must be 1 to 500, not {shown(given)}")
    size = int(given)
    found = await view.client.list_messages(
        queue, state=cast(State, state), page_size=size, after=view.query.get("after") or None
    )
    reading = await view.live.reading()
    now = reading.queues.get(queue)
    counts: dict[str, int] = {}
    if now is not None:
        counts = {
            "ready": now.depth - now.waiting,
            "waiting": now.waiting,
            "scheduled": now.delayed,
            "active": now.active,
            "dead": now.dead,
        }
    return MessagesPage(
        queue=queue,
        state=cast(State, state),
        states=[
            StateCount(each, counts.get(each), now is not None and now.is_estimate and each != "active")
            for each in STATES
        ],
        messages=found,
        next_after=found[-1].cursor if len(found) == size else None,
        page_size=size,
    )


def message_ids(act: Act) -> list[int]:
    """The ids of a form or of a JSON body."""
    given = act.many("id")
    if not given:
        raise InvalidArgument("No message was chosen: id must be given.")
    if len(given) > MOST_IDS:
        raise InvalidArgument(f"At most {MOST_IDS:,} messages at once, not {len(given):,}.")
    for each in given:
        if not each.isdecimal() or len(each) > 18:
            raise InvalidArgument(f"The id of a message is a number, not {shown(each)}")
    return sorted(map(int, set(given)))


FIELDS = {"id": "The ids of the messages."}


def _done(number: int, given: int, what: str) -> Done:
    """A sentence, which also says how many were not in the right state any more."""
    rest = given - number
    missing = f" {count(rest, 'message')} had moved on meanwhile." if rest else ""
    return Done(
        f"{count(number, 'message')} {what}.{missing}",
        data={"affected": number},
        status="ok" if number else "problem",
    )


@action("/queues/{queue}/messages/deliver", name="deliver_messages_now", fields=FIELDS)
async def deliver_now(act: Act, queue: str) -> Done:
    """Deliver scheduled messages now: delayed ones, retries and parked ones."""
    ids = message_ids(act)
    return _done(len(await act.tx.deliver_messages_now(queue, ids)), len(ids), "made ready")


@action("/queues/{queue}/messages/cancel", name="cancel_messages", fields=FIELDS)
async def cancel_messages(act: Act, queue: str) -> Done:
    """Take messages out of a queue before they are delivered."""
    ids = message_ids(act)
    cancelled = [each for each in ids if await act.tx.cancel_message(queue, each)]
    return _done(len(cancelled), len(ids), "cancelled")


@action("/queues/{queue}/messages/requeue", name="requeue_dead_letters", fields=FIELDS)
async def requeue_dead_letters(act: Act, queue: str) -> Done:
    """Requeue dead letters, with their attempts at 0."""
    ids = message_ids(act)
    return _done(await act.tx.requeue_dlq_messages(queue, ids), len(ids), "requeued")


@action("/queues/{queue}/messages/delete", name="delete_dead_letters", needs="administer", fields=FIELDS)
async def delete_dead_letters(act: Act, queue: str) -> Done:
    """Delete dead letters for good."""
    ids = message_ids(act)
    return _done(await act.tx.delete_dlq_messages(queue, ids), len(ids), "deleted")


def missing(queue: str, message: str) -> Missing:
    return Missing(f"Queue {queue} has no message {message}, or keeps it no more.")
