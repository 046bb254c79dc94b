"""A thread sends a large message: the caller's deadline, cancellations and signals reach it all the same."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator

import pytest

import penstock
from penstock.calls import publishing
from tests.embedded.processes import eventually
from tests.failures.clients import MakeClient
from tests.failures.conftest import Sql
from tests.failures.proxy import Proxy
from tests.failures.test_settle import states
from tests.failures.test_silence import SAID, TIMEOUT, ends_in_time

BODY = bytes(range(256)) * 16_000
# More than the buffers of the sockets take.
HUGE = BODY * 5
THREAD = "penstock send"


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Messages are large from 1 MB on. No thread stays behind."""
    monkeypatch.setattr(publishing, "LARGE_BYTES", 1_000_000)
    yield
    assert not sending()


def sending() -> bool:
    return any(thread.name == THREAD for thread in threading.enumerate())


@pytest.fixture
def client(make_client: MakeClient, proxied: str, queue: str) -> penstock.Client:
    client = make_client(proxied, maintain=False, call_timeout=TIMEOUT, retry_for=0)
    client.list_queues()
    return client


def test_a_line_that_falls_silent(client: penstock.Client, queue: str, proxy: Proxy) -> None:
    proxy.silence()
    with ends_in_time(), pytest.raises(penstock.DeliveryUnknown, match=f"{SAID} send_message for 1 seconds"):
        client.send(queue, HUGE)
    client.send(queue, BODY)


def test_a_slow_line(make_client: MakeClient, proxied: str, queue: str, proxy: Proxy) -> None:
    """It takes longer than the deadline, but never stands still. The statement is large each time."""
    proxy.trickle(0.04)
    client = make_client(proxied, maintain=False, call_timeout=TIMEOUT, retry_for=0)
    client.list_queues()
    began = time.monotonic()
    for _ in range(2):
        client.send(queue, BODY)
    assert time.monotonic() - began > 2 * TIMEOUT
    proxy.trickle(0)
    assert [message.payload for message in client.consume_batch(queue, batch_size=2)] == [BODY, BODY]


def test_a_line_that_is_cut(client: penstock.Client, queue: str, proxy: Proxy, sql18: Sql) -> None:
    proxy.freeze()

    def cut() -> None:
        proxy.cut()
        proxy.thaw()

    cutter = threading.Timer(0.3, cut)
    cutter.start()
    with pytest.raises(penstock.DeliveryUnknown):
        client.send(queue, HUGE)
    cutter.join()
    assert states(sql18, queue) == []
    client.send(queue, BODY)


def test_an_error_of_the_server(client: penstock.Client, queue: str, sql18: Sql) -> None:
    sql18.execute("select penstock.alter_queue(%s, max_payload_bytes => 1000000)", (queue,))
    with pytest.raises(penstock.PayloadTooLarge):
        client.send(queue, BODY)
    client.send(queue, 1)
    assert states(sql18, queue) == ["ready"]


def test_in_a_transaction(client: penstock.Client, queue: str, sql18: Sql) -> None:
    with client.transaction() as transaction:
        transaction.send(queue, BODY)
        transaction.send(queue, 1)
        assert states(sql18, queue) == []
    assert states(sql18, queue) == ["ready", "ready"]


class Interrupted(BaseException):
    """Raised by the handler of a signal, as KeyboardInterrupt is."""


def test_a_signal(proxied: str, queue: str, proxy: Proxy, sql18: Sql) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    with penstock.Client(proxied, maintain=False) as client:
        client.list_queues()
        proxy.freeze()
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with ends_in_time(at_least=0.3), pytest.raises(Interrupted):
                client.send(queue, HUGE)
        finally:
            signal.signal(signal.SIGALRM, before)
        proxy.cut()
        proxy.thaw()
        client.send(queue, 1)
    assert states(sql18, queue) == ["ready"]


async def test_a_cancellation(proxied: str, queue: str, proxy: Proxy, sql18: Sql) -> None:
    async with penstock.AsyncClient(proxied, maintain=False) as client:
        await client.list_queues()
        proxy.freeze()
        with ends_in_time(at_least=0.3), pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.send(queue, HUGE)
        proxy.cut()
        proxy.thaw()
        await client.send(queue, 1)
    assert states(sql18, queue) == ["ready"]


async def test_the_loop_goes_on(proxied: str, queue: str, proxy: Proxy) -> None:
    async with penstock.AsyncClient(proxied, maintain=False) as client:
        await client.list_queues()
        proxy.freeze()
        task = asyncio.ensure_future(client.send(queue, HUGE))
        for _ in range(20):
            await asyncio.sleep(0.02)
        assert sending()
        proxy.thaw()
        await task


def test_small_messages_need_no_thread(client: penstock.Client, queue: str, proxy: Proxy) -> None:
    proxy.freeze()
    sender = threading.Thread(target=lambda: client.send(queue, 1))
    sender.start()
    eventually(lambda: proxy.connections == 1, "the client is connected")
    for _ in range(20):
        assert not sending()
        time.sleep(0.01)
    proxy.thaw()
    sender.join()
