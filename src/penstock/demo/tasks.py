"""The tasks of the shop: functions that a worker runs."""

from __future__ import annotations

import asyncio
import logging
import random

from penstock import App, Exponential, Reject, Retry, TaskContext
from penstock.middleware.logging import LoggingMiddleware

__all__ = ["app", "export_orders", "report", "send_invoice"]

logger = logging.getLogger("penstock.demo")

# The failures of an example are no news: they are logged with the rest of it.
app = App(middleware=[LoggingMiddleware(logger=logger)])


@app.task(queue="demo.tasks", max_attempts=3, retry_delays=Exponential(1, longest=10), ttl=600)
async def send_invoice(context: TaskContext, customer: str, number: int) -> None:
    """Fails sometimes, and knows when to give up."""
    await asyncio.sleep(0.05)
    if random.random() < 0.02:
        raise Reject(f"{customer} has no tax number: invoice {number} cannot be sent")
    if random.random() < 0.1:
        raise Retry(f"mail server is busy, attempt {context.attempt} of {context.max_attempts}", delay=2)


@app.task(queue="demo.exports", max_active=2, ttl=600)
async def export_orders(customer: str) -> None:
    """Heavy: all workers together run two of these at once."""
    del customer
    await asyncio.sleep(random.uniform(0.5, 1.5))


@app.periodic(every=10, name="demo.report", missed="skip")
@app.task(queue="demo.tasks", ttl=60)
async def report() -> None:
    """Every ten seconds, once, however many workers there are."""
    await asyncio.sleep(0.1)
