"""Ctrl-C and SIGTERM for a command that has something to finish first."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

__all__ = ["SIGNALS", "Interrupts"]

# The last one: the terminal is gone.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Notes the first signal, so that what is under way comes to its end; the second is a KeyboardInterrupt.

    So is the first where the command does nothing but wait, for input or for somebody to read its output.
    """

    def __init__(self) -> None:
        self.requested = False
        # Called at the first signal, between any two instructions of the main thread.
        self.on_first: Callable[[], None] = lambda: None
        self._breaks = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            # What is ignored stays so: under nohup, or in the background of a script.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._noted)
        return self

    def __exit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _noted(self, _number: int, _frame: FrameType | None) -> None:
        again, self.requested = self.requested, True
        if again or self._breaks:
            raise KeyboardInterrupt
        self.on_first()

    @contextmanager
    def breakable(self) -> Iterator[None]:
        """A block that a signal ends at once."""
        self._breaks = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._breaks = False
