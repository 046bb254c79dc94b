"""Does what a page tells its reader to do: writes its files, runs its snippets, compares what one sees.

- `python`: run in one namespace for the page; one that begins with a comment like `# worker.py` is a file.
- `sh`: run in the reader's folder; `sh second-terminal`: left running, in place of what runs there already.
  A `third-terminal` is another one, and so on.
- `sql`: run in the page's database.
- `ini`, `yaml`, `dockerfile`: files for other programs, not run.
- `text`: what the block before it prints; `text second-terminal`: what appears in the second terminal from
  now on. `...` stands for anything, one time of a log for another. A block that prints has to be followed by
  one.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psycopg

from .pages import Block, blocks, name_of

__all__ = ["NOT_RUN", "Reader", "Wrong", "commands", "matches"]

TERMINAL = re.compile(r"\w+-terminal")
PATIENCE_SECONDS = 30.0
FILE = re.compile(r"# (\w+\.py)\n")
LOG_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}")
# What is shown to be copied elsewhere.
NO_CODE = {"ini", "yaml", "dockerfile"}

# Commands that are not run, and why.
NOT_RUN = {
    "make run": "tests/cli/test_up.py runs it",
    "penstock up --demo": "tests/cli/test_up.py runs it",
    "penstock top": "tests/cli/test_top.py runs it",
    "make test": "this is what runs now",
    "pip install penstock": "what is tested is installed",
    "pip install '/path/to/penstock[embedded]'": "what is tested is installed",
    "python3 -m venv .venv": "the environment of the tests is used",
    ". .venv/bin/activate": "the environment of the tests is used",
    "penstock migrate --dsn postgresql://localhost/app": "tests/cli/test_schema.py runs it",
}

# The page's database is given: this is what a reader without one sees.
ANNOUNCEMENT = "No database given: using the embedded server.\n"


class Wrong(AssertionError):  # noqa: N818 - of a page
    """A page does not say what happens."""


def commands(text: str) -> list[str]:
    """The lines of a shell block, without their comments."""
    return [re.sub(r"\s+# .*$", "", line) for line in text.splitlines()]


def matches(expected: str, seen: str) -> bool:
    """Whether that was seen; `...` stands for anything. Behind it in a line, columns may have any width."""
    expected, seen = (LOG_TIME.sub("<time>", text).strip("\n") for text in (expected, seen))
    first, *others = expected.split("...")
    parts = [re.escape(first)]
    for other in others:
        line, end, rest = other.partition("\n")
        parts.append(re.sub(r"(\\ ){2,}", " {2,}", re.escape(line)) + re.escape(end + rest))
    return re.fullmatch(".*?".join(parts), seen, re.DOTALL) is not None


class Process:
    """A process whose output is read as it comes, errors among it."""

    def __init__(self, command: list[str], folder: Path, environ: Mapping[str, str], *, fed: bool) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE if fed else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.seen = ""

    def write(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def read_until(self, done: Callable[[str], bool]) -> bool:
        """Read until what was seen will do, or there is no more, or no patience; whether it will do."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done(self.seen):
            if not self._read(deadline - time.monotonic()):
                return False
        return True

    def _read(self, timeout: float) -> bool:
        stream = self._process.stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], max(0.0, timeout))
        data = os.read(stream.fileno(), 65536) if ready else b""
        self.seen += data.decode()
        return bool(data)

    def interrupt(self) -> None:
        """Ctrl-C."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        self.end()

    def end(self) -> int:
        """Wait for its end, and read what is left; its exit code. What does not end is killed."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            if not self.read_until(lambda _: self._process.poll() is not None):
                self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait()


