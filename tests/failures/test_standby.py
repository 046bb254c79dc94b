"""A standby that does not confirm, and a server that takes no changes: failovers, as a client sees them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from penstock import Client, ConnectionLost, DatabaseUnavailable, NotReplicated, Receipt
from penstock._sync.connections import Own
from penstock.deadlines import WatchedConnection
from penstock.embedded import Server
from penstock.sql_call import Call, Repeat
from tests.embedded.processes import eventually
from tests.failures.clients import MakeClient
from tests.failures.conftest import Sql, count_in, payloads_in, port_of, through
from tests.failures.proxy import Cut, Proxy

# A publisher that waits for the standby.
WAITING = "select pid from pg_stat_activity where wait_event = 'SyncRep' and application_name = 'penstock'"


class Attempt:
    """A call in a thread, and how it ended."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as exc:
            self.error = exc

    def finish(self) -> BaseException | None:
        self._thread.join(15)
        assert not self._thread.is_alive()
        return self.error

    def is_alive(self) -> bool:
        return self._thread.is_alive()


def change(sql: Sql, setting: str, value: str) -> None:
    """Change a setting of the running server, and wait until it holds."""
    sql.execute(f"alter system set {setting} = '{value}'".encode())
    sql.execute("select pg_reload_conf()")
    eventually(lambda: shown(sql, setting) == value, f"{setting} is {value}")


def shown(sql: Sql, setting: str) -> str:
    (value,) = sql.execute(f"show {setting}".encode()).fetchone() or ("",)
    return str(value)


@pytest.fixture
def sql(victim_sql: Callable[[], Sql]) -> Sql:
    """A session that does not wait for standbys, and may always write."""
    sql = victim_sql()
    sql.execute("set synchronous_commit = local")
    return sql


@pytest.fixture
def ghost(victim: Server, sql: Sql) -> Iterator[Server]:
    """A server whose only synchronous standby does not exist."""
    change(sql, "synchronous_standby_names", "ghost")
    yield victim
    # Sessions that still wait are released.
    sql.execute("alter system reset synchronous_standby_names")
    sql.execute("select pg_reload_conf()")


@pytest.fixture
def client(make_client: MakeClient, ghost: Server) -> Client:
    client = make_client(ghost.tcp_dsn(), maintain=False)
    client.open()
    return client


def end_wait(sql: Sql, how: str) -> None:
    """Wait for a publisher that waits for the standby, and end its wait."""
    end = f"select pg_{how}_backend(pid) from ({WAITING}) w".encode()
    eventually(lambda: sql.execute(end).rowcount, "it waits")


def test_the_publisher_waits_for_the_standby(client: Client, sql: Sql) -> None:
    attempt = Attempt(lambda: client.send("q", 1))
    eventually(lambda: sql.execute(WAITING.encode()).rowcount, "it waits")
    assert attempt.is_alive()
    sql.execute("alter system reset synchronous_standby_names")
    sql.execute("select pg_reload_conf()")
    assert attempt.finish() is None
    assert isinstance(attempt.result, int)


