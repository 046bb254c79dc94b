"""Several workers side by side: each in a process of its own, started again where it dies."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType

from penstock.values import Backoff

__all__ = ["MISCONFIGURED", "Supervisor", "is_supervised", "watch_parent"]

logger = logging.getLogger("penstock.worker")

# A worker that dies sooner than this is started again with growing pauses.
STEADY_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
# How much longer than its own grace time a worker may take to end.
OVERTIME_SECONDS = 10.0
# Tells a worker whose it is, and how often it looks whether that one is there.
VARIABLE = "PENSTOCK_SUPERVISOR"
# The exit code of a worker for which there is no use to start it again.
MISCONFIGURED = 78
WATCH_SECONDS = 0.5


@dataclass(slots=True)
class Child:
    """One worker."""

    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS))


class Supervisor:
    """Runs the same command so many times, with one process each."""

    def __init__(self, number: int, argv: Sequence[str], grace: float) -> None:
        self._argv = [sys.executable, "-m", "penstock.cli", *argv[1:], "--processes", "1"]
        self._children = [Child() for _ in range(number)]
        self._grace = grace
        self._signals = 0
        self._failed = False

    def run(self) -> int:
        """Until a signal; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        while not self._signals and not self._failed:
            for child in self._children:
                self._look_after(child)
            time.sleep(0.1)
        if not self._signals:
            self._on_signal(signal.SIGTERM, None)
        return 1 if self._end() or self._failed else 0

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        # A terminal sends Ctrl-C to all of them itself: once is enough.
        for child in self._children:
            if child.process is not None and child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM if self._signals == 1 else signal.SIGQUIT)

    def _look_after(self, child: Child) -> None:
        if child.process is not None:
            code = child.process.poll()
            if code is None:
                return
            if code == MISCONFIGURED:
                logger.error("worker %d cannot work: stopping", child.process.pid)
                self._failed = True
                return
            if time.monotonic() - child.started_at > STEADY_SECONDS:
                child.backoff.reset()
            pause = child.backoff.next()
            logger.error("worker %d ended with %d, started again in %.1f s", child.process.pid, code, pause)
            child.process, child.start_at = None, time.monotonic() + pause
        if time.monotonic() >= child.start_at:
            # In a session of their own: Ctrl-C reaches them through here alone.
            child.process = subprocess.Popen(self._argv, start_new_session=True, env=_environment())
            child.started_at = time.monotonic()

    def _end(self) -> int:
        deadline, code = time.monotonic() + self._grace + OVERTIME_SECONDS, 0
        for child in self._children:
            if child.process is None:
                continue
            try:
                code = child.process.wait(max(0.0, deadline - time.monotonic())) or code
            except subprocess.TimeoutExpired:
                logger.error("worker %d did not end in time, and is killed", child.process.pid)
                child.process.kill()
                code = child.process.wait() or code
        return 0 if code == 0 else 1


def _environment() -> dict[str, str]:
    return {**os.environ, VARIABLE: str(os.getpid())}


def is_supervised() -> bool:
    """Whether this worker is one of several."""
    return VARIABLE in os.environ


def watch_parent(stop: Callable[[], None]) -> None:
    """Stop when the supervisor is gone, however it ended."""
    parent = os.environ.get(VARIABLE)
    if parent is None:
        return

    def watch() -> None:
        while str(os.getppid()) == parent:
            time.sleep(WATCH_SECONDS)
        logger.warning("the process that started this worker is gone: stopping")
        stop()

    threading.Thread(target=watch, name="penstock parent", daemon=True).start()
