"""What enqueue() returns: a handle on an enqueued task."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from penstock._async import waiting as awaited
from penstock._sync import waiting as blocking
from penstock.errors import InvalidArgument, PayloadInvalid, PenstockError
from penstock.models import MessageDetails, MessageResult
from penstock.payloads import UNREADABLE, fault_of, harmless
from penstock.values import Duration, interval

from .arguments import from_plain

if TYPE_CHECKING:
    from .task import Task

__all__ = ["GroupHandle", "Handle", "TaskFailed"]

R_co = TypeVar("R_co", covariant=True)


class TaskFailed(PenstockError):  # noqa: N818
    """The task has failed for good: it is a dead letter."""

    def __init__(self, message: str, details: MessageResult) -> None:
        super().__init__(message)
        self.details = details


class Handle(Generic[R_co]):
    """An enqueued task."""

    __slots__ = ("_task", "id")

    def __init__(self, task: Task[..., R_co], message_id: int) -> None:
        self._task = task
        self.id = message_id

    @property
    def task_name(self) -> str:
        return self._task.name

    @property
    def queue_name(self) -> str:
        return self._task.queue

    def details(self) -> MessageDetails | None:
        """All facts about the task now; None if it is done and was not kept."""
        return self._task.app.client.get_message(self.queue_name, self.id)

    async def details_async(self) -> MessageDetails | None:
        """All facts about the task now; None if it is done and was not kept."""
        return await self._task.app.async_client.get_message(self.queue_name, self.id)

    def cancel(self) -> bool:
        """Take the task out of the queue, if it has not begun. Returns whether that succeeded."""
        return self._task.app.client.cancel_message(self.queue_name, self.id)

    async def cancel_async(self) -> bool:
        """Take the task out of the queue, if it has not begun. Returns whether that succeeded."""
        return await self._task.app.async_client.cancel_message(self.queue_name, self.id)

    def result(self, *, timeout: Duration | None = None) -> R_co:
        """Wait until the task is done, and return its return value.

        Raises TaskFailed if the task failed for good, TimeoutError if it takes longer than `timeout`.
        """
        seconds = self._patience(timeout)
        return self._outcome(blocking.finished(self._task.app.client, self.queue_name, self.id, seconds))

    async def result_async(self, *, timeout: Duration | None = None) -> R_co:
        """Wait until the task is done, and return its return value. See result()."""
        seconds = self._patience(timeout)
        client = self._task.app.async_client
        return self._outcome(await awaited.finished(client, self.queue_name, self.id, seconds))

    def _patience(self, timeout: Duration | None) -> float | None:
        if self._task.result_seconds is None:
            raise InvalidArgument(
                f"task {self.task_name!r} does not keep its result: declare it with @app.task(result=True)"
            )
        return None if timeout is None else interval("timeout", timeout)

    def _outcome(self, details: MessageResult | None) -> R_co:
        if details is None:
            raise TimeoutError(f"{self!r} is not done yet")
        if details.state == "dead":
            text = (details.last_error or "no error was recorded").splitlines()[0]
            raise TaskFailed(f"{self!r} failed, reason {details.reason}: {text}", details)
        if isinstance(details.result, dict) and details.result.keys() == {UNREADABLE}:
            raise PayloadInvalid(f"the result of {self!r} cannot be read: {details.result[UNREADABLE]}")
        try:
            result: R_co = from_plain(details.result, self._task.arguments.result_kind)
        except (ValueError, TypeError, msgspec.ValidationError) as exc:
            raise PayloadInvalid(
                f"the result of {self!r} does not fit its annotation: {fault_of(exc)}"
            ) from harmless(exc)
        return result

    def __repr__(self) -> str:
        return f"<task {self.task_name!r}, message {self.id} of {self.queue_name!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and (other.id, other.queue_name) == (self.id, self.queue_name)

    def __hash__(self) -> int:
        return hash((self.id, self.queue_name))


class GroupHandle:
    """An enqueued group of tasks: its id, and the handles of its members in order."""

    __slots__ = ("id", "members")

    def __init__(self, group_id: int, members: list[Handle[Any]]) -> None:
        self.id = group_id
        self.members = members

    def results(self, *, timeout: Duration | None = None) -> list[Any]:
        """The return values of all members; for tasks that keep their results."""
        left = _deadline(timeout)
        return [member.result(timeout=left()) for member in self.members]

    async def results_async(self, *, timeout: Duration | None = None) -> list[Any]:
        """The return values of all members; for tasks that keep their results."""
        left = _deadline(timeout)
        return [await member.result_async(timeout=left()) for member in self.members]

    def __repr__(self) -> str:
        return f"<group {self.id} of {len(self.members)} tasks>"


def _deadline(timeout: Duration | None) -> Callable[[], float | None]:
    """A function that returns the remaining time, for several waits under one timeout."""
    if timeout is None:
        return lambda: None
    end = time.monotonic() + interval("timeout", timeout)
    return lambda: max(0.0, end - time.monotonic())
