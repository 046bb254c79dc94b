"""What explain_delivery() says of a message, against what the model says happens next."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from ..sql.engine import fingerprint
from .engine import Engine
from .messages import Message
from .model import Model
from .queues import Queue

UNKNOWN_ID = 1_000_000
STATES = ("ready", "waiting", "scheduled", "active", "dead", "done")
REASONS = {
    "failed": "it was rejected",
    "no_attempts_left": "no attempts were left",
    "expired": "its time to live was over",
}
EXPLAIN = """
select x.queue, x.id, penstock.explain_delivery(x.queue, x.id)
from unnest(%s::text[], %s::bigint[]) x(queue, id)
"""


def check_explanations(model: Model, engine: Engine, turn: int) -> None:
    """One message of each state and queue, another one in each turn; and one that is not there."""
    chosen = [(queue, message) for queue in model.queues.values() for message in _some(queue, turn)]
    names = [queue.name for queue, _ in chosen]
    ids = [message.id for _, message in chosen]
    first = next(iter(model.queues))
    rows = engine.all(EXPLAIN, [[*names, first], [*ids, UNKNOWN_ID]])
    said = {(queue, message_id): text for queue, message_id, text in rows}
    assert said.pop((first, UNKNOWN_ID)).startswith("unknown: ")
    for queue, message in chosen:
        text = said[queue.name, message.id]
        for expected in _expected(queue, message, model.now):
            assert expected in text, f"{message} of queue {queue.name}: {text!r}, expected {expected!r}"


def _some(queue: Queue, turn: int) -> Iterator[Message]:
    for state in STATES:
        there = queue.state(state)
        if there:
            yield there[turn % len(there)]


def _stamp(at: datetime | None) -> str:
    assert at is not None
    return at.strftime("%Y-%m-%d %H:%M:%S+00")


def _expected(queue: Queue, message: Message, now: datetime) -> list[str]:
    """What the text must contain."""
    last_error = message.errors[-1][2] if message.errors else None
    paused = ["the queue is paused since"] if queue.paused else []
    if message.state in ("ready", "waiting", "scheduled") and message.over(now):
        # Whatever else holds for it: it is never delivered.
        return [f"its time to live was over at {_stamp(message.expires_at)}"]
    match message.state:
        case "scheduled" if message.due_at is not None and message.due_at <= now:
            return [f"due since {_stamp(message.due_at)}", *paused]
        case "scheduled" if message.attempts > 0:
            return [
                f"waits for attempt {message.attempts + 1} until {_stamp(message.due_at)}",
                f"after: {last_error or 'no error given'}",
                *paused,
            ]
        case "scheduled":
            return [f"delayed until {_stamp(message.due_at)}", *paused]
        case "active":
            consumer = "" if message.token is None else fingerprint(message.token)
            attempt = f"(attempt {message.attempts}"
            if message.vt is not None and message.vt < now:
                return [f"the lease of consumer {consumer}", f"ran out at {_stamp(message.vt)}", attempt]
            return [f"leased by consumer {consumer}", f"until {_stamp(message.vt)}", attempt]
        case "dead":
            return [
                f"dead since {_stamp(message.moved_at)} because {REASONS[message.reason or '']}",
                f"after {message.attempts} attempts; last error: {last_error or 'none given'}",
            ]
        case "done":
            return [f"done at {_stamp(message.completed_at)}, attempt {message.attempts}"]
        case "waiting":
            return ["waiting: ", *_expected_waiting(queue, message, now), *paused]
    return ["ready: ", *_expected_ready(queue, message, now), *paused]


def _behind(number: int) -> str:
    return "behind 1 other" if number == 1 else f"behind {number} others"


def _expected_waiting(queue: Queue, message: Message, now: datetime) -> list[str]:
    """Admission depends on the tenant's permits, and on the number of its messages that are in front."""
    if queue.cap is None:
        return ["lets it in"]
    line = [m for m in queue.state("waiting") if m.tenant == message.tenant and not m.over(now)]
    ahead = sorted(line, key=lambda m: (m.priority, m.turn)).index(message)
    held = sum(m.holds_tenant_permit and m.tenant == message.tenant for m in queue.state("ready", "active"))
    counted = f"has {held} of tenant_max_active {queue.cap} ready or active"
    if ahead < queue.cap - held:
        return [counted, "lets it in"]
    return [counted, "next in line of its tenant" if ahead == 0 else f"{_behind(ahead)} of its tenant"]


def _expected_ready(queue: Queue, message: Message, now: datetime) -> list[str]:
    """Whether a cap holds it back, and how many are delivered before it. What is over is not delivered."""
    kind = queue.kind(message.priority)
    is_held = kind is not None and queue.free_permits(kind) == 0
    is_pooled = queue.quotas is not None and len(queue.quotas) == 1
    ahead = 0
    for priority in range(message.priority + 1):
        line = [m for m in queue.line(priority) if not m.over(now)]
        if priority == message.priority:
            ahead += line.index(message)
        elif kind is None or is_pooled:
            ahead += len(line)
        elif not is_held:
            ahead += min(len(line), queue.free_permits(queue.kind(priority)) or 0)
    if not is_held:
        return ["next in line, waits for a consumer" if ahead == 0 else _behind(ahead)]
    reason = "held back by max_active" if queue.quota(kind or 0) else "its priority has no permits"
    return [reason, "next in line" if ahead == 0 else _behind(ahead)]
