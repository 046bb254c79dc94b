"""The demo as a whole: consumers, a worker and the feed, side by side in one loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import psycopg

from penstock import AsyncClient, AsyncConsumer, NotFound, PenstockError, Worker
from penstock.health import Health

from . import tasks
from .feed import FEEDS
from .handlers import CONSUMERS, Consumer, handle_all
from .shop import QUEUES, TOPICS, create_all

__all__ = ["Demo"]

logger = logging.getLogger("penstock.demo")

# What runs when it stops has so long to end; no handler takes longer.
GRACE_SECONDS = 3.0
RETRY_SECONDS = 1.0
# A part that has failed is well again when it has run for so long. Longer than a call waits for a database.
STEADY_SECONDS = 15.0


class Demo:
    """Runs the shop until it is stopped, and goes on when the database was away."""

    name = "demo"
    where = f"{len(TOPICS)} topics and {len(QUEUES)} queues named demo.*, some 20 messages a second"

    def __init__(self, dsn: str) -> None:
        self.started = asyncio.Event()
        self._stopping = asyncio.Event()
        # `penstock up` runs the maintenance beside the demo.
        self._client = AsyncClient(dsn, maintain=False)
        self._consumers: set[AsyncConsumer[Any]] = set()
        tasks.app.use(dsn)
        self._health = Health()
        self._worker = Worker(tasks.app, concurrency=10, grace=GRACE_SECONDS, health=self._health)
        # The last error of each part of the demo, and when it was raised.
        self._failures: dict[object, tuple[float, str]] = {}

    @property
    def trouble(self) -> str | None:
        """Why the worker, a consumer or a feed does not do its work; None where all of them do."""
        if not self.started.is_set() or self._stopping.is_set():
            return None
        is_ready, why = self._health.readiness()
        if not is_ready:
            return why
        since = time.monotonic() - STEADY_SECONDS
        return next((text for failed_at, text in self._failures.values() if failed_at > since), None)

    def stop(self) -> None:
        """Publish and claim nothing more, and end what runs."""
        self._stopping.set()
        self._worker.stop()
        for consumer in self._consumers:
            consumer.stop()

    async def run(self) -> None:
        """Until it is stopped."""
        try:
            await create_all(self._client)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._worker.run())
                for kind in CONSUMERS:
                    for _ in range(kind.count):
                        group.create_task(self._keep_up(partial(self._consume, kind)))
                feeds = [group.create_task(self._keep_up(partial(feed, self._client))) for feed in FEEDS]
                starting = group.create_task(self._start())
                await self._stopping.wait()
                for task in (starting, *feeds):
                    task.cancel()
        finally:
            await tasks.app.aclose()
            await self._client.close()

    async def _start(self) -> None:
        await self._worker.started.wait()
        self.started.set()

    async def _consume(self, kind: Consumer) -> None:
        messages = self._client.consume(kind.queue_name, batch_size=kind.batch_size, reraise=True)
        self._consumers.add(messages)
        if self._stopping.is_set():
            messages.stop()
        try:
            await handle_all(self._client, messages, kind.handler)
        finally:
            self._consumers.discard(messages)

    async def _keep_up(self, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin again after an error: the database was away, or a user has deleted a queue."""
        is_missing = False
        while not self._stopping.is_set():
            try:
                if is_missing:
                    await create_all(self._client)
                await part()
            except (PenstockError, psycopg.Error) as exc:
                is_missing = isinstance(exc, NotFound)
                if not is_missing:
                    self._failures[part] = time.monotonic(), " ".join(str(exc).split())
                logger.info("to be tried again: %s", exc)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), RETRY_SECONDS)
