"""A shop with something on every page: queues in each state, hours of history, dead letters, workers.

Everything is sent, consumed and settled by the client. Only the history is written by hand, because a test
cannot wait for it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from penstock import Client

__all__ = ["Scene", "set_up"]

STATES = ("ready", "waiting", "scheduled", "active", "dead", "done")
HOURS = 2
TRACEBACK = """Traceback (most recent call last):
  File "shop/mail.py", line 41, in send
    server.deliver(letter)
  File "shop/smtp.py", line 112, in deliver
    raise TimeoutError(f"no answer in {self.timeout} s")
TimeoutError: no answer in 30 s"""
HISTORY = (
    "queue_id, tier, is_estimate, at, oldest_at, seconds, ready, waiting, delayed, active, dead, peak,"
    " published, completed, failed, buried, wait_buckets, wait_counts, run_buckets, run_counts"
)


@dataclass(frozen=True, slots=True)
class Scene:
    """What is where.

    messages: a message in each state, with its queue. operation: a redrive that waits for its canary.
    """

    dsn: str
    messages: dict[str, tuple[str, int]]
    error_key: str
    operation: int


def set_up(queue: Client, dsn: str) -> Scene:
    """Fill an empty database."""
    queue.create_topic("orders")
    queue.create_queue("billing", topic="orders", max_active=12)
    queue.create_queue("mail", max_delivery_attempts=2, retry_delays=[0])
    queue.create_queue("imports", topic="orders", tenant_max_active=3)
    queue.create_queue("search index", topic="orders")
    queue.create_queue("webhooks", max_delivery_attempts=1)
    queue.create_queue("reports")
    messages = {**_orders(queue), **_imports(queue), **_mail(queue)}
    queue.send_many("reports", [{"week": week} for week in range(4)])
    queue.pause_queue("reports")
    later = queue.send("mail", {"to": "ann@example.org", "template": "reminder"}, delay=86400)
    messages["scheduled"] = "mail", later
    queue.create_group(250, "billing", {"invoice": "all"})
    for name, cron in (("nightly invoices", "0 2 * * *"), ("weekly report", "30 7 * * 1")):
        definition = {"cron": cron, "tz": "Europe/Berlin"}
        queue.put_schedule(
            name, "billing", {}, definition=definition, next_at=queue.clock() + timedelta(hours=5)
        )
    queue.pause_schedule("weekly report")
    _worker(queue, messages["active"][1])
    queue.record_action(
        "pause_queue", who="ann", queue_name="reports", details={}, outcome="Queue reports is paused."
    )
    error_key = max(queue.list_dlq_groups("mail"), key=lambda each: each.dead_count).error_key
    ended = queue.start_operation("delete", "webhooks", error_key="ConnectionError: refused", who="ann")
    while (found := queue.advance_operation(ended)) is not None and found.finished_at is None:
        pass
    operation = queue.start_operation("redrive", "webhooks", with_canary=True, who="ann")
    queue.advance_operation(operation)
    with psycopg.connect(dsn, autocommit=True) as admin:
        _history(admin)
        queue.sample()
        admin.execute("grant pg_read_all_stats to penstock_viewer")
    assert messages.keys() == set(STATES)
    return Scene(dsn, messages, error_key, operation)


def _orders(queue: Client) -> dict[str, tuple[str, int]]:
    for number in range(40):
        queue.publish(
            "orders", {"order": number, "lines": 3}, tenant=f"shop {number % 4}", priority=number % 4
        )
    ready = queue.send(
        "billing",
        {
            "order": {"id": 9007199254740993, "customer": "ann@example.org", "card": {"token": "tok_9f8"}},
            "lines": [
                {"sku": "A-17", "price": 19.90, "amount": 2},
                {"sku": "B-4", "price": 5.00, "amount": 1},
            ],
        },
        headers={"task": "send_invoice", "trace": "4bf92f3577b34da6"},
        dedup_key="invoice-4711",
    )
    queue.ack_many(queue.consume_batch("billing", batch_size=12))
    held = queue.consume_batch("billing", batch_size=12)
    return {"ready": ("billing", ready), "active": ("billing", held[0].id)}


def _imports(queue: Client) -> dict[str, tuple[str, int]]:
    for tenant, number in (("acme", 400), ("globex", 25), ("initech", 12), ("umbrella", 6)):
        rows = [
            {"file": f"{tenant}.csv", "row": row, "fields": {"sku": f"A-{row}", "price": 19.9}}
            for row in range(number)
        ]
        queue.send_many("imports", rows, tenant=tenant, headers={"task": "import_row"})
    queue.maintain(["imports"])
    done = []
    for _ in range(12):
        done = queue.consume_batch("imports", batch_size=6)
        queue.ack_many(done)
    waiting = [each for each in queue.list_messages("imports", state="waiting") if each.tenant == "acme"]
    return {"done": ("imports", done[0].id), "waiting": ("imports", waiting[-1].message_id)}


def _mail(queue: Client) -> dict[str, tuple[str, int]]:
    errors = ((TRACEBACK, 64), ("ValueError: order 17 has no address", 9), ("KeyError: 'customer'", 2))
    first = 0
    for error, number in errors:
        ids = queue.send_many("mail", [{"to": "bob@example.org", "order": each} for each in range(number)])
        first = first or ids[0]
        while found := queue.consume_batch("mail", batch_size=1000):
            queue.nack_many(found, error=error)
    queue.send_many("webhooks", [{"url": "https://example.org"}] * 20)
    for error in ("ConnectionError: refused", "HTTPStatusError: 503"):
        queue.nack_many(queue.consume_batch("webhooks", batch_size=10), error=error)
    return {"dead": ("mail", first)}


def _worker(queue: Client, message_id: int) -> None:
    queue.register_worker(
        "token of a worker",
        hostname="worker-1.shop.internal",
        pid=4711,
        version="0.1.0",
        queues=["billing", "mail"],
        tasks=["send_invoice", "send_mail"],
        concurrency=20,
    )
    since = (queue.clock() - timedelta(seconds=75)).isoformat()
    running = {
        "task": "send_invoice",
        "queue": "billing",
        "message_id": message_id,
        "attempt": 1,
        "since": since,
    }
    queue.beat_worker("token of a worker", held=1, running=[running], stopping=False)


def _history(admin: psycopg.Connection[Any]) -> None:
    """Two hours of samples: a wave of orders, a slow afternoon, a few failures."""
    rng = random.Random(17)
    ids = admin.execute("select name, id from penstock.queues order by id").fetchall()
    now = datetime.now(UTC)
    end = int(now.timestamp()) // 10 * 10 - 10
    begin = end - HOURS * 3600
    for at in (begin, begin + 3600, end):
        admin.execute("select penstock._add_history(0, to_timestamp(%s))", (at,))
    with admin.cursor() as cursor, cursor.copy(f"copy penstock.history ({HISTORY}) from stdin") as copy:
        for place, (_, queue_id) in enumerate(ids):
            for at in range(begin, end, 10):
                copy.write_row(_sample(rng, queue_id, at, (at - begin) / (end - begin), place))


def _sample(rng: random.Random, queue_id: int, at: int, part: float, place: int) -> tuple[Any, ...]:
    """part: of the time, 0 to 1. At its end the queues have as little as they have now."""
    angle = 9 * part + place
    depth = int((260 * (1 + math.sin(angle)) + rng.gauss(0, 9)) * (1 - part**6)) + 30
    completed = max(1, int(180 * (1.4 + math.sin(angle - 0.5)) + rng.gauss(0, 15)))
    published = max(0, completed + int(26 * math.cos(angle) * (1 - part**6)))
    failed = rng.choice((0, 0, 0, 2, 6))
    slow = depth // 40
    waits = {24 + slow + each: 1 + completed // (each + 2) for each in range(10)}
    runs = {22 + slow // 4 + each: 1 + int(completed * rng.random()) // (each + 1) for each in range(7)}
    moment = datetime.fromtimestamp(at, UTC)
    return (
        *(queue_id, 0, False, moment, moment - timedelta(seconds=depth / 20), 10.0),
        *(depth, 0, 1, 6, 75, depth, published, completed, failed, failed // 3),
        *(list(waits), list(waits.values()), list(runs), list(runs.values())),
    )
