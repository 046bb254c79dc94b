"""What the program of every peer does alike: verbs on its command line, times on a pipe.

A program runs in the peer's own environment, so this file needs nothing but Python. The times are those of
the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

Enqueue = Callable[[int], Awaitable[object]]
"""Enqueues the task of that number; it is committed when this is done. It may block: it is alone here."""
Handle = Callable[[int], None]
"""What a handler calls with the number of its task."""

clock = time.monotonic


class Peer(Protocol):
    """One system of tasks, at its best documented settings."""

    async def setup(self) -> None:
        """Make its tables in an empty database."""

    def producer(self) -> AbstractAsyncContextManager[Enqueue]:
        """A connection that enqueues one by one."""

    async def enqueue_many(self, count: int, started: Callable[[], None]) -> None:
        """Enqueue so many at once, the fastest way there is; `started` is called once it is connected."""

    async def work(self, handle: Handle) -> None:
        """Run one worker for ever, whose handler does nothing but call `handle` with the task's number."""


class Report:
    """Lines to the benchmark, through the pipe that it opened."""

    def __init__(self) -> None:
        self._pipe = int(os.environ["BENCH_PIPE"])

    def tell(self, what: str, *figures: float) -> None:
        line = " ".join((what, *(repr(figure) for figure in figures)))
        os.write(self._pipe, f"{line}\n".encode())


class Tally:
    """What the handler of every peer calls: counts, or tells the time of each task that begins.

    BENCH_EXPECTED: how many tasks there are. It tells when the first one began and when the last one was
    handled, and about fifty times in between; 0: it tells when each of them began.
    """

    def __init__(self) -> None:
        self._report = Report()
        self._expected = int(os.environ.get("BENCH_EXPECTED", "0"))
        self._step = max(1, self._expected // 50)
        self._next = 1
        self.count = 0

    def handle(self, number: int) -> None:
        if not self._expected:
            self._report.tell("began", number, clock())
            return
        self.count += 1
        if self.count >= self._next:
            self._report.tell("handled", self.count, clock())
            is_last = self.count >= self._expected
            self._next = sys.maxsize if is_last else min(self._expected, self.count + self._step)


async def enqueue_one_by_one(peer: Peer, count: int) -> None:
    report = Report()
    async with peer.producer() as enqueue:
        report.tell("started", clock())
        for number in range(count):
            await enqueue(number)
        report.tell("ended", clock())


async def enqueue_paced(peer: Peer, rate: float, seconds: float) -> None:
    """So many a second at even distances, each with the time before the call and after its commit."""
    report = Report()
    async with peer.producer() as enqueue:
        begun = clock()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, begun + number / rate - clock()))
            called = clock()
            await enqueue(number)
            report.tell("enqueued", number, called, clock())


async def enqueue_bulk(peer: Peer, count: int) -> None:
    report = Report()
    await peer.enqueue_many(count, lambda: report.tell("started", clock()))
    report.tell("ended", clock())


async def perform(peer: Peer, verb: str, *figures: str) -> None:
    """Do what the command line asks for."""
    if verb == "setup":
        await peer.setup()
    elif verb == "enqueue-one":
        await enqueue_one_by_one(peer, int(figures[0]))
    elif verb == "enqueue-bulk":
        await enqueue_bulk(peer, int(figures[0]))
    elif verb == "enqueue-paced":
        await enqueue_paced(peer, float(figures[0]), float(figures[1]))
    elif verb == "work":
        await peer.work(Tally().handle)
    else:
        raise SystemExit(f"There is no verb {verb!r}.")


def main(peer: Peer, run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run) -> None:
    """The command line of a peer's program."""
    run(perform(peer, *sys.argv[1:]))


def ignore(_number: int) -> None:
    """What the handler of a program that only enqueues would call."""


def dsn() -> str:
    """The database to use."""
    return os.environ["BENCH_DSN"]
