"""Awa, whose runtime is in Rust: several claimers on one queue, large claims, COPY for bulk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from awa import AsyncClient

from bench.peers import program

WORKERS = 256
CLAIMERS = 2
CLAIM_BATCH = 512
CHUNK = 10_000


@dataclass(frozen=True, slots=True)
class Noop:
    number: int


def address() -> str:
    """Its driver wants a host before the path of a socket, too."""
    return program.dsn().replace("@/", "@localhost/")


class Peer:
    async def setup(self) -> None:
        client = AsyncClient(address())
        await client.migrate()
        await client.install_queue_storage()
        await client.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[program.Enqueue]:
        client = AsyncClient(address())

        async def enqueue(number: int) -> None:
            await client.insert(Noop(number), queue="bench")

        yield enqueue
        await client.close()

    async def enqueue_many(self, count: int, started: Callable[[], None]) -> None:
        client = AsyncClient(address())
        started()
        for first in range(0, count, CHUNK):
            numbers = range(first, min(count, first + CHUNK))
            await client.enqueue_many_copy([Noop(number) for number in numbers], queue="bench")
        await client.close()

    async def work(self, handle: program.Handle) -> None:
        client = AsyncClient(address())

        async def noop(job: Any) -> None:
            handle(job.args.number)

        client.task(Noop, queue="bench")(noop)
        queue = {
            "name": "bench",
            "max_workers": WORKERS,
            "claimers": CLAIMERS,
            "claim_batch_size": CLAIM_BATCH,
        }
        await client.start([queue], poll_interval_ms=50)
        await asyncio.Event().wait()


if __name__ == "__main__":
    program.main(Peer())
