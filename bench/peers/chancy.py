"""Chancy, with its asynchronous executor, many slots, eager polling, and the plugins that recovery needs.

Its default plugins also count metrics and drive workflows, which costs time in every task: left out.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from chancy import Chancy, Job, Queue, Worker
from chancy.plugins.leadership import Leadership
from chancy.plugins.pruner import Pruner
from chancy.plugins.recovery import Recovery

from bench.peers import program

CONCURRENCY = 1000
OUTGOING_SECONDS = 0.1
"""Between two groups of completions; its default is a second."""

_handlers: list[program.Handle] = []


async def noop(*, number: int) -> None:
    _handlers[0](number)


def application() -> Any:
    log = logging.getLogger("chancy")
    log.setLevel(logging.ERROR)  # a line a job otherwise
    plugins = [Leadership(), Pruner(), Recovery()]
    return Chancy(program.dsn(), plugins=plugins, no_default_plugins=True, log=log)


def job(number: int) -> Any:
    return Job(func="bench.peers.chancy.noop", kwargs={"number": number}, queue="bench")


class Peer:
    async def setup(self) -> None:
        async with application() as chancy:
            await chancy.migrate()
            queue = Queue(
                "bench",
                concurrency=CONCURRENCY,
                executor=Chancy.Executor.Async,
                polling_interval=1,
                eager_polling=True,
            )
            await chancy.declare(queue)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[program.Enqueue]:
        with application() as chancy:

            async def enqueue(number: int) -> None:
                chancy.sync_push(job(number))

            yield enqueue

    async def enqueue_many(self, count: int, started: Callable[[], None]) -> None:
        async with application() as chancy:
            await chancy.pool.open()
            started()
            async for _ in chancy.push_many([job(number) for number in range(count)]):
                pass

    async def work(self, handle: program.Handle) -> None:
        # The handler is found by its name in the module of this file, which is not the one that runs it.
        import_module("bench.peers.chancy")._handlers.append(handle)
        async with application() as chancy:
            worker = Worker(chancy)
            worker.send_outgoing_interval = OUTGOING_SECONDS
            async with worker:
                await worker.wait_for_shutdown()


if __name__ == "__main__":
    program.main(Peer())
