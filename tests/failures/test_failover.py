"""A real standby takes over: clients, consumers and workers go to the new primary, and nothing is lost."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock import App, Client, DatabaseUnavailable
from penstock.embedded import Server
from penstock.embedded.server import StopMode
from tests.embedded.processes import eventually
from tests.failures.clients import MakeClient
from tests.failures.conftest import Sql, create_queue, empty, payloads_in, port_of, through
from tests.failures.load import Publisher, hardy_stream, take
from tests.failures.pair import Pair, is_synchronous, make_pair
from tests.failures.pgbouncer import pgbouncer, require_pgbouncer
from tests.failures.proxy import Proxy
from tests.failures.test_listener import (
    WOKEN_SECONDS,
    hurry,
    is_idle,
    pending,
    send_and_time,
    streams,
    told,
)
from tests.failures.test_standby import Attempt

# From the promotion on. A client tries once a second, a worker every five seconds at the latest.
RECOVERY_SECONDS = 15
# As many as a client keeps.
MOST = 10


@pytest.fixture(scope="module")
def _pair() -> Iterator[Pair]:
    with make_pair() as pair:
        yield pair


@pytest.fixture
def pair(_pair: Pair) -> Pair:
    """A primary with a synchronous standby. Its queue is empty."""
    with psycopg.connect(_pair.primary.dsn(), autocommit=True) as sql:
        if not is_synchronous(sql):
            sql.execute("set synchronous_commit = local")
            _pair.attach()
        empty(sql)
        create_queue(sql)
    return _pair


@pytest.fixture
def sql_on() -> Iterator[Callable[[Server], Sql]]:
    """Opens connections to a server, past the clients; they are closed after the test."""
    with ExitStack() as stack:

        def connect(server: Server) -> Sql:
            return stack.enter_context(psycopg.connect(server.dsn(), autocommit=True))

        yield connect


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "penstock")
    return caplog


@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_the_standby_takes_over(
    *,
    make_client: MakeClient,
    pair: Pair,
    sql_on: Callable[[Server], Sql],
    log: pytest.LogCaptureFixture,
    stop_polling: Callable[[], None],
    mode: StopMode,
) -> None:
    """The primary is killed or stopped in the middle of the work, and comes back as a standby."""
    client = make_client(pair.dsn(), retry_for=60)
    with hardy_stream(client) as stream:
        eventually(lambda: is_idle(client, "q"), "it listens")
        publisher = Publisher(client)
        publisher.wait_for(30, 10)
        pair.fail_over(mode)
        begin = time.monotonic()
        publisher.wait_for(30, RECOVERY_SECONDS)
        publisher.stop()
        take(stream, publisher.sent)
        assert time.monotonic() - begin < RECOVERY_SECONDS
        # The first server of the DSN or the second is a standby now: clients pass over it.
        pair.attach()
        make_client(pair.dsn(keywords=True)).send("q", -1)
        assert stream.next() == -1
        eventually(lambda: is_idle(client, "q"), "it listens again")
        sql = sql_on(pair.primary)
        stop_polling()
        send_and_time(sql, stream, -2)
        assert send_and_time(sql, stream, -3) < WOKEN_SECONDS
        assert set(payloads_in(sql)) == {*publisher.sent, -1, -2, -3}, "all were there before, or are now"
        eventually(lambda: pending(sql) == 0, "each was acknowledged on the new primary")
    assert told(log, "waiting for the database") <= 1
    assert told(log, "not listening") == 1
    eventually(lambda: told(log, "listening for messages again") == 1, "it is told")


def test_a_server_that_takes_no_changes_any_more_is_left(
    *,
    make_client: MakeClient,
    pair: Pair,
    sql_on: Callable[[Server], Sql],
    log: pytest.LogCaptureFixture,
    stop_polling: Callable[[], None],
) -> None:
    """It is demoted behind connections that stay open: none of them is used again."""
    client = make_client(pair.dsn(), maintain=False)
    with streams(client, "q") as (stream,):
        hurry(client, probe=0.3, answer=5)
        eventually(lambda: is_idle(client, "q"), "it listens")
        demote(sql_on(pair.primary))
        pair.promote()
        client.send("q", 1)
        assert stream.next() == 1
        left = "not listening for messages, polling meanwhile: the server takes no changes"
        eventually(lambda: told(log, left), "the listener leaves it, too")
        eventually(lambda: is_idle(client, "q"), "it listens again")
        sql = sql_on(pair.primary)
        stop_polling()
        send_and_time(sql, stream, 2)
        assert send_and_time(sql, stream, 3) < WOKEN_SECONDS
    assert told(log, "waiting for the database") <= 1
    assert told(log, left) == 1


def test_idle_connections_to_it_are_not_tried_in_turn(
    make_client: MakeClient, pair: Pair, sql_on: Callable[[Server], Sql]
) -> None:
    # Time for five attempts.
    client = make_client(pair.dsn(), maintain=False, retry_for=1)
    with ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(client.transaction()).clock()
    demote(sql_on(pair.primary))
    pair.promote()
    client.send("q", 1)
    assert payloads_in(sql_on(pair.primary)) == [1]


def demote(sql: Sql) -> None:
    """Let the server refuse changes in all sessions, those that are open as well."""
    sql.execute("alter system set default_transaction_read_only = on")
    sql.execute("select pg_reload_conf()")
    eventually(lambda: shown(sql, "default_transaction_read_only") == "on", "the setting holds")


def shown(sql: Sql, setting: str) -> str:
    (value,) = sql.execute(f"show {setting}".encode()).fetchone() or ("",)
    return str(value)


def test_a_transaction_on_a_demoted_server_fails_once(
    make_client: MakeClient, pair: Pair, sql_on: Callable[[Server], Sql]
) -> None:
    client = make_client(pair.dsn(), maintain=False)
    client.send("q", 1)
    demote(sql_on(pair.primary))
    pair.promote()

    def send_twice() -> None:
        with client.transaction() as transaction:
            transaction.send("q", 2)
            transaction.send("q", 3)

    with pytest.raises((DatabaseUnavailable, psycopg.errors.ReadOnlySqlTransaction)):
        send_twice()
    send_twice()
    assert payloads_in(sql_on(pair.primary)) == [1, 2, 3]


def test_without_a_primary_the_error_names_all_servers(make_client: MakeClient, pair: Pair) -> None:
    pair.primary.stop()
    try:
        with pytest.raises(DatabaseUnavailable) as caught:
            make_client(pair.dsn(), maintain=False).open()
        text = str(caught.value)
        assert "session is read-only" in text
        for server in (pair.primary, pair.standby):
            assert text.count(str(port_of(server.tcp_dsn()))) >= 1
        assert "\n" not in text
    finally:
        pair.primary.start()


def test_the_order_of_hosts_in_the_environment_does_not_matter(
    make_client: MakeClient, pair: Pair, sql_on: Callable[[Server], Sql], monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = [str(port_of(server.tcp_dsn())) for server in (pair.standby, pair.primary)]
    for name in ("PENSTOCK_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "PGHOST": "127.0.0.1,127.0.0.1",
        "PGPORT": ",".join(ports),
        "PGDATABASE": "postgres",
        "PGUSER": "postgres",
        "PGPASSWORD": pair.password,
    }.items():
        monkeypatch.setenv(name, value)
    make_client(maintain=False).send("q", 1)
    assert payloads_in(sql_on(pair.primary)) == [1]
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "any")
    with pytest.raises(DatabaseUnavailable, match="takes no changes"):
        make_client(maintain=False, retry_for=0).send("q", 2)


def test_a_primary_that_falls_silent_is_left(pair: Pair, sql_on: Callable[[Server], Sql]) -> None:
    """Its machine is gone: nothing is refused, and no answer comes."""
    former = Proxy(lambda: port_of(primary.tcp_dsn()))
    primary = pair.primary
    hosts = f"127.0.0.1:{former.port},127.0.0.1:{port_of(pair.standby.tcp_dsn())}"
    dsn = f"postgresql://postgres:{pair.password}@{hosts}/postgres?connect_timeout=2&sslmode=disable"
    with closing(former), closing(Client(dsn, call_timeout=0.5, maintain=False)) as client:
        client.send("q", 1)
        former.freeze()
        pair.promote()
        begin = time.monotonic()
        client.send("q", 2, dedup_key="2")
        assert time.monotonic() - begin < RECOVERY_SECONDS
        client.send("q", 3)
    assert payloads_in(sql_on(pair.primary)) == [1, 2, 3]


def test_behind_a_pooler(
    make_client: MakeClient, pair: Pair, sql_on: Callable[[Server], Sql], tmp_path: Path
) -> None:
    """The pooler leads to a standby for a while, then to the new primary."""
    target = pair.primary
    with closing(Proxy(lambda: port_of(target.tcp_dsn()))) as proxy:
        dsn = through(pair.tcp_dsn(target), proxy.port)
        with pgbouncer(require_pgbouncer(), dsn, tmp_path, pool_size=3) as bouncer:
            client = make_client(bouncer.dsn, retry_for=60, maintain=False)
            client.send("q", 1)
            pair.fail_over("fast")
            pair.attach()
            with pytest.raises(DatabaseUnavailable, match="takes no changes"):
                make_client(bouncer.dsn, retry_for=0).send("q", 2)
            attempt = Attempt(lambda: client.send("q", 3))
            assert not threading.Event().wait(0.2)
            assert attempt.is_alive()
            target = pair.primary
            proxy.cut()
            assert attempt.finish() is None
    assert payloads_in(sql_on(pair.primary)) == [1, 3]


async def test_a_worker_goes_on(
    pair: Pair, sql_on: Callable[[Server], Sql], log: pytest.LogCaptureFixture
) -> None:
    """Its tasks, results and periodic tasks."""
    app = App(pair.dsn())
    runs: Counter[int] = Counter()
    ticks: list[float] = []

    @app.task(queue="q", result=True, unique=True)
    async def double(x: int) -> int:
        runs[x] += 1
        return 2 * x

    @app.periodic(every=1)
    @app.task(queue="q")
    async def tick() -> None:
        ticks.append(time.monotonic())

    async with app, penstock.Worker(app, lease=3):
        assert await (await double.enqueue_async(0)).result_async(timeout=20) == 0
        handles = [await double.enqueue_async(x) for x in range(1, 40)]
        await asyncio.to_thread(pair.fail_over, "immediate")
        begin = time.monotonic()
        handles += [await double.enqueue_async(x) for x in range(40, 60)]
        results = [await handle.result_async(timeout=RECOVERY_SECONDS) for handle in handles]
        assert results == [2 * x for x in range(1, 60)]
        assert time.monotonic() - begin < RECOVERY_SECONDS
        while not any(moment > begin for moment in ticks):
            await asyncio.sleep(0.05)
            assert time.monotonic() - begin < 2 * RECOVERY_SECONDS
    assert runs.keys() == set(range(60))
    warnings = [record.getMessage() for record in log.records if record.levelno >= logging.WARNING]
    for text in ("the database cannot be reached", "not listening"):
        assert sum(warning.startswith(text) for warning in warnings) == 1
    assert not any("periodic" in warning for warning in warnings)
