"""Contexts as the worker makes them, and a way to run something inside one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.middleware import EnqueueCall, Middleware
from penstock.tasks import context as contexts
from penstock.tasks.context import TaskContext

__all__ = ["call_of", "context_of", "entered", "run"]


def context_of(*, called_off: bool = False, **given: Any) -> TaskContext:
    """The first of three attempts at message 17, published three seconds ago, unless given."""
    facts: dict[str, Any] = {
        "task_name": "send_mail",
        "queue_name": "mail",
        "message_id": 17,
        "attempt": 1,
        "max_attempts": 3,
        "priority": 2,
        "tenant": "acme",
        "published_at": datetime.now(UTC) - timedelta(seconds=3),
        "headers": {"task": "send_mail"},
    }
    context = TaskContext(**facts | given)
    if called_off:
        context.cancelled.set()
    return context


def call_of(*, count: Any = 1, **headers: Any) -> EnqueueCall:
    return EnqueueCall("send_mail", "mail", {"task": "send_mail", **headers}, count)


@contextmanager
def entered(middleware: Sequence[Middleware], context: TaskContext) -> Iterator[None]:
    """What the worker does around a handler."""
    token = contexts.CURRENT.set(context)
    try:
        with ExitStack() as stack:
            for one in middleware:
                stack.enter_context(one.run(context))
            yield
    finally:
        contexts.CURRENT.reset(token)


def run(middleware: Middleware, error: BaseException | None = None, **given: Any) -> None:
    """A run that returns, or raises this, and from which this comes out again as it was."""
    came_out: BaseException | None = None
    try:
        with entered([middleware], context_of(**given)):
            if error is not None:
                raise error
    except BaseException as exc:
        came_out = exc
    assert came_out is error
