"""One attempt of one task, from the claim to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from penstock.calls import Claimed
from penstock.models import Receipt
from penstock.tasks.context import TaskContext
from penstock.tasks.task import Task

__all__ = ["HeldRuns", "Run", "Unrunnable"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Why the worker ends a run: another worker has its lease, or this worker stops.
Interruption = Literal["lost", "stopped"]


@dataclass(slots=True, eq=False)
class Run:
    """A message that was claimed, and how far its attempt has come."""

    task: Task[..., Any]
    claimed: Claimed
    headers: dict[str, Any]
    max_attempts: int
    make_context: Callable[[Run], TaskContext]
    context: TaskContext | None = None
    job: asyncio.Task[None] | None = None
    thread: asyncio.Future[Any] | None = None
    interruption: Interruption | None = None
    has_begun: bool = False
    # The handler has waited for something. Meanwhile other code may have got hold of the asyncio task.
    has_waited: bool = False
    # The handler has settled the message itself, in a transaction of its own.
    is_settled: bool = False
    # That transaction is about to end. It has locked the message, so a pulse that does not find the message
    # does not mean that the lease is lost.
    is_settling: bool = False
    # The executor has handed over the outcome, or has given the run up.
    is_over: bool = False
    started_at: float = 0.0
    # Moves the deadline of an attempt that has one.
    extend: Callable[[float], None] | None = None

    @property
    def started_epoch(self) -> float:
        return time.time() - (time.monotonic() - self.started_at)

    @property
    def message_id(self) -> int:
        return self.claimed.message_id

    @property
    def queue_name(self) -> str:
        return self.claimed.queue_name

    @property
    def attempt(self) -> int:
        return self.claimed.attempt

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.claimed.queue_name, self.claimed.message_id, self.claimed.token)

    @property
    def published_at(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.claimed.published_at)

    def __call__(self) -> TaskContext:
        """The context. It is made on first use, because most handlers never ask for it."""
        if self.context is None:
            self.context = self.make_context(self)
        return self.context

    @property
    def is_held(self) -> bool:
        """Whether the run still needs its lease."""
        return not (self.is_over or self.settles_itself)

    @property
    def settles_itself(self) -> bool:
        """Whether the handler has settled the message in its own transaction, or is about to."""
        return self.is_settled or self.is_settling

    def interrupt(self, why: Interruption) -> None:
        """End the run: cancel a coroutine, set `context.cancelled` for a thread. A waiting one is dropped."""
        if self.interruption is not None or self.is_over:
            return
        self.interruption = why
        if self.context is not None:
            self.context.cancelled.set()
        if self.job is not None and self.has_begun:
            self.job.cancel()

    @property
    def group(self) -> tuple[int, int] | None:
        """The group that the task is a member of, and its position there."""
        group, position = self.headers.get("group"), self.headers.get("position")
        if type(group) is int and type(position) is int and 0 <= position < 2**31 and 0 < group < 2**63:
            return group, position
        return None

    @property
    def is_plain(self) -> bool:
        """Whether no result is kept and the task is of no group: a plain ack settles it."""
        return self.task.result_seconds is None and self.group is None

    def __str__(self) -> str:
        return (
            f"task {self.task.name!r}, message {self.message_id} of {self.queue_name!r},"
            f" attempt {self.attempt} of {self.max_attempts}"
        )


@dataclass(frozen=True, slots=True)
class Unrunnable:
    """A message that no run can be made of: its headers cannot be read."""

    claimed: Claimed

    def __str__(self) -> str:
        return f"message {self.claimed.message_id} of {self.claimed.queue_name!r}"


class HeldRuns:
    """Runs whose end the database has not acknowledged yet: this worker keeps their leases."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def get(self, queue_name: str, message_id: int) -> Run | None:
        return self._runs.get((queue_name, message_id))

    def add(self, run: Run) -> None:
        self._runs[run.claimed.queue_name, run.claimed.message_id] = run

    def forget(self, runs: Iterable[Run]) -> None:
        """The database has acknowledged the end of these, or their leases are lost."""
        for run in runs:
            key = (run.claimed.queue_name, run.claimed.message_id)
            # A message that was redelivered to this worker has another run by now.
            if self._runs.get(key) is run:
                del self._runs[key]

    @property
    def running(self) -> list[Run]:
        """Runs that have begun and not ended."""
        return [run for run in self._runs.values() if run.job is not None and not run.is_over]
