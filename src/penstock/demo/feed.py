"""The traffic of the shop: orders, payments and signups, in waves; and a customer that orders too much."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

from penstock import HIGH, LOW, NORMAL, URGENT, AsyncClient, NewMessage

from . import tasks
from .shop import ORDERS, PAYMENTS, SIGNUPS

__all__ = ["FEEDS", "Feed"]

Feed = Callable[[AsyncClient], Coroutine[Any, Any, None]]

# Customers of the shop are the tenants of its queues: one of them is noisy, and the others do not notice.
NOISY = "acme"
QUIET = ("globex", "initech", "hooli", "umbrella")
# The noisy one orders so much at once, and so often.
BURST = 120
BURST_SECONDS = 60.0
# The tide: once in so many seconds there is much to do, and once little.
TIDE_SECONDS = 40.0

GOODS = ("pump", "valve", "turbine", "gasket", "gauge")
PEOPLE = ("ada", "grace", "edsger", "barbara", "donald", "tony", "leslie")

# Of orders, payments and invoices.
numbers = itertools.count(random.randrange(1_000_000))


def pause(mean_rate: float) -> float:
    """How long until the next one, by chance: so many a second come on average, more at high tide."""
    tide = 1 + 0.8 * math.sin(2 * math.pi * time.time() / TIDE_SECONDS)
    return random.expovariate(mean_rate * tide)


def any_customer() -> str:
    return NOISY if random.random() < 0.4 else random.choice(QUIET)


def order(customer: str) -> dict[str, Any]:
    # The web form of the shop lacks a check: one order in 50 has no address.
    address = None if random.random() < 0.02 else {"city": "Riga", "postcode": "LV-1050"}
    return {
        "order": next(numbers),
        "customer": customer,
        "item": random.choice(GOODS),
        "quantity": random.randint(1, 20),
        "address": address,
    }


async def place_orders(client: AsyncClient) -> None:
    """A few at a time, each with options of its own: express goes before all else."""
    while True:
        basket = []
        for _ in range(random.randint(1, 9)):
            customer = any_customer()
            priority = random.choices((URGENT, HIGH, NORMAL, LOW), (1, 2, 6, 1))[0]
            basket.append(NewMessage(order(customer), tenant=customer, priority=priority))
        await client.publish_many(ORDERS, basket)
        await asyncio.sleep(pause(0.6))


async def order_too_much(client: AsyncClient) -> None:
    """Many at once, in one call. What the quiet ones order later does not wait behind all of these."""
    await asyncio.sleep(3)
    while True:
        many = (order(NOISY) for _ in range(BURST))
        await client.publish_many(ORDERS, many, tenant=NOISY, priority=LOW)
        await asyncio.sleep(BURST_SECONDS)


async def pay(client: AsyncClient) -> None:
    """Large amounts are looked at first. A key keeps a payment from being published twice."""
    while True:
        customer, amount = any_customer(), round(random.lognormvariate(4, 1.2), 2)
        payment = {"payment": next(numbers), "customer": customer, "amount": amount}
        await client.publish(
            PAYMENTS,
            payment,
            tenant=customer,
            priority=HIGH if amount > 300 else NORMAL,
            dedup_key=f"payment-{payment['payment']}",
        )
        await asyncio.sleep(pause(0.8))


async def sign_up(client: AsyncClient) -> None:
    """New people, a few of whom cannot type their own address. Headers travel with a message, beside it."""
    while True:
        name, domain = random.choice(PEOPLE), "exmaple.org" if random.random() < 0.1 else "example.org"
        person = {"name": name, "email": f"{name}@{domain}"}
        await client.publish(SIGNUPS, person, headers={"source": random.choice(("web", "phone"))})
        await asyncio.sleep(pause(0.6))


async def ask_for_tasks(_client: AsyncClient) -> None:
    """Tasks are enqueued by calling them, more or less."""
    while True:
        customer = random.choice(QUIET)
        await tasks.send_invoice.enqueue_async(customer, next(numbers))
        if random.random() < 0.3:
            await tasks.export_orders.options(priority=LOW).enqueue_async(customer)
        await asyncio.sleep(pause(0.5))


FEEDS: tuple[Feed, ...] = (place_orders, order_too_much, pay, sign_up, ask_for_tasks)
