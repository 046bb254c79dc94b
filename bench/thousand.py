"""Calls of a thousand messages, each committed on its own: enqueue_many and send_many, COPY, and pgmq.

COPY fills a bare, indexed table of rows as they are in the queue. pgmq is its own SQL, called with psycopg:
once with a list of JSON text, which psycopg makes an array of, and once with an array that was made before,
so that the client costs nothing.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import psycopg

import penstock
from bench.bulk import BARE, COLUMNS, escaped, processor_seconds
from bench.peers import environments, roster
from bench.queues import QUEUE
from bench.turns import Ratio, turns
from penstock.sql_call import array

BATCH = 1000
CALLS_IN_A_SLICE = 10
TASKS = "bench_tasks"
PGMQ_QUEUE = "bench"
PGMQ_SEND = "select * from pgmq.send_batch(%s, %s::jsonb[])"
ENQUEUE_MANY, SEND_MANY, COPY = "enqueue_many", "send_many", "COPY by hand"
PGMQ, PGMQ_LIST = "pgmq send_batch, array made before", "pgmq send_batch, list"
FIND_PGMQ = "from importlib.resources import files; print(files('pgmq').joinpath('sql', 'pgmq.sql'))"


@dataclass(frozen=True, slots=True)
class Slice:
    """Seconds for a message: by the clock, of the calling process, and of the server's."""

    took: float
    client: float
    server: float


@dataclass(frozen=True, slots=True)
class Thousand:
    """One way to send a thousand messages in a call: messages a second, and microseconds for each message."""

    way: str
    rate: float
    client_microseconds: float
    server_microseconds: float
    # How many times the rate of pgmq and of COPY.
    of_pgmq: Ratio
    of_copy: Ratio


class Arena:
    """One database, one connection for each way."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.client = penstock.connect(dsn)
        self.app = penstock.App(dsn)

        @self.app.task(name="bench_task", queue=TASKS)
        def handler(order: int, customer: str, amount: float, x: int) -> None: ...

        self.task = handler
        self.arguments = [{"order": n, "customer": "acme", "amount": 99.5, "x": 1} for n in range(BATCH)]
        self.client.create_queue(TASKS)
        self.connection.execute(BARE)
        self._install_pgmq()
        row = self.connection.execute("select id from penstock.queues where name = %s", (QUEUE,)).fetchone()
        assert row is not None
        self._queue_id: int = row[0]
        pids = [self.connection.info.backend_pid]
        for client in (self.client, self.app.client):
            with client.transaction() as own:
                pids.append(own.connection.info.backend_pid)
        self._schedstats = [Path(f"/proc/{pid}/schedstat") for pid in pids]

    def close(self) -> None:
        self.client.close()
        self.app.client.close()
        self.connection.close()

    def _install_pgmq(self) -> None:
        python = environments.python(roster.CONTESTANTS["pgmq"])
        found = subprocess.run((python, "-c", FIND_PGMQ), check=True, capture_output=True, text=True)
        self.connection.execute("create schema if not exists pgmq")
        self.connection.execute(Path(found.stdout.strip()).read_bytes(), prepare=False)
        self.connection.execute("select pgmq.create(%s)", (PGMQ_QUEUE,))

    @property
    def ways(self) -> dict[str, Callable[[], None]]:
        return {
            ENQUEUE_MANY: self.enqueue_many,
            SEND_MANY: self.send_many,
            COPY: self.copy,
            PGMQ_LIST: partial(self.pgmq, None),
            PGMQ: partial(self.pgmq, array(map(json.dumps, self.arguments))),
        }

    def slice(self, way: Callable[[], None]) -> Slice:
        """Some calls, from empty tables on."""
        self.connection.execute(f"truncate public.bare, pgmq.q_{PGMQ_QUEUE}")
        for queue in (QUEUE, TASKS):
            self.client.purge_queue(queue)
        self.connection.execute("vacuum (analyze) penstock.ready")
        before = self._clocks()
        for _ in range(CALLS_IN_A_SLICE):
            way()
        after = self._clocks()
        count = BATCH * CALLS_IN_A_SLICE
        return Slice(*((late - early) / count for early, late in zip(before, after, strict=True)))

    def _clocks(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), sum(map(processor_seconds, self._schedstats))

    def enqueue_many(self) -> None:
        assert len(self.task.enqueue_many(self.arguments)) == BATCH

    def send_many(self) -> None:
        assert len(self.client.send_many(QUEUE, self.arguments)) == BATCH

    def copy(self) -> None:
        statement = f"copy public.bare ({COLUMNS}) from stdin"
        head = f"{self._queue_id}\t2\t"
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(
                "".join(
                    f"{head}{n}\t{n}\t0\tf\tf\tnow\t\t{escaped(arguments)}\n"
                    for n, arguments in enumerate(self.arguments)
                )
            )

    def pgmq(self, made: str | None) -> None:
        messages = [json.dumps(arguments) for arguments in self.arguments] if made is None else made
        cursor = self.connection.execute(PGMQ_SEND, (PGMQ_QUEUE, messages))
        assert len(cursor.fetchall()) == BATCH


def measure(dsn: str, rounds: int) -> list[Thousand]:
    """All ways, by turns."""
    arena = Arena(dsn)
    try:
        slices = {name: partial(arena.slice, way) for name, way in arena.ways.items()}
        turns(slices, 1)  # statements get prepared, files grow
        found = turns(slices, rounds)
    finally:
        arena.close()
    return [_thousand(name, found) for name in found]


def _thousand(name: str, found: dict[str, list[Slice]]) -> Thousand:
    ours = found[name]

    def of(other: str) -> Ratio:
        # Less time is a higher rate, so the ratio of the rates is that of the times, turned round.
        return Ratio.of([each.took for each in found[other]], [each.took for each in ours])

    return Thousand(
        name,
        1 / median(each.took for each in ours),
        1e6 * median(each.client for each in ours),
        1e6 * median(each.server for each in ours),
        of(PGMQ),
        of(COPY),
    )
