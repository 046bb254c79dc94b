"""Owners of servers as processes of their own, and a look at what runs."""

import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

OWNER = Path(__file__).with_name("owner.py")
PATIENCE = 30.0


def eventually(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {seconds} s: {what}"
        time.sleep(0.03)


def processes_in(directory: Path) -> list[int]:
    """All processes that work in a directory or have a file open in it, be it removed meanwhile."""
    return [pid for pid in _all_processes() if any(_is_in(target, directory) for target in _files_of(pid))]


def holders_of(path: Path) -> list[int]:
    """All processes that have a file open."""
    return [pid for pid in _all_processes() if str(path) in _files_of(pid)]


def postmaster(data: Path) -> int:
    """The server's main process."""
    return int((data / "postmaster.pid").read_text().splitlines()[0])


def supervisor(directory: Path) -> int:
    """The supervisor of the server in a directory."""
    (pid,) = holders_of(directory / "supervisor.lock")
    return pid


def is_gone(directory: Path) -> bool:
    """Whether neither the directory nor any process in it is left."""
    return not directory.exists() and not processes_in(directory)


def answer(dsn: str, query: str = "select 1") -> Any:
    """The value that a query gives on a connection of its own; None for a command."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def is_down(dsn: str) -> bool:
    """Whether no server answers there."""
    try:
        answer(dsn)
    except psycopg.OperationalError:
        return True
    return False


class Owner:
    """A process that runs owner.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._about: dict[str, Any] | None = None

    @property
    def about(self) -> dict[str, Any]:
        """What it says about its server, waited for."""
        if self._about is None:
            assert self.process.stdout is not None
            assert self.process.stderr is not None
            readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
            assert readable, "the owner says nothing"
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            self._about = json.loads(line)
        return self._about

    @property
    def dsn(self) -> str:
        return str(self.about["dsn"])

    @property
    def data(self) -> Path:
        return Path(self.about["data"])

    @property
    def directory(self) -> Path:
        return self.data.parent

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def finish(self) -> int:
        """Let it end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)


@contextmanager
def owner(
    *arguments: str | Path,
    python: Sequence[str | Path] = (sys.executable,),
    environment: Mapping[str, str] | None = None,
    user: int | None = None,
) -> Iterator[Owner]:
    """Run owner.py; it ends with the block, if not before."""
    with subprocess.Popen(
        [*python, OWNER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=None if environment is None else dict(environment),
        process_group=0,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    ) as process:
        try:
            yield Owner(process)
        finally:
            if process.stdin and not process.stdin.closed:
                process.stdin.close()
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()


def _all_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _files_of(pid: int) -> list[str]:
    targets = []
    try:
        names = [Path(f"/proc/{pid}/cwd"), *Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []
    for name in names:
        try:
            targets.append(str(name.readlink()))
        except OSError:
            continue
    return targets


def _is_in(target: str, directory: Path) -> bool:
    return target == str(directory) or target.startswith((f"{directory}/", f"{directory} (deleted)"))
