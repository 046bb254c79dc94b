"""Runs the programs of the peers and reads their times from a pipe."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Self

import psycopg

from bench.peers import environments
from bench.peers.roster import Contestant

PATIENCE_SECONDS = 60.0
SLOTS = 1000
"""Of our worker: as many as the other contestants have."""
POLL_SECONDS = 0.002
STOP_SECONDS = 5.0


class PeerError(RuntimeError):
    """The program of a peer ended with an error, or did not do what it should."""


@dataclass(frozen=True, slots=True)
class Line:
    """What a program told: a word and its figures."""

    what: str
    figures: tuple[float, ...]


class Program:
    """A program of a peer that runs, and the lines that it tells."""

    def __init__(
        self,
        contestant: Contestant,
        dsn: str,
        verb: str,
        *figures: float,
        expected: int = 0,
        app: str = "bench.peers.penstock:app",
        options: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """app, options: of our worker."""
        self._contestant = contestant
        self._worker = (app, *options)
        self._pipe, theirs = os.pipe()
        self._rest = b""
        self._told: deque[Line] = deque()
        self._output: IO[bytes] = TemporaryFile()  # noqa: SIM115 - closed by __exit__
        own = {"BENCH_DSN": dsn, "BENCH_PIPE": str(theirs), "BENCH_EXPECTED": str(expected)}
        self._process = subprocess.Popen(
            self._command(verb, figures),
            cwd=environments.ROOT,
            env={**os.environ, **own, **(environment or {})},
            pass_fds=(theirs,),
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        os.close(theirs)

    def _command(self, verb: str, figures: tuple[float, ...]) -> list[str]:
        python = str(environments.python(self._contestant))
        if self._contestant.is_ours and verb == "work":
            command = ("-m", "penstock.cli", "worker", *self._worker)
            return [python, *command, "--log-level", "warning", "--concurrency", str(SLOTS)]
        return [python, "-m", f"bench.peers.{self._contestant.name}", verb, *map(str, figures)]

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        os.close(self._pipe)
        self._output.close()

    def lines(self, patience: float = PATIENCE_SECONDS) -> Iterator[Line]:
        """The lines it tells, until it ends or the time is over; those not taken are there the next time."""
        deadline = time.monotonic() + patience
        while True:
            while self._told:
                yield self._told.popleft()
            if not select.select((self._pipe,), (), (), max(0.0, deadline - time.monotonic()))[0]:
                return
            block = os.read(self._pipe, 65536)
            if not block:
                self._check()
                return
            *whole, self._rest = (self._rest + block).split(b"\n")
            for line in whole:
                what, *figures = line.decode().split()
                self._told.append(Line(what, tuple(map(float, figures))))

    def finish(self) -> list[Line]:
        """Everything it tells; it has to end, and well."""
        found = list(self.lines())
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise PeerError(f"{self._contestant.title} does not end:\n{self.output()}") from None
        self._check()
        return found

    def output(self) -> str:
        """The end of what it printed."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")[-4000:]

    def _check(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            if self._process.wait(1):
                raise PeerError(f"{self._contestant.title} failed:\n{self.output()}")

    def _stop(self) -> None:
        """End it; a worker is asked first."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def watching(dsn: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A connection to ask the server with."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def wait_until_settled(connection: psycopg.Connection[tuple[object, ...]], contestant: Contestant) -> float:
    """When no task was left, as the server says."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        row = connection.execute(contestant.unsettled.encode(), prepare=True).fetchone()
        if row is not None and not row[0]:
            return time.monotonic()
        time.sleep(POLL_SECONDS)
    raise PeerError(f"{contestant.title} handled every task, and did not settle them all.")
