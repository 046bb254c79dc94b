"""The listening connection comes back by itself, whatever happened to it, and consumers poll meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any

import pytest

from penstock import Client, InvalidArgument
from penstock.embedded import Server
from penstock.watch import Role
from tests.embedded.processes import eventually
from tests.failures.clients import MakeClient
from tests.failures.conftest import Sql, backends, port_of, terminate, through
from tests.failures.proxy import Cut, Proxy

# Without polling, a consumer that is not woken takes a minute.
WOKEN_SECONDS = 10
# Without polling, a message without a notification does not come at all.
POLLED_SECONDS = 10


class Stream:
    """A consumer in a thread: what it gets, one by one."""

    def __init__(self, client: Client, queue: str, **options: Any) -> None:
        self._consumer = client.consume(queue, **options)
        self._got: Queue[Any] = Queue()
        self._thread = threading.Thread(target=self._run, name="consumer")
        self._thread.start()

    def next(self) -> Any:
        return self._got.get(timeout=15)

    def stop(self) -> None:
        self._consumer.stop()
        self._thread.join(15)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        for message in self._consumer:
            message.ack()
            self._got.put(message.payload)


@contextmanager
def streams(client: Client, *queues: str) -> Iterator[list[Stream]]:
    """A consumer for each queue."""
    started = [Stream(client, queue) for queue in queues]
    try:
        yield started
    finally:
        for stream in started:
            stream.stop()


def listening(sql: Sql) -> list[int]:
    """The sessions of clients that listen."""
    return [pid for pid, query in backends(sql).items() if query.lower().startswith("listen ")]


def wait_until_listening(sql: Sql, *former: int) -> int:
    """The one session that listens, and is not one that did before."""
    found: list[int] = []

    def one() -> bool:
        found[:] = [pid for pid in listening(sql) if pid not in former]
        return bool(found)

    eventually(one, "the client listens")
    (pid,) = found
    return pid


def told(caplog: pytest.LogCaptureFixture, text: str) -> int:
    """How often something was logged."""
    return sum(text in record.getMessage() for record in caplog.records if record.name == "penstock")


def hurry(client: Client, *, probe: float = 0.3, answer: float = 0.3) -> None:
    """Let the client doubt its listening connection sooner than it does, or later."""
    runtime: Any = client._runtime
    runtime._listener.probe_seconds = probe
    runtime._listener.answer_seconds = answer


def send_and_time(sql: Sql, stream: Stream, payload: int) -> float:
    """Send something from elsewhere; how long it took to arrive."""
    # By then the consumer has found nothing, and waits: else it would need no waking.
    time.sleep(0.05)
    begin = time.monotonic()
    sql.execute("select penstock.send_message('q', %s)", (str(payload),))
    assert stream.next() == payload
    return time.monotonic() - begin


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "penstock")
    return caplog


@pytest.fixture
def client(make_client: MakeClient, proxied: str, tcp_dsn: str, queue: str) -> Client:
    """A client that listens through the proxy and works past it."""
    return make_client(tcp_dsn, listen_dsn=proxied, maintain=False)


def test_one_connection_listens_however_many_consumers(
    make_client: MakeClient, tcp_dsn: str, sql18: Sql
) -> None:
    client = make_client(tcp_dsn, max_connections=4, maintain=False)
    names = [f"q{number % 4}" for number in range(8)]
    for name in set(names):
        client.create_queue(name)
    with streams(client, *names):
        wait_until_listening(sql18)
        assert len(listening(sql18)) == 1
        assert len(backends(sql18)) <= 5
        for number in range(4):
            sql18.execute("select penstock.send_message(%s, '1')", (f"q{number}",))
        eventually(lambda: not pending(sql18), "all were consumed")


def pending(sql: Sql) -> int:
    row = sql.execute("select sum(pending_count + processing_count) from penstock.get_queue_statistics()")
    return int((row.fetchone() or (0,))[0])


@pytest.mark.usefixtures("no_polling")
@pytest.mark.parametrize("harm", ["cut", "terminate"])
def test_it_comes_back_after_a_cut(
    *, client: Client, queue: str, proxy: Proxy, sql18: Sql, log: pytest.LogCaptureFixture, harm: str
) -> None:
    with streams(client, queue) as (stream,):
        first = wait_until_listening(sql18)
        assert send_and_time(sql18, stream, 1) < WOKEN_SECONDS
        if harm == "cut":
            proxy.cut()
        else:
            terminate(sql18)
        second = wait_until_listening(sql18, first)
        assert send_and_time(sql18, stream, 2) < WOKEN_SECONDS
        proxy.cut()
        wait_until_listening(sql18, first, second)
        assert send_and_time(sql18, stream, 3) < WOKEN_SECONDS
    assert told(log, "not listening") == 2, "once each"
    assert told(log, "listening for messages again") == 2


def test_messages_sent_while_the_listener_was_away_are_not_waited_for(
    *,
    client: Client,
    queue: str,
    proxy: Proxy,
    sql18: Sql,
    log: pytest.LogCaptureFixture,
    stop_polling: Callable[[], None],
) -> None:
    """While the connection is away the consumer polls; it is said once, however long it takes."""
    with streams(client, queue) as (stream,):
        first = wait_until_listening(sql18)
        proxy.refuse()
        proxy.cut()
        eventually(lambda: told(log, "not listening"), "it is noticed")
        accepted = proxy.accepted
        assert [send_and_time(sql18, stream, number) < POLLED_SECONDS for number in range(3)] == [True] * 3
        assert proxy.accepted == accepted
        assert told(log, "not listening") == 1
        proxy.admit()
        wait_until_listening(sql18, first)
        stop_polling()
        send_and_time(sql18, stream, 4)
        assert send_and_time(sql18, stream, 5) < WOKEN_SECONDS
    assert told(log, "not listening") == told(log, "listening for messages again") == 1


def test_it_comes_back_after_a_freeze(
    *,
    client: Client,
    queue: str,
    proxy: Proxy,
    sql18: Sql,
    log: pytest.LogCaptureFixture,
    stop_polling: Callable[[], None],
) -> None:
    """Nothing is closed, and nothing comes any more: the probe finds out."""
    with streams(client, queue) as (stream,):
        hurry(client, answer=5)
        first = wait_until_listening_or_probing(sql18, client)
        proxy.freeze()
        # Only now: an answer that is just late is not to be taken for none.
        hurry(client, answer=0.3)
        eventually(lambda: told(log, "not listening"), "it is noticed", 10)
        hurry(client, answer=5)
        assert "no answer within 0.3 seconds" in log.text
        assert send_and_time(sql18, stream, 1) < POLLED_SECONDS
        proxy.cut()
        proxy.thaw()
        eventually(lambda: told(log, "listening for messages again"), "it is back", 15)
        wait_until_listening_or_probing(sql18, client, first)
        stop_polling()
        send_and_time(sql18, stream, 2)
        assert send_and_time(sql18, stream, 3) < WOKEN_SECONDS
    assert told(log, "not listening") == 1


def wait_until_listening_or_probing(sql: Sql, client: Client, *former: int) -> int:
    """The one session that listens; its last statement may be a probe."""

    def found() -> list[int]:
        probes = [pid for pid, query in backends(sql).items() if query.lower() == "select 1"]
        return [pid for pid in [*listening(sql), *probes] if pid not in former]

    eventually(lambda: found() and is_idle(client, "q"), "the client listens")
    return found()[0]


def is_idle(client: Client, queue: str) -> bool:
    """Whether sends notify the client."""
    runtime: Any = client._runtime
    found = runtime._listener._watches.get(queue)
    return found is not None and found[0].role is Role.IDLE


@pytest.mark.usefixtures("no_polling")
def test_a_quiet_connection_is_asked_and_kept(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, log: pytest.LogCaptureFixture
) -> None:
    with streams(client, queue) as (stream,):
        hurry(client, probe=0.1, answer=5)
        pid = wait_until_listening_or_probing(sql18, client)
        proxy.delay(0.05)

        def asked() -> bool:
            return backends(sql18).get(pid, "").lower() == "select 1"

        eventually(asked, "it is asked")
        # An answer that comes between the question and the answer is not missed.
        for number in range(10):
            assert send_and_time(sql18, stream, number) < WOKEN_SECONDS
        assert pid in backends(sql18)
    assert told(log, "not listening") == 0


def test_it_comes_back_after_the_server_did(
    make_client: MakeClient,
    victim: Server,
    victim_sql: Callable[[], Sql],
    log: pytest.LogCaptureFixture,
    stop_polling: Callable[[], None],
) -> None:
    client = make_client(victim.tcp_dsn(), maintain=False)
    sql = victim_sql()
    with streams(client, "q") as (stream,):
        first = wait_until_listening(sql)
        victim.stop()
        eventually(lambda: told(log, "not listening"), "it is noticed")
        victim.start()
        sql = victim_sql()
        wait_until_listening(sql, first)
        stop_polling()
        send_and_time(sql, stream, 1)
        assert send_and_time(sql, stream, 2) < WOKEN_SECONDS
    assert told(log, "not listening") == 1
    assert told(log, "waiting for the database") <= 1


def test_a_server_without_listen_is_reported_once(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, log: pytest.LogCaptureFixture
) -> None:
    """As on a standby: connections are made, but LISTEN fails."""
    proxy.cut_at("listen ", Cut.BEFORE, times=1000)
    with streams(client, queue) as (stream,):
        eventually(lambda: proxy.accepted >= 4, "several attempts", 10)
        assert send_and_time(sql18, stream, 1) < POLLED_SECONDS
    assert told(log, "not listening") == 1
    assert told(log, "listening for messages again") == 0


def test_a_listen_dsn_that_leads_nowhere_is_reported_and_polling_goes_on(
    *,
    make_client: MakeClient,
    tcp_dsn: str,
    queue: str,
    proxy: Proxy,
    sql18: Sql,
    log: pytest.LogCaptureFixture,
) -> None:
    proxy.refuse()
    client = make_client(tcp_dsn, listen_dsn=through(tcp_dsn, proxy.port), maintain=False)
    with streams(client, queue) as (stream,):
        eventually(lambda: told(log, "not listening"), "it is told")
        assert send_and_time(sql18, stream, 1) < POLLED_SECONDS
    assert told(log, "not listening") == 1
    assert port_of(tcp_dsn) != proxy.port


def test_a_listen_dsn_that_is_none_is_refused_at_once(make_client: MakeClient, tcp_dsn: str) -> None:
    with pytest.raises(InvalidArgument, match="does not understand listen_dsn"):
        make_client(tcp_dsn, listen_dsn="postgresql://host:port:port/name name=")


def test_a_wake_up_during_a_command_is_not_lost(client: Client, queue: str, proxy: Proxy, sql18: Sql) -> None:
    """LISTEN and UNLISTEN take their time, and meanwhile others come, and the client is closed."""
    names = [f"more{number}" for number in range(4)]
    for name in names:
        client.create_queue(name)
    with streams(client, queue):
        wait_until_listening(sql18)
        proxy.delay(0.1)
        with streams(client, *names):
            eventually(lambda: all(is_idle(client, name) for name in (queue, *names)), "all are watched", 10)
    begin = time.monotonic()
    client.close()
    assert time.monotonic() - begin < 3


def test_closing_does_not_wait_for_a_listening_connection(
    client: Client, queue: str, proxy: Proxy, sql18: Sql
) -> None:
    """Not even for a frozen listener, or without one."""
    with streams(client, queue):
        wait_until_listening(sql18)
        # A call that waited for an answer would wait for a minute.
        hurry(client, probe=60, answer=60)
        proxy.freeze()
    begin = time.monotonic()
    client.close()
    assert time.monotonic() - begin < 5


def test_closing_does_not_wait_for_a_connection_that_is_being_made(
    client: Client, queue: str, proxy: Proxy
) -> None:
    proxy.freeze()
    with streams(client, queue):
        eventually(lambda: proxy.accepted, "it tries to connect")
    begin = time.monotonic()
    client.close()
    assert time.monotonic() - begin < 3
