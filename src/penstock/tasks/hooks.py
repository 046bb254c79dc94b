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
    """One call of enqueue() or enqueue_many(): what is put into `headers` travels with each of its messages.

    message_ids: known after the block; of many at once, all of them.
    """

    task: str
    queue: str
    headers: dict[str, Any]
    count: int | None
    message_ids: list[int] = field(default_factory=list)


class Middleware:
    """Override what you need. A hook returns a context manager: a block around enqueueing, or a run.

    An exception of the handler goes through the block of run(), outcomes (Retry, Reject, Snooze) included.
    Both are entered in the context (see contextvars) in which the handler runs, or the caller is.
    """

    def enqueue(self, call: EnqueueCall) -> AbstractContextManager[Any]:  # noqa: ARG002
        """The block around one call of enqueue() or enqueue_many()."""
        return nullcontext()

    def run(self, context: TaskContext) -> AbstractContextManager[Any]:  # noqa: ARG002
        """The block around one run of a handler."""
        return nullcontext()
