"""One client for many: forked processes, threads and tasks, and those that are cancelled."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import AsyncClient, Client, ClientClosed, DatabaseUnavailable
from tests.embedded.processes import eventually
from tests.failures.clients import MakeClient
from tests.failures.conftest import Sql, backends, count_in
from tests.failures.proxy import Proxy
from tests.failures.test_pgbouncer import in_threads

FORKING = Path(__file__).with_name("forking.py")

IN_TRANSACTION = """
select pid from pg_stat_activity where datname = current_database() and application_name = 'penstock'
and (state <> 'idle' or xact_start is not null)
"""


def busy(sql: Sql) -> int:
    """How many sessions of clients are in a transaction or at work."""
    return sql.execute(IN_TRANSACTION.encode()).rowcount


@pytest.mark.parametrize("mode", ["calls", "consumers", "leaves"])
def test_a_client_outlives_a_fork(tcp_dsn: str, queue: str, sql18: Sql, mode: str) -> None:
    sql18.execute("select penstock.create_queue('kept')")
    done = subprocess.run(
        [sys.executable, FORKING, tcp_dsn, mode], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0)
    if mode == "calls":
        assert count_in(sql18) == 101


def test_sixteen_threads_on_four_connections(
    make_client: MakeClient, tcp_dsn: str, queue: str, sql18: Sql
) -> None:
    client = make_client(tcp_dsn, max_connections=4)
    most = 0

    def work() -> None:
        nonlocal most
        for number in range(20):
            client.send(queue, number)
            with client.transaction() as transaction:
                transaction.send(queue, number)
                most = max(most, len(backends(sql18))) if number == 10 else most

    in_threads(*[work] * 16)
    assert count_in(sql18) == 640
    assert 1 <= most <= 4
    assert busy(sql18) == 0


def test_waiting_too_long_for_a_connection_raises(
    make_client: MakeClient, tcp_dsn: str, queue: str, sql18: Sql
) -> None:
    """Patience with a server that is away is another thing."""
    client = make_client(tcp_dsn, max_connections=2, connection_timeout=0.3)
    with client.transaction(), client.transaction():
        begin = time.monotonic()
        with pytest.raises(
            DatabaseUnavailable, match="all 2 connections of this client were in use"
        ) as caught:
            client.send(queue, 1)
        assert 0.25 < time.monotonic() - begin < 6, "not the ten seconds of retry_for"
        assert "max_connections" in (caught.value.hint or "")
    client.send(queue, 2)
    assert count_in(sql18) == 1


def test_a_waiting_caller_gets_a_connection_as_soon_as_there_is_one(
    make_client: MakeClient, tcp_dsn: str, queue: str
) -> None:
    client = make_client(tcp_dsn, max_connections=1)
    done = threading.Event()

    def send() -> None:
        client.send(queue, 1)
        done.set()

    with client.transaction() as transaction:
        transaction.clock()
        thread = threading.Thread(target=send)
        thread.start()
        assert not done.wait(0.2)
    assert done.wait(2)
    thread.join()


def test_connections_that_could_not_be_made_are_not_counted(
    make_client: MakeClient, proxied: str, queue: str, proxy: Proxy, sql18: Sql
) -> None:
    client = make_client(proxied, max_connections=2, retry_for=0, connection_timeout=1)
    client.open()
    proxy.refuse()
    proxy.cut()
    for _ in range(5):
        with pytest.raises(DatabaseUnavailable, match="refused"):
            client.send(queue, 1)
    proxy.admit()
    in_threads(*[lambda: client.send(queue, 2)] * 4)
    assert count_in(sql18) == 4


def test_a_closed_client_says_so(make_client: MakeClient, tcp_dsn: str, queue: str) -> None:
    client = make_client(tcp_dsn)
    client.open()
    client.close()
    begin = time.monotonic()
    for call in (
        lambda: client.send(queue, 1),
        client.open,
        lambda: next(iter(client.consume(queue, wait=5))),
    ):
        with pytest.raises(ClientClosed):
            call()
    assert time.monotonic() - begin < 1


def test_closing_while_others_wait_for_the_server(
    make_client: MakeClient, proxied: str, queue: str, proxy: Proxy
) -> None:
    """A caller that retries does not go on for long after the client was closed."""
    client = make_client(proxied, retry_for=30)
    client.open()
    proxy.refuse()
    proxy.cut()
    failures: list[Exception] = []

    def send() -> None:
        try:
            client.send(queue, 1)
        except DatabaseUnavailable as exc:
            failures.append(exc)

    thread = threading.Thread(target=send)
    thread.start()
    assert not threading.Event().wait(0.2)
    client.close()
    thread.join(4)
    assert not thread.is_alive()
    assert len(failures) == 1


# Tasks


async def test_many_tasks_on_four_connections(tcp_dsn: str, queue: str, sql18: Sql) -> None:
    async with AsyncClient(tcp_dsn, max_connections=4) as client:

        async def work(number: int) -> None:
            await client.send(queue, number)
            async with client.transaction() as transaction:
                await transaction.send(queue, number)

        await asyncio.gather(*[work(number) for number in range(100)])
        assert 1 <= len(backends(sql18)) <= 4
    assert count_in(sql18) == 200


class Blocked:
    """Keeps calls waiting on the server, for a lock."""

    def __init__(self, holder: Sql, observer: Sql) -> None:
        self._holder = holder
        self._observer = observer

    def __enter__(self) -> Blocked:
        self._holder.execute("begin")
        self._holder.execute("lock table penstock.ready, penstock.scheduled in access exclusive mode")
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.execute("rollback")

    async def until_waiting(self, count: int) -> None:
        query = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        await asyncio.to_thread(
            eventually, lambda: self._observer.execute(query.encode()).rowcount == count, "they wait"
        )


@pytest.fixture
def blocked(sql18: Sql, connect18: Callable[[], Sql]) -> Blocked:
    return Blocked(connect18(), sql18)


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait for their end."""
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results), results


