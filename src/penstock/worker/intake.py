"""The intake: makes runs of claimed messages, and finds the messages that cannot run in this worker."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from penstock.calls import Claimed
from penstock.errors import PayloadInvalid
from penstock.payloads import load_headers
from penstock.tasks.app import App
from penstock.wording import shown

from .context import WorkerContext
from .executor import Executor
from .lanes import Route
from .outcome import Outcome
from .run import HeldRuns, Run, Unrunnable
from .settler import Settler

__all__ = ["Intake", "Left", "Sorted"]

logger = logging.getLogger("penstock.worker")

# Deliveries that were lost with their workers, beyond max_attempts, before a task is given up.
LOST_DELIVERIES = 3
# The history of a message has its last ten errors: more lost deliveries are not known.
MOST_LOST = 10
# Headers that are kept parsed, and unknown tasks that are kept as logged.
MOST_REMEMBERED = 1000


class Left(NamedTuple):
    """A message that cannot run here now. route: the one that has no room; None if the task is unknown."""

    claimed: Claimed
    task_name: str
    route: Route | None

    @property
    def is_grave(self) -> bool:
        """Whether the message was lost with a worker more than once, and could not run beside others."""
        return self.route is not None and self.claimed.lost_deliveries > 1


class Sorted(NamedTuple):
    """Claimed messages: runs that the executor has admitted, and messages that cannot run here now."""

    runs: list[Run]
    left: list[Left]


class Intake:
    """Sorts claimed messages."""

    def __init__(self, app: App, executor: Executor, settler: Settler, held: HeldRuns) -> None:
        self._app = app
        self._executor = executor
        self._settler = settler
        self._held = held
        self._parsed: dict[str | None, dict[str, Any]] = {}
        self._logged: set[str] = set()

    def sort_out(self, claimed: list[Claimed]) -> Sorted:
        """Make runs of messages. The caller must begin() all runs that this returns."""
        runs, left = list[Run](), list[Left]()
        for row in claimed:
            headers = self._headers(row)
            if headers is None:
                continue
            self._interrupt_former(row)
            name = headers.get("task")
            task = self._app.tasks.get(name) if isinstance(name, str) else None
            if task is None:
                self._log_unknown(row.queue_name, name)
                left.append(Left(row, name if isinstance(name, str) else "", None))
                continue
            limit = row.attempts_limit or task.policy.max_attempts
            run = Run(task, row, headers, limit, WorkerContext.of)
            if row.lost_deliveries >= min(limit + LOST_DELIVERIES, MOST_LOST):
                self._give_up(run)
            else:
                runs.append(run)
        admitted = self._executor.admit(runs)
        if len(admitted) < len(runs):
            known = set(map(id, admitted))
            left += [
                Left(run.claimed, run.task.name, self._executor.route(run.task))
                for run in runs
                if id(run) not in known
            ]
        return Sorted(admitted, left)

    def _headers(self, row: Claimed) -> dict[str, Any] | None:
        """The headers of a message; None where they cannot be read, and the message is rejected."""
        headers = self._parsed.get(row.headers)
        if headers is None:
            try:
                headers = load_headers(row.headers)
            except PayloadInvalid as exc:
                logger.error("message %d of %r is rejected: %s", row.message_id, row.queue_name, exc)
                self._settler.settle(Unrunnable(row), Outcome.rejected(str(exc)))
                return None
            if len(self._parsed) >= MOST_REMEMBERED:
                self._parsed.clear()
            self._parsed[row.headers] = headers
        return headers

    def _interrupt_former(self, row: Claimed) -> None:
        """End the former run of a message that was redelivered to the worker that had lost it."""
        former = self._held.get(row.queue_name, row.message_id)
        if former is not None:
            former.interrupt("lost")

    def _give_up(self, run: Run) -> None:
        logger.error("given up, its workers were lost over and over: %s", run)
        error = f"given up: its worker was lost {run.claimed.lost_deliveries} times in a row while it ran"
        # With no attempts left, a retry makes it a dead letter whose reason is the number of attempts.
        is_last = run.attempt >= run.max_attempts
        self._settler.settle(run, Outcome.retried(0, error) if is_last else Outcome.rejected(error))

    def _log_unknown(self, queue_name: str, name: object) -> None:
        """Log an unknown task, once for each name."""
        # Cut: any publisher may have written it.
        text = f"queue {queue_name!r} has a task {shown(name)}"
        if text not in self._logged:
            logger.warning("%s, which is not known here: parked for a worker that knows it", text)
            if len(self._logged) >= MOST_REMEMBERED:
                self._logged.clear()
            self._logged.add(text)
