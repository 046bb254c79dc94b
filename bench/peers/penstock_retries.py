"""Our app with a task that fails once: `penstock worker bench.peers.penstock_retries:app`."""

from __future__ import annotations

import os

import penstock
from bench.peers.penstock import handle
from penstock import Retry, TaskContext

__all__ = ["app"]

app = penstock.App(os.environ.get("BENCH_DSN"))


@app.task(max_attempts=3)
async def noop(number: int, context: TaskContext) -> None:
    """Fail in the first attempt, and be retried at once."""
    if context.attempt == 1:
        raise Retry("the first attempt fails", delay=0)
    handle(number)
