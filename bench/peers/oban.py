"""Oban for Python, without its licensed add-on, which alone acks in groups: uvloop, many slots at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from oban import Oban, worker
from oban.schema import install

from bench.peers import program

LIMIT = 200
CHUNK = 5000
POOL = 20

_handlers: list[program.Handle] = []


async def process(_self: object, job: Any) -> None:
    _handlers[0](job.args["number"])


Noop = worker(queue="bench")(type("Noop", (), {"process": process}))


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[Any]:
    pool = await Oban.create_pool(program.dsn(), min_size=1, max_size=POOL)
    async with Oban(pool=pool, **options) as oban:
        yield oban
    await pool.close()


class Peer:
    async def setup(self) -> None:
        pool = await Oban.create_pool(program.dsn())
        await install(pool)
        await pool.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[program.Enqueue]:
        async with opened() as oban:

            async def enqueue(number: int) -> None:
                await oban.enqueue(Noop.new({"number": number}))

            yield enqueue

    async def enqueue_many(self, count: int, started: Callable[[], None]) -> None:
        async with opened() as oban:
            started()
            for first in range(0, count, CHUNK):
                numbers = range(first, min(count, first + CHUNK))
                await oban.enqueue_many([Noop.new({"number": number}) for number in numbers])

    async def work(self, handle: program.Handle) -> None:
        _handlers.append(handle)
        async with opened(queues={"bench": LIMIT}):
            await asyncio.Event().wait()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


if __name__ == "__main__":
    program.main(Peer(), run)
