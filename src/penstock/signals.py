"""Signals that end a program: handlers for a block, in an event loop or without one."""

# ruff: noqa: PLC0415 - a command without a loop starts sooner without asyncio

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["STOP_SIGNALS", "handled", "handled_in_loop"]

# SIGHUP: the terminal was closed.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def handled(
    handler: Callable[[int, FrameType | None], Any], numbers: Sequence[signal.Signals] = STOP_SIGNALS
) -> Iterator[None]:
    """Call the handler for signals that arrive during the block, between two instructions of the main thread.

    A signal that is ignored stays ignored: a program runs so under nohup, or in the background of a script.
    """
    before = _not_ignored(numbers)
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def handled_in_loop(
    handler: Callable[[signal.Signals], None], numbers: Sequence[signal.Signals] = STOP_SIGNALS
) -> Iterator[None]:
    """Call the handler for signals that arrive during the block, between two steps of the running loop.

    A signal that is ignored stays ignored, as with handled().
    """
    import asyncio

    loop = asyncio.get_running_loop()
    before = _not_ignored(numbers)
    for number in before:
        loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        for number in before:
            loop.remove_signal_handler(number)
        _restore(before)


def _not_ignored(numbers: Sequence[signal.Signals]) -> dict[signal.Signals, Any]:
    """The handlers of signals that are not ignored."""
    return {n: handler for n in numbers if (handler := signal.getsignal(n)) is not signal.SIG_IGN}


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        # None: a handler that was not installed from Python, and cannot be from Python.
        signal.signal(number, handler or signal.SIG_DFL)
