"""PgQueuer, as `pgq run` runs it: uvloop, asyncpg, large batches, its tuned autovacuum.

A batch is claimed, its completions are logged in groups of as many; the concurrency is not limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from bench.peers import program

BATCH = 1000
CHUNK = 10_000


class Peer:
    async def setup(self) -> None:
        connection = await asyncpg.connect(program.dsn())
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.optimize_autovacuum()
        await connection.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[program.Enqueue]:
        connection = await asyncpg.connect(program.dsn())
        queries = Queries(AsyncpgDriver(connection))

        async def enqueue(number: int) -> None:
            await queries.enqueue("noop", str(number).encode())

        yield enqueue
        await connection.close()

    async def enqueue_many(self, count: int, started: Callable[[], None]) -> None:
        connection = await asyncpg.connect(program.dsn())
        queries = Queries(AsyncpgDriver(connection))
        started()
        for first in range(0, count, CHUNK):
            numbers = range(first, min(count, first + CHUNK))
            size = len(numbers)
            await queries.enqueue(["noop"] * size, [str(number).encode() for number in numbers], [0] * size)
        await connection.close()

    async def work(self, handle: program.Handle) -> None:
        pool = await asyncpg.create_pool(program.dsn(), min_size=1, max_size=4)
        queuer = PgQueuer.from_asyncpg_pool(pool)

        async def noop(job: Any) -> None:
            handle(int(job.payload))

        queuer.entrypoint("noop")(noop)
        await queuer.run(batch_size=BATCH)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


if __name__ == "__main__":
    program.main(Peer(), run)
