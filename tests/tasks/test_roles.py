"""What the web process and the worker need: documented, minimal roles."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import penstock
from tests.conftest import Connect

from .working import PATIENCE_SECONDS, async_until, working


@contextmanager
def login(connect: Connect, *roles: str) -> Iterator[str]:
    """A login with these roles."""
    name, sql = f"login_{secrets.token_hex(6)}", connect()
    sql.execute(f"create role {name} login")
    for role in roles:
        sql.execute(f"grant {role} to {name}")
    yield name
    sql.execute(f"drop role {name}")


@pytest.fixture
def web(connect: Connect) -> Iterator[str]:
    with login(connect, "penstock_publisher") as name:
        yield name


@pytest.fixture
def worker(connect: Connect) -> Iterator[str]:
    with login(connect, "penstock_consumer") as name:
        yield name


@pytest.fixture
def both(connect: Connect) -> Iterator[str]:
    with login(connect, "penstock_consumer", "penstock_publisher") as name:
        yield name


def app_of(dsn: str, user: str, *, max_active: int | None = None) -> penstock.App:
    """The same app in each process, whatever its role."""
    app = penstock.App(make_conninfo(dsn, user=user))

    @app.task(queue="sums", result=True, max_active=max_active, max_attempts=1)
    async def add(x: int, y: int) -> int:
        if y < 0:
            raise ValueError("never")
        return x + y

    return app


@pytest.mark.parametrize("restricted", [False, True])
async def test_a_web_process_enqueues_and_reads_results_as_publisher(
    database: str, connect: Connect, web: str, worker: str, restricted: bool
) -> None:
    """And a worker works as consumer; each with the right in the queue, where that is restricted."""
    if restricted:
        connect().execute("select penstock.declare_queue('sums', retain_completed_seconds => 1000000)")
        with penstock.Client(database) as admin:
            admin.grant_queue(web, "sums", "publish")
            admin.grant_queue(worker, "sums", "consume")
    with app_of(database, web) as sender, app_of(database, worker) as receiver:
        async with working(receiver):
            add = sender.tasks["add"]
            handle = await add.enqueue_async(1, 2)
            assert await handle.result_async(timeout=PATIENCE_SECONDS) == 3
            blocking = await asyncio.to_thread(add.enqueue, 2, 2)
            assert await asyncio.to_thread(blocking.result, timeout=PATIENCE_SECONDS) == 4
            group = await sender.enqueue_group_async(
                [add.call(n, n) for n in range(3)], callback=add.call(1, 1)
            )
            assert await group.results_async(timeout=PATIENCE_SECONDS) == [0, 2, 4]
            failing = await add.enqueue_async(1, -1)
            with pytest.raises(penstock.TaskFailed, match="never") as caught:
                await failing.result_async(timeout=PATIENCE_SECONDS)
            assert caught.value.details.reason == "no_attempts_left"
            later = await add.options(delay=3600).enqueue_async(1, 1)
            assert await later.cancel_async()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await handle.details_async()
    with penstock.Client(database) as client:
        assert client.list_workers() == []


async def test_settings_that_differ_are_reported_once(
    database: str, web: str, worker: str, caplog: pytest.LogCaptureFixture
) -> None:
    with penstock.Client(database) as admin:
        admin.declare_queue("sums", max_active=7, retain_completed=10_000_000)
    told = "queue sums is not as the code has it: max_active is 7, not 2."
    with caplog.at_level(logging.WARNING, "penstock"), app_of(database, web, max_active=2) as sender:
        add = sender.tasks["add"]
        await add.enqueue_async(1, 2)
        await asyncio.to_thread(add.enqueue, 1, 2)
        with psycopg.connect(database, user=web) as connection:
            add.using(connection).enqueue(3, 4)
        assert [record.message.startswith(told) for record in caplog.records] == [True]
        assert "penstock_admin" in caplog.text
        assert "penstock queue alter sums" in caplog.text
        caplog.clear()
        with app_of(database, worker, max_active=2) as receiver:
            async with working(receiver):
                pass
        assert [record.message.startswith(told) for record in caplog.records] == [True]
    with penstock.Client(database) as client:
        (settings,) = client.list_queues()
        assert settings.max_active == 7
    # A role that may declare the queue does so.
    with app_of(database, "postgres", max_active=2) as deployer:
        deployer.tasks["add"].enqueue(1, 1)
    with penstock.Client(database) as client:
        assert client.list_queues()[0].max_active == 2


async def test_a_worker_runs_periodic_tasks_as_consumer_and_publisher(database: str, both: str) -> None:
    ran: list[datetime] = []
    with penstock.App(make_conninfo(database, user=both)) as app:

        @app.periodic(every=1)
        @app.task(queue="chores")
        async def tick() -> None:
            ran.append(datetime.now(UTC))

        async with working(app):
            await async_until(lambda: len(ran) >= 2)


async def test_a_worker_that_may_not_publish_says_so(
    database: str, worker: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its other tasks run."""
    ran: list[int] = []
    with (
        caplog.at_level(logging.WARNING, "penstock"),
        penstock.App(make_conninfo(database, user=worker)) as app,
    ):

        @app.periodic(every=1)
        @app.task(queue="chores")
        async def tick(x: int = 0) -> None:
            ran.append(x)

        async with working(app):
            with penstock.Client(database) as client:
                client.send("chores", {"x": 5}, headers={"task": tick.name})
            await async_until(lambda: ran == [5])
            needed = "periodic tasks need a role with penstock_publisher"
            await async_until(lambda: needed in caplog.text)
    assert caplog.text.count("periodic tasks") == 1


async def test_a_periodic_task_that_moved_is_reported_and_followed(
    database: str, both: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that may not redirect its schedule goes on with what the database has."""
    ran: list[int] = []
    with penstock.Client(database) as admin:
        admin.declare_queue("before")
        admin.put_schedule(
            "tick",
            "before",
            {},
            definition={"every": 1},
            next_at=datetime(2020, 1, 1, tzinfo=UTC),
            headers={"task": "tick"},
        )
    with (
        caplog.at_level(logging.WARNING, "penstock"),
        penstock.App(make_conninfo(database, user=both)) as app,
    ):

        @app.periodic(every=1, name="tick")
        @app.task(queue="chores", name="tick")
        async def tick() -> None:
            ran.append(1)

        async with working(app):
            await async_until(lambda: "only an administrator" in caplog.text)
            with penstock.Client(database) as client:
                await async_until(lambda: client.get_queue_statistics("before")[0].total_count)
                client.delete_schedule("tick")
                await async_until(lambda: ran)
    assert caplog.text.count("periodic task tick stays as it was") == 1
    assert "delete_schedule()" in caplog.text
