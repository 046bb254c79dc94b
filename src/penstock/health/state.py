"""The state of a program: written by its main loop, read by the reporters and probes."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

__all__ = ["Health", "State"]

# A main loop that has not turned for so long hangs.
BEAT_LIMIT_SECONDS = 10.0


class State(NamedTuple):
    """The state of a program at one moment."""

    live: bool
    ready: bool
    stopping: bool
    # Why it is not live or not ready; else what it does.
    text: str


class Health:
    """Whether a program is live (its main loop turns) and ready (it does its work).

    For use from any thread. beat_limit: how many seconds old the last beat may be. Before the first one a
    program counts as live: what it imports may take its time.
    """

    def __init__(self, *, beat_limit: float = BEAT_LIMIT_SECONDS) -> None:
        self._beat_limit = beat_limit
        # A lock that its owner may take again: a signal may come at any moment.
        self._changed = threading.Condition(threading.RLock())
        self._beat_at: float | None = None
        self._hanging = ""
        self._ready = False
        self._why = "starting"
        self._stopping = False
        self._changes = 0

    # What the program says

    def beat(self) -> None:
        """The main loop turns: to be called once a second at least."""
        self._beat_at = time.monotonic()

    def set_ready(self, ready: bool, why: str = "") -> None:
        """It does its work, or not; why: the reason, or what it does."""
        with self._changed:
            if (ready, why) != (self._ready, self._why):
                self._ready, self._why = ready, why
                self._count_change()

    def set_hanging(self, why: str) -> None:
        """Something that it looks after hangs, though its own loop turns; an empty text: not any more."""
        with self._changed:
            if why != self._hanging:
                self._hanging = why
                self._count_change()

    def set_stopping(self) -> None:
        """It ends: not ready any more, whatever comes."""
        with self._changed:
            if not self._stopping:
                self._stopping = True
                self._count_change()

    def _count_change(self) -> None:
        self._changes += 1
        self._changed.notify_all()

    # What others ask

    def liveness(self) -> tuple[bool, str]:
        """Whether the main loop turns, and if not, why it seems so."""
        if self._hanging:
            return False, self._hanging
        beat_at = self._beat_at
        age = 0.0 if beat_at is None else time.monotonic() - beat_at
        if age > self._beat_limit:
            return False, f"the main loop has not turned for {age:.0f} s"
        return True, ""

    def readiness(self) -> tuple[bool, str]:
        """Whether it does its work, and if not, why; else what it does."""
        state = self.state()
        return state.ready, state.text

    def state(self) -> State:
        """All of it, of one moment."""
        with self._changed:
            live, hangs = self.liveness()
            if not live:
                return State(False, False, self._stopping, hangs)
            if self._stopping:
                return State(True, False, True, "stopping")
            return State(True, self._ready, False, self._why)

    def wake(self) -> None:
        """Wake all threads in wait(), though nothing has changed."""
        with self._changed:
            self._count_change()

    def wait(self, seen: int, seconds: float) -> int:
        """Wait for a change after so many, but not for longer than that; how many there were."""
        with self._changed:
            self._changed.wait_for(lambda: self._changes != seen, seconds)
            return self._changes
