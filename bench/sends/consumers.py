"""The consumer of a system: its worker, or a bare loop, as a process that is ready."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from bench.peers import environments
from bench.peers.runner import PATIENCE_SECONDS, STOP_SECONDS, PeerError, Program
from bench.sends.systems import System

FOR_EVER = 10**12
"""So many tasks are expected: the handler tells of none of them."""
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Watch:
    """A connection that sends one message, and counts what is not done."""

    system: System
    connection: psycopg.Connection[Any]

    def send(self) -> None:
        self.connection.execute(self.system.send.encode())

    def backlog(self) -> int:
        row = self.connection.execute(self.system.backlog.encode()).fetchone()
        return int(row[0]) if row else 0

    def wait_until_done(self, patience: float = PATIENCE_SECONDS) -> bool:
        """Whether nothing was left within that time."""
        deadline = time.monotonic() + patience
        while self.backlog():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True


@contextmanager
def watching(system: System, dsn: str) -> Iterator[Watch]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield Watch(system, connection)


@contextmanager
def consuming(system: System, dsn: str, watch: Watch) -> Iterator[list[int]]:
    """The consumer, once it has taken a first message; yields its processes."""
    with _process(system, dsn) as processes:
        if processes:
            watch.send()
            if not watch.wait_until_done():
                raise PeerError(f"{system.title}: the consumer did not begin.")
        yield processes


@contextmanager
def _process(system: System, dsn: str) -> Iterator[list[int]]:
    if not system.has_consumer:
        yield []
    elif system.loop is not None:
        with running("bench.sends.loops", system.loop, dsn=dsn) as pid:
            yield [pid]
    else:
        assert system.contestant is not None
        with Program(system.contestant, dsn, "work", expected=FOR_EVER) as worker:
            yield [worker.pid]


@contextmanager
def running(
    module: str, *arguments: str, dsn: str, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """A Python program of ours; yields its process id."""
    process = subprocess.Popen(
        (sys.executable, "-m", module, *arguments),
        cwd=environments.ROOT,
        env={**os.environ, "BENCH_DSN": dsn, **(environment or {})},
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
