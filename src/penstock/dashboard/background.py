"""What the dashboard does besides answering, on the client of actions. With read_only there is nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psycopg

from penstock import calls
from penstock._async.client import AsyncClient
from penstock.errors import PenstockError

__all__ = ["Background"]

logger = logging.getLogger("penstock.dashboard")

FAILED_PAUSE_SECONDS = 5.0
# Operations of other processes are looked for so often; those of this one begin at once.
LOOK_SECONDS = 5.0
# Between two batches of an operation that waits for its rate, for its canary, or for another driver.
BATCH_PAUSE_SECONDS = 0.1
BATCH = 500


class Background:
    """Runs each step again and again; a step returns the seconds until its next call."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()

    def start(self) -> None:
        for step in (self._sample, self._drive):
            self._tasks.append(
                asyncio.create_task(self._keep(step), name=f"penstock dashboard {step.__name__}")
            )

    def wake(self) -> None:
        """An action may have begun or cancelled an operation."""
        self._news.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _keep(self, step: Callable[[], Awaitable[float]]) -> None:
        while True:
            try:
                pause = await step()
            except (psycopg.Error, PenstockError, OSError) as exc:
                # The reader of the pages reports trouble with the database.
                logger.debug("%s failed: %s", step.__name__, exc)
                pause = FAILED_PAUSE_SECONDS
            except Exception:
                logger.exception("%s failed", step.__name__)
                pause = FAILED_PAUSE_SECONDS
            await asyncio.sleep(pause)

    async def _sample(self) -> float:
        """Write the history, if no other program has done so in these ten seconds."""
        return (await self._client.internals.attempt(calls.sample())).result

    async def _drive(self) -> float:
        """Bring unfinished operations a batch forward, also those that another process began.

        Their state is a row. After a restart they go on where they were.
        """
        if not (unfinished := await self._client.list_operations(unfinished=True)):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_SECONDS)
            self._news.clear()
            return 0.0
        moved = False
        for each in unfinished:
            now = await self._client.advance_operation(each.id, batch_size=BATCH)
            moved = moved or (now is not None and now.done_count > each.done_count)
        return 0.0 if moved else BATCH_PAUSE_SECONDS