class Reader:
    """Reads one page, in a folder and with a database of its own."""

    def __init__(self, page: Path, folder: Path, dsn: str, *, before: Sequence[Block] = ()) -> None:
        self._page = page
        self._folder = folder
        self._dsn = dsn
        self._before = before
        self._end = uuid.uuid4().hex
        self._session: Process | None = None
        self._terminals: dict[str, Process] = {}
        # What the last block printed, and where that block is.
        self._printed = ""
        self._at = 0

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for terminal in self._terminals.values():
            terminal.interrupt()
        if self._session is not None:
            self._session.end()

    def read(self) -> int:
        """Do all that the page says; how many blocks that were."""
        count = 0
        for block in self._before:
            self._do(block)
        for block in blocks(self._page):
            self._do(block)
            count += 1
        self._nothing_printed()
        return count

    def _do(self, block: Block) -> None:
        if block.language == "text":
            self._compare(block)
            return
        self._nothing_printed()
        self._at = block.line
        if block.language == "python" and (file := FILE.match(block.text)):
            (self._folder / file[1]).write_text(block.text, "utf-8")
        elif block.language == "python":
            self._printed = self._python(block)
        elif block.language == "sh" and TERMINAL.fullmatch(block.mark):
            self._start(block.mark, block.text)
        elif block.language == "sh":
            self._printed = self._shell(block.text)
        elif block.language == "sql":
            self._sql(block.text)
        elif block.language in NO_CODE:
            pass
        else:
            raise self._failure(block.line, f"no runner for a block of {block.language or 'no language'}")

    def _nothing_printed(self) -> None:
        if self._printed.strip():
            raise self._failure(self._at, f"no `text` block shows what this prints:\n{self._printed}")

    def _compare(self, block: Block) -> None:
        expected = block.text.replace(ANNOUNCEMENT, "")
        if TERMINAL.fullmatch(block.mark):
            terminal = self._terminals.get(block.mark)
            if terminal is None:
                raise self._failure(block.line, f"nothing runs in the {block.mark.replace('-', ' ')}")
            terminal.read_until(lambda seen: matches(expected, seen))
            seen, terminal.seen = terminal.seen, ""
        else:
            seen, self._printed = self._printed, ""
        if not matches(expected, seen):
            raise self._failure(block.line, f"it should print\n{expected}\nit prints\n{seen}")

    def _python(self, block: Block) -> str:
        if self._session is None:
            script = str(Path(__file__).parent / "session.py")
            self._session = Process(
                [sys.executable, script, self._end], self._folder, self._environ(), fed=True
            )
        session = self._session
        message = {"text": block.text, "line": block.line, "page": name_of(self._page), "mark": block.mark}
        session.write(json.dumps(message) + "\n")
        done = session.read_until(lambda seen: re.search(rf"{self._end} \w+\n$", seen) is not None)
        printed, session.seen = session.seen, ""
        output, _, status = printed.rpartition(self._end)
        if not done or status.strip() != "passed":
            raise self._failure(block.line, f"it does not run:\n{output or printed}")
        return output

    def _shell(self, text: str) -> str:
        lines = [line for line in commands(text) if line not in NOT_RUN]
        process = Process(
            ["bash", "-euo", "pipefail", "-c", "\n".join(lines)], self._folder, self._environ(), fed=False
        )
        code = process.end()
        if code:
            raise self._failure(self._at, f"exit code {code}:\n{process.seen}")
        return process.seen

    def _start(self, name: str, command: str) -> None:
        if name in self._terminals:
            self._terminals[name].interrupt()
        self._terminals[name] = Process(
            ["bash", "-c", f"exec {command}"], self._folder, self._environ(), fed=False
        )

    def _sql(self, text: str) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(text)

    def _environ(self) -> dict[str, str]:
        return {
            "HOME": str(self._folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PENSTOCK_DATABASE_URL": self._dsn,
            # The plugin of penstock.testing need not start a server of its own.
            "PENSTOCK_TEST_DATABASE_URL": self._dsn,
            # As SQLAlchemy wants it.
            "DATABASE_URL": self._dsn.replace("postgresql://", "postgresql+psycopg://"),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "error",
        }

    def _failure(self, line: int, what: str) -> Wrong:
        return Wrong(f"{name_of(self._page)}:{line}: {what}")
