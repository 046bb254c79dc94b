"""Publishing while connections fail: retried where that cannot publish twice, else the caller is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import (
    Client,
    ConnectionLost,
    DatabaseUnavailable,
    DeliveryUnknown,
    NewMessage,
    PenstockError,
)
from penstock.embedded import Server
from tests.embedded.processes import eventually
from tests.failures.clients import MakeClient
from tests.failures.conftest import Sql, backends, count_in, port_of, terminate, through
from tests.failures.proxy import Cut, Proxy

Payloads = Callable[[], list[Any]]

COMMITTED_AT_ONCE = 20_000
WHERE = pytest.mark.parametrize("cut", list(Cut), ids=["not committed", "committed"])


@pytest.fixture
def client(make_client: MakeClient, proxied: str, queue: str) -> Client:
    """A client that is connected through the proxy."""
    client = make_client(proxied, maintain=False)
    client.open()
    return client


@pytest.fixture
def after() -> Iterator[Callable[[float, Callable[[], None]], None]]:
    """Does something so many seconds later."""
    timers: list[threading.Timer] = []

    def later(seconds: float, action: Callable[[], None]) -> None:
        timers.append(threading.Timer(seconds, action))
        timers[-1].start()

    yield later
    for timer in timers:
        timer.join()


# An idle connection is lost


def test_an_idle_connection_that_was_terminated_is_noticed_before_anything_is_sent(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, payloads: Payloads
) -> None:
    for number in range(5):
        client.send(queue, number)
        terminate_and_wait(sql18, proxy)
    client.send_many(queue, [5, 6])
    terminate_and_wait(sql18, proxy)
    client.publish(queue, 7)
    assert payloads() == list(range(8))


def sessions(sql: Sql) -> int:
    """How many sessions of clients there are in this database."""
    row = sql.execute(
        "select count(*) from pg_stat_activity "
        "where datname = current_database() and application_name = 'penstock'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def terminate_and_wait(sql: Sql, proxy: Proxy, count: int = 1) -> None:
    """End the sessions of the client, and wait until it could know. Sessions that it has closed end first."""
    eventually(lambda: sessions(sql) == count, f"the client has {count} sessions")
    assert terminate(sql) == count
    eventually(lambda: proxy.connections == 0, "all was forwarded")


def test_last_words_are_enough(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, payloads: Payloads
) -> None:
    """The server has said that it ends the session, and has not come to end it."""
    client.send(queue, 1)
    proxy.keep_open()
    terminate_and_wait(sql18, proxy)
    client.send(queue, 2)
    assert payloads() == [1, 2]


def test_many_idle_connections_that_were_terminated_are_all_noticed(
    make_client: MakeClient, proxied: str, queue: str, *, proxy: Proxy, sql18: Sql, payloads: Payloads
) -> None:
    client = make_client(proxied, maintain=False, max_connections=3)
    with client.transaction() as one, client.transaction() as two, client.transaction() as three:
        for transaction in (one, two, three):
            transaction.clock()
    terminate_and_wait(sql18, proxy, 3)
    client.send(queue, "once")
    assert payloads() == ["once"]


def test_an_idle_connection_that_was_cut_is_noticed(
    client: Client, queue: str, proxy: Proxy, payloads: Payloads
) -> None:
    client.send(queue, 1)
    proxy.cut()
    client.send(queue, 2)
    proxy.cut()
    client.send_many(queue, range(3, 2003))
    assert payloads() == list(range(1, 2003))


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_is_not_noticed_by_the_caller(
    make_client: MakeClient, victim: Server, victim_sql: Callable[[], Sql], mode: Any
) -> None:
    client = make_client(victim.tcp_dsn(), maintain=False)
    client.send("q", 1)
    # Not lost by the crash.
    victim_sql().execute("checkpoint")
    victim.stop(mode)
    victim.start()
    client.send("q", 2)
    assert count_in(victim_sql()) == 2


# The connection is lost after the statement was sent


@WHERE
def test_a_message_that_may_be_published_is_not_published_again(
    client: Client, queue: str, proxy: Proxy, payloads: Payloads, cut: Cut
) -> None:
    proxy.cut_at("doubtful", cut)
    with pytest.raises(DeliveryUnknown, match="whether the message is published is not known") as caught:
        client.send(queue, "doubtful")
    assert caught.value.published == ()
    assert payloads() == (["doubtful"] if cut is Cut.AFTER else [])
    client.send(queue, "next")
    assert payloads()[-1] == "next"


@WHERE
def test_so_it_is_with_publish_and_with_a_batch(
    client: Client, queue: str, proxy: Proxy, payloads: Payloads, cut: Cut
) -> None:
    proxy.cut_at("doubtful", cut, times=2)
    with pytest.raises(DeliveryUnknown):
        client.publish(queue, "doubtful")
    with pytest.raises(DeliveryUnknown):
        client.publish_many(queue, ["doubtful", "second"])
    assert payloads() == (["doubtful", "doubtful", "second"] if cut is Cut.AFTER else [])


def test_a_server_that_goes_on_after_the_connection_was_cut_publishes_nevertheless(
    *, client: Client, queue: str, proxy: Proxy, sql18: Sql, payloads: Payloads, connect18: Callable[[], Sql]
) -> None:
    """The statement waits on the server for a lock, and for the client the connection is gone meanwhile."""
    failures: list[Exception] = []

    def send() -> None:
        try:
            client.send(queue, "late")
        except DeliveryUnknown as exc:
            failures.append(exc)

    lock = connect18()
    with lock.transaction():
        lock.execute("lock table penstock.ready, penstock.scheduled in access exclusive mode")
        thread = threading.Thread(target=send)
        thread.start()
        waits = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        eventually(lambda: sql18.execute(waits.encode()).rowcount, "the server waits")
        proxy.cut()
        thread.join(5)
        assert not thread.is_alive()
        assert len(failures) == 1
    eventually(lambda: payloads() == ["late"], "it is published")


@WHERE
def test_with_a_dedup_key_it_is_tried_again_and_there_once(
    client: Client, queue: str, proxy: Proxy, payloads: Payloads, cut: Cut
) -> None:
    proxy.cut_at("unique", cut, times=3)
    number = client.send(queue, "unique", dedup_key="a")
    assert payloads() == ["unique"]
    assert client.send(queue, "unique", dedup_key="a") == number
    assert payloads() == ["unique"]


@WHERE
def test_a_batch_with_a_dedup_key_each_is_tried_again_and_there_once(
    client: Client, queue: str, proxy: Proxy, payloads: Payloads, cut: Cut
) -> None:
    proxy.cut_at("unique", cut)
    client.publish_many(queue, [NewMessage("unique", dedup_key="a"), NewMessage("second", dedup_key="b")])
    assert payloads() == ["unique", "second"]


def test_a_batch_where_one_has_no_dedup_key_is_not_tried_again(
    client: Client, queue: str, proxy: Proxy, payloads: Payloads
) -> None:
    proxy.cut_at("unique", Cut.AFTER)
    with pytest.raises(DeliveryUnknown):
        client.send_many(queue, [NewMessage("unique", dedup_key="a"), "second"])
    assert payloads() == ["unique", "second"]


def test_the_error_after_the_last_retry_says_that_it_may_be_published(
    make_client: MakeClient, proxied: str, queue: str, proxy: Proxy, payloads: Payloads
) -> None:
    """The first attempt did it, and after that there was no connection any more."""
    client = make_client(proxied, retry_for=0.5)
    client.open()
    proxy.cut_at("unique", Cut.AFTER, then=proxy.refuse)
    with pytest.raises(DeliveryUnknown):
        client.send(queue, "unique", dedup_key="a")
    assert payloads() == ["unique"]


# No server listens


def test_it_is_tried_again_until_the_server_is_back(
    client: Client, queue: str, proxy: Proxy, payloads: Payloads, after: Callable[..., None]
) -> None:
    proxy.refuse()
    proxy.cut()
    begin = time.monotonic()
    after(0.8, proxy.admit)
    client.send(queue, 1)
    assert 0.7 < time.monotonic() - begin < 5
    assert payloads() == [1]


def test_bulk_is_tried_again_too_while_nothing_is_sent(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, after: Callable[..., None]
) -> None:
    proxy.refuse()
    proxy.cut()
    after(0.5, proxy.admit)
    assert len(client.send_many(queue, range(2500))) == 2500
    assert count_in(sql18) == 2500


def test_a_server_that_is_down_for_a_while_is_waited_for(
    make_client: MakeClient,
    victim: Server,
    victim_sql: Callable[[], Sql],
    after: Callable[..., None],
) -> None:
    client = make_client(victim.tcp_dsn(), maintain=False)
    client.send("q", 1)
    victim.stop()
    after(0.5, victim.start)
    client.send("q", 2)
    assert count_in(victim_sql()) == 2


def test_after_retry_for_it_is_given_up(
    make_client: MakeClient, proxied: str, queue: str, proxy: Proxy, payloads: Payloads
) -> None:
    client = make_client(proxied, retry_for=1)
    client.open()
    proxy.refuse()
    proxy.cut()
    begin = time.monotonic()
    with pytest.raises(DatabaseUnavailable, match="refused") as caught:
        client.send(queue, 1)
    assert 0.4 < time.monotonic() - begin < 6, "not the ten seconds that it takes by default"
    assert not isinstance(caught.value, ConnectionLost), "nothing was sent"
    proxy.admit()
    assert payloads() == []
    client.send(queue, 2)
    assert payloads() == [2]


def test_the_first_connection_is_not_waited_for(
    make_client: MakeClient, proxied: str, queue: str, proxy: Proxy
) -> None:
    """A caller with a wrong address gets the error at once."""
    client = make_client(proxied)
    proxy.refuse()
    begin = time.monotonic()
    with pytest.raises(DatabaseUnavailable, match="refused"):
        client.open()
    assert time.monotonic() - begin < 6, "not the ten seconds of retry_for"
    proxy.admit()
    client.send(queue, 1)


def test_a_connection_that_is_cut_while_it_begins_is_tried_again(
    client: Client, queue: str, proxy: Proxy, payloads: Payloads
) -> None:
    proxy.cut()
    proxy.cut_at("user\0postgres", Cut.BEFORE, times=3)
    client.send(queue, 1)
    assert payloads() == [1]


def test_a_slow_server_is_just_slow(client: Client, queue: str, proxy: Proxy, payloads: Payloads) -> None:
    proxy.delay(0.05)
    client.send(queue, 1)
    assert payloads() == [1]


# Many


@pytest.mark.parametrize(("cut", "there"), [(Cut.BEFORE, 20_000), (Cut.AFTER, 21_500)])
def test_published_has_what_was_committed_before(
    *, client: Client, queue: str, proxy: Proxy, sql18: Sql, cut: Cut, there: int
) -> None:
    """The second commit is lost: of the first 20,000 it is known that they are there."""
    proxy.cut_at("COMMIT", cut, skip=1)
    with pytest.raises(DeliveryUnknown) as caught:
        client.send_many(queue, range(21_500))
    check_published(caught.value, sql18)
    assert count_in(sql18) == there


def check_published(exc: PenstockError, sql: Sql) -> None:
    """The ids that an error has are those of messages that are there."""
    assert len(exc.published) == len(set(exc.published)) == COMMITTED_AT_ONCE
    query = "select from penstock.list_messages('q', page_size => 100000) where message_id = any (%s)"
    assert sql.execute(query, (list(exc.published),)).rowcount == COMMITTED_AT_ONCE
    assert "20000 messages had been published" in "".join(exc.__notes__)


@pytest.mark.parametrize("text", ["number 1500", "number 2999", "COMMIT"])
def test_all_or_nothing(client: Client, queue: str, proxy: Proxy, sql18: Sql, text: str) -> None:
    proxy.cut_at(text, Cut.BEFORE)
    with pytest.raises(DeliveryUnknown) as caught:
        client.send_many(queue, [f"number {number}" for number in range(3000)], atomic=True)
    assert caught.value.published == ()
    eventually(lambda: not backends(sql18), "the server has noticed")
    assert count_in(sql18) == 0


def test_all_or_nothing_where_all_were_committed(
    client: Client, queue: str, proxy: Proxy, sql18: Sql
) -> None:
    proxy.cut_at("COMMIT", Cut.AFTER)
    with pytest.raises(DeliveryUnknown) as caught:
        client.send_many(queue, range(3000), atomic=True)
    assert caught.value.published == (), "not known to be"
    assert count_in(sql18) == 3000


# A transaction of our own


@WHERE
def test_a_transaction_whose_commit_is_lost(
    client: Client, queue: str, proxy: Proxy, payloads: Payloads, cut: Cut
) -> None:
    proxy.cut_at("COMMIT", cut)
    with pytest.raises(ConnectionLost, match="whether it has taken effect is not known"):  # noqa: PT012, SIM117
        with client.transaction() as transaction:
            transaction.send(queue, 1)
            transaction.publish(queue, 2)
    assert payloads() == ([1, 2] if cut is Cut.AFTER else [])
    with client.transaction() as transaction:
        transaction.send(queue, 3)
    assert payloads()[-1] == 3


@WHERE
def test_a_transaction_that_is_cut_in_the_middle(
    *, client: Client, queue: str, proxy: Proxy, payloads: Payloads, sql18: Sql, cut: Cut
) -> None:
    proxy.cut_at("second", cut)
    with pytest.raises(ConnectionLost), client.transaction() as transaction:  # noqa: PT012
        transaction.send(queue, "first")
        transaction.send(queue, "second")
    eventually(lambda: not backends(sql18), "the server has noticed")
    assert payloads() == []


def test_a_transaction_begins_on_a_connection_that_is_there(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, payloads: Payloads
) -> None:
    client.send(queue, 1)
    terminate_and_wait(sql18, proxy)
    with client.transaction() as transaction:
        transaction.send(queue, 2)
    assert payloads() == [1, 2]


def test_a_proxy_is_what_it_seems(client: Client, proxied: str, proxy: Proxy, tcp_dsn: str) -> None:
    """All of these tests go through it."""
    before = proxy.accepted
    assert port_of(proxied) == proxy.port != port_of(tcp_dsn)
    assert through(tcp_dsn, proxy.port) == proxied
    client.clock()
    assert proxy.accepted >= before > 0
    eventually(lambda: proxy.connections == 1, "the connection that the client made first is closed")
