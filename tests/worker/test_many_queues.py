"""A worker of many queues: one look for all that are idle, and no message is found later for it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg
import pytest

from penstock import App, AsyncClient, calls
from penstock._async import listener
from penstock._async.listener import AsyncListener
from penstock.watch import Watch
from tests.worker.stage import holds, working

Sql = psycopg.Connection[Any]

QUEUES = 200
SECONDS = 4.0


def app_of(number: int, ran: dict[str, float]) -> App:
    """A task for each of so many queues; when each of them ran."""
    app = App()

    def declare(name: str) -> None:
        @app.task(queue=name, name=name)
        async def run() -> None:
            ran[name] = time.monotonic()

    for at in range(number):
        declare(f"q{at}")
    return app


def commits(sql: Sql) -> int:
    """Transactions of the database so far, as far as sessions have reported them."""
    sql.execute("select pg_stat_clear_snapshot()")
    row = sql.execute(
        "select xact_commit from pg_stat_database where datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(row[0])


async def is_idle(sql: Sql, queues: int) -> None:
    """Wait until a session watches all queues and is idle: it has two locks for each."""

    def has_locks() -> bool:
        row = sql.execute(
            "select count(*) from pg_locks where locktype = 'advisory' and objsubid = 1"
            " and database = (select oid from pg_database where datname = current_database())"
        ).fetchone()
        return row == (2 * queues,)

    await holds(has_locks, "all queues are watched")


async def test_an_idle_worker_looks_once_for_all_queues(sql18: Sql, database18: str) -> None:
    app = app_of(QUEUES, {})
    async with working(app, database18):
        await is_idle(sql18, QUEUES)
        await asyncio.sleep(3)  # the looks that follow each change of a role are over
        before = commits(sql18)
        await asyncio.sleep(SECONDS)
        made = commits(sql18) - before
    # Each queue alone would be asked once a second. Sessions report once a second at the most.
    assert made < QUEUES, f"{made} transactions in {SECONDS} s for {QUEUES} idle queues"


async def test_a_worker_that_stands_by_tries_for_all_queues_at_once(
    sql18: Sql, database18: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    command = AsyncListener._command

    async def counted(self: AsyncListener, connection: Any, text: str, **options: Any) -> bytes | None:
        statements.append(text)
        return await command(self, connection, text, **options)

    monkeypatch.setattr(AsyncListener, "_command", counted)
    async with working(app_of(QUEUES, {}), database18):
        await is_idle(sql18, QUEUES)
        # The first worker began with a few statements, not with two for each queue.
        assert len(statements) < QUEUES, f"{len(statements)} statements for {QUEUES} queues"
        async with working(app_of(QUEUES, {}), database18):
            await asyncio.sleep(3)
            statements.clear()
            await asyncio.sleep(SECONDS)
            made = len(statements)
    assert made < QUEUES / 4, f"{made} statements in {SECONDS} s, to watch {QUEUES} queues of another session"


async def test_a_session_watches_as_many_queues_as_the_server_has_room_for(
    sql18: Sql, database18: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sessions share the table of locks. If it is full, calls of all programs fail."""
    row = sql18.execute(calls.ROOM_FOR_LOCKS).fetchone()
    assert row is not None
    monkeypatch.setattr(listener, "SHARE_OF_LOCKS", 20.5 / row[0])
    ran: dict[str, float] = {}
    app = app_of(30, ran)
    async with working(app, database18):
        await is_idle(sql18, 10)
        sent = time.monotonic()
        for at in range(30):
            await app.tasks[f"q{at}"].enqueue_async()
        await holds(lambda: len(ran) == 30, "all have run", 10)
        assert max(ran.values()) - sent < 2.5, "a look comes every second or so"
        await is_idle(sql18, 10)


async def test_messages_that_notify_nobody_are_found_by_the_next_look(sql18: Sql, database18: str) -> None:
    ran: dict[str, float] = {}
    app = app_of(50, ran)
    sql18.execute("select penstock.declare_queue('q' || n) from generate_series(0, 49) n")
    sql18.execute("select penstock.alter_queue('q' || n, notify => false) from generate_series(0, 49) n")
    async with working(app, database18):
        await asyncio.sleep(3)
        sent: dict[str, float] = {}
        for at in (0, 17, 49):
            await app.tasks[f"q{at}"].enqueue_async()
            sent[f"q{at}"] = time.monotonic()
            await asyncio.sleep(0.3)
        await holds(lambda: len(ran) == 3, "all have run", 5)
    late = {name: ran[name] - sent[name] for name in sent}
    assert max(late.values()) < 2.5, f"a look comes every second or so: {late}"


