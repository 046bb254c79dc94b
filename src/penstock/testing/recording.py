"""The parts of a worker, extended to record the outcome of the one task that they run."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from penstock._async.client import AsyncClient
from penstock.calls import Claimed
from penstock.payloads import Json
from penstock.tasks.app import App
from penstock.worker.executor import Executor
from penstock.worker.intake import Intake
from penstock.worker.outcome import Outcome, Verdict
from penstock.worker.parts import logs_failures
from penstock.worker.run import HeldRuns, Run, Unrunnable
from penstock.worker.settlement import Settlement
from penstock.worker.settler import Settler

__all__ = ["LEASE_SECONDS", "End", "Ending", "Part"]

# The longest lease: a test that stops in a debugger, or moves the clock, loses none.
LEASE_SECONDS = 2_592_000
# Slots, as many as a worker has by default; one run at a time takes one.
SLOTS = 100
TOKEN_BYTES = 6
LAST_WORDS_SECONDS = 3.0

Ending = Literal["done", "retried", "failed", "rejected", "snoozed", "lost"]
# Whether a retry is the last attempt is known only when the database has judged it: "failed" until then.
ENDINGS: Mapping[Verdict, Ending] = {
    "ack": "done",
    "ack_with_result": "done",
    "retry": "failed",
    "release": "snoozed",
    "reject": "rejected",
}


@dataclass(slots=True)
class End:
    """The recorded outcome of a run."""

    ending: Ending | None = None
    result: Any = None
    exception: BaseException | None = None


class RecordingSettler(Settler):
    """Writes the outcome of a run to the database, and remembers it."""

    def __init__(self, client: AsyncClient, *, settled: Callable[[list[Run]], None]) -> None:
        super().__init__(client, settled=settled)
        self.end = End()

    def settle(self, run: Run | Unrunnable, outcome: Outcome) -> None:
        self.end.ending = ENDINGS[outcome.verdict]
        super().settle(run, outcome)

    def _acknowledge(self, settlement: Settlement, held: Iterable[int]) -> None:
        held = set(held)
        if any(run.message_id not in held for run in settlement.runs):
            self.end.ending = "lost"
        super()._acknowledge(settlement, held)


class RecordingExecutor(Executor):
    """Runs handlers, and records what they returned or raised."""

    def __init__(self, app: App, settler: RecordingSettler, held: HeldRuns) -> None:
        self._recorder = settler
        self.over = asyncio.Event()
        self._left = asyncio.Event()
        super().__init__(
            app,
            settler,
            held,
            settled=held.forget,
            slot_freed=self._left.set,
            concurrency=SLOTS,
            threads=SLOTS,
            processes=1,
            logs=logs_failures(app),
        )

    async def interrupted(self) -> None:
        """Interrupt runs that have not ended, and wait a little for their end."""
        self.over.clear()
        self.interrupt_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                while self._held.running:
                    await self.over.wait()

    async def threads_ended(self) -> None:
        """Wait a little for threads whose attempts are over: they should end while the event loop runs."""
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

    def _end(self, run: Run, outcome: Outcome) -> None:
        super()._end(run, outcome)
        if run.is_settled:
            self._recorder.end.ending = "done"
        elif run.interruption == "lost":
            self._recorder.end.ending = "lost"
        self.over.set()


class Part:
    """A worker for one app, without its loops."""

    def __init__(self, app: App, client: AsyncClient) -> None:
        self.app = app
        self._held = HeldRuns()
        self.settler = RecordingSettler(client, settled=self._held.forget)
        self.executor = RecordingExecutor(app, self.settler, self._held)
        self._intake = Intake(app, self.executor, self.settler, self._held)
        self.token = secrets.token_urlsafe(TOKEN_BYTES)

    def start(self, row: Claimed) -> Run | None:
        """Begin a run; None where the message was settled without one."""
        self.settler.end = End()
        self.executor.over.clear()
        self.executor.begin(self._intake.sort_out([row]).runs)
        return self._held.get(row.queue_name, row.message_id)

    async def settle(self) -> End:
        """Write the outcome of the run to the database."""
        await self.settler.run_once()
        return self.settler.end

    async def close(self) -> None:
        try:
            await self.executor.interrupted()
            await self.settler.run_once()
            await self.executor.threads_ended()
        finally:
            await self.executor.close()
