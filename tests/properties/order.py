"""The promises about order: who waits behind whom, whatever the ranks are.

Within a tenant the oldest is first. A message that comes back waits in front: behind none but the first in line, and
nobody who comes later gets before it. A tenant that has nothing waiting is among the first to be served, however much
others have. Under REPEATABLE READ and SERIALIZABLE the rank is a fresh id, so that nothing is promised but safety.
"""

from __future__ import annotations

from collections import Counter

from .engine import Snapshot
from .model import Message, Model, Queue


def place(message: Message) -> tuple[int, int]:
    assert message.rank is not None
    return message.rank, message.id


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
        for kind, check in (("fresh", _check_fresh), ("back", _check_back), ("new", _check_new)):
            messages = [e.message for e in entries if e.kind == kind]
            for message in messages:
                before = [m for m in waiting if m.priority == message.priority]
                check(model, queue, message, before)
                if kind == "new":
                    waiting.append(message)


def _check_fresh(model: Model, queue: Queue, message: Message, before: list[Message]) -> None:
    assert place(message)[0] > model.last_id, "under a snapshot only a fresh id is a safe rank"


def _check_back(model: Model, queue: Queue, message: Message, before: list[Message]) -> None:
    if before:
        first = min(before, key=place)
        assert place(message)[0] <= place(first)[0], f"{message} came back to queue {queue.name}, but behind {first}"


def _check_new(model: Model, queue: Queue, message: Message, before: list[Message]) -> None:
    for other in before:
        if other.came_back or other.tenant == message.tenant:
            assert place(message) > place(other), f"{message} overtook {other} in queue {queue.name}"
    if not any(other.tenant == message.tenant for other in before):
        ahead = Counter(m.tenant for m in before if not m.came_back and not m.fresh and place(m) < place(message))
        assert all(n <= 2 for n in ahead.values()), f"{message} of a quiet tenant is behind {ahead}"


def check_ranks(snapshot: Snapshot) -> None:
    """No rank is below the newest floor, none above the last id; nor is a floor."""
    for row in snapshot.messages:
        if row["state"] == "ready":
            assert snapshot.floors[row["queue"]][row["priority"]] <= row["rank"] <= snapshot.last_id, row
    for name, floors in snapshot.floors.items():
        assert max(floors) <= snapshot.last_id, f"floors of {name}"
