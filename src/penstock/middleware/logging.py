"""Logging with the standard library: which task a record comes from, and how each run ended."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import InvalidArgument
from penstock.tasks.context import current_context
from penstock.tasks.hooks import Middleware
from penstock.tasks.outcomes import Retry, Snooze

from .metrics import outcome_of

if TYPE_CHECKING:
    from penstock.tasks.context import TaskContext

__all__ = ["LoggingMiddleware", "TaskFilter", "configure_logging"]

# The attributes that TaskFilter adds, with the names of TaskContext.facts().
NAMES: Final = ("task", "message_id", "queue", "attempt")


class TaskFilter(logging.Filter):
    """Adds `task`, `message_id`, `queue` and `attempt` of the current run to each record; drops no record.

    outside: the value of these attributes while no task runs, so that a format with these names never fails.
    Put the filter on a handler: a filter on a logger does not see the records of the loggers below.
    """

    def __init__(self, *, outside: object = "") -> None:
        super().__init__()
        self._outside = dict.fromkeys(NAMES, outside)

    def filter(self, record: logging.LogRecord) -> bool:
        context = current_context()
        facts: dict[str, Any] = self._outside if context is None else context.facts()
        for name, value in facts.items():
            # Do not overwrite attributes that the caller gave in `extra`.
            record.__dict__.setdefault(name, value)
        return True


class LoggingMiddleware(Middleware):
    """Logs each run: its start (debug), its end (info), its failure (warning; on the last attempt error).

    Each record has `task`, `message_id`, `queue`, `attempt`, and at the end `outcome` and `seconds`.
    """

    def __init__(self, *, logger: logging.Logger | None = None) -> None:
        self._logger = logging.getLogger(__name__) if logger is None else logger

    @contextmanager
    def run(self, context: TaskContext) -> Iterator[None]:
        self._log(
            logging.DEBUG,
            "started, attempt %d of %d",
            (context.attempt, context.max_attempts),
            context=context,
            extra={},
        )
        begun = time.perf_counter()
        try:
            yield
        except BaseException as exc:
            self._log_end(context, exc, time.perf_counter() - begun)
            raise
        self._log_end(context, None, time.perf_counter() - begun)

    def _log_end(self, context: TaskContext, error: BaseException | None, seconds: float) -> None:
        outcome = outcome_of(context, error)
        attempts = (context.attempt, context.max_attempts)
        level, text, arguments = logging.INFO, "done in %.3f s", tuple[Any, ...]((seconds,))
        if isinstance(error, Snooze):
            text, arguments = "snoozed for %g s after %.3f s", (error.delay, seconds)
        elif outcome == "retried":
            assert isinstance(error, Retry)
            after = "" if error.delay is None else f" in {error.delay:g} s"
            level, text = logging.WARNING, "asks for a retry%s after %.3f s, attempt %d of %d: %s"
            arguments = (after, seconds, *attempts, error)
        elif outcome == "rejected":
            level, text, arguments = logging.ERROR, "rejected after %.3f s: %s", (seconds, error)
        elif outcome == "cancelled":
            level, text, arguments = logging.WARNING, "cancelled after %.3f s", (seconds,)
        elif outcome == "failed":
            level = logging.ERROR if context.is_last_attempt else logging.WARNING
            text, arguments = "failed after %.3f s, attempt %d of %d", (seconds, *attempts)
        self._log(
            level,
            text,
            arguments,
            context=context,
            error=error if outcome == "failed" else None,
            extra={"outcome": outcome, "seconds": seconds},
        )

    def _log(
        self,
        level: int,
        text: str,
        arguments: tuple[Any, ...],
        *,
        context: TaskContext,
        extra: dict[str, Any],
        error: BaseException | None = None,
    ) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(
                level,
                "%s[%d] " + text,
                context.task_name,
                context.message_id,
                *arguments,
                exc_info=error,
                extra={**context.facts(), **extra},
            )


class TaskFormatter(logging.Formatter):
    """Puts the task and the message id before the text of a handler's record, as LoggingMiddleware does."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as the base class has it
        task, message_id = getattr(record, "task", ""), getattr(record, "message_id", "")
        if task and record.name != __name__:
            record.message = f"{task}[{message_id}] {record.message}"
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON, with the caller's `extra` and the task."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        for name, value in vars(record).items():
            if name not in _USUAL and not (isinstance(value, str) and not value):
                facts.setdefault(name, _encodable(value))
        return json.dumps(facts)


def _encodable(value: object) -> object:
    """The value, or its text if JSON cannot hold it."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return str(value)
    return value


# The attributes of every record.
_USUAL = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})


def configure_logging(level: int | str = logging.INFO, *, as_json: bool = False) -> None:
    """Log to stderr, with the task and the message id, unless the program has set up logging already.

    as_json: a line of JSON for each record.
    """
    number = logging.getLevelNamesMapping().get(level.upper()) if isinstance(level, str) else level
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidArgument(f"level must be a level of logging, like INFO or 20, not {level!r}")
    handler = logging.StreamHandler()
    handler.addFilter(TaskFilter())
    text = TaskFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else text)
    logging.basicConfig(level=number, handlers=[handler])
