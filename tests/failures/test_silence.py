"""A connection falls silent: TCP keeps it open, and nothing is forwarded any more. No call waits for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

import penstock._async.connections
import penstock._sync.connections
from penstock import App, AsyncClient, Client, ConnectionLost, DatabaseUnavailable, DeliveryUnknown
from penstock.errors import InvalidArgument
from tests.embedded.processes import eventually
from tests.failures.clients import MakeClient
from tests.failures.conftest import Sql
from tests.failures.proxy import Cut, Proxy
from tests.failures.test_settle import claim, states

# The deadline of these clients, and how much later a busy machine may notice.
TIMEOUT = 1.0
SLACK = 8.0

SAID = "did not answer"


@pytest.fixture
def client(make_client: MakeClient, proxied: str, queue: str) -> Client:
    """A client that is connected through the proxy, and tries nothing again."""
    client = make_client(proxied, maintain=False, call_timeout=TIMEOUT, retry_for=0)
    client.open()
    client.list_queues()
    return client


@pytest.fixture
def patient(make_client: MakeClient, proxied: str, queue: str, sql18: Sql) -> Client:
    """One that tries again what may be repeated; what is done stays to be seen."""
    sql18.execute("select penstock.alter_queue(%s, retain_completed_seconds => 3600)", (queue,))
    client = make_client(proxied, maintain=False, call_timeout=TIMEOUT, retry_for=5)
    client.list_queues()
    return client


@contextmanager
def ends_in_time(at_least: float = TIMEOUT, at_most: float = TIMEOUT) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert at_least - 0.1 <= time.monotonic() - began < at_most + SLACK


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the client has complained of."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "penstock" and record.levelname == "WARNING"
    ]


CALLS: dict[str, Callable[[Client, str], object]] = {
    "list_queues": lambda client, _queue: client.list_queues(),
    "consume_messages_batch": lambda client, queue: client.consume_batch(queue),
    "pulse": lambda client, _queue: client.pulse("me", 30),
    "maintain": lambda client, _queue: client.maintain(),
    "clock": lambda client, _queue: client.clock(),
}
PUBLISHES: dict[str, Callable[[Client, str], object]] = {
    "send_message": lambda client, queue: client.send(queue, 1),
    "publish_message": lambda client, queue: client.publish(queue, 1),
    "send_messages": lambda client, queue: client.send_many(queue, range(3000)),
    "publish_messages": lambda client, queue: client.publish_many(queue, [1, 2]),
}


@pytest.mark.parametrize("function", list(CALLS))
def test_a_call_ends_and_the_next_one_has_a_new_connection(
    client: Client, queue: str, proxy: Proxy, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.silence()
    with ends_in_time(), pytest.raises(ConnectionLost, match=f"{SAID} {function} for 1 seconds") as caught:
        CALLS[function](client, queue)
    assert not isinstance(caught.value, DeliveryUnknown)
    accepted = proxy.accepted
    CALLS[function](client, queue)
    assert proxy.accepted == accepted + 1
    (line,) = warnings(caplog)
    assert f"{SAID} {function} for 1 seconds" in line
    assert "makes a new one" in line


@pytest.mark.parametrize("function", list(PUBLISHES))
@pytest.mark.parametrize("cut", list(Cut), ids=["not committed", "committed"])
def test_whether_a_message_was_published_is_not_known(
    client: Client, queue: str, proxy: Proxy, function: str, cut: Cut
) -> None:
    proxy.silence_at("COMMIT" if function == "send_messages" else f"penstock.{function}(", cut)
    with ends_in_time(), pytest.raises(DeliveryUnknown, match=f"{SAID} {function}"):
        PUBLISHES[function](client, queue)
    PUBLISHES[function](client, queue)


def test_a_publish_with_a_key_is_repeated_over_a_new_connection(
    patient: Client, queue: str, proxy: Proxy, sql18: Sql
) -> None:
    proxy.silence()
    with ends_in_time():
        assert patient.send(queue, 1, dedup_key="one") is not None
    assert states(sql18, queue) == ["ready"]


def test_a_claim_is_repeated_over_a_new_connection(patient: Client, queue: str, proxy: Proxy) -> None:
    patient.send(queue, 1)
    proxy.silence()
    with ends_in_time():
        message = patient.consume_one(queue)
    assert message is not None
    assert message.attempt == 1


def test_an_ack_that_did_not_arrive_is_done_again(
    patient: Client, queue: str, proxy: Proxy, sql18: Sql
) -> None:
    message = claim(patient, queue)
    proxy.silence()
    with ends_in_time():
        message.ack()
    assert states(sql18, queue) == ["done"]


def test_an_ack_whose_answer_never_comes_may_be_done(
    patient: Client, queue: str, proxy: Proxy, sql18: Sql
) -> None:
    message = claim(patient, queue)
    proxy.silence_at(message.token, Cut.AFTER)
    with ends_in_time(), pytest.raises(ConnectionLost, match="not known"):
        message.ack()
    assert states(sql18, queue) == ["done"]


# Everything is silent, new connections as well


@pytest.mark.slow
def test_nothing_is_forwarded_at_all(
    make_client: MakeClient, proxied: str, queue: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(f"{proxied}&connect_timeout=2", maintain=False, call_timeout=TIMEOUT, retry_for=3)
    client.list_queues()
    proxy.freeze()
    with ends_in_time(at_most=TIMEOUT + 3 + 2), pytest.raises(ConnectionLost, match=SAID):
        client.list_queues()
    with ends_in_time(at_least=2, at_most=3 + 2), pytest.raises(DatabaseUnavailable, match="timeout"):
        client.send(queue, 1)
    proxy.thaw()
    client.send(queue, 1)
    assert len(warnings(caplog)) == 1


def test_a_port_that_accepts_and_says_nothing(make_client: MakeClient, proxied: str, proxy: Proxy) -> None:
    client = make_client(f"{proxied}&connect_timeout=2", maintain=False)
    proxy.freeze()
    with ends_in_time(at_least=2, at_most=2), pytest.raises(DatabaseUnavailable, match="timeout"):
        client.open()
    proxy.thaw()
    client.open()


# What a client does with a connection by itself


def test_the_first_question_over_a_connection(
    make_client: MakeClient, proxied: str, queue: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(proxied, maintain=False, call_timeout=TIMEOUT, retry_for=0)
    proxy.silence_at("pg_backend_pid", Cut.BEFORE)
    with ends_in_time(), pytest.raises(DatabaseUnavailable, match=f"{SAID} session") as caught:
        client.open()
    assert not isinstance(caught.value, ConnectionLost)
    client.open()
    assert len(warnings(caplog)) == 1


def test_what_is_set_on_each_connection(
    make_client: MakeClient, proxied: str, queue: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    strict = f"{proxied}&options=-c%20default_transaction_isolation%3Dserializable"
    client = make_client(strict, maintain=False, call_timeout=TIMEOUT, retry_for=5)
    proxy.silence_at("set default_transaction_isolation", Cut.BEFORE)
    with ends_in_time():
        client.send(queue, 1)
    (line,) = warnings(caplog)
    assert "set default_transaction_isolation" in line


def test_an_idle_connection_is_asked_and_does_not_answer(
    client: Client,
    queue: str,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (penstock._async.connections, penstock._sync.connections):
        monkeypatch.setattr(module, "PROBE_AFTER_SECONDS", 0.0)
    proxy.silence()
    with ends_in_time():
        client.send(queue, 1)
    (line,) = warnings(caplog)
    assert f"{SAID} select 1" in line


def test_connections_that_were_idle_all_the_while_are_not_tried(
    make_client: MakeClient, proxied: str, queue: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them would cost a call its deadline."""
    client = make_client(proxied, maintain=False, max_connections=3, call_timeout=TIMEOUT, retry_for=0)
    client.open()
    with client.transaction() as first, client.transaction() as second:
        first.send(queue, 1)
        second.send(queue, 2)
    assert proxy.connections == 2
    proxy.silence()
    with pytest.raises(DeliveryUnknown):
        client.send(queue, 3)
    began = time.monotonic()
    client.send(queue, 4)
    client.send(queue, 5)
    assert time.monotonic() - began < TIMEOUT
    assert len(warnings(caplog)) == 1


