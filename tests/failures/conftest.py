"""Clients of both kinds, a proxy in front of the server, and a server of our own to do harm to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

import penstock.watch
from penstock import schema
from penstock.embedded import Server, throwaway
from tests.conftest import SETTINGS, Servers
from tests.embedded.processes import eventually
from tests.failures.clients import MakeClient, async_clients, sync_clients
from tests.failures.proxy import Proxy

QUEUE = "q"

Sql = psycopg.Connection[Any]


def through(dsn: str, port: int) -> str:
    """A DSN for TCP with another port, and without what would begin with a question to the server."""
    parts = urlsplit(dsn)
    host = f"{parts.username}:{parts.password}@127.0.0.1:{port}"
    return urlunsplit((parts.scheme, host, parts.path, "sslmode=disable&gssencmode=disable", ""))


def port_of(dsn: str) -> int:
    """The port that a DSN for TCP names."""
    port = urlsplit(dsn).port
    assert port is not None
    return port


@pytest.fixture(params=["sync", "async"])
def make_client(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    """Makes clients, of each kind in turn."""
    with sync_clients() if request.param == "sync" else async_clients() as make:
        yield make


@pytest.fixture
def stop_polling(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the next message on, a consumer that is not woken by a notification waits for a minute."""

    def stop() -> None:
        monkeypatch.setattr(penstock.watch, "PAUSES", (60.0,) * 5)
        monkeypatch.setattr(penstock.watch, "BUSY_EVENTS", 1000)
        monkeypatch.setattr(penstock.watch, "BEHIND_SECONDS", 60.0)

    return stop


@pytest.fixture
def no_polling(stop_polling: Callable[[], None]) -> None:
    """A consumer that is not woken by a notification waits for a minute."""
    stop_polling()


@pytest.fixture(scope="session")
def _database18(servers: Servers, server18: Server) -> Iterator[str]:
    with servers.database(server18) as dsn:
        yield dsn


@pytest.fixture
def database18(_database18: str) -> str:
    """The DSN of a database with the schema, emptied before each test: that is quicker than a new one."""
    with psycopg.connect(_database18, autocommit=True) as sql:
        empty(sql)
    return _database18


def empty(sql: Sql) -> None:
    """Remove all queues and topics, and wait until the clients of the test before are gone."""
    eventually(lambda: not backends(sql), "the clients are gone")
    sql.execute("select penstock.delete_queue(l.name) from penstock.list_queues() l")
    sql.execute("select penstock.delete_topic(l.name) from penstock.list_topics() l")


@pytest.fixture
def tcp_dsn(server18: Server, sql18: Sql) -> str:
    """The test's database by TCP."""
    return server18.tcp_dsn(sql18.info.dbname)


@pytest.fixture
def proxy(server18: Server) -> Iterator[Proxy]:
    """A proxy in front of the server."""
    with closing(Proxy(lambda: port_of(server18.tcp_dsn()))) as one:
        yield one


@pytest.fixture
def proxied(tcp_dsn: str, proxy: Proxy) -> str:
    """The test's database through the proxy."""
    return through(tcp_dsn, proxy.port)


@pytest.fixture
def queue(sql18: Sql) -> str:
    """A queue in the test's database, subscribed to the topic of the same name."""
    # The database is that of all: sessions of the test before may not have come to their end.
    terminate(sql18)
    create_queue(sql18)
    return QUEUE


def create_queue(sql: Sql) -> None:
    sql.execute("select penstock.create_topic(%s)", (QUEUE,))
    sql.execute("select penstock.create_queue(%s, topic_name => %s)", (QUEUE, QUEUE))


@pytest.fixture
def payloads(sql18: Sql) -> Callable[[], list[Any]]:
    """What is in the queue really, in any state, by order of arrival."""
    return lambda: payloads_in(sql18)


def payloads_in(sql: Sql) -> list[Any]:
    """What is in the queue, in any state, by order of arrival."""
    query = """
        select m.payload from penstock.list_messages(%s, page_size => 10000) l,
            penstock.get_message(%s, l.message_id) m order by l.message_id
    """
    return [payload for (payload,) in sql.execute(query, (QUEUE, QUEUE))]


def count_in(sql: Sql) -> int:
    """How many messages are in the queue."""
    row = sql.execute("select total_count from penstock.get_queue_statistics(%s)", (QUEUE,)).fetchone()
    assert row is not None
    return int(row[0])


# A server of our own


@pytest.fixture(scope="session")
def _victim() -> Iterator[Server]:
    with throwaway(settings=SETTINGS) as server:
        with psycopg.connect(server.dsn()) as connection:
            schema.install(connection)
        yield server


@pytest.fixture
def victim(_victim: Server) -> Iterator[Server]:
    """A server that a test may stop, start and change the settings of; its queue is empty."""
    with psycopg.connect(_victim.dsn(), autocommit=True) as sql:
        empty(sql)
        create_queue(sql)
    yield _victim
    _victim.start()
    with psycopg.connect(_victim.dsn(), autocommit=True) as sql:
        sql.execute("set default_transaction_read_only = off")
        sql.execute("set synchronous_commit = local")
        sql.execute("alter system reset all")
        sql.execute("select pg_reload_conf()")


@pytest.fixture
def victim_sql(victim: Server) -> Iterator[Callable[[], Sql]]:
    """Opens connections to that server, past any proxy; they are closed after the test."""
    with ExitStack() as stack:

        def connect() -> Sql:
            sql: Sql = psycopg.connect(victim.dsn(), autocommit=True)
            stack.callback(sql.close)
            return sql

        yield connect


def backends(sql: Sql, application: str = "penstock") -> dict[int, str]:
    """The sessions of clients in this database, with their last statement."""
    query = """
        select pid, query from pg_stat_activity
        where datname = current_database() and application_name = %s and backend_type = 'client backend'
    """
    return dict(sql.execute(query, (application,)).fetchall())


def terminate(sql: Sql, application: str = "penstock") -> int:
    """End all sessions of clients in this database, and wait until they are gone; how many there were."""
    ended = sql.execute(
        "select count(*) from (select pg_terminate_backend(pid, 10000) from pg_stat_activity "
        "where datname = current_database() and application_name = %s) t",
        (application,),
    ).fetchone()
    assert ended is not None
    count: int = ended[0]
    return count
