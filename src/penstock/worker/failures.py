"""The error of a run that failed: for the log, and for the history of its message."""

from __future__ import annotations

import concurrent.futures
import logging
import traceback
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, NamedTuple

from penstock._async.message import describe
from penstock.tasks.outcomes import Reject, Retry

from .run import Run

__all__ = ["error_text", "log_failure", "own_frames_off"]

# For failures of handlers. The worker's own messages have another logger.
logger = logging.getLogger("penstock.worker.runs")

# Characters of a traceback that are kept.
MOST_ERROR_CHARACTERS = 8000
# How many tracebacks are kept formatted, and of how many frames.
MOST_CACHED_PLACES = 200
MOST_CACHED_FRAMES = 20
# Their text has more than frames and a last line.
SPECIAL = (BaseExceptionGroup, SyntaxError)
# Frames of code in these folders are left out: they do not help the author of a handler.
OWN_FOLDERS = (str(Path(__file__).parent.parent), str(Path(concurrent.futures.__file__).parent))


class Place(NamedTuple):
    """An instruction: the same place makes the same lines in a traceback."""

    code: CodeType
    line: int
    instruction: int


# A cache: it may be lost at any time, and no caller sees the difference.
_frames: dict[tuple[Place, ...], str] = {}


def own_frames_off(found: TracebackType | None) -> TracebackType | None:
    """The traceback from the handler on; all of it where no handler was called."""
    first = found
    while first is not None and first.tb_frame.f_code.co_filename.startswith(OWN_FOLDERS):
        first = first.tb_next
    return first or found


def error_text(exc: BaseException) -> str:
    """An error for the history of a message: one line, and the traceback."""
    return _cut(f"{describe(exc)}\n{_formatted(exc)}")


def _formatted(exc: BaseException) -> str:
    """traceback.format_exception(), with the frames of a place that failed before from a cache.

    To format frames takes longer than most handlers: their source lines are read, and parsed for the markers.
    """
    has_context = exc.__context__ is not None and not exc.__suppress_context__
    if exc.__traceback__ is None or exc.__cause__ is not None or has_context or isinstance(exc, SPECIAL):
        return "".join(traceback.format_exception(exc))
    places: list[Place] = []
    step: TracebackType | None = exc.__traceback__
    while step is not None and len(places) <= MOST_CACHED_FRAMES:
        places.append(Place(step.tb_frame.f_code, step.tb_lineno, step.tb_lasti))
        step = step.tb_next
    if step is not None:
        return "".join(traceback.format_exception(exc))
    key = tuple(places)
    frames = _frames.get(key)
    if frames is None:
        if len(_frames) >= MOST_CACHED_PLACES:
            _frames.clear()
        frames = _frames[key] = "".join(traceback.format_tb(exc.__traceback__))
    last = "".join(traceback.format_exception_only(exc))
    return f"Traceback (most recent call last):\n{frames}{last}"


def _cut(text: str) -> str:
    if len(text) <= MOST_ERROR_CHARACTERS:
        return text
    half = MOST_ERROR_CHARACTERS // 2
    return f"{text[:half]}\n...\n{text[-half:]}"


def log_failure(run: Run, exc: BaseException) -> None:
    if isinstance(exc, Retry) and not logger.isEnabledFor(logging.INFO):
        return  # the facts of the context would be in vain
    extra = {} if run.context is None else run.context.facts()
    if isinstance(exc, Retry):
        logger.info("to be tried again (%s): %s", _cut(str(exc)), run, extra=extra)
    elif isinstance(exc, Reject):
        logger.error("rejected (%s): %s", _cut(str(exc.reason)), run, extra=extra)
    elif run.is_settled:
        _log(logging.ERROR, "failed after it was acked", run, exc, extra)
    elif run.attempt >= run.max_attempts:
        _log(logging.ERROR, "failed, no attempts left", run, exc, extra)
    else:
        _log(logging.WARNING, "failed", run, exc, extra)


def _log(level: int, what: str, run: Run, exc: BaseException, extra: dict[str, Any]) -> None:
    """Log with the traceback. A long one is cut: an error may quote megabytes."""
    if not logger.isEnabledFor(level):
        return
    text = "".join(traceback.format_exception(exc))
    if len(text) <= MOST_ERROR_CHARACTERS:
        logger.log(level, "%s: %s", what, run, exc_info=exc, extra=extra)
    else:
        logger.log(level, "%s: %s\n%s", what, run, _cut(text), extra=extra)
