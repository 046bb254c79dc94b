"""Our app with a task that fails once: `penstock worker bench.peers.penstock_retries:app`."""

from __future__ import annotations

import os

import penstock
from bench.peers.penstock import handle
from penstock import Retry

__all__ = ["app"]

app = penstock.App(os.environ.get("BENCH_DSN"))
_failed: set[int] = set()


@app.task(max_attempts=3)
async def noop(number: int) -> None:
    """Fail in the first attempt, and be retried at once. A plain handler, as the one of the plain drain."""
    if number not in _failed:
        _failed.add(number)
        raise Retry("the first attempt fails", delay=0)
    handle(number)
