"""How fast very many messages get in: send_many against COPY of the same rows into a bare, indexed table.

COPY as programs have it, with psycopg's write_row, spends most of its time there; so there is one by hand
too, of text that is put together as the client does it. Beside the figure itself: variants that explain it,
each with a COPY of its own right before or after.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

import penstock
from bench.queues import QUEUE
from bench.turns import Ratio, turns
from penstock import calls, message_options
from penstock._sync.bulk import Bulk
from penstock.payloads import encode
from penstock.sql_call import Call, array

COLUMNS = "queue_id, priority, rank, id, attempts, large, ranked_by_tenant, published_at, tenant, payload"
BARE = (
    "create table public.bare (like penstock.ready including defaults);"
    "create index on public.bare (queue_id, priority, rank, id)"
)
SEND_MANY, COPY, COPY_BY_HAND = "send_many", "COPY", "COPY by hand"
CHUNKS = (200, 1000, 5000, 20_000)
COMMIT_EVERY = 20_000
"""Messages in one transaction where not all are in one."""
ANY_SIZE = 1 << 40
SEND_ARRAY = "select * from penstock.send_messages(cast(%s as text), cast(cast(%s as text) as jsonb[]))"
SMALL_BATCH = message_options.Batch(["1"], [None])

Payload = dict[str, Any]
Way = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Throughput:
    """One way to send all messages, against a COPY: messages a second."""

    way: str
    against: str
    rate: float
    copy_rate: float
    ratio: Ratio
    client_microseconds: float
    server_microseconds: float
    """Of processor time, for each message; 0 for a server elsewhere."""


@dataclass(frozen=True, slots=True)
class Run:
    """One time through all messages: seconds by the clock, and of processor."""

    took: float
    client: float
    server: float


def payloads(count: int) -> Iterator[Payload]:
    """So many small messages, each a dict of its own."""
    return ({"order": n, "customer": "acme", "amount": 99.5, "x": 1} for n in range(count))


class Arena:
    """One database with an empty queue and an empty bare table, and all the ways to fill either."""

    def __init__(self, dsn: str, count: int) -> None:
        self.count = count
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.client = penstock.connect(dsn)
        with self.client.transaction() as own:
            pids = (self.connection.info.backend_pid, own.connection.info.backend_pid)
        self._schedstats = [Path(f"/proc/{pid}/schedstat") for pid in pids]
        self.connection.execute(BARE)
        row = self.connection.execute("select id from penstock.queues where name = %s", (QUEUE,)).fetchone()
        assert row is not None
        self._queue_id: int = row[0]
        # Made before: what is measured is sending, and both sides get the same dicts.
        self._payloads = list(payloads(count))

    def close(self) -> None:
        self.client.close()
        self.connection.close()

    def run(self, way: Way) -> Run:
        """Go one way, from empty tables on."""
        self._empty()
        before = self._clocks()
        way()
        after = self._clocks()
        self._check()
        return Run(*(late - early for early, late in zip(before, after, strict=True)))

    def _clocks(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), sum(map(processor_seconds, self._schedstats))

    def _empty(self) -> None:
        """Both alike: deleted, vacuumed, and with no checkpoint due."""
        self.client.purge_queue(QUEUE)
        self.connection.execute("delete from public.bare")
        for table in ("penstock.ready", "public.bare"):
            self.connection.execute(f"vacuum (analyze) {table}")
        self.connection.execute("checkpoint")

    def _check(self) -> None:
        found = self.connection.execute(
            "select (select count(*) from penstock.ready) + (select count(*) from public.bare)"
        ).fetchone()
        assert found == (self.count,), found

    # What it is measured against

    def copy(self) -> None:
        """COPY with psycopg, of rows as they are in the queue's table."""
        at = datetime.now(UTC)
        statement = f"copy public.bare ({COLUMNS}) from stdin"
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            for n, payload in enumerate(self._payloads):
                copy.write_row((self._queue_id, 2, n, n, 0, False, False, at, "", Jsonb(payload)))

    def copy_by_hand(self) -> None:
        """COPY of lines that are put together as text."""
        head, at = f"{self._queue_id}\t2\t", datetime.now(UTC).isoformat()
        statement = f"copy public.bare ({COLUMNS}) from stdin"
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            for start in range(0, self.count, 1000):
                lines = [
                    f"{head}{n}\t{n}\t0\tf\tf\t{at}\t\t{escaped(payload)}\n"
                    for n, payload in enumerate(self._payloads[start : start + 1000], start=start)
                ]
                copy.write("".join(lines))

    # Ours

    def send_many(self, *, atomic: bool) -> None:
        """As it is, from an iterator."""
        assert len(self.client.send_many(QUEUE, iter(self._payloads), atomic=atomic)) == self.count

    # Ours, otherwise

    def statements(self, chunk: int, *, pipelined: bool, atomic: bool) -> None:
        """Statements of so many messages, as send_many() makes them: all in one JSON document."""
        made = map(self._call, self._batches(chunk))
        self._bulk(made, chunk, pipelined=pipelined, atomic=atomic)

    def arrays(self, chunk: int) -> None:
        """Statements of so many messages, each an array."""
        self._bulk(map(self._array_call, self._batches(chunk)), chunk, pipelined=True, atomic=False)

    def _bulk(self, many: Iterator[Call[list[int]]], chunk: int, *, pipelined: bool, atomic: bool) -> None:
        bulk = Bulk(self.connection, None, pipelined=pipelined)
        bulk.run([], many, None if atomic else max(1, COMMIT_EVERY // chunk))
        assert len(bulk.committed) == self.count

    def _batches(self, chunk: int) -> Iterator[message_options.Batch]:
        items = iter(self._payloads)
        while some := list(islice(items, chunk)):
            yield from message_options.batches(some, None, ANY_SIZE)

    def _call(self, batch: message_options.Batch) -> Call[list[int]]:
        return calls.send_messages(QUEUE, batch, message_options.Options())

    def _array_call(self, batch: message_options.Batch) -> Call[list[int]]:
        stored = array(map(str, batch.stored))
        return replace(self._call(SMALL_BATCH), text=SEND_ARRAY, parameters=(QUEUE, stored))

    def staged(self, chunk: int | None) -> None:
        """COPY into a temporary table, then send_messages() from there: all, or so many a call."""
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.execute("create temporary table staged (n int, payload jsonb) on commit drop")
            with cursor.copy("copy staged from stdin") as copy:
                for start in range(0, self.count, 1000):
                    some = enumerate(self._payloads[start : start + 1000], start=start)
                    copy.write("".join(f"{n}\t{escaped(payload)}\n" for n, payload in some))
            found = 0
            for start in range(0, self.count, chunk or self.count):
                cursor.execute(
                    "select * from penstock.send_messages(%s, array("
                    "select payload from staged where n >= %s and n < %s order by n))",
                    (QUEUE, start, start + (chunk or self.count)),
                )
                found += len(cursor.fetchall())
            assert found == self.count


def processor_seconds(schedstat: Path) -> float:
    """What a server's process has used; 0 where the server is elsewhere, or this is not Linux."""
    try:
        return int(schedstat.read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def escaped(payload: Payload) -> str:
    """JSON as COPY reads it."""
    stored = encode(payload)
    assert isinstance(stored, str)
    return stored.replace("\\", "\\\\")


def ways(arena: Arena) -> dict[str, Way]:
    """What explains the figure, by name."""
    found: dict[str, Way] = {
        "send_many, atomic": partial(arena.send_many, atomic=True),
    }
    for chunk in CHUNKS:
        for pipelined in (True, False):
            for atomic in (False, True):
                name = f"statements of {chunk:,}{', pipeline' * pipelined}{', atomic' * atomic}"
                found[name] = partial(arena.statements, chunk, pipelined=pipelined, atomic=atomic)
    for chunk in CHUNKS:
        found[f"arrays of {chunk:,}, pipeline"] = partial(arena.arrays, chunk)
    found["COPY to a temporary table, one call"] = partial(arena.staged, None)
    found["COPY to a temporary table, calls of 5,000"] = partial(arena.staged, 5000)
    return found


def measure(dsn: str, count: int, rounds: int, variant_rounds: int) -> list[Throughput]:
    """send_many against both kinds of COPY, then the variants against the usual one."""
    arena = Arena(dsn, count)
    try:
        by_row, by_hand = {COPY: arena.copy}, {COPY_BY_HAND: arena.copy_by_hand}
        promised: dict[str, Way] = {SEND_MANY: partial(arena.send_many, atomic=False)}
        _runs(arena, promised | by_row | by_hand, 1)  # statements get prepared, files grow
        runs = _runs(arena, promised | by_row | by_hand, rounds)
        found = [
            _throughput(arena, way, against, runs)
            for way, against in (
                (COPY, COPY),
                (COPY_BY_HAND, COPY),
                (SEND_MANY, COPY),
                (SEND_MANY, COPY_BY_HAND),
            )
        ]
        for name, way in ways(arena).items():
            found.append(_throughput(arena, name, COPY, _runs(arena, {name: way} | by_row, variant_rounds)))
        return found
    finally:
        arena.close()


def _runs(arena: Arena, ways: dict[str, Way], rounds: int) -> dict[str, list[Run]]:
    return turns({name: partial(arena.run, way) for name, way in ways.items()}, rounds)


def _throughput(arena: Arena, name: str, against: str, found: dict[str, list[Run]]) -> Throughput:
    runs, copies = found[name], found[against]

    def middle(values: Iterable[float]) -> float:
        return median(values) / arena.count

    return Throughput(
        way=name,
        against=against,
        rate=1 / middle(run.took for run in runs),
        copy_rate=1 / middle(run.took for run in copies),
        # Less time is a higher rate, so the ratio of the rates is that of the times, turned round.
        ratio=Ratio.of([run.took for run in copies], [run.took for run in runs]),
        client_microseconds=1e6 * middle(run.client for run in runs),
        server_microseconds=1e6 * middle(run.server for run in runs),
    )
