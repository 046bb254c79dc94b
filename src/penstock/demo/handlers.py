"""What is done with the messages of the shop: a handler for each queue, and what goes wrong in them.

A handler that returns acks its message, one that raises nacks it with the error: it comes back after the
queue's next delay, and is a dead letter after its last attempt.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from penstock import AsyncClient, AsyncConsumer, AsyncMessage

__all__ = ["CONSUMERS", "Consumer", "Handler", "handle_all"]

Message = AsyncMessage[dict[str, Any]]
Handler = Callable[[AsyncClient, Message], Coroutine[Any, Any, None]]

logger = logging.getLogger("penstock.demo")

STOLEN_CARD = 0.04
OUTAGE_EVERY_SECONDS, OUTAGE_SECONDS = 60, 12


class ServiceError(Exception):
    """Another service answered with an error."""


class MailboxError(Exception):
    """The other mail server does not know the recipient."""


# Orders


async def bill(_client: AsyncClient, message: Message) -> None:
    """Fails now and then, and works the next time."""
    await asyncio.sleep(0.02)
    if random.random() < 0.08:
        raise TimeoutError(f"invoice service: no answer for order {message.payload['order']} in 5 s")


async def ship(_client: AsyncClient, message: Message) -> None:
    """Packing takes a while. No attempt will find an address that is missing: a dead letter in the end."""
    await asyncio.sleep(random.uniform(0.05, 0.15))
    address = message.payload["address"]
    if address is None:
        raise ValueError(f"order {message.payload['order']} has no postcode")


async def index(_client: AsyncClient, _message: Message) -> None:
    """So slow that a big order takes half a minute."""
    await asyncio.sleep(0.15)


# Payments


async def book(_client: AsyncClient, _message: Message) -> None:
    await asyncio.sleep(0.005)


async def check_for_fraud(_client: AsyncClient, message: Message) -> None:
    """What is wrong for good is rejected: a dead letter at once, without further attempts."""
    await asyncio.sleep(0.03)
    if random.random() < STOLEN_CARD:
        await message.reject(f"card of {message.payload['customer']} is reported stolen")


async def pay_out(_client: AsyncClient, _message: Message) -> None:
    await asyncio.sleep(random.uniform(0.3, 0.5))


# Signups


async def welcome(client: AsyncClient, message: Message) -> None:
    """Sends the mail, and a reminder for later: the reminder and the ack are one transaction."""
    await asyncio.sleep(0.05)
    person = message.payload
    if person["email"].endswith("@exmaple.org"):
        raise MailboxError(f"550 5.1.1 <{person['email']}>: recipient address rejected")
    async with client.transaction() as transaction:
        await transaction.send("demo.reminders", person, delay=random.randint(10, 30))
        await transaction.ack(message)


async def sync_crm(_client: AsyncClient, _message: Message) -> None:
    """A service that is away for some seconds of each minute: what fails meanwhile is done afterwards."""
    await asyncio.sleep(0.03)
    if time.time() % OUTAGE_EVERY_SECONDS < OUTAGE_SECONDS:
        raise ServiceError("POST https://crm.example.com/contacts: 503 Service Unavailable")


async def remind(_client: AsyncClient, _message: Message) -> None:
    await asyncio.sleep(0.02)


# Consumers and their queues


@dataclass(frozen=True, slots=True)
class Consumer:
    """A handler for a queue, so many times side by side. batch_size: how many each claims at a time."""

    queue_name: str
    handler: Handler
    count: int = 1
    batch_size: int = 10


CONSUMERS = (
    Consumer("demo.billing", bill),
    Consumer("demo.shipping", ship, count=2, batch_size=4),
    Consumer("demo.search-index", index),
    Consumer("demo.ledger", book),
    Consumer("demo.fraud-check", check_for_fraud),
    Consumer("demo.payouts", pay_out, count=2, batch_size=1),
    Consumer("demo.welcome-mail", welcome),
    Consumer("demo.crm-sync", sync_crm),
    Consumer("demo.reminders", remind),
)


async def handle_all(client: AsyncClient, messages: AsyncConsumer[dict[str, Any]], handler: Handler) -> None:
    """Handle messages, one after the other, until the consumer is stopped."""
    async for message in messages:
        try:
            async with message:
                await handler(client, message)
        except Exception as exc:
            # It has been nacked. consume(reraise=True) is for this line: else a traceback would be logged.
            logger.info("%r failed: %s: %s", message, type(exc).__name__, exc)
