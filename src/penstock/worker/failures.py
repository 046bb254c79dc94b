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

__all__ = ["ErrorTexts", "log_failure", "own_frames_off"]

# For failures of handlers. The worker's own messages have another logger.
logger = logging.getLogger("penstock.worker.runs")

# Characters of a traceback that are kept.
MOST_ERROR_CHARACTERS = 8000
# How many tracebacks are kept formatted, and of how many frames.
MOST_CACHED = 200
MOST_CACHED_FRAMES = 20
# Their text has more than frames and a last line.
SPECIAL = (BaseExceptionGroup, SyntaxError)
# Frames of code in these folders are left out: they do not help the author of a handler.
OWN_FOLDERS = (str(Path(__file__).parent.parent), str(Path(concurrent.futures.__file__).parent))


class Instruction(NamedTuple):
    """Where a frame of a traceback stands: the same instruction makes the same lines."""

    code: CodeType
    line: int
    offset: int


class ErrorTexts:
    """Texts of errors for the histories of messages: one line, and the traceback.

    To format frames takes longer than most handlers run: their source lines are read, and parsed for the
    markers. So the frames of errors that were raised by the same instructions are formatted once.
    """

    def __init__(self) -> None:
        self._frames: dict[tuple[Instruction, ...], str] = {}

    def of(self, exc: BaseException) -> str:
        return _cut(f"{describe(exc)}\n{self._formatted(exc)}")

    def _formatted(self, exc: BaseException) -> str:
        """What traceback.format_exception() returns, as one text."""
        has_context = exc.__context__ is not None and not exc.__suppress_context__
        stack = _instructions(exc.__traceback__)
        if not stack or exc.__cause__ is not None or has_context or isinstance(exc, SPECIAL):
            return "".join(traceback.format_exception(exc))
        frames = self._frames.get(stack)
        if frames is None:
            if len(self._frames) >= MOST_CACHED:
                self._frames.clear()
            frames = self._frames[stack] = "".join(traceback.format_tb(exc.__traceback__))
        last = "".join(traceback.format_exception_only(exc))
        return f"Traceback (most recent call last):\n{frames}{last}"


def _instructions(step: TracebackType | None) -> tuple[Instruction, ...]:
    """The stack of a traceback; empty where there is none, or it is too deep to be cached."""
    stack: list[Instruction] = []
    while step is not None:
        if len(stack) >= MOST_CACHED_FRAMES:
            return ()
        stack.append(Instruction(step.tb_frame.f_code, step.tb_lineno, step.tb_lasti))
        step = step.tb_next
    return tuple(stack)


def own_frames_off(found: TracebackType | None) -> TracebackType | None:
    """The traceback from the handler on; all of it where no handler was called."""
    first = found
    while first is not None and first.tb_frame.f_code.co_filename.startswith(OWN_FOLDERS):
        first = first.tb_next
    return first or found


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
