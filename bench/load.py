"""Client processes that put load on the queues: one connection of each side in each, driven through pipes."""

from __future__ import annotations

import multiprocessing
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import psycopg

from bench import wire
from bench.queues import MESSAGE_ID, QUEUE, Penstock, Queue
from bench.reference import Reference, Tuned

SIDES: dict[str, type[Penstock] | type[Reference]] = {
    side.side: side for side in (Penstock, Reference, Tuned)
}
MAINTAIN_PER_SECOND = 4


class Sessions:
    """The open queues of one client process, each on its own connection, opened on first use."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._open: dict[tuple[str, str, str], Queue] = {}

    def get(self, side: str, dsn: str, queue: str = QUEUE) -> Queue:
        """The queue of a side in a database."""
        key = (side, dsn, queue)
        if key not in self._open:
            self._open[key] = SIDES[side](dsn, self._token, queue)
        return self._open[key]


Job = Callable[..., Iterator[Any]]
"""What a client process runs: takes its sessions and one argument, yields what it measured, once or often."""


class Pool:
    """So many client processes, which all begin a job at the same moment."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        for number in range(size):
            ours, theirs = context.Pipe()
            context.Process(target=_serve, args=(theirs, f"client-{number}"), daemon=True).start()
            theirs.close()
            self._pipes.append(ours)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()

    def run(self, job: Job, arguments: Sequence[object]) -> Iterator[list[Any]]:
        """Run a job with one argument for each process; yields a list of what each of them yielded."""
        busy = self._pipes[: len(arguments)]
        for pipe, argument in zip(busy, arguments, strict=True):
            pipe.send((job, argument))
        while True:
            answers = [pipe.recv() for pipe in busy]
            for answer in answers:
                if isinstance(answer, _Failure):
                    raise RuntimeError(f"a client process failed:\n{answer.trace}")
            if any(answer is None for answer in answers):
                return
            yield answers

    def once(self, job: Job, arguments: Sequence[object]) -> list[Any]:
        """Run a job that yields once."""
        (answers,) = self.run(job, arguments)
        return list(answers)


@dataclass(frozen=True, slots=True)
class _Failure:
    trace: str


def _serve(pipe: Connection, token: str) -> None:
    sessions = Sessions(token)
    while True:
        try:
            job, argument = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            for answer in job(sessions, argument):
                pipe.send(answer)
            pipe.send(None)
        except (BrokenPipeError, KeyboardInterrupt):
            return
        except Exception:
            pipe.send(_Failure(traceback.format_exc()))


@dataclass(frozen=True, slots=True)
class Slice:
    """What one client is to do for a while: send, or claim and ack, or both in turns."""

    side: str
    dsn: str
    batch: int
    seconds: float
    kept: bool = False
    sends: bool = False
    claims: bool = False
    limit: int | None = None
    queue: str = QUEUE


@dataclass(slots=True)
class Sample:
    """What one client did in a slice."""

    sent: int = 0
    send_seconds: float = 0.0
    settled: int = 0
    settle_seconds: float = 0.0
    calls: int = 0
    client_cpu: float = 0.0
    server_cpu: float = 0.0
    claim_times: list[float] = field(default_factory=list)


def work(sessions: Sessions, task: Slice) -> Iterator[Sample]:
    """Work through one slice, until its time is over or its limit reached.

    A slice that both sends and claims puts back just what it took, so what waits stays the same.
    """
    queue = sessions.get(task.side, task.dsn, task.queue)
    sample = Sample()
    clock = time.perf_counter
    owed = task.batch
    limit = task.limit if task.limit is not None else float("inf")
    client, server = time.process_time(), queue.wire.server_cpu()
    deadline = clock() + task.seconds
    while (now := clock()) < deadline and max(sample.sent, sample.settled) < limit:
        if task.sends and owed:
            queue.send(owed)
            sample.sent += owed
            sample.calls += 1
            sample.send_seconds += clock() - now
            now = clock()
        if task.claims:
            ids = wire.column(queue.claim(task.batch), MESSAGE_ID)
            claimed = clock()
            if ids and queue.ack(ids, kept=task.kept) != len(ids):
                raise RuntimeError(f"{task.side}: of {len(ids)} claimed messages not all were acked")
            sample.settle_seconds += clock() - now
            sample.claim_times.append(claimed - now)
            sample.settled += len(ids)
            sample.calls += 2
            if not task.sends and not ids:
                break
            owed = len(ids)
    sample.client_cpu = time.process_time() - client
    sample.server_cpu = queue.wire.server_cpu() - server
    yield sample


class Maintainer:
    """Calls `maintain()` a few times a second on a connection of its own, as every worker does."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Maintain while the block runs."""
        stop = threading.Event()
        failures: list[Exception] = []

        def loop() -> None:
            try:
                while not stop.wait(1 / MAINTAIN_PER_SECOND):
                    self._connection.execute("select * from penstock.maintain()")
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if failures:
            raise RuntimeError("maintain() failed") from failures[0]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
