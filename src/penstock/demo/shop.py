"""The topics and queues of the shop."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from penstock import AsyncClient, QueueDiffers

__all__ = ["ORDERS", "PAYMENTS", "QUEUES", "SIGNUPS", "TOPICS", "create_all"]

ORDERS = "demo.orders"
PAYMENTS = "demo.payments"
SIGNUPS = "demo.signups"
TOPICS = (ORDERS, PAYMENTS, SIGNUPS)

# An example that runs for weeks should not fill a disk. Messages that are not taken end after half an hour.
# Done and dead messages are kept for ten minutes.
SHORT_LIVED = {"message_ttl": 1800, "retain_completed": 600, "retain_dead": 600}


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue: of a topic, or of none, and what is special about it."""

    name: str
    topic: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


QUEUES = (
    # What happens to an order. Invoices are flaky, and tried again after 1 s, 2 s and 5 s.
    Queue("demo.billing", ORDERS, {"max_delivery_attempts": 4, "retry_delays": [1, 2, 5]}),
    # There are eight packing tables: never more at once, however many consumers there are. Each priority has
    # two of them, so that an urgent parcel always finds one.
    Queue("demo.shipping", ORDERS, {"max_active": 8, "priority_shares": [25] * 4, "retry_delays": [1]}),
    # Slow: after a big order it falls behind, and catches up.
    Queue("demo.search-index", ORDERS),
    # What happens to a payment.
    Queue("demo.ledger", PAYMENTS),
    Queue("demo.fraud-check", PAYMENTS, {"max_delivery_attempts": 2}),
    # The bank takes two transfers of a customer at a time; the others wait.
    Queue("demo.payouts", PAYMENTS, {"tenant_max_active": 2}),
    # What happens to a new customer. The CRM is away for a while, every minute.
    Queue("demo.welcome-mail", SIGNUPS, {"retry_delays": [1, 3]}),
    Queue("demo.crm-sync", SIGNUPS, {"max_delivery_attempts": 6, "retry_delays": [1, 2, 4, 8]}),
    # No topic: messages are sent to it, for later.
    Queue("demo.reminders"),
    # The queues of tasks. A worker would create them by itself; here they are to keep less than usual.
    Queue("demo.tasks", None, {"max_delivery_attempts": 0}),
    Queue("demo.exports", None, {"max_delivery_attempts": 0, "max_active": 2, "priority_shares": [0] * 4}),
)


async def create_all(client: AsyncClient) -> None:
    """Create what is missing. To create a queue again changes nothing."""
    for topic in TOPICS:
        await client.create_topic(topic)
    for queue in QUEUES:
        # A user may have altered a queue, to see what happens: it stays altered.
        with contextlib.suppress(QueueDiffers):
            await client.create_queue(queue.name, topic=queue.topic, **{**SHORT_LIVED, **queue.settings})
