"""Runs the enqueued tasks, one after the other, with the parts of the worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock import calls
from penstock._async.client import AsyncClient
from penstock._async.enqueuing import AsyncEnqueuing
from penstock.calls import Claimed
from penstock.concurrency import now
from penstock.errors import InvalidArgument, PayloadInvalid, PenstockError, QueueNotFound
from penstock.models import Receipt
from penstock.payloads import load_headers, load_json
from penstock.tasks import outcomes
from penstock.tasks.app import App
from penstock.tasks.arguments import from_plain
from penstock.values import Duration, flag, interval
from penstock.worker.run import Run
from penstock.worker.scheduler import Scheduler

from .recording import LEASE_SECONDS, End, Ending, Part

__all__ = ["Drain", "DrainError", "DrainOptions", "Ran"]

logger = logging.getLogger("penstock.testing")

PAGE = 1000


class DrainError(PenstockError):
    """drain() did not come to an end."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A task that drain() ran, and how it ended.

    outcome: "done"; "retried": it failed and has attempts left; "failed": it has none, and is a dead letter;
    "rejected": the handler made it a dead letter; "snoozed": delayed by the handler; "lost": its lease ended
    before the handler did. exception: raised by the handler. result: the return value, if the task keeps it.
    """

    task: str
    arguments: dict[str, Any]
    outcome: Ending
    result: Any
    exception: BaseException | None
    attempt: int
    queue: str
    message_id: int
    tenant: str | None

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        error = "" if self.exception is None else f": {self.exception!r}"
        return f"<{self.task}({arguments}) {self.outcome}{error}>"


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """How far drain() goes."""

    with_scheduled: bool
    with_periodic: bool
    raise_errors: bool
    limit: int
    timeout: float | None

    @classmethod
    def of(
        cls,
        *,
        with_scheduled: bool,
        with_periodic: bool,
        raise_errors: bool,
        limit: int,
        timeout: Duration | None,
    ) -> DrainOptions:
        if type(limit) is not int or limit < 1:
            raise InvalidArgument(f"limit must be at least 1, not {limit!r}")
        return cls(
            flag("with_scheduled", with_scheduled),
            flag("with_periodic", with_periodic),
            flag("raise_errors", raise_errors),
            limit,
            None if timeout is None else interval("timeout", timeout),
        )


class Drain:
    """One pass over the queues of some apps, until no task is left that could run now."""

    def __init__(
        self, apps: Sequence[App], dsn: str, options: DrainOptions, move_to: Callable[[datetime], Any]
    ) -> None:
        self._apps = apps
        self._dsn = dsn
        self._options = options
        self._move_to = move_to
        self._give_up = None if options.timeout is None else now() + options.timeout
        self._parts: list[Part] = []
        self._claims = 0
        # Messages of unknown tasks, which no app here has: held until the end, then released.
        self._unknown: list[Receipt] = []
        self.ran: list[Ran] = []

    async def run(self) -> list[Ran]:
        async with AsyncExitStack() as stack:
            self._client = AsyncClient(self._dsn, maintain=False, install=False)
            stack.push_async_callback(self._client.close)
            stack.push_async_callback(self._give_back)
            for app in self._apps:
                part = Part(app, self._client)
                stack.push_async_callback(part.close)
                self._parts.append(part)
            if self._options.with_periodic:
                await self._enqueue_periodic()
            while await self._go_round() or await self._move_on():
                pass
        return self.ran

    async def _enqueue_periodic(self) -> None:
        for app in self._apps:
            if app.schedules:
                # A worker does the same when it starts.
                for needs in app.queues:
                    await AsyncEnqueuing(self._client, app.declared).declare(needs)
                await Scheduler(self._client, list(app.schedules.values())).run_once()

    async def _go_round(self) -> bool:
        """Run the next task of each queue. Returns whether there was one."""
        found = False
        for name in dict.fromkeys(needs.name for app in self._apps for needs in app.queues):
            if row := await self._claim(name):
                found = True
                await self._run(row)
        return found

    async def _claim(self, queue_name: str) -> Claimed | None:
        try:
            timed = await self._client.internals.attempt(
                calls.consume_messages_batch(queue_name, self._parts[0].token, LEASE_SECONDS, 1)
            )
        except QueueNotFound:
            return None
        if not timed.result:
            return None
        self._claims += 1
        if self._claims > self._options.limit:
            row = timed.result[0]
            self._unknown.append(Receipt(row.queue_name, row.message_id, row.token))
            last = ", ".join(map(repr, self.ran[-3:]))
            raise DrainError(
                f"drain() has run {self._options.limit} tasks, and there are more; the last ones: {last}",
                hint="check for a task that enqueues itself or never ends; else give drain() a higher limit=",
            )
        return timed.result[0]

    async def _run(self, row: Claimed) -> None:
        name = _task_name(row)
        part = next((part for part in self._parts if name in part.app.tasks), None)
        if part is None:
            logger.warning("queue %r has a task %r, which no app here knows", row.queue_name, name)
            self._unknown.append(Receipt(row.queue_name, row.message_id, row.token))
            return
        run = part.start(row)
        if run is not None:
            await self._wait_for(run, part)
        end = await part.settle()
        if run is None:
            return
        ran = await self._record(run, end)
        self.ran.append(ran)
        self._raise_error_of(ran, run)

    async def _wait_for(self, run: Run, part: Part) -> None:
        left = None if self._give_up is None else self._give_up - now()
        try:
            async with asyncio.timeout(left):
                await part.executor.over.wait()
        except TimeoutError:
            raise DrainError(
                f"drain() took longer than {self._options.timeout:g} s: it still runs {run}",
                hint="a task cannot wait here for another task that drain() would run after it",
            ) from None

    async def _record(self, run: Run, end: End) -> Ran:
        outcome = end.ending or "lost"
        if outcome == "failed":
            details = await self._client.get_message(run.queue_name, run.message_id)
            outcome = "failed" if details is None or details.state == "dead" else "retried"
        task, stored = run.task, run.claimed.stored
        arguments: Any = {}
        with contextlib.suppress(PenstockError, ValueError, RecursionError):
            arguments = load_json(stored) if isinstance(stored, str) else stored
        try:
            arguments = task.arguments.decode(arguments)
        except (PenstockError, RecursionError):
            arguments = arguments if isinstance(arguments, dict) else {}
        return Ran(
            task.name,
            arguments,
            outcome,
            None if task.result_seconds is None else from_plain(end.result, task.arguments.result_kind),
            end.exception,
            run.attempt,
            run.queue_name,
            run.message_id,
            run.claimed.tenant,
        )

    def _raise_error_of(self, ran: Ran, run: Run) -> None:
        exc = ran.exception
        if exc is None or isinstance(exc, outcomes.Outcome):
            return
        if isinstance(exc, asyncio.CancelledError):
            # Raised as it is, a CancelledError would mean that drain() was cancelled.
            exc = DrainError(f"the handler was cancelled by itself: {run}")
        if self._options.raise_errors or not isinstance(exc, Exception | SystemExit):
            exc.add_note(f"raised in drain() by {run}; it is {ran.outcome}")
            raise exc

    async def _move_on(self) -> bool:
        """Move the clock to the due time of the next message. Returns whether there is one."""
        if not self._options.with_scheduled:
            return False
        at = await self._client.clock()
        due = [
            message.due_at
            for app in self._apps
            for needs in app.queues
            for message in await self._scheduled(needs.name)
            if message.due_at is not None and message.due_at > at
        ]
        if due:
            self._move_to(min(due))
        return bool(due)

    async def _scheduled(self, queue_name: str) -> list[Any]:
        found: list[Any] = []
        after = None
        while True:
            try:
                page = await self._client.list_messages(
                    queue_name, state="scheduled", page_size=PAGE, after=after
                )
            except QueueNotFound:
                return found
            found += page
            if len(page) < PAGE:
                return found
            after = page[-1].cursor

    async def _give_back(self) -> None:
        await self._client.release_many(self._unknown)


def _task_name(row: Claimed) -> str | None:
    try:
        name = load_headers(row.headers).get("task")
    except PayloadInvalid:
        return None
    return name if isinstance(name, str) else None
