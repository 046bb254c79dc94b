"""Reports a program's health while it runs: to systemd, to the process that started it, and to probes."""

# ruff: noqa: PLC0415 - http.server is imported where probes are wanted

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from .notifying import Notifier, line_from, systemd_from
from .state import Health, State

__all__ = ["Reporting", "reporting"]

# How late a loop that hangs may be noticed.
STEP_SECONDS = 1.0
END_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Reporting:
    """Where health is reported: the address of the probes, if there are any."""

    host: str | None = None
    port: int | None = None

    @property
    def url(self) -> str:
        """Without the path."""
        host = f"[{self.host}]" if self.host and ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@contextmanager
def reporting(health: Health, *, port: int | None = None, host: str = "127.0.0.1") -> Iterator[Reporting]:
    """Report a program's health for as long as the block runs; at its end, that the program stops.

    port: answers GET /livez and /readyz there; 0 for any free one. A port that is in use is a PenstockError.
    To systemd where NOTIFY_SOCKET is set, and to a worker's supervisor; their variables are taken out of the
    environment, so that no child reports for its parent: enter the block before you start one.
    """
    with ExitStack() as stack:
        reported = Reporting()
        if port is not None:
            from .probes import Probes

            probes = Probes(health, host, port)
            stack.callback(probes.close)
            reported = Reporting(probes.host, probes.port)
        for notifier in (systemd_from(os.environ), line_from(os.environ)):
            if notifier is not None:
                stack.callback(Reporter(health, notifier).close)
        # Called first, so that the reporters still send it.
        stack.callback(health.set_stopping)
        yield reported


class Reporter:
    """A thread that sends changes of the state, and signs of life, to one receiver."""

    def __init__(self, health: Health, notifier: Notifier) -> None:
        self._health = health
        self._notifier = notifier
        self._reported: State | None = None
        self._was_ready = False
        self._sign_due_at = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="penstock health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the last state, and end."""
        self._closed = True
        self._health.wake()
        self._thread.join(END_SECONDS)
        self._notifier.close()

    def _run(self) -> None:
        changes = 0
        while not self._closed:
            state = self._health.state()
            self._report(state)
            pause = self._give_sign_of_life() if state.live else STEP_SECONDS
            changes = self._health.wait(changes, pause)
        self._report(self._health.state())

    def _report(self, state: State) -> None:
        """Send the state unless it was sent already. A state that could not be sent is sent again later."""
        if state == self._reported:
            return
        fields: dict[str, object] = {}
        # To systemd this is the end of the start, which comes once.
        if state.ready and not self._was_ready:
            fields["READY"] = 1
        if state.stopping and not (self._reported is not None and self._reported.stopping):
            fields["STOPPING"] = 1
        # It has no words for the last two, and passes over what begins with X_.
        if self._notifier.send(**fields, STATUS=state.text, X_READY=int(state.ready), X_LIVE=int(state.live)):
            self._reported = state
            self._was_ready |= state.ready

    def _give_sign_of_life(self) -> float:
        """If it is time; how long until the next one."""
        if self._notifier.watchdog is None:
            return STEP_SECONDS
        at = time.monotonic()
        if at >= self._sign_due_at:
            self._notifier.send(WATCHDOG=1)
            self._sign_due_at = at + self._notifier.watchdog
        return min(STEP_SECONDS, self._sign_due_at - at)
