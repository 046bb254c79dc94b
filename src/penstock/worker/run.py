"""One attempt of one task, from the claim to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from penstock import calls
from penstock.calls import Claimed
from penstock.models import Receipt
from penstock.payloads import Json
from penstock.sql_call import Call
from penstock.tasks.context import TaskContext
from penstock.tasks.task import Task

__all__ = ["Run", "ack_special"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Why a run is ended from outside: its lease went to somebody else, or the worker stops.
Interruption = Literal["lost", "stopped"]


@dataclass(slots=True, eq=False)
class Run:
    """A message that was claimed, and what has become of it so far."""

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
    # It has waited for something: somebody may have got hold of the task that it runs in.
    has_waited: bool = False
    # Settled by the handler itself, in a transaction of its own.
    is_settled: bool = False
    # That transaction is about to end: the message is locked, and not lost although nobody finds it.
    is_settling: bool = False
    # Whether its end has been told to the settler.
    is_over: bool = False
    started_at: float = 0.0
    # Moves the end of the attempt, where it has one.
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
        """The context, made when it is first asked for: most handlers never do."""
        if self.context is None:
            self.context = self.make_context(self)
        return self.context

    @property
    def is_held(self) -> bool:
        """Whether it needs its lease."""
        return not (self.is_over or self.settles_itself)

    @property
    def settles_itself(self) -> bool:
        """Whether its handler has ended it, or is about to."""
        return self.is_settled or self.is_settling

    def interrupt(self, why: Interruption) -> None:
        """End it: a coroutine is cancelled, a thread is told. What has not begun will not."""
        if self.interruption is not None or self.is_over:
            return
        self.interruption = why
        if self.context is not None:
            self.context.cancelled.set()
        if self.job is not None and self.has_begun:
            self.job.cancel()

    @property
    def group(self) -> tuple[int, int] | None:
        """The group that it is a member of, and its position there."""
        group, position = self.headers.get("group"), self.headers.get("position")
        if type(group) is int and type(position) is int and 0 <= position < 2**31 and 0 < group < 2**63:
            return group, position
        return None

    @property
    def is_plain(self) -> bool:
        """Whether nobody waits for its end: no result is kept, and it is of no group."""
        return self.task.result_seconds is None and self.group is None

    def __str__(self) -> str:
        return (
            f"task {self.task.name!r}, message {self.message_id} of {self.queue_name!r},"
            f" attempt {self.attempt} of {self.max_attempts}"
        )


def ack_special(runs: Sequence[Run], results: Sequence[Json]) -> Call[list[int]]:
    """The ack of runs of one queue and token that are not plain, with what they returned."""
    groups = [run.group for run in runs]
    return calls.ack_tasks(
        runs[0].queue_name,
        [run.message_id for run in runs],
        runs[0].claimed.token,
        results=results,
        group_ids=[group and group[0] for group in groups],
        positions=[group and group[1] for group in groups],
    )
