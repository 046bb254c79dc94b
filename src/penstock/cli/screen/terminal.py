"""The terminal: keys one by one, a screen of which only what changed is written, and all as it was, after."""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
import termios
import threading
import tty
from collections.abc import Callable, Sequence
from contextlib import suppress
from select import select
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console, ConsoleDimensions
from rich.text import Text

from .keys import Keys
from .theme import THEME

__all__ = ["Terminal"]

# The cursor, and that long lines go on in the next one: off.
HIDE = "\x1b[?25l\x1b[?7l"
ENTER = f"\x1b[?1049h{HIDE}\x1b[2J"
LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
# After so much silence an Escape was the key and not the beginning of a sequence.
ESCAPE_SECONDS = 0.03
INPUT, OUTPUT = 0, 1


class Terminal:
    """`with Terminal() as terminal:`; the main thread only, because of its signals.

    Leaves the terminal as it was however the block ends, and while the process is stopped by Ctrl-Z.
    """

    def __init__(self) -> None:
        self._before = termios.tcgetattr(INPUT)
        self._keys = Keys()
        self._console = Console(file=io.StringIO(), force_terminal=True, theme=THEME, legacy_windows=False)
        self._shown: list[Text] = []
        self._size = (0, 0)
        self._is_entered = False
        self._encoding = sys.stdout.encoding or "ascii"
        # A byte in it wakes the thread that waits for keys: signals and other threads write one.
        self._wakes, self._woken = socket.socketpair()
        self._handlers: dict[int, Any] = {}
        self._wakeup_before = -1
        self.is_interrupted = False

    def __enter__(self) -> Terminal:
        for end in (self._wakes, self._woken):
            end.setblocking(False)
        try:
            self._wakeup_before = signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
            self._handle(signal.SIGWINCH, lambda _number, _frame: None)
            self._handle(signal.SIGINT, self._interrupt)
            self._handle(signal.SIGTERM, self._end)
            self._handle(signal.SIGHUP, self._end)
            self._handle(signal.SIGTSTP, self._stop)
            self._handle(signal.SIGCONT, self._go_on)
            self._enter()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._leave()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        signal.set_wakeup_fd(self._wakeup_before)
        self._wakes.close()
        self._woken.close()

    # What comes in

    def wake(self) -> None:
        """Let keys() return; from any thread."""
        with suppress(OSError):  # it is full, so it wakes anyway; or closed
            self._wakes.send(b"\0")

    def keys(self, seconds: float) -> list[str]:
        """The keys that are pressed, waiting so long for one; none where something else woke it."""
        if self._keys.is_waiting:
            seconds = min(seconds, ESCAPE_SECONDS)
        woken = self._woken.fileno()
        ready, _, _ = select([INPUT, woken], [], [], max(0.0, seconds))
        if woken in ready:
            with suppress(OSError):
                self._woken.recv(4096)
        if self.is_interrupted:
            return ["interrupt"]
        if INPUT not in ready:
            return self._keys.flush() if self._keys.is_waiting and not ready else []
        try:
            data = os.read(INPUT, 4096)
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            return ["interrupt"]
        pressed = self._keys.feed(data)
        if "redraw" in pressed:
            self._shown = []
        return pressed

    # What goes out

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            columns, lines = os.get_terminal_size(OUTPUT)
        except OSError:
            columns, lines = 0, 0
        return columns or 80, lines or 24

    def paint(self, lines: Sequence[Text]) -> None:
        """Write the lines that are not on the screen already."""
        parts = []
        size = self.size
        # Noted first: a signal that wants all of it anew says so by taking that away.
        shown, self._shown = self._shown, list(lines)
        if size != self._size or not shown:
            self._size, shown = size, []
            self._console.size = ConsoleDimensions(*size)
            parts.append("\x1b[2J")
        for number, line in enumerate(lines):
            if number >= len(shown) or not _same(shown[number], line):
                parts.append(f"\x1b[{number + 1};1H\x1b[2K{self._drawn(line)}")
        self._write("".join(parts))

    def _drawn(self, line: Text) -> str:
        with self._console.capture() as capture:
            self._console.print(line, overflow="crop", no_wrap=True, end="")
        return capture.get()

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "replace")
        with suppress(OSError):  # the terminal is gone: the next read says so
            while data:
                data = data[os.write(OUTPUT, data) :]

    # In and out of the screen

    def _enter(self) -> None:
        self._is_entered = True
        tty.setcbreak(INPUT, termios.TCSANOW)
        self._shown = []
        self._write(ENTER)

    def _leave(self) -> None:
        if not self._is_entered:
            return
        self._write(LEAVE)
        with suppress(termios.error):
            termios.tcsetattr(INPUT, termios.TCSADRAIN, self._before)
        self._is_entered = False

    def _handle(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        # What is ignored stays so: there may be no shell that could let a stopped process go on.
        if signal.getsignal(number) is not signal.SIG_IGN:
            self._handlers[number] = signal.signal(number, handler) or signal.SIG_DFL

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self.is_interrupted = True

    def _end(self, number: int, _frame: FrameType | None) -> None:
        """Leave, and end as if there had been no handler: the parent sees which signal ended this process."""
        self._leave()
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_kill(threading.get_ident(), number)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        was_entered = self._is_entered
        self._leave()
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_kill(threading.get_ident(), number)
        # Here it goes on, after fg.
        signal.signal(number, self._stop)
        if was_entered:
            self._enter()

    def _go_on(self, _number: int, _frame: FrameType | None) -> None:
        """After SIGSTOP, which has no handler: another program may have changed the terminal."""
        if self._is_entered:
            tty.setcbreak(INPUT, termios.TCSANOW)
            self._shown = []
            self._write(HIDE)


def _same(one: Text, other: Text) -> bool:
    return one == other and one.style == other.style