async def test_a_cancelled_task_leaves_the_client_usable(
    tcp_dsn: str, queue: str, sql18: Sql, blocked: Blocked
) -> None:
    async with AsyncClient(tcp_dsn, max_connections=3, connection_timeout=1) as client:

        async def in_transaction() -> None:
            async with client.transaction() as transaction:
                await transaction.send(queue, 1)

        async def many() -> None:
            await client.send_many(queue, range(5000))

        async def one() -> None:
            await client.send(queue, 1)

        for _ in range(3):
            with blocked:
                tasks = [asyncio.create_task(function()) for function in (one, in_transaction, many)]
                await blocked.until_waiting(3)
                await cancelled(*tasks)
            assert await asyncio.to_thread(count_in, sql18) == 0
        await asyncio.gather(*[client.send(queue, number) for number in range(9)])
        assert count_in(sql18) == 9
        await asyncio.to_thread(eventually, lambda: busy(sql18) == 0, "no session is in a transaction")


async def test_a_task_that_is_cancelled_while_it_waits_for_a_connection(
    tcp_dsn: str, queue: str, sql18: Sql
) -> None:
    async with AsyncClient(tcp_dsn, max_connections=1, connection_timeout=2) as client:
        async with client.transaction() as transaction:
            await transaction.clock()
            tasks = [asyncio.create_task(client.send(queue, number)) for number in range(5)]
            await asyncio.sleep(0.05)
            await cancelled(*tasks)
        await client.send(queue, 1)
    assert count_in(sql18) == 1


async def test_a_task_that_is_cancelled_while_it_connects(
    proxied: str, queue: str, proxy: Proxy, sql18: Sql
) -> None:
    async with AsyncClient(proxied, max_connections=2, connection_timeout=2) as client:
        await client.open()
        proxy.cut()
        proxy.freeze()
        tasks = [asyncio.create_task(client.send(queue, number)) for number in range(5)]
        await asyncio.sleep(0.2)
        await cancelled(*tasks)
        proxy.cut()
        proxy.thaw()
        await asyncio.gather(*[client.send(queue, number) for number in range(5)])
    assert count_in(sql18) == 5


async def test_a_consumer_that_is_cancelled_gives_back_what_it_has(
    tcp_dsn: str, queue: str, sql18: Sql
) -> None:
    async with AsyncClient(tcp_dsn) as client:
        await client.send_many(queue, range(10))
        begun = asyncio.Event()

        async def consume() -> None:
            async for message in client.consume(queue, batch_size=10):
                async with message:
                    begun.set()
                    await asyncio.sleep(30)

        task = asyncio.create_task(consume())
        await begun.wait()
        await cancelled(task)
    query = "select pending_count, processing_count from penstock.get_queue_statistics('q')"
    assert sql18.execute(query).fetchone() == (10, 0)
    assert sql18.execute("select max(delivery_attempts) from penstock.list_messages('q')").fetchone() == (0,)


async def test_a_timeout_around_a_call(tcp_dsn: str, queue: str, sql18: Sql, blocked: Blocked) -> None:
    async with AsyncClient(tcp_dsn) as client:
        with blocked:
            begin = time.monotonic()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await client.send(queue, 1)
            assert time.monotonic() - begin < 2
        await client.send(queue, 2)
    assert count_in(sql18) == 1


def test_a_blocking_client_that_is_interrupted_stays_usable(
    tcp_dsn: str, queue: str, sql18: Sql, blocked: Blocked
) -> None:
    """Ctrl-C, or any exception of a signal handler, in the middle of a call."""
    with Client(tcp_dsn, max_connections=1, connection_timeout=1) as client:
        with blocked:
            former = signal.signal(signal.SIGALRM, signal.default_int_handler)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                with pytest.raises(KeyboardInterrupt):
                    client.send(queue, 1)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, former)
        client.send(queue, 2)
        assert busy(sql18) == 0
    assert count_in(sql18) == 1
