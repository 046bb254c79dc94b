"""The event that a worker has started. wait() raises where the worker ends before that."""

from __future__ import annotations

import asyncio
from typing import Literal

from penstock.errors import PenstockError

__all__ = ["Started"]


class Started(asyncio.Event):
    """Set when the worker works. wait() raises the error with which run() ended before that."""

    def __init__(self) -> None:
        super().__init__()
        self._failure: BaseException | None = None

    def fail(self, failure: BaseException | None) -> None:
        """The worker has ended. failure: its error; None where the worker was stopped."""
        if self.is_set():
            return
        if failure is None or isinstance(failure, asyncio.CancelledError):
            failure = PenstockError("the worker was stopped before it had started")
        self._failure = failure
        # Wake all waiters, which find the failure. The event itself stays unset.
        self.set()
        self.clear()

    async def wait(self) -> Literal[True]:
        if self._failure is None:
            await super().wait()
        if self._failure is not None:
            raise self._failure
        return True
