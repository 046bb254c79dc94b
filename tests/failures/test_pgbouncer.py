"""Through a real PgBouncer in transaction mode: every statement may run on another session of the server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from penstock import App, AsyncClient, Client, LeaseLost, NewMessage
from tests.dashboard.conftest import Served
from tests.embedded.processes import eventually
from tests.failures.clients import MakeClient
from tests.failures.conftest import Sql, backends, count_in, payloads_in
from tests.failures.load import Publisher, hardy_stream, take
from tests.failures.pgbouncer import PgBouncer, pgbouncer, require_pgbouncer
from tests.failures.test_consume import is_extended
from tests.failures.test_listener import (
    POLLED_SECONDS,
    WOKEN_SECONDS,
    listening,
    pending,
    send_and_time,
    streams,
    wait_until_listening,
)

POOL_SIZE = 2


@pytest.fixture
def bouncer(tmp_path: Path, tcp_dsn: str, queue: str) -> Iterator[PgBouncer]:
    """A PgBouncer in front of the test's database, with two sessions for all."""
    program = require_pgbouncer()
    with pgbouncer(program, tcp_dsn, tmp_path, pool_size=POOL_SIZE) as one:
        yield one


@pytest.fixture
def client(make_client: MakeClient, bouncer: PgBouncer) -> Client:
    return make_client(bouncer.dsn, maintain=False)


def prepared(bouncer: PgBouncer) -> set[tuple[int, int]]:
    """The sessions behind it, each with how many statements are prepared there."""
    query = "select pg_backend_pid(), (select count(*) from pg_prepared_statements)"
    found: set[tuple[int, int]] = set()
    with (
        psycopg.connect(bouncer.dsn, prepare_threshold=None) as one,
        psycopg.connect(bouncer.dsn, prepare_threshold=None) as two,
    ):
        # Both in a transaction at once: so they are on two sessions.
        for connection in (one, two):
            row = connection.execute(query).fetchone()
            assert row is not None
            found.add(row)
    return found


def in_threads(*functions: Callable[[], Any]) -> None:
    """Run functions at once; what one of them raises is raised."""
    failures: list[BaseException] = []

    def run(function: Callable[[], Any]) -> None:
        try:
            function()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def test_all_kinds_of_calls(client: Client, queue: str, bouncer: PgBouncer, sql18: Sql) -> None:
    """Hundreds of calls of several threads hop between two sessions, and leave nothing behind there."""

    def work(number: int) -> None:
        mine = f"mine{number}"
        client.create_queue(mine, topic=queue)
        for turn in range(12):
            client.send(mine, {"turn": turn}, priority=turn % 4, tenant="t", dedup_key=f"{number} {turn}")
            client.send_many(mine, [NewMessage(1, delay=0), b"raw", "third"])
            batch = client.consume_batch(mine, batch_size=4, token=mine, visibility_timeout=30)
            assert len(batch) == 4
            batch[0].ack(result={"ok": True})
            batch[1].extend(10)
            batch[1].nack(delay=0, error="again")
            batch[2].release()
            batch[3].reject("no")
            with pytest.raises(LeaseLost):
                batch[0].ack()
            client.ack_many(client.consume_batch(mine, batch_size=100))
            with client.transaction() as transaction:
                transaction.send(mine, "in a transaction")
                transaction.ack_many(transaction.consume_batch(mine))
            assert client.get_queue_statistics(mine)[0].pending_count == 0
            client.list_dlq_messages(mine)
        client.delete_queue(mine)

    in_threads(*[lambda n=number: work(n) for number in range(4)])
    client.maintain()
    server_sessions = (
        "select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        " and backend_type = 'client backend'"
    )
    eventually(lambda: sql18.execute(server_sessions).rowcount == POOL_SIZE, "there are two sessions")
    assert {count for _, count in prepared(bouncer)} == {0}


def test_the_pooler_is_detected(make_client: MakeClient, client: Client, tcp_dsn: str) -> None:
    client.open()
    direct = make_client(tcp_dsn)
    direct.open()
    for one, is_pooled in ((client, True), (direct, False)):
        connections: Any = one._connections
        assert connections.is_pooled is is_pooled


def test_thirty_thousand(client: Client, queue: str, sql18: Sql) -> None:
    seen: list[int] = []
    assert len(set(client.publish_many(queue, range(30_000), progress=seen.append))) == 30_000
    assert seen[-1] == 30_000
    assert count_in(sql18) == 30_000


