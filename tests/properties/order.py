"""The promises about order: which message waits behind which, whatever the ranks are.

Within a tenant the oldest is first. In a queue without tenants a message that is released, or lost for the
first time, is put in front; one that failed goes beside a message that waits, one beside each. In one with
tenants a new message goes next to the first in line, or behind what its tenant has waiting; what
comes back goes behind the first in line, in front of what its tenant has waiting, one at each rank besides
the tenant's own: so no message waits for more than that, however much others have.
What was ready before the first tenant came is served first. Until then, what comes back goes beside it.
Until the first tenant the rank of a new message is a fresh id.
Where a transaction cannot see the floor (REPEATABLE READ, SERIALIZABLE) the rank is a fresh id: nothing that
was there can be behind it, and what comes back has no better permit. In a queue with tenants such a message
goes to waiting until it can be ranked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from .engine import Snapshot
from .messages import Message
from .model import Model
from .queues import Queue


def take_ranks(model: Model, snapshot: Snapshot) -> None:
    """Gives the messages that came into ready in this step the ranks they got, if those keep the promises."""
    ranks = {(row["queue"], row["id"]): row["rank"] for row in snapshot.messages if row["state"] == "ready"}
    for queue in model.queues.values():
        waiting = [m for m in [*queue.state("ready"), *queue.passed] if m.rank is not None]
        entries = [e for e in queue.entries if e.message.state == "ready" and e.message.id in queue.messages]
        queue.entries = []
        queue.tenants_from = snapshot.tenants_from[queue.name]
        assert (queue.tenants_from is not None) == queue.fair, f"queue {queue.name} has tenants, or has not"
        queue.early -= {e.message.id for e in entries}
        queue.early &= {m.id for m in queue.state("ready")}
        for entry in entries:
            assert (queue.name, entry.message.id) in ranks, f"{entry.message} is not ready"
            entry.message.rank = ranks[queue.name, entry.message.id]
        for kind, check in CHECKS.items():
            for message in [e.message for e in entries if e.kind == kind]:
                before = [m for m in waiting if m.priority == message.priority]
                check(model, queue, message, before)
                if kind == "new":
                    waiting.append(message)
        queue.passed = []


def position(message: Message) -> tuple[int, int]:
    assert message.rank is not None
    return message.rank, message.id


def _line(queue: Queue, priority: int) -> list[Message]:
    return [
        *queue.line(priority),
        *(m for m in queue.passed if m.priority == priority and m.rank is not None),
    ]


def _unknown(queue: Queue, message: Message) -> bool:
    """Whether some of its line came in and were claimed in the same step: their ranks are unknown."""
    return any(m.priority == message.priority and m.rank is None for m in queue.passed)


def _check_fresh(model: Model, queue: Queue, message: Message, before: list[Message]) -> None:
    assert position(message)[0] > model.last_id, "without tenants or under a snapshot the rank is a new id"


def _check_back(model: Model, queue: Queue, message: Message, before: list[Message]) -> None:
    if not before:
        return
    rank = position(message)[0]
    first = min(before, key=position)
    head = position(first)[0]
    if not queue.fair:
        assert rank <= head, f"{message} came back to queue {queue.name}, but behind {first}"
        return
    line = _line(queue, message.priority)
    own = Counter(position(m)[0] for m in line if m.tenant == message.tenant)
    assert queue.tenants_from is not None
    if head <= queue.tenants_from:
        if rank <= queue.tenants_from:
            beside = {position(m)[0] for m in line if m is not message}
            assert rank in beside, f"{message} came back to queue {queue.name}, beside no message"
            return
        head = queue.tenants_from
    assert rank > head, f"{message} came back to queue {queue.name} in front of {first}"
    assert own[rank] <= 2, f"{message} came back to queue {queue.name}: {own[rank]} of its tenant at {rank}"
    assert _unknown(queue, message) or all(own[r] for r in range(head + 1, rank)), (
        f"{message} came back to queue {queue.name}, too far behind"
    )


def _check_beside(model: Model, queue: Queue, message: Message, before: list[Message]) -> None:
    """At most as many that failed as others, in front of each other: so they take every second delivery."""
    if queue.fair or message.tenant is not None:
        _check_back(model, queue, message, before)
        return
    if not before or _unknown(queue, message):
        return
    rank, head = position(message)[0], position(min(before, key=position))[0]
    assert rank >= head, f"{message} came back to queue {queue.name} in front of the first in line"
    line = [m for m in _line(queue, message.priority) if m is not message]
    failed = [position(m)[0] for m in line if m.entered_as == "beside"]
    others = [position(m)[0] for m in line if m.entered_as != "beside"]
    if not failed:
        assert rank == head, f"{message} came back to queue {queue.name}, alone, and not beside the first"
    elif any(other >= rank for other in others):
        ahead = sum(failing <= rank for failing in failed)
        assert ahead < sum(other <= rank for other in others), (
            f"{message} came back to queue {queue.name}: {ahead} that failed are before it, too few others"
        )


def _check_new(model: Model, queue: Queue, message: Message, before: list[Message]) -> None:
    own = [m for m in before if m.tenant == message.tenant]
    for other in own:
        if other.entered_as != "anywhere":
            assert position(message) > position(other), f"{message} overtook {other} in queue {queue.name}"
    for other in before:
        if other.id in queue.early:
            assert position(message) > position(other), f"{message} overtook {other} in queue {queue.name}"
    rank = position(message)[0]
    if queue.fair and not _unknown(queue, message):
        line = [(position(m)[0], m.tenant) for m in _line(queue, message.priority)]
        assert queue.tenants_from is not None
        first = max(min(r for r, _ in line), queue.tenants_from + 1)
        assert rank <= first or (rank - 1, message.tenant) in line, (
            f"{message} is behind others in queue {queue.name}: {line}"
        )
    elif not queue.fair:
        _check_fresh(model, queue, message, before)


CHECKS: dict[str, Callable[[Model, Queue, Message, list[Message]], None]] = {
    "anywhere": _check_fresh,
    "fresh": _check_fresh,
    "back": _check_back,
    "beside": _check_beside,
    "new": _check_new,
}


def check_ranks(snapshot: Snapshot) -> None:
    """No rank is below the newest floor, none above the last id; nor is a floor."""
    for row in snapshot.messages:
        if row["state"] == "ready":
            assert snapshot.floors[row["queue"]][row["priority"]] <= row["rank"] <= snapshot.last_id, row
    for name, floors in snapshot.floors.items():
        assert max(floors) <= snapshot.last_id, f"floors of {name}"
