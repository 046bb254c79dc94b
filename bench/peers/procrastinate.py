"""Procrastinate, with many jobs at a time, finished ones deleted; it claims and finishes them one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from bench.peers import program

CONCURRENCY = 20
CHUNK = 5000


def application(handle: program.Handle = program.ignore) -> tuple[Any, Any]:
    app = App(connector=PsycopgConnector(conninfo=program.dsn(), min_size=2, max_size=CONCURRENCY + 4))

    async def noop(number: int) -> None:
        handle(number)

    return app, app.task(name="noop")(noop)


class Peer:
    async def setup(self) -> None:
        app, _ = application()
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[program.Enqueue]:
        app = App(connector=SyncPsycopgConnector(conninfo=program.dsn(), min_size=1, max_size=1))
        with app.open():

            async def enqueue(number: int) -> None:
                app.configure_task("noop").defer(number=number)

            yield enqueue

    async def enqueue_many(self, count: int, started: Callable[[], None]) -> None:
        app, noop = application()
        async with app.open_async():
            started()
            for first in range(0, count, CHUNK):
                numbers = range(first, min(count, first + CHUNK))
                await noop.batch_defer_async(*({"number": number} for number in numbers))

    async def work(self, handle: program.Handle) -> None:
        app, _ = application(handle)
        async with app.open_async():
            await app.run_worker_async(concurrency=CONCURRENCY, delete_jobs="always")


if __name__ == "__main__":
    program.main(Peer())
