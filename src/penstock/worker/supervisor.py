"""Several workers side by side: each in a process of its own, which is started again if it dies."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from penstock.backoff import Backoff
from penstock.health import Health
from penstock.health.lines import Line

__all__ = ["MISCONFIGURED", "Supervisor", "is_supervised", "watch_parent"]

logger = logging.getLogger("penstock.worker")

# A worker that dies sooner than this is started again with growing pauses.
STEADY_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
# Between SIGABRT, on which a worker writes where it hangs, and SIGKILL.
ABORT_SECONDS = 3.0
STEP_SECONDS = 0.1
# How much longer than its own grace time a worker may take to end.
OVERTIME_SECONDS = 10.0
# The environment variable with the process id of the supervisor.
VARIABLE = "PENSTOCK_SUPERVISOR"
# The exit code of a worker that would fail again if it were started again.
MISCONFIGURED = 78
# How often a worker checks that its supervisor is there.
WATCH_SECONDS = 0.5


@dataclass(slots=True)
class Child:
    """One worker."""

    process: subprocess.Popen[bytes] | None = None
    line: Line | None = None
    kill_at: float | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS))


class Supervisor:
    """Runs the same command in `number` processes.

    environ: variables that each of them gets besides, as secrets that must not be on a command line.
    """

    def __init__(
        self,
        number: int,
        arguments: Sequence[str],
        *,
        environ: Mapping[str, str],
        grace: float,
        lease: float,
        health: Health,
    ) -> None:
        self._argv = [sys.executable, "-m", "penstock.cli", *arguments, "--processes", "1"]
        self._environ = environ
        self._children = [Child() for _ in range(number)]
        self._grace = grace
        self._lease = lease
        self._health = health
        self._signals = 0
        self._failed = False

    def run(self) -> int:
        """Run the workers until a signal. Returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        while not self._signals and not self._failed:
            for child in self._children:
                if not self._signals:
                    self._look_after(child)
            self._report()
            time.sleep(STEP_SECONDS)
        self._health.set_stopping()
        return 0 if self._end() and not self._failed else 1

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        # The loop passes the signal on: here a child may be in the middle of its start.
        self._signals += 1

    def _look_after(self, child: Child) -> None:
        if child.process is not None:
            code = child.process.poll()
            if code is None:
                self._end_if_it_hangs(child)
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
            self._start(child)

    def _start(self, child: Child) -> None:
        if child.line is not None:
            child.line.close()
        child.line, child.kill_at = Line(), None
        # In a session of its own: Ctrl-C reaches a worker through the supervisor only.
        try:
            child.process = subprocess.Popen(
                self._argv,
                start_new_session=True,
                env={**os.environ, **self._environ, VARIABLE: str(os.getpid()), **child.line.environ},
                pass_fds=(child.line.number,),
            )
        except OSError as exc:
            # No memory, or too many processes: the other workers go on.
            pause = child.backoff.next()
            logger.error("a worker cannot be started: %s; again in %.1f s", exc, pause)
            child.start_at = time.monotonic() + pause
            return
        child.line.begin()
        child.started_at = time.monotonic()

    def _end_if_it_hangs(self, child: Child) -> None:
        """End a worker that hangs for longer than a lease: its tasks run elsewhere by then."""
        assert child.process is not None
        assert child.line is not None
        child.line.listen()
        if child.kill_at is not None:
            if time.monotonic() > child.kill_at:
                child.process.kill()
        elif child.line.hangs_for > self._lease:
            logger.error("worker %d hangs, and is ended: %s", child.process.pid, child.line.text)
            child.process.send_signal(signal.SIGABRT)
            child.kill_at = time.monotonic() + ABORT_SECONDS

    def _report(self) -> None:
        """Report: live while no worker hangs, ready when all are ready."""
        self._health.beat()
        hanging, waiting = [], []
        for child in self._children:
            if child.process is None or child.line is None:
                waiting.append("one is started again")
                continue
            report = f"worker {child.process.pid}: {child.line.text}"
            if child.line.hangs_for:
                hanging.append(report)
            if not child.line.is_ready:
                waiting.append(report)
        ready = f"{len(self._children) - len(waiting)} of {len(self._children)} workers are ready"
        self._health.set_hanging("; ".join(hanging))
        self._health.set_ready(not waiting, "; ".join([ready, *waiting]))

    def _end(self) -> bool:
        """Pass each signal on to all workers; whether all of them ended in order."""
        deadline = time.monotonic() + self._grace + OVERTIME_SECONDS
        processes = [child.process for child in self._children if child.process is not None]
        sent = 0
        while time.monotonic() < deadline and any(process.poll() is None for process in processes):
            if sent < max(1, self._signals):
                sent += 1
                for process in processes:
                    process.send_signal(signal.SIGTERM if sent == 1 else signal.SIGQUIT)
            self._health.beat()
            for child in self._children:
                if child.line is not None:
                    child.line.listen()
            time.sleep(STEP_SECONDS)
        for process in processes:
            if process.poll() is None:
                logger.error("worker %d did not end in time, and is killed", process.pid)
                process.kill()
        # SIGTERM itself ends a worker that had not set its signal handlers yet.
        return all(process.wait() in {0, -signal.SIGTERM} for process in processes)


def is_supervised() -> bool:
    """Whether this worker is one of several."""
    return VARIABLE in os.environ


def watch_parent(stop: Callable[[], None]) -> None:
    """Stop when the supervisor has ended, however it did."""
    parent = os.environ.get(VARIABLE)
    if parent is None:
        return

    def watch() -> None:
        while str(os.getppid()) == parent:
            time.sleep(WATCH_SECONDS)
        logger.warning("the process that started this worker is gone: stopping")
        stop()

    threading.Thread(target=watch, name="penstock parent", daemon=True).start()
