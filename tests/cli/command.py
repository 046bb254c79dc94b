"""The command, run as its users run it: as a process, in a pipe or in a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyte

PROGRAM = str(Path(sys.executable).with_name("penstock"))
PATIENCE = 60.0
INTERRUPT = "\x03"
AGAIN_SECONDS = 5.0
# Variables in the environment of the tests, which would choose another database or other colours.
UNWANTED = ("PG", "DATABASE_URL", "PENSTOCK_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "NOTIFY_SOCKET")


class Answer:
    """What a command printed, and how it ended."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.code = done.returncode
        self.raw = done.stdout
        self.out = done.stdout.decode(errors="surrogateescape")
        self.err = done.stderr.decode()

    def __repr__(self) -> str:
        return f"<exit {self.code}, stdout {self.out!r}, stderr {self.err!r}>"

    @property
    def json(self) -> Any:
        """Its one line of JSON."""
        assert self.out.count("\n") == 1, self
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Its lines of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]

    def ok(self) -> Answer:
        assert self.code == 0, self
        assert "Traceback" not in self.err, self
        return self

    def failed(self, code: int, *parts: str) -> str:
        """It failed with this code, without data and without a traceback; its message, with these in it."""
        assert self.code == code, self
        assert self.out == "", self
        assert "Traceback" not in self.err, self
        for part in parts:
            assert part in self.err, self
        return self.err


class Command:
    """`penstock` with a database: command("queue", "list")."""

    def __init__(self, dsn: str | None, folder: Path) -> None:
        self.dsn = dsn
        self.folder = folder

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(UNWANTED)}
        given = {} if self.dsn is None else {"PENSTOCK_DATABASE_URL": self.dsn}
        return {**clean, "HOME": str(self.folder), **given, **(extra or {})}

    def __call__(
        self,
        *arguments: str,
        stdin: str | bytes = b"",
        environ: Mapping[str, str] | None = None,
        timeout: float = PATIENCE,
    ) -> Answer:
        """Run it to its end, its output in pipes."""
        done = subprocess.run(
            [PROGRAM, *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            check=False,
            env=self.environment(environ),
            cwd=self.folder,
            timeout=timeout,
        )
        return Answer(done)

    def start(self, *arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start it, its output in pipes."""
        return subprocess.Popen(
            [PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(environ),
            cwd=self.folder,
        )

    def terminal(
        self, *arguments: str, environ: Mapping[str, str] | None = None, columns: int = 120, lines: int = 40
    ) -> Terminal:
        """Start it in a terminal of its own: `with command.terminal("top") as terminal:`."""
        return Terminal([PROGRAM, *arguments], self.environment(environ), self.folder, columns, lines)


class Terminal:
    """A process in a real pseudo-terminal, and the screen that its user sees."""

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], folder: Path, columns: int, lines: int
    ) -> None:
        self._typed = ""
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        # All that was ever written, with its control sequences.
        self.raw = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._process = subprocess.Popen(
            argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environ, "TERM": "xterm-256color"},
            cwd=folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE)
        os.close(self._master)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def text(self) -> str:
        """The screen as it is now."""
        self.read(0)
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    @property
    def cursor_is_hidden(self) -> bool:
        self.read(0)
        return bool(self._screen.cursor.hidden)

    def read(self, seconds: float) -> bool:
        """Take in what is written; whether anything was."""
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # its end
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    def until(self, found: Callable[[str], bool] | str, seconds: float = PATIENCE) -> str:
        """Wait until the screen shows something."""
        deadline = time.monotonic() + seconds
        while True:
            text = self.text
            if found in text if isinstance(found, str) else found(text):
                if not self.read(0.02):
                    return text
                continue  # that was in the middle of a picture
            assert time.monotonic() < deadline, f"{found!r} is not on the screen:\n{text}"
            self.read(0.1)

    def type(self, keys: str) -> None:
        self._typed = keys
        os.write(self._master, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        self._screen.resize(lines, columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.killpg(self._process.pid, signal.SIGWINCH)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait until it ends; its exit code."""
        deadline = time.monotonic() + seconds
        again_at = time.monotonic() + AGAIN_SECONDS
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end:\n{self.text}"
            self.read(0.05)
            # A signal between the last look of Python and its read() waits for the next key.
            if self._typed == INTERRUPT and time.monotonic() > again_at:
                self.type(INTERRUPT)
                again_at = time.monotonic() + AGAIN_SECONDS
        while self.read(0.05):
            pass
        return self._process.returncode

    def is_sane(self) -> bool:
        """Whether the terminal echoes and waits for lines again."""
        flags: int = termios.tcgetattr(self._master)[3]
        return bool(flags & termios.ECHO) and bool(flags & termios.ICANON)