def test_all_in_one_transaction(client: Client, queue: str, sql18: Sql) -> None:
    def broken() -> Iterator[int]:
        yield from range(5000)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.send_many(queue, broken(), atomic=True)
    assert count_in(sql18) == 0
    client.send_many(queue, range(5000), atomic=True)
    assert count_in(sql18) == 5000


def test_consuming_by_polling(
    client: Client, queue: str, sql18: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    with streams(client, queue) as (stream,):
        for number in range(5):
            assert send_and_time(sql18, stream, number) < POLLED_SECONDS
        assert listening(sql18) == []
        assert not any("listen" in text.lower() for text in backends(sql18).values())
    assert caplog.text.count("PENSTOCK_LISTEN_URL") == 1, "it is said once, and what to set"


def test_listening_through_it_is_not_listening(
    make_client: MakeClient, bouncer: PgBouncer, queue: str, sql18: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(bouncer.dsn, listen_dsn=bouncer.dsn, maintain=False)
    with streams(client, queue) as (stream,):
        assert send_and_time(sql18, stream, 1) < POLLED_SECONDS
        eventually(lambda: "PENSTOCK_LISTEN_URL" in caplog.text, "it is said")


@pytest.mark.usefixtures("no_polling")
def test_consuming_with_a_listening_connection_past_it(
    make_client: MakeClient, bouncer: PgBouncer, tcp_dsn: str, queue: str, sql18: Sql
) -> None:
    client = make_client(bouncer.dsn, listen_dsn=tcp_dsn, maintain=False)
    with streams(client, queue) as (stream,):
        wait_until_listening(sql18)
        for number in range(5):
            assert send_and_time(sql18, stream, number) < WOKEN_SECONDS


def test_leases_are_kept(client: Client, queue: str) -> None:
    client.send(queue, 1)
    for message in client.consume(queue, wait=0, visibility_timeout=4, auto_extend=True, reraise=True):
        with message:
            eventually(partial(is_extended, message, message.leased_until), "it is extended")
            assert not message.is_lost
    assert client.get_queue_statistics(queue)[0].processing_count == 0


def test_a_transaction_is_on_one_session(client: Client, queue: str, sql18: Sql) -> None:
    def run(number: int) -> None:
        for turn in range(5):
            try:
                with client.transaction() as transaction:
                    transaction.send(queue, [number, turn])
                    if turn % 2:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass

    in_threads(*[lambda n=number: run(n) for number in range(6)])
    assert count_in(sql18) == 6 * 3


@pytest.mark.parametrize("as_viewer", [False, True])
def test_pages_of_the_dashboard_need_a_role_that_only_views(
    bouncer: PgBouncer, tcp_dsn: str, as_viewer: bool
) -> None:
    """There is no session to make read only: what it sets would stay behind for others."""
    options = {"viewer_dsn": bouncer.dsn} if as_viewer else {}
    served = Served(tcp_dsn if as_viewer else bouncer.dsn, **options)
    try:
        with served.client() as client:
            found = client.get("/api/v1/topics")
            assert (found.status_code, "pooler" in found.text) == (409, True), found.text
            assert client.get("/readyz").status_code == 503
    finally:
        served.stop()
    with psycopg.connect(bouncer.dsn, prepare_threshold=None) as connection:
        left = connection.execute(
            "select current_setting('role'), current_setting('default_transaction_read_only')"
        ).fetchone()
        assert left == ("none", "off")


# Workers, crowds, restarts


@pytest.mark.parametrize("listens", [True, False], ids=["listens", "polls"])
async def test_a_worker_and_its_results(
    *, bouncer: PgBouncer, tcp_dsn: str, queue: str, sql18: Sql, listens: bool
) -> None:
    app = App(bouncer.dsn, listen_dsn=tcp_dsn if listens else None)

    @app.task(queue=queue, result=True)
    async def double(x: int) -> int:
        return 2 * x

    @app.task(queue=queue, max_attempts=2, retry_delays=[0])
    async def fail() -> None:
        raise ValueError("as it should")

    async with app, penstock.Worker(app):
        handles = await double.enqueue_many_async([{"x": x} for x in range(100)])
        await fail.enqueue_async()
        assert [await handle.result_async(timeout=30) for handle in handles] == [2 * x for x in range(100)]
        eventually(lambda: dead(sql18) == 1, "it is a dead letter")
        assert bool(listening_or_watching(sql18)) is listens
    assert {count for _, count in prepared(bouncer)} == {0}


def dead(sql: Sql) -> int:
    (count,) = sql.execute("select dead_count from penstock.get_queue_statistics('q')").fetchone() or (0,)
    return int(count)


def listening_or_watching(sql: Sql) -> int:
    """How many sessions hold the lock of a queue that they watch: only a listener does."""
    return sql.execute(
        "select distinct l.pid from pg_locks l join pg_database d on d.oid = l.database"
        " where l.locktype = 'advisory' and d.datname = current_database() and l.objsubid = 1"
    ).rowcount


CROWD = 5000
CROWD_QUEUES = 50
CROWD_CLIENTS = 10
CROWD_SESSIONS = 50


@pytest.mark.slow
async def test_a_crowd_of_idle_consumers(tmp_path: Path, tcp_dsn: str, sql18: Sql) -> None:
    """Five thousand wait over fifty sessions, and each queue has its message within seconds."""
    sql18.execute(
        "select penstock.create_queue('crowd ' || i) from generate_series(1, %s) i", (CROWD_QUEUES,)
    )
    got: asyncio.Queue[str] = asyncio.Queue()
    looked = 0

    async def consume(client: AsyncClient, number: int) -> None:
        async for message in client.consume(f"crowd {1 + number % CROWD_QUEUES}"):
            await message.ack()
            got.put_nowait(message.queue_name)

    with pgbouncer(require_pgbouncer(), tcp_dsn, tmp_path, pool_size=CROWD_SESSIONS) as bouncer:
        clients = [AsyncClient(bouncer.dsn, max_connections=50) for _ in range(CROWD_CLIENTS)]
        async with AsyncExitStack() as stack:
            for client in clients:
                await stack.enter_async_context(client)
            tasks = [asyncio.create_task(consume(clients[n % CROWD_CLIENTS], n)) for n in range(CROWD)]
            while looked < CROWD:
                await asyncio.sleep(0.05)
                looked = sum(waiting(client) for client in clients)
            begin = time.monotonic()
            sql18.execute(
                "select penstock.send_message('crowd ' || i, '1') from generate_series(1, %s) i",
                (CROWD_QUEUES,),
            )
            async with asyncio.timeout(POLLED_SECONDS):
                names = {await got.get() for _ in range(CROWD_QUEUES)}
            print(f"{CROWD_QUEUES} messages came after {time.monotonic() - begin:.2f} s")
            sessions = sql18.execute(
                "select from pg_stat_activity where datname = current_database()"
                " and backend_type = 'client backend' and pid <> pg_backend_pid()"
            ).rowcount
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    assert len(names) == CROWD_QUEUES
    assert sessions <= CROWD_SESSIONS


def waiting(client: AsyncClient) -> int:
    """How many consumers of a client have looked, and wait."""
    runtime: Any = client._runtime
    return sum(consumer._watch is not None for consumer in runtime._consumers)


def test_a_restart_of_the_pooler_under_load(
    make_client: MakeClient, bouncer: PgBouncer, queue: str, sql18: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(bouncer.dsn, retry_for=60)
    with hardy_stream(client) as stream:
        publisher = Publisher(client)
        for _ in range(2):
            publisher.wait_for(30, 10)
            bouncer.stop()
            bouncer.start()
        publisher.wait_for(30, 20)
        publisher.stop()
        take(stream, publisher.sent)
        eventually(lambda: pending(sql18) == 0, "each was acknowledged")
    assert set(payloads_in(sql18)) == set(publisher.sent)
    assert sum("waiting for the database" in record.getMessage() for record in caplog.records) <= 2


def test_calls_on_a_connection_of_the_caller(bouncer: PgBouncer, queue: str, sql18: Sql) -> None:
    with (
        closing(Client(bouncer.dsn)) as client,
        psycopg.connect(bouncer.dsn, prepare_threshold=None) as connection,
    ):
        for number in range(20):
            with connection.transaction():
                client.using(connection).send(queue, number)
    assert count_in(sql18) == 20
    assert {count for _, count in prepared(bouncer)} == {0}
