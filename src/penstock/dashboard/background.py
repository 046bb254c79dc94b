"""What the dashboard does besides answering, on the client of actions. With read_only there is nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psycopg

from penstock import calls
from penstock._async.client import AsyncClient
from penstock.errors import DatabaseUnavailable, PenstockError
from penstock.operations import Operation

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
        # Operations whose last batch failed: when the next one is due, and the error.
        self._failed: dict[int, tuple[float, str]] = {}

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
        self._failed = {each.id: self._failed[each.id] for each in unfinished if each.id in self._failed}
        moved = [await self._advance(each) for each in unfinished]
        return 0.0 if any(moved) else BATCH_PAUSE_SECONDS

    async def _advance(self, operation: Operation) -> bool:
        """A batch of an operation. One that fails rests for a while, and keeps no other operation back."""
        due_at, error = self._failed.get(operation.id, (0.0, ""))
        if time.monotonic() < due_at:
            return False
        try:
            now = await self._client.advance_operation(operation.id, batch_size=BATCH)
        except DatabaseUnavailable:
            raise
        except (psycopg.Error, PenstockError) as exc:
            if str(exc) != error:
                logger.warning("operation %d cannot go on: %s", operation.id, exc)
            self._failed[operation.id] = time.monotonic() + FAILED_PAUSE_SECONDS, str(exc)
            return False
        self._failed.pop(operation.id, None)
        return now is not None and now.done_count > operation.done_count
