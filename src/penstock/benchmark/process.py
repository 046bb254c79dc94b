"""A process of a measurement: gets jobs through a pipe, and says how far it is and what came out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from penstock._sync.client import Client
from penstock.errors import PenstockError

from .jobs import Job

__all__ = ["GO", "READY", "Trouble", "serve"]

READY, GO = "ready", "go"
TELL_EVERY = 0.1
"""Seconds: more often would be a load of its own."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """An exception, in words: not every one can go through a pipe."""

    text: str
    hint: str | None


def serve(pipe: Connection) -> None:
    """Do what comes, until the other end is gone, however that one ended."""
    try:
        dsn: str = pipe.recv()
        with Client(dsn, maintain=False) as client:
            while True:
                _do(pipe.recv(), client, pipe)
    except (EOFError, ConnectionError):
        pass
    except Exception as exc:
        pipe.send(_trouble(exc))


def _do(job: Job, client: Client, pipe: Connection) -> None:
    job.prepare(client)
    pipe.send(READY)
    pipe.recv()
    pipe.send(job.run(client, _telling(pipe)))


def _telling(pipe: Connection) -> Callable[[int], None]:
    """Reports now and then how many were done since the last report."""
    untold, last = 0, time.monotonic()

    def report(done: int) -> None:
        nonlocal untold, last
        untold += done
        now = time.monotonic()
        if now > last + TELL_EVERY:
            pipe.send(untold)
            untold, last = 0, now

    return report


def _trouble(exc: Exception) -> Trouble:
    text = (str(exc).splitlines() or [""])[0]
    if isinstance(exc, PenstockError):
        return Trouble(text, exc.hint)
    return Trouble(f"{type(exc).__name__}: {text}", None)


if __name__ == "__main__":
    # Under its own name: what comes through the pipe is of that module.
    from penstock.benchmark.process import serve as serve_pipe

    serve_pipe(Connection(int(sys.argv[1])))
