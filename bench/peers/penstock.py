"""Ours, as a user would write it; the worker is `penstock worker bench.peers.penstock:app`."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import psycopg

import penstock
from bench.peers import program
from penstock.schema import install

gc.collect()
gc.freeze()
gc.set_threshold(50000, 20, 100)
app = penstock.App(os.environ.get("BENCH_DSN"))
handle = program.Tally().handle if "BENCH_EXPECTED" in os.environ else program.ignore


@app.task(max_attempts=3)
async def noop(number: int) -> None:
    handle(number)


class Peer:
    async def setup(self) -> None:
        with psycopg.connect(program.dsn(), autocommit=True) as connection:
            install(connection)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[program.Enqueue]:
        with app:

            async def enqueue(number: int) -> None:
                noop.enqueue(number=number)

            yield enqueue

    async def enqueue_many(self, count: int, started: Callable[[], None]) -> None:
        async with app:
            await app.async_client.declare_queue("default")
            started()
            await noop.enqueue_many_async({"number": number} for number in range(count))

    async def work(self, handle: program.Handle) -> None:
        raise NotImplementedError("the command does that")


if __name__ == "__main__":
    program.main(Peer())
