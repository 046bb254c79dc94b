"""A dashboard as people run it: the command `penstock dashboard`, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

PATIENCE = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


class Served:
    """A running dashboard."""

    def __init__(self, dsn: str, port: int = 0) -> None:
        self._dsn = dsn
        self._port = port
        self._process: subprocess.Popen[str]
        self.url = ""
        self.start()

    @property
    def port(self) -> int:
        return self._port

    def start(self) -> None:
        """Start the process, and wait until it listens. Again after stop(): at the same port."""
        command = (str(Path(sys.executable).with_name("penstock")), "dashboard", "--json", "--dsn", self._dsn)
        self._process = subprocess.Popen(
            [*command, "--port", str(self._port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = str(json.loads(self._process.stdout.readline())["url"]).rstrip("/")
        self._port = int(self.url.rpartition(":")[2])

    def stop(self) -> float:
        """Tell it to stop; seconds until it has."""
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return time.monotonic() - began

    def cpu(self) -> float:
        """Seconds of processor time that the process has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def meter(self) -> Callable[[], float]:
        """A clock of the processor time that the process and its sessions in the database have used."""
        tasks = Path(f"/proc/{self._process.pid}/task")
        with psycopg.connect(self._dsn) as sql:
            found = sql.execute(
                "select pid from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            ).fetchall()
        backends = [Path(f"/proc/{pid}") for (pid,) in found]

        def read() -> float:
            return sum(map(_nanoseconds, [*tasks.iterdir(), *backends])) / 1e9

        return read

    def memory(self) -> int:
        """Bytes of memory that the process has now."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the size of the process is not known")


def _nanoseconds(process: Path) -> int:
    try:
        return int((process / "schedstat").read_text().split()[0])
    except OSError:
        return 0  # it has ended


@contextmanager
def served(dsn: str) -> Iterator[Served]:
    """A dashboard of a database while the block runs."""
    found = Served(dsn)
    try:
        yield found
    finally:
        found.stop()