async def test_a_queue_that_notifies_is_served_at_once_beside_many_idle_ones(
    sql18: Sql, database18: str
) -> None:
    ran: dict[str, float] = {}
    app = app_of(QUEUES, ran)
    async with working(app, database18):
        await is_idle(sql18, QUEUES)
        took = []
        for at in range(10):
            await app.tasks[f"q{at}"].enqueue_async()
            sent = time.monotonic()
            await holds(lambda name=f"q{at}": name in ran, "it has run", 5)  # type: ignore[misc]
            took.append(ran[f"q{at}"] - sent)
    assert sorted(took)[5] < 0.3, took


async def test_a_deleted_queue_is_declared_anew_although_others_are_idle(sql18: Sql, database18: str) -> None:
    ran: dict[str, float] = {}
    app = app_of(5, ran)
    async with working(app, database18):
        await asyncio.sleep(1)
        sql18.execute("select penstock.delete_queue('q3')")

        def is_back() -> bool:
            return sql18.execute("select from penstock.queues where name = 'q3'").fetchone() is not None

        await holds(is_back, "the queue is declared anew", 10)
        await app.tasks["q3"].enqueue_async()
        await holds(lambda: "q3" in ran, "it has run", 5)


async def test_a_notification_concerns_the_watch_of_its_queue_alone(
    sql18: Sql, database18: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 60
    sql18.execute("select penstock.create_queue('q' || n) from generate_series(1, %s) n", [number])
    async with AsyncClient(database18) as client:
        got: list[str] = []

        async def consume(name: str) -> None:
            async for message in client.consume(name):
                async with message:
                    got.append(name)

        tasks = [asyncio.ensure_future(consume(f"q{at}")) for at in range(1, number + 1)]
        try:
            await is_idle(sql18, number)
            examined: list[str] = []
            wanted: property = vars(Watch)["wanted"]

            def counted(self: Watch) -> Any:
                examined.append(self.queue_name)
                return wanted.__get__(self)

            await asyncio.sleep(1)
            monkeypatch.setattr(Watch, "wanted", property(counted))
            sql18.execute("select penstock.send_message('q7', '1')")
            await holds(lambda: got == ["q7"], "the message came", 5)
            assert set(examined) == {"q7"}, f"{len(examined)} examinations"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("how", ["revoked", "deleted"])
async def test_a_queue_that_is_lost_does_not_cost_the_leases_of_the_others(
    sql18: Sql, database18: str, how: str
) -> None:
    app, lost, kept = App(), asyncio.Event(), asyncio.Event()
    begun: list[float] = []

    @app.task(queue="lost")
    async def loses() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            lost.set()

    @app.task(queue="kept")
    async def keeps() -> None:
        begun.append(time.monotonic())
        await asyncio.sleep(6)
        kept.set()

    worker, other = (f"{name}_{sql18.info.dbname}" for name in ("worker", "other"))
    sql18.execute(f"create role {worker} login; create role {other}".encode())
    try:
        sql18.execute(f"grant penstock_consumer, penstock_publisher to {worker}".encode())
        sql18.execute("select penstock.declare_queue(name) from unnest(array['lost', 'kept']) name")
        async with working(app, database18.replace("postgres@", f"{worker}@"), lease=2):
            await keeps.enqueue_async()
            await loses.enqueue_async()
            await holds(lambda: count_active(sql18) == 2, "both have begun")
            if how == "revoked":
                sql18.execute("select penstock.grant_queue(%s, 'lost', 'consume')", [other])
            else:
                sql18.execute("select penstock.delete_queue('lost')")
            await asyncio.wait_for(lost.wait(), 5)
            await asyncio.wait_for(kept.wait(), 20)
            assert len(begun) == 1, "its lease was lost"
    finally:
        sql18.execute("select penstock.delete_queue('lost')")
        sql18.execute(f"drop role {other}; drop owned by {worker}; drop role {worker}".encode())


def count_active(sql: Sql) -> int:
    row = sql.execute("select count(*) from penstock.active").fetchone()
    assert row is not None
    return int(row[0])
