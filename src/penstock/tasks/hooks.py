"""The hooks around enqueue and run that middleware is made of."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import TaskContext

__all__ = ["EnqueueCall", "Middleware"]


@dataclass(slots=True)
class EnqueueCall:
    """One call of enqueue() or enqueue_many(). The entries of `headers` travel with each of its messages.

    message_ids: known after the block; all ids of enqueue_many().
    """

    task: str
    queue: str
    headers: dict[str, Any]
    count: int | None
    message_ids: list[int] = field(default_factory=list)


class Middleware:
    """Override the hooks that you need. A hook returns a context manager around an enqueue, or around a run.

    An exception of the handler passes through the block of run(), outcomes (Retry, Reject, Snooze) included.
    run() is entered in the context (see contextvars) of the handler, enqueue() in the context of the caller.
    """

    def enqueue(self, call: EnqueueCall) -> AbstractContextManager[Any]:  # noqa: ARG002
        """The block around one call of enqueue() or enqueue_many()."""
        return nullcontext()

    def run(self, context: TaskContext) -> AbstractContextManager[Any]:  # noqa: ARG002
        """The block around one run of a handler."""
        return nullcontext()
