"""What a handler may know of its own run, and do about it."""

from __future__ import annotations

import logging
import threading
from collections.abc import MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

__all__ = ["TaskContext", "current_context"]

_current: ContextVar[TaskContext | None] = ContextVar("penstock_context", default=None)


def current_context() -> TaskContext | None:
    """The context of the task that runs here, if one does."""
    return _current.get()


@dataclass(eq=False, slots=True, weakref_slot=True)
class TaskContext:
    """One attempt to run a task.

    attempt: 1 for the first. max_attempts: how many there may be. headers: of the message. cancelled: set when
    the attempt is over while the handler still runs (its time is up, its lease is lost, the worker stops);
    an async handler is cancelled then, one in a thread has to look.
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
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt >= self.max_attempts

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records have `task`, `message_id`, `queue` and `attempt`."""
        return TaskLogger(logging.getLogger(f"penstock.task.{self.task_name}"), self.facts())

    def facts(self) -> dict[str, Any]:
        return {
            "task": self.task_name,
            "message_id": self.message_id,
            "queue": self.queue_name,
            "attempt": self.attempt,
        }


class TaskLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds what is known of the task to each record, beside what the caller adds."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs
