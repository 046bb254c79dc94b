"""Metrics of runs: the outcome of each run, and the three methods that a collector must have."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from penstock.errors import InvalidArgument, LeaseLost
from penstock.tasks.hooks import Middleware
from penstock.tasks.outcomes import Reject, Retry, Snooze

if TYPE_CHECKING:
    from penstock.tasks.context import TaskContext

__all__ = ["MetricsCollector", "MetricsMiddleware", "RunOutcome", "outcome_of"]

RunOutcome: TypeAlias = Literal["done", "failed", "rejected", "snoozed", "retried", "cancelled"]

METHODS: Final = ("inc_busy", "dec_busy", "observe_duration")

logger = logging.getLogger(__name__)


def outcome_of(context: TaskContext, error: BaseException | None) -> RunOutcome:
    """The outcome of a run that raised this error, or returned.

    A Retry on the last attempt counts as failed, because no attempt follows. A cancelled run is not done,
    even if its handler returned, because another worker has the message by then.
    """
    if isinstance(error, LeaseLost):
        return "cancelled"
    if error is None or isinstance(error, asyncio.CancelledError):
        # A handler that cancels itself has failed, like any other that raises.
        ended: RunOutcome = "done" if error is None else "failed"
        return "cancelled" if context.cancelled.is_set() else ended
    if isinstance(error, Snooze):
        return "snoozed"
    if isinstance(error, Reject):
        return "rejected"
    if isinstance(error, Retry) and not context.is_last_attempt:
        return "retried"
    return "failed"


class MetricsCollector(Protocol):
    """Counts runs. The worker calls the methods in the event loop and in threads: they must not block."""

    def inc_busy(self, task: str) -> None:
        """A run of this task has begun."""

    def dec_busy(self, task: str) -> None:
        """A run of this task has ended."""

    def observe_duration(self, task: str, outcome: RunOutcome, seconds: float) -> None:
        """A run of this task has ended with this outcome, after so many seconds."""


class MetricsMiddleware(Middleware):
    """Reports each run to a collector. The first exception of the collector is logged; none harms a task."""

    def __init__(self, collector: MetricsCollector) -> None:
        missing = [name for name in METHODS if not callable(getattr(collector, name, None))]
        if missing:
            raise InvalidArgument(f"collector has no method {', '.join(missing)}: {collector!r}")
        self._collector = collector
        self._logged = False

    @contextmanager
    def run(self, context: TaskContext) -> Iterator[None]:
        task = context.task_name
        counted = self._tell(self._collector.inc_busy, task)
        error: BaseException | None = None
        begun = time.perf_counter()
        try:
            yield
        except BaseException as exc:
            error = exc
            raise
        finally:
            seconds = time.perf_counter() - begun
            # dec_busy() without inc_busy() would bring the number below zero.
            if counted:
                self._tell(self._collector.dec_busy, task)
            self._tell(self._collector.observe_duration, task, outcome_of(context, error), seconds)
            # Break the cycle of frame and exception, which only the garbage collector would free.
            del error

    def _tell(self, method: Callable[..., None], *arguments: Any) -> bool:
        try:
            method(*arguments)
        except Exception:
            if not self._logged:
                self._logged = True
                logger.exception(
                    "The metrics collector failed in %s: tasks go on, and no further error of it is logged",
                    getattr(method, "__name__", method),
                )
            return False
        return True
