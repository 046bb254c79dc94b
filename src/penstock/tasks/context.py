"""What a handler can know about its own run, and do to it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidArgument
from penstock.payloads import Json
from penstock.values import Duration

if TYPE_CHECKING:
    import psycopg

    from penstock._async.transaction import AsyncTransaction
    from penstock._sync.transaction import Transaction

__all__ = ["CURRENT", "TaskContext", "TaskMessage", "current_context"]

# The context of a run, or what makes it when it is asked for. Set by the worker.
CURRENT: ContextVar[TaskContext | Callable[[], TaskContext] | None] = ContextVar(
    "penstock_context", default=None
)


def current_context() -> TaskContext | None:
    """The context of the task that runs here, if one does."""
    found = CURRENT.get()
    return found if found is None or isinstance(found, TaskContext) else found()


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """The message of a task. payload: its arguments, as JSON values."""

    id: int
    queue_name: str
    payload: Json
    headers: dict[str, Any]
    attempt: int
    priority: int
    tenant: str | None
    published_at: datetime


@dataclass(eq=False, slots=True, weakref_slot=True)
class TaskContext:
    """One attempt to run a task.

    attempt: 1 for the first. max_attempts: how many there may be. headers: of the message. cancelled: set
    when the attempt is over while the handler still runs (its time is up, its lease is lost, the worker
    stops). The worker then cancels an async handler; a handler in a thread has to check `cancelled`.
    """

    task_name: str
    queue_name: str
    message_id: int
    attempt: int
    max_attempts: int
    priority: int
    tenant: str | None
    published_at: datetime
    headers: dict[str, Any]
    _cancelled: threading.Event | None = field(default=None, init=False)

    @property
    def cancelled(self) -> threading.Event:
        if self._cancelled is None:
            self._cancelled = threading.Event()
        return self._cancelled

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt >= self.max_attempts

    @property
    def message(self) -> TaskMessage:
        """The stored message."""
        raise _elsewhere("message")

    def extend(self, extension: Duration) -> None:  # noqa: ARG002
        """Add this time to the attempt_timeout of this attempt. The worker renews the lease in any case."""
        raise _elsewhere("extend()")

    def transaction(
        self,
        *,
        result: object = None,  # noqa: ARG002
    ) -> AbstractContextManager[Transaction[psycopg.Connection[Any]]]:
        """A transaction that ends the task: its statements take effect with the ack, or not at all.

        For handlers in threads; coroutines use transaction_async(). result: kept with the task, if the task
        keeps its result.
        """
        raise _elsewhere("transaction()")

    def transaction_async(
        self,
        *,
        result: object = None,  # noqa: ARG002
    ) -> AbstractAsyncContextManager[AsyncTransaction[psycopg.AsyncConnection[Any]]]:
        """A transaction that ends the task. See transaction()."""
        raise _elsewhere("transaction_async()")

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records have `task`, `message_id`, `queue` and `attempt`."""
        return TaskLogger(logging.getLogger(f"penstock.task.{self.task_name}"), self.facts())

    def fields(self) -> dict[str, Any]:
        """All fields, so that another process can make a copy of this context."""
        return {field.name: getattr(self, field.name) for field in fields(TaskContext) if field.init}

    def facts(self) -> dict[str, Any]:
        return {
            "task": self.task_name,
            "message_id": self.message_id,
            "queue": self.queue_name,
            "attempt": self.attempt,
        }


def _elsewhere(what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{what} of a task's context is not available in a process: declare the task without process=True"
    )


class TaskLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the facts of the task to each record, beside the caller's own `extra`."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs
