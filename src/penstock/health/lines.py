"""The parent's end of a line: the state that a child process reports to the process that started it."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from .notifying import LINE
from .state import BEAT_LIMIT_SECONDS

__all__ = ["Line"]

MOST_BYTES = 65536
# After a longer pause this process was stopped itself, perhaps together with the child.
LONGEST_STEP_SECONDS = 1.0


class Line:
    """A line to one child. Before the child has said anything it counts as live: it is being started."""

    def __init__(self, *, silence_limit: float = BEAT_LIMIT_SECONDS) -> None:
        self._silence_limit = silence_limit
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ours.setblocking(False)
        self._listened_at = time.monotonic()
        self._was_heard = False
        self._silent_for = 0.0
        self._is_live = True
        # How many seconds it was not live.
        self.hangs_for = 0.0
        self.is_ready = False
        self.text = "starting"

    @property
    def number(self) -> int:
        """Of the socket that the child inherits."""
        return self._theirs.fileno()

    @property
    def environ(self) -> dict[str, str]:
        """What the child has to know: line_from() takes it."""
        return {LINE: str(self.number)}

    def begin(self) -> None:
        """The child is started, and has its end."""
        self._theirs.close()

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()

    def listen(self) -> None:
        """Take in what it has said since; to be called several times a second."""
        step = min(time.monotonic() - self._listened_at, LONGEST_STEP_SECONDS)
        self._listened_at = time.monotonic()
        self._silent_for += step
        with suppress(BlockingIOError):
            while data := self._ours.recv(MOST_BYTES):
                self._take(data.decode(errors="replace"))
        is_silent = self._was_heard and self._silent_for > self._silence_limit
        self.hangs_for = self.hangs_for + step if is_silent or not self._is_live else 0.0
        if is_silent:
            self.is_ready, self.text = False, f"nothing was heard of it for {self._silent_for:.0f} s"

    def _take(self, message: str) -> None:
        self._was_heard, self._silent_for = True, 0.0
        fields = dict(line.split("=", 1) for line in message.splitlines() if "=" in line)
        self.text = fields.get("STATUS", self.text)
        self.is_ready = fields.get("X_READY", str(int(self.is_ready))) == "1"
        self._is_live = fields.get("X_LIVE", str(int(self._is_live))) == "1"