CALLS: dict[str, Callable[[Client], Any]] = {
    "send": lambda client: client.send("q", 1),
    "send with a key": lambda client: client.send("q", 1, dedup_key="a"),
    "publish_many": lambda client: client.publish_many("q", [1]),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_a_cancelled_wait_is_reported(client: Client, sql: Sql, name: str) -> None:
    attempt = Attempt(lambda: CALLS[name](client))
    end_wait(sql, "cancel")
    error = attempt.finish()
    assert isinstance(error, NotReplicated)
    assert "has taken effect" in str(error)
    assert payloads_in(sql) == [1], "and not tried again"


def test_a_terminated_wait_is_reported(client: Client, sql: Sql) -> None:
    """The server says why before it ends the session: it is known that the message is published."""
    attempt = Attempt(lambda: client.send("q", 1))
    end_wait(sql, "terminate")
    error = attempt.finish()
    assert isinstance(error, NotReplicated)
    assert payloads_in(sql) == [1]


def test_a_transaction_that_was_not_replicated(client: Client, sql: Sql) -> None:
    def run() -> None:
        with client.transaction() as transaction:
            transaction.send("q", 1)
            transaction.send("q", 2)

    attempt = Attempt(run)
    end_wait(sql, "cancel")
    assert isinstance(attempt.finish(), NotReplicated)
    assert payloads_in(sql) == [1, 2]


@pytest.mark.parametrize("atomic", [False, True])
def test_many_that_were_not_replicated_are_published_nevertheless(
    client: Client, sql: Sql, atomic: bool
) -> None:
    attempt = Attempt(lambda: client.send_many("q", range(2500), atomic=atomic))
    end_wait(sql, "cancel")
    error = attempt.finish()
    assert isinstance(error, NotReplicated)
    assert count_in(sql) == 2500
    assert len(error.published) == 2500, "they have taken effect"


def test_a_call_after_that_is_like_any_other(client: Client, sql: Sql) -> None:
    attempt = Attempt(lambda: client.send("q", 1))
    end_wait(sql, "cancel")
    assert isinstance(attempt.finish(), NotReplicated)
    assert isinstance(client.clock().year, int)
    sql.execute("alter system reset synchronous_standby_names")
    sql.execute("select pg_reload_conf()")
    client.send("q", 2)
    assert payloads_in(sql) == [1, 2]


def test_an_ack_that_was_not_replicated(client: Client, sql: Sql) -> None:
    sql.execute("select penstock.send_message('q', '1')")
    sql.execute("select penstock.consume_messages_batch('q', 'mine')")
    found = sql.execute("select message_id from penstock.list_messages('q')").fetchone()
    assert found is not None
    attempt = Attempt(lambda: client.ack(Receipt("q", found[0], "mine")))
    end_wait(sql, "cancel")
    assert isinstance(attempt.finish(), NotReplicated)
    assert sql.execute("select processing_count from penstock.get_queue_statistics('q')").fetchone() == (0,)


@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_a_consumer_survives_a_claim_that_was_not_replicated(
    make_client: MakeClient, ghost: Server, sql: Sql, how: str
) -> None:
    """As when the primary is stopped for a failover. The message comes again when its lease is over."""
    client = make_client(ghost.tcp_dsn(), maintain=False)
    sql.execute("select penstock.send_message('q', '1')")
    got: list[Any] = []

    def consume() -> None:
        for message in client.consume("q", visibility_timeout=1):
            got.append((message.payload, message.attempt))
            break

    attempt = Attempt(consume)
    end_wait(sql, how)
    sql.execute("alter system reset synchronous_standby_names")
    sql.execute("select pg_reload_conf()")
    assert attempt.finish() is None
    assert got == [(1, 2)]


def test_a_client_without_warnings_is_warned_nevertheless(
    make_client: MakeClient, ghost: Server, sql: Sql
) -> None:
    client = make_client(f"{ghost.tcp_dsn()}?options=-c%20client_min_messages%3Derror", maintain=False)
    client.open()
    attempt = Attempt(lambda: client.send("q", 1))
    end_wait(sql, "cancel")
    assert isinstance(attempt.finish(), NotReplicated)


def test_a_warning_that_means_something_else_is_none(tcp_dsn: str) -> None:
    """Ours is told by where in the server it comes from, not by being a warning, nor by its text."""
    connection = WatchedConnection.connect(tcp_dsn, autocommit=True)
    connection.execute(
        "create function pg_temp.warn() returns void language plpgsql as "
        "$$ begin raise warning 'canceling wait for synchronous replication due to user request'; end $$"
    )
    own = Own(connection)
    own.fetch(Call("warn", "select pg_temp.warn()", (), len, Repeat.SAFE))
    assert not own.unreplicated
    assert own.is_reusable
    connection.close()


# A server that takes no changes


@pytest.fixture
def turn(victim: Server, sql: Sql) -> Iterator[Callable[[bool], None]]:
    """Lets the server take no changes, or take them again."""
    sql.execute("set default_transaction_read_only = off")

    def turn(off: bool) -> None:
        sql.execute(f"alter system set default_transaction_read_only = {'on' if off else 'off'}".encode())
        sql.execute("select pg_reload_conf()")
        # Sessions look at their settings between statements; a new one has them at once.
        eventually(lambda: read_only(victim) == ("on" if off else "off"), "the setting holds")

    yield turn
    turn(False)


def read_only(server: Server) -> str:
    with psycopg.connect(server.dsn()) as fresh:
        return shown(fresh, "default_transaction_read_only")


def test_publishing_waits_for_a_server_that_takes_changes(
    make_client: MakeClient, victim: Server, sql: Sql, turn: Callable[[bool], None]
) -> None:
    client = make_client(victim.tcp_dsn(), maintain=False)
    client.send("q", 1)
    turn(True)
    attempts = [Attempt(lambda: client.send("q", 2)), Attempt(lambda: client.send_many("q", [3, 4]))]
    assert not threading.Event().wait(0.6)
    assert all(attempt.is_alive() for attempt in attempts)
    turn(False)
    assert [attempt.finish() for attempt in attempts] == [None, None]
    assert sorted(payloads_in(sql)) == [1, 2, 3, 4]


def test_it_gives_up_after_a_while_and_nothing_is_published(
    make_client: MakeClient, victim: Server, sql: Sql, turn: Callable[[bool], None]
) -> None:
    client = make_client(victim.tcp_dsn(), maintain=False, retry_for=0.7)
    client.send("q", 1)
    turn(True)
    begin = time.monotonic()
    with pytest.raises(DatabaseUnavailable, match="takes no changes now") as caught:
        client.send("q", 2)
    assert 0.3 < time.monotonic() - begin < 6, "not the ten seconds that it takes by default"
    assert not isinstance(caught.value, ConnectionLost)
    with pytest.raises(DatabaseUnavailable, match="takes no changes now") as caught:
        client.send_many("q", range(2500))
    assert caught.value.published == ()
    turn(False)
    client.send("q", 3)
    assert payloads_in(sql) == [1, 3]


def test_consuming_goes_on_when_the_server_takes_changes_again(
    make_client: MakeClient, victim: Server, sql: Sql, turn: Callable[[bool], None]
) -> None:
    client = make_client(victim.tcp_dsn())
    client.send("q", 1)
    turn(True)
    got: list[Any] = []

    def consume() -> None:
        for message in client.consume("q", wait=5):
            message.ack()
            got.append(message.payload)
            break

    attempt = Attempt(consume)
    assert not threading.Event().wait(0.6)
    assert attempt.is_alive()
    turn(False)
    assert attempt.finish() is None
    assert got == [1]


def test_a_failover_under_the_same_address(
    make_client: MakeClient, victim: Server, sql: Sql, turn: Callable[[bool], None]
) -> None:
    """The connection is cut during the call, and a standby answers for a while: nothing twice."""
    proxy = Proxy(lambda: port_of(victim.tcp_dsn()))
    try:
        client = make_client(through(victim.tcp_dsn(), proxy.port), maintain=False)
        client.open()
        proxy.cut_at("once", Cut.AFTER, then=lambda: turn(True))
        attempt = Attempt(lambda: client.send("q", "once", dedup_key="a"))
        assert not threading.Event().wait(0.6)
        assert attempt.is_alive()
        turn(False)
        assert attempt.finish() is None
        assert payloads_in(sql) == ["once"]
    finally:
        proxy.close()
