"""The parts of a worker, extended to record the outcome of the one task that they run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from penstock._async.client import AsyncClient
from penstock.calls import Claimed
from penstock.middleware.logging import LoggingMiddleware
from penstock.payloads import Json
from penstock.tasks.app import App
from penstock.worker.contact import Contact
from penstock.worker.executor import Executor
from penstock.worker.fetcher import Fetcher
from penstock.worker.leases import Leases
from penstock.worker.run import Run
from penstock.worker.settler import Settler

__all__ = ["LEASE_SECONDS", "End", "Outcome", "Part"]

# Very long, so that a test keeps its lease while it stops in a debugger or moves the clock.
LEASE_SECONDS = 2_592_000
# Slots, as a worker has them; the tester runs one task at a time.
SLOTS = 100
LAST_WORDS_SECONDS = 3.0

Outcome = Literal["done", "retried", "failed", "rejected", "snoozed", "lost"]


@dataclass(slots=True)
class End:
    """The recorded outcome of a run."""

    outcome: Outcome | None = None
    result: Any = None
    exception: BaseException | None = None


class RecordingSettler(Settler):
    """Reports the outcome of a run to the database, and records it."""

    def __init__(self, client: AsyncClient, settled: Callable[[list[Run]], None]) -> None:
        super().__init__(client, settled)
        self.end = End()

    def done(self, run: Run) -> None:
        self.end.outcome = "done"
        super().done(run)

    def done_with(self, run: Run, result: Json) -> None:
        self.end.outcome = "done"
        super().done_with(run, result)

    def failed(self, run: Run, delay: float, error: str) -> None:
        self.end.outcome = "failed"
        super().failed(run, delay, error)

    def rejected(self, run: Run, error: str) -> None:
        self.end.outcome = "rejected"
        super().rejected(run, error)

    def released(self, run: Run, delay: float = 0) -> None:
        self.end.outcome = "snoozed"
        super().released(run, delay)

    def _told(self, runs: list[Run], held: Any) -> None:
        if any(run.message_id not in held for run in runs):
            self.end.outcome = "lost"
        super()._told(runs, held)


class RecordingExecutor(Executor):
    """Runs handlers, and records what they returned or raised."""

    def __init__(self, app: App, settler: RecordingSettler) -> None:
        logs = not any(isinstance(middleware, LoggingMiddleware) for middleware in app.middleware)
        super().__init__(app, settler, concurrency=SLOTS, threads=SLOTS, processes=1, logs=logs)
        self._recorder = settler
        self.over = asyncio.Event()
        self._left = asyncio.Event()
        self.on_room = self._left.set

    async def interrupted(self) -> None:
        """Interrupt running handlers, and wait a little for their end."""
        self.over.clear()
        self.interrupt_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                while self.running:
                    await self.over.wait()

    async def threads_ended(self) -> None:
        """Wait a little for abandoned threads, because a thread that ends calls back into the loop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                while self.threads.running:
                    self._left.clear()
                    await self._left.wait()

    def _succeeded(self, run: Run, result: Json) -> None:
        self._recorder.end.result = result
        super()._succeeded(run, result)

    def _failed(self, run: Run, exc: BaseException) -> None:
        self._recorder.end.exception = exc
        super()._failed(run, exc)

    def _end(self, run: Run, tell: Callable[..., None], *arguments: Any) -> None:
        super()._end(run, tell, *arguments)
        if run.is_settled:
            self._recorder.end.outcome = "done"
        elif run.interruption == "lost":
            self._recorder.end.outcome = "lost"
        self.over.set()


class Part:
    """A worker for one app, without its loops."""

    def __init__(self, app: App, client: AsyncClient) -> None:
        self.app = app
        self.settler = RecordingSettler(client, self._settled)
        self.executor = RecordingExecutor(app, self.settler)
        leases = Leases(client, LEASE_SECONDS)
        leases.executor = self.executor
        names = tuple(needs.name for needs in app.queues)
        self._fetcher = Fetcher(
            app=app,
            client=client,
            claims=client,
            executor=self.executor,
            settler=self.settler,
            leases=leases,
            contact=Contact(client),
            queue_names=names,
            declare=lambda: None,
        )
        self.token = leases.token

    def _settled(self, runs: list[Run]) -> None:
        self.executor.forget(runs)

    def start(self, row: Claimed) -> Run | None:
        """Begin a run; None if the message was settled without a run."""
        self.settler.end = End()
        self.executor.over.clear()
        self.executor.begin(self._fetcher._sort_out([row]).runs)
        return self.executor.runs.get((row.queue_name, row.message_id))

    async def settle(self) -> End:
        """Report the end of the run to the database."""
        await self.settler.run_once()
        return self.settler.end

    async def close(self) -> None:
        try:
            await self.executor.interrupted()
            await self.settler.run_once()
            await self.executor.threads_ended()
        finally:
            await self.executor.close()
