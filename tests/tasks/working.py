"""Workers that run beside a test, in its own loop or in a thread; waiting for what they do; a later clock."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import penstock

__all__ = ["LATER", "PATIENCE_SECONDS", "async_until", "until", "working", "working_thread"]

PATIENCE_SECONDS = 20.0
LOOK_EVERY_SECONDS = 0.01

# Makes it two hours later for the engine.
LATER = """
create or replace function penstock.clock() returns timestamptz language sql volatile as $$
    select clock_timestamp() + interval '2 hours'
$$
"""


@asynccontextmanager
async def working(app: penstock.App, **options: Any) -> AsyncIterator[penstock.Worker]:
    """A worker in this loop, which has begun; it drains at the end of the block."""
    worker = penstock.Worker(app, **{"lease": 3, "grace": 5, **options})
    running = asyncio.ensure_future(worker.run())
    started = asyncio.ensure_future(worker.started.wait())
    try:
        await asyncio.wait({running, started}, return_when=asyncio.FIRST_COMPLETED)
        yield worker
    finally:
        started.cancel()
        worker.stop()
        await asyncio.wait_for(running, PATIENCE_SECONDS)


@contextmanager
def working_thread(app: penstock.App, **options: Any) -> Iterator[penstock.Worker]:
    """The same in a thread, for tests that block."""
    begun = threading.Event()
    found: list[tuple[penstock.Worker, asyncio.AbstractEventLoop, asyncio.Event]] = []
    failed: list[BaseException] = []

    async def work() -> None:
        async with working(app, **options) as worker:
            over = asyncio.Event()
            found.append((worker, asyncio.get_running_loop(), over))
            begun.set()
            await over.wait()

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as exc:
            failed.append(exc)
        finally:
            begun.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert begun.wait(PATIENCE_SECONDS)
    if failed:
        raise failed[0]
    worker, loop, over = found[0]
    try:
        yield worker
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(over.set)
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


async def async_until(condition: Callable[[], object], patience: float = PATIENCE_SECONDS) -> None:
    """Wait for a condition, while the loop goes on."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience:g} seconds"
        await asyncio.sleep(LOOK_EVERY_SECONDS)


def until(condition: Callable[[], object], patience: float = PATIENCE_SECONDS) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience:g} seconds"
        time.sleep(LOOK_EVERY_SECONDS)
