"""A worker inside of a program: `async with penstock.Worker(app):`, and run() in a task."""

# ruff: noqa: PT012 - the blocks are what is tested

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock
from penstock import App, PenstockError, SchemaMissing, Worker
from penstock.embedded import Server
from tests.worker.stage import PATIENCE, holds


@pytest.fixture
def empty(server18: Server) -> str:
    """A database without the schema: the one that every server has."""
    return server18.dsn("postgres")


def make_app(dsn: str) -> tuple[App, list[str]]:
    app, said = App(dsn), list[str]()

    @app.task(queue="q")
    async def work(name: str, seconds: float = 0.0) -> None:
        said.append(f"{name} begun")
        await asyncio.sleep(seconds)
        said.append(f"{name} done")

    return app, said


def own_tasks() -> set[str]:
    """The asyncio tasks of workers that are left."""
    return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("penstock")}


async def test_it_works_beside_the_block_and_drains_at_its_end(database18: str) -> None:
    app, said = make_app(database18)
    async with asyncio.timeout(PATIENCE), app, Worker(app, grace=10) as worker:
        assert worker.started.is_set()
        await app.tasks["work"].enqueue_async("a", 0.5)
        await holds(lambda: said, "it has begun")
    assert said == ["a begun", "a done"]
    assert own_tasks() == set()


async def test_a_start_that_fails_is_raised(empty: str) -> None:
    app, _ = make_app(empty)
    with pytest.raises(SchemaMissing, match="no schema penstock") as caught:
        async with asyncio.timeout(PATIENCE), app, Worker(app):
            pytest.fail("the block began")
    assert "penstock migrate" in (caught.value.hint or "")
    assert own_tasks() == set()


async def test_waiting_for_the_start_of_a_run_that_failed_raises_its_error(empty: str) -> None:
    """As programs did before there was a block: it waited for ever."""
    app, _ = make_app(empty)
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(PATIENCE), app:
        with pytest.raises(SchemaMissing):
            await worker.started.wait()
        with pytest.raises(SchemaMissing):
            await running
        with pytest.raises(SchemaMissing):
            await worker.started.wait()
    assert not worker.started.is_set()


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_waiting_for_the_start_of_a_worker_that_was_stopped_raises(how: str) -> None:
    app, _ = make_app("postgresql://no_user@127.0.0.1:1/none")
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    waiting = asyncio.create_task(worker.started.wait())
    async with asyncio.timeout(PATIENCE), app:
        await holds(lambda: "penstock beginning" in own_tasks(), "it tries to connect")
        worker.stop() if how == "stop" else running.cancel()
        with pytest.raises(PenstockError, match="stopped before it had started"):
            await waiting
        await asyncio.wait({running})
    assert own_tasks() == set()


async def test_the_start_may_have_a_limit() -> None:
    app, _ = make_app("postgresql://no_user@127.0.0.1:1/none")
    with pytest.raises(TimeoutError):
        async with app, asyncio.timeout(0.5), Worker(app):
            pytest.fail("the block began")
    assert own_tasks() == set()


async def test_a_worker_that_fails_ends_the_block(database18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = make_app(database18)
    fail, ended = asyncio.Event(), list[str]()

    async def fails(*_: Any) -> None:
        await fail.wait()
        raise RuntimeError("a part has failed")

    monkeypatch.setattr("penstock.worker.leases.Leases.run", fails)
    with pytest.raises(RuntimeError, match="a part has failed"):
        async with asyncio.timeout(PATIENCE), app, Worker(app):
            fail.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("the block")
    assert ended == ["the block"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "the cancellation was taken back"
    await asyncio.sleep(0)
    assert own_tasks() == set()


async def test_the_error_of_the_block_comes_out_after_the_drain(database18: str) -> None:
    app, said = make_app(database18)
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(PATIENCE), app, Worker(app, grace=10):
            await app.tasks["work"].enqueue_async("a", 0.3)
            await holds(lambda: said, "it has begun")
            raise ZeroDivisionError
    assert said == ["a begun", "a done"]


async def test_a_cancellation_while_it_drains_aborts(database18: str) -> None:
    app, said = make_app(database18)
    leaving = asyncio.Event()

    async def program() -> None:
        async with app, Worker(app, grace=60):
            await app.tasks["work"].enqueue_async("a", 60)
            await holds(lambda: said, "it has begun")
            leaving.set()

    running = asyncio.create_task(program())
    async with asyncio.timeout(PATIENCE):
        await leaving.wait()
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert own_tasks() == set()
    with penstock.connect(database18, maintain=False) as queue:
        # Given back at once, not when its lease is over.
        assert queue.get_queue_statistics("q")[0].pending_count == 1


async def test_the_block_may_stop_it(database18: str) -> None:
    app, said = make_app(database18)
    async with asyncio.timeout(PATIENCE), app, Worker(app, grace=10) as worker:
        await app.tasks["work"].enqueue_async("a", 0.3)
        await holds(lambda: said, "it has begun")
        worker.stop()
        await holds(lambda: len(said) == 2, "it ends what runs, and the block goes on")
    assert said == ["a begun", "a done"]


async def test_a_worker_runs_once(database18: str) -> None:
    app, _ = make_app(database18)
    worker = Worker(app)
    async with asyncio.timeout(PATIENCE), app:
        async with worker:
            pass
        with pytest.raises(PenstockError, match="has run already"):
            await worker.run()
