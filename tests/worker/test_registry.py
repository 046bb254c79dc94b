"""The registry of workers: a row for each worker while it lives, seldom written."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import psycopg
import pytest

from penstock import App, __version__
from penstock.worker import registry
from tests.worker.stage import PATIENCE, Stage, move_clock, one, working

Sql = psycopg.Connection[Any]


async def test_the_list_shows_a_worker_with_what_it_runs_until_it_ends(
    database18: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "BEAT_SECONDS", 0.1)
    app, go_on = App(), asyncio.Event()

    @app.task(queue="q")
    async def wait() -> None:
        await go_on.wait()

    @app.task
    def other() -> None:
        """In a queue that is not worked on."""

    async with working(app, database18, queues=["q"], concurrency=7):
        handle = await wait.enqueue_async()
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while not (listed := await app.async_client.list_workers()) or not listed[0].running:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)
        (found,) = listed
        assert (found.hostname, found.pid, found.version) == (socket.gethostname(), os.getpid(), __version__)
        assert (found.queues, found.tasks, found.concurrency) == (("q",), ("wait",), 7)
        assert (found.is_alive, found.stopping, found.held) == (True, False, 1)
        assert isinstance(found.running, list)
        (shown,) = found.running
        assert (shown["task"], shown["queue"], shown["message_id"]) == ("wait", "q", handle.id)
        go_on.set()
    with app.connected_to(database18):
        assert await app.async_client.list_workers() == []
        await app.aclose()


async def test_a_worker_that_has_started_is_in_the_list(database18: str, sql18: Sql) -> None:
    """Also where its entry takes a while."""
    sql18.execute(
        """
        create function linger() returns trigger language plpgsql
            as $$ begin perform pg_catalog.pg_sleep(0.3); return new; end $$;
        create trigger linger before insert on penstock.workers for each row execute function linger();
        """
    )
    app = App()

    @app.task(queue="q")
    async def nothing() -> None:
        """Never called."""

    async with working(app, database18):
        (found,) = await app.async_client.list_workers()
        assert found.pid == os.getpid()


def test_a_worker_is_not_written_of_often_and_not_alive_when_it_was_killed(stage: Stage, sql18: Sql) -> None:
    sql18.execute(
        """
        create table writes (at timestamptz default clock_timestamp());
        create function note() returns trigger language plpgsql security definer set search_path = public
            as $$ begin insert into public.writes default values; return null; end $$;
        create trigger note after insert or update on penstock.workers for each row execute function note();
        """
    )
    stage.write(
        """
        @app.task
        async def quick():
            pass
        """
    )
    worker = stage.worker()
    client = stage.app.client
    for _ in range(5):
        stage.app.tasks["quick"].enqueue_many([{}] * 500)
        stage.until(lambda: client.get_queue_statistics("default")[0].pending_count == 0, "all are done")
    assert one(sql18, "select count(*) from writes") <= 1 + one(
        sql18, "select extract(epoch from clock_timestamp() - min(at))::int / 5 from writes"
    )
    (listed,) = client.list_workers()
    assert (listed.pid, listed.is_alive) == (worker.pid, True)
    worker.kill()
    move_clock(sql18, 31)
    (listed,) = client.list_workers()
    assert (listed.pid, listed.is_alive) == (worker.pid, False)
