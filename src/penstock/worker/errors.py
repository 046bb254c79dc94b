"""Errors of attempts that the worker has ended, or that died with their process."""

# ruff: noqa: N818 - a class is named for what happened; only the groups end in Error

from __future__ import annotations

import signal
from typing import Any

from penstock.errors import PenstockError
from penstock.wording import signal_name

__all__ = ["AttemptTimeout", "ProcessDied", "RemoteError"]


class AttemptTimeout(PenstockError, TimeoutError):
    """The attempt took longer than its attempt_timeout."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the attempt took longer than its limit of {seconds:g} s")
        self.seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return AttemptTimeout, (self.seconds,)


class ProcessDied(PenstockError):
    """The process that ran the handler ended before the handler did.

    exitcode: as of multiprocessing, below zero for a signal; None where it is not known.
    """

    def __init__(self, exitcode: int | None, doing: str) -> None:
        super().__init__(f"the process {doing} {_in_words(exitcode)}")
        self.exitcode = exitcode
        self.doing = doing

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcessDied, (self.exitcode, self.doing)


class RemoteError(PenstockError):
    """The handler raised an exception in its process that cannot be carried over.

    type_name: of that exception. Its traceback is the cause of this one.
    """

    def __init__(self, message: str | None = None, *, type_name: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.type_name = type_name


def _in_words(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its end of the line and did not end"
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    why = ": out of memory, perhaps" if exitcode == -signal.SIGKILL else ""
    return f"was killed by {signal_name(-exitcode)}{why}"
