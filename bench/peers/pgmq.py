"""A bare loop on pgmq's own SQL, in batches of a thousand: no tasks, no retries, no heartbeat.

Not a task framework: what a loop can do at most on the best-known queue of this kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files

import psycopg
from psycopg.types.json import Jsonb

from bench.peers import program

QUEUE = "bench"
BATCH = 1000
CHUNK = 10_000
LEASE_SECONDS = 30
IDLE_SECONDS = 0.005
"""It has no wake-up of its own in a bare loop: it polls."""


async def connect() -> psycopg.AsyncConnection[tuple[object, ...]]:
    return await psycopg.AsyncConnection.connect(program.dsn(), autocommit=True, prepare_threshold=0)


class Peer:
    async def setup(self) -> None:
        async with await connect() as connection:
            script = files("pgmq").joinpath("sql", "pgmq.sql").read_text()
            await connection.execute("create schema if not exists pgmq")
            await connection.execute(script.encode(), prepare=False)
            await connection.execute("select pgmq.create(%s)", (QUEUE,))

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[program.Enqueue]:
        with psycopg.connect(program.dsn(), autocommit=True, prepare_threshold=0) as connection:

            async def enqueue(number: int) -> None:
                connection.execute("select pgmq.send(%s, %s)", (QUEUE, Jsonb({"number": number})))

            yield enqueue

    async def enqueue_many(self, count: int, started: Callable[[], None]) -> None:
        async with await connect() as connection:
            started()
            for first in range(0, count, CHUNK):
                numbers = range(first, min(count, first + CHUNK))
                messages = [f'{{"number": {number}}}' for number in numbers]
                await connection.execute("select pgmq.send_batch(%s, %s::jsonb[])", (QUEUE, messages))

    async def work(self, handle: program.Handle) -> None:
        async with await connect() as connection:
            while True:
                cursor = await connection.execute(
                    "select msg_id, message from pgmq.read(%s, %s, %s)", (QUEUE, LEASE_SECONDS, BATCH)
                )
                rows = await cursor.fetchall()
                for _, message in rows:
                    handle(message["number"])  # type: ignore[index]
                if not rows:
                    await asyncio.sleep(IDLE_SECONDS)
                    continue
                ids = [row[0] for row in rows]
                await connection.execute("select pgmq.delete(%s, %s::bigint[])", (QUEUE, ids))


if __name__ == "__main__":
    program.main(Peer())