def test_connections_that_fall_silent_together_are_one_line(
    make_client: MakeClient, proxied: str, queue: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(proxied, maintain=False, max_connections=3, call_timeout=TIMEOUT, retry_for=0)
    client.open()
    with client.transaction() as first, client.transaction() as second:
        first.send(queue, 1)
        second.send(queue, 2)
        proxy.silence()
        for transaction in (first, second):
            with pytest.raises(psycopg.OperationalError, match=SAID):
                transaction.send(queue, 3)
    assert len(warnings(caplog)) == 1


# Transactions


@pytest.mark.parametrize("statement", ["BEGIN", "COMMIT", "ROLLBACK"])
def test_begin_and_end_of_a_transaction(
    client: Client, proxy: Proxy, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    # After a rollback that never came to its end the error is the caller's own.
    error = ZeroDivisionError if statement == "ROLLBACK" else ConnectionLost
    proxy.silence_at(statement, Cut.BEFORE)
    with ends_in_time(), pytest.raises(error), client.transaction() as transaction:
        transaction.list_topics() if statement != "ROLLBACK" else 1 / 0
    with client.transaction() as transaction:
        transaction.list_topics()
    (line,) = warnings(caplog)
    assert f"{SAID} {statement.lower()}" in line


def test_a_call_in_a_transaction(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.silence_at("send_message", Cut.BEFORE)
    with (
        ends_in_time(),
        pytest.raises(ConnectionLost, match=f"{SAID} send_message"),
        client.transaction() as transaction,
    ):
        transaction.send(queue, 1)
    assert states(sql18, queue) == []
    assert len(warnings(caplog)) == 1


def test_statements_of_the_caller_have_no_deadline(proxied: str, queue: str, sql18: Sql) -> None:
    with Client(proxied, maintain=False, call_timeout=TIMEOUT) as client, client.transaction() as transaction:
        transaction.send(queue, 1)
        transaction.connection.execute("select pg_sleep(2)")
        transaction.send(queue, 2)
    assert states(sql18, queue) == ["ready", "ready"]


async def test_awaited_statements_of_the_caller_have_no_deadline(
    proxied: str, queue: str, sql18: Sql
) -> None:
    async with (
        AsyncClient(proxied, maintain=False, call_timeout=TIMEOUT) as client,
        client.transaction() as transaction,
    ):
        await transaction.send(queue, 1)
        await transaction.connection.execute("select pg_sleep(2)")
        await transaction.send(queue, 2)
    assert states(sql18, queue) == ["ready", "ready"]


# What takes long for a reason


def test_a_slow_line_is_not_a_silent_one(
    make_client: MakeClient, proxied: str, queue: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Each way takes longer than the deadline."""
    proxy.trickle(0.05)
    client = make_client(proxied, maintain=False, call_timeout=TIMEOUT, retry_for=0)
    client.open()
    payload = "x" * 4_000_000
    began = time.monotonic()
    client.send(queue, payload)
    sent = time.monotonic()
    message = client.consume_one(queue)
    assert message is not None
    assert message.payload == payload
    assert min(sent - began, time.monotonic() - sent) > 2 * TIMEOUT
    assert warnings(caplog) == []


def test_a_line_that_falls_silent_in_the_middle_of_a_large_payload(
    client: Client, queue: str, proxy: Proxy
) -> None:
    """What is left in the buffers of the socket is not waited for."""
    proxy.silence()
    with ends_in_time(), pytest.raises(DeliveryUnknown, match=SAID):
        client.send(queue, "x" * 30_000_000)
    client.send(queue, 1)


LONG_CALLS: dict[str, Callable[[Client, str], object]] = {
    "purge_queue": lambda client, queue: client.purge_queue(queue),
    "purge_dlq": lambda client, queue: client.purge_dlq(queue),
    "delete_queue": lambda client, queue: client.delete_queue(queue),
    "alter_queue": lambda client, queue: client.alter_queue(queue, max_active=5),
    "create_queue": lambda client, _queue: client.create_queue("new"),
    "requeue_dlq_messages": lambda client, queue: client.requeue_dlq_messages(queue),
}


@contextmanager
def locked(sql: Sql, seconds: float) -> Iterator[None]:
    """Whatever needs the queue waits, for so long from when the first one waits."""
    waiting = """
        select from pg_stat_activity
        where datname = current_database() and application_name = 'penstock' and wait_event_type = 'Lock'
    """
    begun = threading.Event()

    def is_awaited() -> bool:
        sql.execute("select pg_stat_clear_snapshot()")
        return sql.execute(waiting).fetchone() is not None

    def hold() -> None:
        with sql.transaction():
            sql.execute("lock table penstock.queues, penstock.dead, penstock.ready in access exclusive mode")
            begun.set()
            eventually(is_awaited, "a call waits")
            time.sleep(seconds)

    holder = threading.Thread(target=hold)
    holder.start()
    begun.wait()
    try:
        yield
    finally:
        holder.join()


@pytest.mark.parametrize("function", list(LONG_CALLS))
def test_what_may_take_long_is_not_cut(
    client: Client, queue: str, connect18: Callable[[], Sql], function: str
) -> None:
    with locked(connect18(), 1.5 * TIMEOUT):
        LONG_CALLS[function](client, queue)


def test_what_may_not_is_cut(client: Client, queue: str, connect18: Callable[[], Sql]) -> None:
    """The server is there, but keeps silent over the call all the same."""
    with locked(connect18(), 2.5 * TIMEOUT), pytest.raises(DeliveryUnknown, match=SAID):
        client.send(queue, 1)


def test_without_a_deadline_a_call_waits(
    make_client: MakeClient, proxied: str, queue: str, connect18: Callable[[], Sql]
) -> None:
    client = make_client(proxied, maintain=False, call_timeout=None, retry_for=0)
    client.open()
    with locked(connect18(), 2.5 * TIMEOUT):
        client.send(queue, 1)


# Consumers


def test_a_consumer_goes_on(
    make_client: MakeClient, proxied: str, queue: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(proxied, maintain=False, call_timeout=TIMEOUT)
    found: list[Any] = []
    client.send(queue, 1)
    for message in client.consume(queue, wait=20):
        message.ack()
        found.append(message.payload)
        if len(found) == 2:
            break
        proxy.silence()
        client.send(queue, 2, dedup_key="two")
    assert found == [1, 2]
    assert sum(SAID in line for line in warnings(caplog)) == 1


def test_a_lease_is_kept_over_a_new_connection(
    make_client: MakeClient, proxied: str, queue: str, proxy: Proxy
) -> None:
    """However long other calls may take: the second attempt comes before the lease is over."""
    client = make_client(proxied, maintain=False, call_timeout=30)
    client.send(queue, 1)
    message: Any = next(iter(client.consume(queue, visibility_timeout=6, auto_extend=True, wait=20)))
    with message:
        proxy.silence_at("batch_extend_message_vt", Cut.BEFORE)
        before = message.leased_until
        eventually(lambda: message.leased_until > before, "the lease is extended", 20)
        assert not message.is_lost


async def test_a_task_that_is_cancelled_meanwhile_ends(proxied: str, queue: str, proxy: Proxy) -> None:
    async with AsyncClient(proxied, maintain=False, call_timeout=TIMEOUT, retry_for=0) as client:
        await client.send(queue, 1)
        trap = proxy.silence_at("send_message", Cut.BEFORE)
        sending = asyncio.create_task(client.send(queue, 2))
        while trap.times:
            await asyncio.sleep(0.01)
        sending.cancel()
        done, _ = await asyncio.wait({sending}, timeout=15)
        assert done, "it hangs"
        assert sending.cancelled()
        await client.send(queue, 3)


@pytest.mark.parametrize("value", [0, -1, "1", True])
def test_an_app_takes_a_deadline_or_none(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"call_timeout.*{value!r}"):
        App(call_timeout=value)
    assert App(call_timeout=None).clients.call_timeout is None
    assert App(call_timeout=2).client._call_timeout == 2
    assert App().client._call_timeout == 30
