"""Ctrl-C and SIGTERM for a command that has something to finish first."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from penstock.signals import handled

__all__ = ["Interrupts", "interrupting"]


@contextmanager
def interrupting() -> Iterator[None]:
    """A block in which each signal is a KeyboardInterrupt, as Ctrl-C is."""
    with handled(signal.default_int_handler):
        yield


class Interrupts:
    """Notes the first signal, so that what is under way comes to its end; the second is a KeyboardInterrupt.

    So is the first where the command only waits, for input or for a reader of its output.
    """

    def __init__(self) -> None:
        self.requested = False
        # Called at the first signal, between any two instructions of the main thread.
        self.on_first: Callable[[], None] = lambda: None
        self._breaks = False
        self._handled = handled(self._noted)

    def __enter__(self) -> Interrupts:
        self._handled.__enter__()
        return self

    def __exit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._handled.__exit__(cls, exc, traceback)

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
