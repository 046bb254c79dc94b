"""Coroutines one after the other in the same asyncio.Task, each with context variables of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any

from .run import Run

__all__ = ["Stepped"]


class Stepped:
    """A coroutine that runs in the asyncio task that awaits it.

    An asyncio task for each would cost more than a short handler. suspended: called with the run when the
    coroutine waits for something.
    """

    __slots__ = ("_around", "_coroutine", "_run", "_suspended")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        around: Context,
        run: Run,
        suspended: Callable[[Run], None],
    ) -> None:
        self._coroutine = coroutine
        self._around = around
        self._run = run
        self._suspended = suspended

    def __await__(self) -> Generator[Any, Any, Any]:
        run, value = self._around.run, None
        step: Callable[[Any], Any] = self._coroutine.send
        while True:
            try:
                waits_for = run(step, value)
            except StopIteration as stop:
                return stop.value
            self._suspended(self._run)
            try:
                value = yield waits_for
                step = self._coroutine.send
            except BaseException as exc:
                step, value = self._coroutine.throw, exc
