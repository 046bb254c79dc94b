"""What must be equal between the model and the tables, and what must hold whatever the model says."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import pytest

from .engine import Row, Snapshot, payload_of
from .model import Message, Model, Queue

UNFINISHED = ("ready", "scheduled", "active", "dead")


def expected_row(queue: Queue, message: Message) -> Row:
    """The row that a message of the model should have, with the columns of its state."""
    row: Row = {
        "queue": queue.name,
        "id": message.id,
        "state": message.state,
        "priority": message.priority,
        "tenant": message.tenant or "",
        "attempts": message.attempts,
        "published_at": message.published_at,
        "payload": None if message.large else payload_of(message.number, large=False),
        "errors": message.errors,
    }
    if message.state != "done":
        row |= {
            "attempts_limit": message.limit,
            "large": message.large,
            "expires_at": message.expires_at,
            "dedup_key": message.key,
        }
    match message.state:
        case "ready":
            row |= {"rank": message.rank}
        case "scheduled":
            row |= {"due_at": message.due_at}
        case "active":
            row |= {"vt": message.vt, "token": message.token, "claimed_at": message.claimed_at}
        case "dead":
            last_error = message.errors[-1][2] if message.errors else None
            row |= {"reason": message.reason, "moved_at": message.moved_at, "last_error": last_error}
        case "done":
            row |= {
                "token": message.token,
                "claimed_at": message.claimed_at,
                "completed_at": message.completed_at,
                "result": message.result,
            }
    return row


def actual_row(row: Row) -> Row:
    """A row of a table, in the same form: only what its state knows."""
    errors = [(e["attempt"], datetime.fromisoformat(e["at"]), e["error"]) for e in row["errors"] or []]
    nullable = {"ready": (), "scheduled": (), "active": (), "dead": ("last_error",), "done": ("result",)}[
        row["state"]
    ]
    always = {"payload", *nullable}
    if row["state"] != "done":
        always |= {"attempts_limit", "expires_at", "dedup_key"}
    kept = {k: v for k, v in row.items() if k != "queue_id" and (v is not None or k in always)}
    return kept | {"errors": errors}


def check_messages(model: Model, snapshot: Snapshot) -> None:
    """Every message is in exactly one state, and it is the one of the model, with all that belongs to it."""
    places = Counter((row["queue"], row["id"]) for row in snapshot.messages)
    assert [place for place, n in places.items() if n > 1] == [], "a message is in two states"
    actual = {(row["queue"], row["id"]): actual_row(row) for row in snapshot.messages}
    expected = {
        (q.name, m.id): expected_row(q, m) for q in model.queues.values() for m in q.messages.values()
    }
    lost, extra = expected.keys() - actual.keys(), actual.keys() - expected.keys()
    assert not lost, f"lost: {[expected[k] for k in lost]}"
    assert not extra, f"not in the model: {[actual[k] for k in extra]}"
    for key, row in expected.items():
        differences = {
            name: f"{actual[key].get(name)}, expected {row.get(name)}"
            for name in row | actual[key]
            if actual[key].get(name) != row.get(name)
        }
        assert not differences, f"message {key[1]} of queue {key[0]}, {row['state']}: {differences}"


def check_beside(model: Model, snapshot: Snapshot) -> set[int]:
    """Keys and payloads are there for unfinished messages. Returns payloads that maintain() is to remove."""
    assert snapshot.strays == [], "rows of a queue that does not exist"
    assert snapshot.keys == {q.name: q.keys for q in model.queues.values()}
    needed = {
        q.name: sorted(m.id for m in q.messages.values() if m.large and m.state in UNFINISHED)
        for q in model.queues.values()
    }
    assert snapshot.payload_references == needed
    used = {message_id for ids in needed.values() for message_id in ids}
    stored = set(snapshot.payloads)
    assert used <= stored, "a payload is gone that is still needed"
    assert stored - used <= set(snapshot.orphans), "a payload is left behind that nobody will remove"
    return stored - used


def check_statistics(model: Model, snapshot: Snapshot) -> None:
    assert snapshot.statistics.keys() == model.queues.keys()
    for queue in model.queues.values():
        counted = Counter(m.state for m in queue.messages.values())
        pending = [m for m in queue.messages.values() if m.state in ("ready", "scheduled")]
        oldest = (model.now - min(m.published_at for m in pending)).total_seconds() if pending else None
        actual = snapshot.statistics[queue.name]
        assert actual == {
            "queue_name": queue.name,
            "pending_count": len(pending),
            "processing_count": counted["active"],
            "completed_count": counted["done"],
            "total_count": len(pending) + counted["active"] + counted["done"],
            "delayed_count": counted["scheduled"],
            "dead_count": counted["dead"],
            "oldest_pending_seconds": oldest if oldest is None else pytest.approx(oldest),
        }


def check_consumed(queue: Queue, claimed: list[Message], rows: list[Row]) -> None:
    """What a consume returned, in its order."""
    expected = [
        {
            "message_id": m.id,
            "queue_name": queue.name,
            "payload": payload_of(m.number, m.large),
            "body": None,
            "headers": None,
            "consumer_token": m.token,
            "delivery_attempts": m.attempts,
            "vt": m.vt,
            "published_at": m.published_at,
            "priority": m.priority,
            "tenant": m.tenant,
        }
        for m in claimed
    ]
    assert rows == expected
