"""A real worker beside the test, and handlers of each kind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import penstock

__all__ = ["KINDS", "as_kind", "until", "working"]

# An async handler runs in the loop of the worker, a plain one in a thread.
KINDS = ["async", "thread"]
PATIENCE_SECONDS = 20.0


def as_kind(kind: str, body: Callable[[penstock.TaskContext], Any]) -> Callable[..., Any]:
    """A handler of this kind that does this."""

    async def coroutine(context: penstock.TaskContext) -> Any:
        # So that it goes on after something else has run in the loop.
        await asyncio.sleep(0)
        return body(context)

    def plain(context: penstock.TaskContext) -> Any:
        return body(context)

    return coroutine if kind == "async" else plain


@asynccontextmanager
async def working(app: penstock.App, **options: Any) -> AsyncIterator[penstock.Worker]:
    """A worker that runs until the end of the block, and then drains."""
    worker = penstock.Worker(app, **options)
    job = asyncio.create_task(worker.run())
    started = asyncio.create_task(worker.started.wait())
    try:
        await asyncio.wait({job, started}, return_when=asyncio.FIRST_COMPLETED)
        yield worker
    finally:
        started.cancel()
        worker.stop()
        await job
        app.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait until this is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        await asyncio.sleep(0.01)
