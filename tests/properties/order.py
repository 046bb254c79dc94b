"""The promises about order: who waits behind whom, whatever the ranks are.

Within a tenant the oldest is first. A message that comes back is put in front, and no later one of its tenant
gets before it. A tenant that has nothing waiting is among the first to be served, however much others have.
Where a transaction cannot see the floor (REPEATABLE READ, SERIALIZABLE) the rank is a fresh id: nothing that
was there can be behind it, and what comes back has no better place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from .engine import Snapshot
from .model import Message, Model, Queue


def take_ranks(model: Model, snapshot: Snapshot) -> None:
    """Gives the messages that came into ready in this step the ranks they got, if those keep the promises."""
    ranks = {(row["queue"], row["id"]): row["rank"] for row in snapshot.messages if row["state"] == "ready"}
    for queue in model.queues.values():
        waiting = [m for m in queue.state("ready") if m.rank is not None]
        entries = [e for e in queue.entries if e.message.state == "ready" and e.message.id in queue.messages]
        queue.entries = []
        for entry in entries:
            assert (queue.name, entry.message.id) in ranks, f"{entry.message} is not ready"
            entry.message.rank = ranks[queue.name, entry.message.id]
        for kind, check in CHECKS.items():
            for message in [e.message for e in entries if e.kind == kind]:
                before = [m for m in waiting if m.priority == message.priority]
                check(model, queue, message, before)
                if kind == "new":
                    waiting.append(message)


def place(message: Message) -> tuple[int, int]:
    assert message.rank is not None
    return message.rank, message.id


def _check_fresh(model: Model, queue: Queue, message: Message, before: list[Message]) -> None:
    assert place(message)[0] > model.last_id, "under a snapshot only a fresh id is a safe rank"


def _check_back(model: Model, queue: Queue, message: Message, before: list[Message]) -> None:
    if before:
        first = min(before, key=place)
        assert place(message)[0] <= place(first)[0], (
            f"{message} came back to queue {queue.name}, but behind {first}"
        )


def _check_new(model: Model, queue: Queue, message: Message, before: list[Message]) -> None:
    for other in before:
        if other.tenant == message.tenant and other.entered_as != "anywhere":
            assert place(message) > place(other), f"{message} overtook {other} in queue {queue.name}"
    if not any(other.tenant == message.tenant for other in before):
        ahead = Counter(m.tenant for m in before if m.entered_as == "new" and place(m) < place(message))
        assert all(n <= 2 for n in ahead.values()), f"{message} of a quiet tenant is behind {ahead}"


CHECKS: dict[str, Callable[[Model, Queue, Message, list[Message]], None]] = {
    "anywhere": _check_fresh,
    "fresh": _check_fresh,
    "back": _check_back,
    "new": _check_new,
}


def check_ranks(snapshot: Snapshot) -> None:
    """No rank is below the newest floor, none above the last id; nor is a floor."""
    for row in snapshot.messages:
        if row["state"] == "ready":
            assert snapshot.floors[row["queue"]][row["priority"]] <= row["rank"] <= snapshot.last_id, row
    for name, floors in snapshot.floors.items():
        assert max(floors) <= snapshot.last_id, f"floors of {name}"
