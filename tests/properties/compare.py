"""What must be equal between the model and the tables, and what must hold whatever the model says."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import pytest

from .engine import Row, Snapshot, body_of, headers_of, payload_of
from .messages import Message
from .model import BEFORE, Model
from .queues import Queue

UNFINISHED = ("ready", "waiting", "scheduled", "active", "dead")


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
        "headers": headers_of(message),
        "payload": None if message.large else payload_of(message),
        "body": None if message.large else body_of(message),
        "errors": message.errors,
    }
    if message.state != "done":
        row |= {
            "attempts_limit": message.limit,
            "large": message.large,
            "expires_at": message.expires_at,
            "lifetime": message.lifetime,
            "dedup_key": message.key,
        }
    match message.state:
        case "ready":
            row |= {"rank": message.rank}
        case "waiting":
            row |= {"redelivered": not message.turn[0]}
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
    if message.state == "active" and queue.quotas is not None:
        row |= {"permit": message.permit}
    if message.state in ("ready", "active") and queue.cap is not None:
        row |= {"holds_tenant_permit": message.holds_tenant_permit}
    return row


def actual_row(queue: Queue, row: Row) -> Row:
    """A row of a table, in the same form: only what its state knows."""
    errors = [(e["attempt"], datetime.fromisoformat(e["at"]), e["error"]) for e in row["errors"] or []]
    of_its_state = {"dead": {"last_error"}, "done": {"result"}}.get(row["state"], set())
    always = {"headers", "payload", "body"} | of_its_state
    # What a cap left behind that is gone means nothing; and the rank of what waits is compared as an order.
    never = {"queue_id"}
    never |= {"rank"} if row["state"] == "waiting" else set()
    never |= {"permit"} if queue.quotas is None else set()
    never |= {"holds_tenant_permit"} if queue.cap is None else set()
    if row["state"] != "done":
        always |= {"attempts_limit", "expires_at", "lifetime", "dedup_key"}
    kept = {k: v for k, v in row.items() if k not in never and (v is not None or k in always)}
    return kept | {"errors": errors}


def check_messages(model: Model, snapshot: Snapshot) -> None:
    """Every message is in exactly one state, and it is the one of the model, with all that belongs to it."""
    permits = Counter((row["queue"], row["id"]) for row in snapshot.messages)
    assert [permit for permit, n in permits.items() if n > 1] == [], "a message is in two states"
    actual = {
        (row["queue"], row["id"]): actual_row(model.queues[row["queue"]], row) for row in snapshot.messages
    }
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
    ranks = {(row["queue"], row["id"]): row["rank"] for row in snapshot.messages}
    for queue in model.queues.values():
        waiting = queue.state("waiting")
        for tenant, priority in {(m.tenant, m.priority) for m in waiting}:
            line = sorted(
                (m for m in waiting if (m.tenant, m.priority) == (tenant, priority)), key=lambda m: m.turn
            )
            by_rank = sorted(line, key=lambda m: (m.turn[0], ranks[queue.name, m.id]))
            assert line == by_rank, f"tenant {tenant} does not wait in the order in which it came"


def check_permits(model: Model, snapshot: Snapshot) -> None:
    """Free permits, debts and deferred permits of each priority."""
    for queue in model.queues.values():
        quotas, permits, rows = queue.quotas, queue.permits, snapshot.permits[queue.name]
        assert snapshot.quotas[queue.name] == (None if quotas is None else list(quotas)), queue.settings
        if quotas is None:
            assert rows == [], f"queue {queue.name} has permits without a cap"
            continue
        wrong = f"permits of queue {queue.name}: {rows}, held {queue.holders()} of {quotas}"
        expected = {"f": +permits.free, "d": -permits.free, "r": +permits.deferred}
        for status, counted in expected.items():
            assert {priority: n for found, priority, n in rows if found == status} == dict(counted), wrong


def check_tenant_permits(model: Model, snapshot: Snapshot) -> None:
    for queue in model.queues.values():
        tenant_permits = snapshot.tenant_permits[queue.name]
        queue.lines = {tenant or None: listed for tenant, (listed, *_) in tenant_permits.items()}
        if queue.cap is None:
            assert tenant_permits == {}, f"queue {queue.name} has permits of tenants without a cap"
            continue
        for tenant in {*tenant_permits, *(m.tenant or "" for m in queue.messages.values())}:
            # A tenant not listed has all permits; one listed before the cap was raised gets more later.
            listed, free, debts, deferred = tenant_permits.get(tenant, (0, 0, 0, 0))
            actual = (free - debts + queue.cap - listed, deferred)
            counted = queue.free_tenant_permits(tenant or None), queue.deferred_tenant_permits[tenant or None]
            assert actual == counted, f"permits of tenant {tenant!r} in queue {queue.name}"
            assert not (free and debts), (
                f"tenant {tenant!r} has debts in queue {queue.name}, and free permits"
            )


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
    assert used <= stored, "a payload is removed that is still needed"
    assert stored - used <= set(snapshot.orphans), "a payload is left behind that will never be removed"
    return stored - used


def check_statistics(model: Model, snapshot: Snapshot) -> None:
    assert snapshot.statistics.keys() == model.queues.keys()
    for queue in model.queues.values():
        counted = Counter(m.state for m in queue.messages.values())
        pending = queue.state(*BEFORE)
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
            "waiting_count": counted["waiting"],
            "priority": None,
            "tenant": None,
            "is_estimate": False,
            "oldest_pending_seconds": oldest if oldest is None else pytest.approx(oldest),
        }


def check_consumed(queue: Queue, claimed: list[Message], rows: list[Row]) -> None:
    """What a consume returned, in its order."""
    expected = [
        {
            "message_id": m.id,
            "queue_name": queue.name,
            "headers": headers_of(m),
            "payload": payload_of(m),
            "body": body_of(m),
            "consumer_token": m.token,
            "delivery_attempts": m.attempts,
            "vt": m.vt,
            "published_at": m.published_at,
            "priority": m.priority,
            "tenant": m.tenant,
            "attempts_limit": m.limit,
            "lost_deliveries": m.lost_deliveries,
            "queue_capped": queue.quotas is not None,
        }
        for m in claimed
    ]
    assert rows == expected
