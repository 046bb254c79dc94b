"""Consumers while connections fail: patient, quiet, and never at work on what is not theirs any more."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

import pytest

from penstock import AsyncClient, Client, DatabaseUnavailable, LeaseLost
from penstock.embedded import Server
from tests.embedded.processes import eventually
from tests.failures.clients import MakeClient, sync_clients
from tests.failures.conftest import Sql, terminate
from tests.failures.proxy import Cut, Proxy
from tests.failures.test_listener import streams, told


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "penstock")
    return caplog


@pytest.fixture
def client(make_client: MakeClient, proxied: str, queue: str) -> Client:
    return make_client(proxied)


def send(sql: Sql, *payloads: int) -> None:
    for payload in payloads:
        sql.execute("select penstock.send_message('q', %s)", (str(payload),))


def test_a_consumer_that_waits_for_ever_survives_an_outage(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, log: pytest.LogCaptureFixture
) -> None:
    with streams(client, queue) as (stream,):
        send(sql18, 1)
        assert stream.next() == 1
        proxy.refuse()
        proxy.cut()
        eventually(lambda: told(log, "waiting for the database"), "it is noticed")
        send(sql18, 2, 3)
        # Several attempts, all in vain.
        assert not threading.Event().wait(1.2)
        proxy.admit()
        assert [stream.next(), stream.next()] == [2, 3]
        send(sql18, 4)
        assert stream.next() == 4
    assert told(log, "waiting for the database, to consume from 'q'") == 1
    assert told(log, "consuming from 'q' again") == 1


def test_a_second_outage_is_reported_again(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, log: pytest.LogCaptureFixture
) -> None:
    """Also where nothing came in between."""
    with streams(client, queue) as (stream,):
        for number in (1, 2):
            proxy.refuse()
            proxy.cut()
            eventually(partial(is_told, log, "waiting for the database", number), "it is noticed", 8)
            proxy.admit()
            eventually(partial(is_told, log, "consuming from 'q' again", number), "it is back", 8)
        send(sql18, 1)
        assert stream.next() == 1


def is_told(log: pytest.LogCaptureFixture, text: str, times: int) -> bool:
    return told(log, text) == times


def test_a_restart_is_survived(
    make_client: MakeClient,
    victim: Server,
    victim_sql: Callable[[], Sql],
    log: pytest.LogCaptureFixture,
) -> None:
    client = make_client(victim.tcp_dsn())
    with streams(client, "q", "q") as (one, two):
        send(victim_sql(), 1)
        eventually(lambda: one._got.qsize() + two._got.qsize() == 1, "it arrives")
        for mode in ("fast", "immediate"):
            victim_sql().execute("checkpoint")
            victim.stop(mode)
            victim.start()
        send(victim_sql(), 2, 3)
        eventually(lambda: one._got.qsize() + two._got.qsize() == 3, "they arrive", 10)


def test_a_terminated_backend_is_not_noticed(
    client: Client, queue: str, sql18: Sql, log: pytest.LogCaptureFixture
) -> None:
    """Messages come as if nothing had happened, between and during claims."""
    with streams(client, queue) as (stream,):
        for number in range(6):
            send(sql18, number)
            assert stream.next() == number
            terminate(sql18)


@pytest.mark.parametrize("wait", [0, 1])
def test_a_consumer_that_waits_for_a_while_gets_an_error_at_its_end(
    client: Client, queue: str, proxy: Proxy, log: pytest.LogCaptureFixture, wait: float
) -> None:
    client.open()
    proxy.refuse()
    proxy.cut()
    begin = time.monotonic()
    with pytest.raises(DatabaseUnavailable, match="refused"):
        next(iter(client.consume(queue, wait=wait)))
    assert wait <= time.monotonic() - begin < wait + 6, "not the ten seconds of retry_for"
    assert told(log, "waiting for the database") == (1 if wait else 0)


def test_a_consumer_that_waits_for_a_while_goes_on_when_the_server_is_back(
    client: Client, queue: str, proxy: Proxy, sql18: Sql
) -> None:
    client.open()
    send(sql18, 1)
    proxy.refuse()
    proxy.cut()
    timer = threading.Timer(0.5, proxy.admit)
    timer.start()
    assert [message.payload for message in client.consume(queue, wait=1.5, batch_size=1)] == [1]
    timer.join()


def test_a_consumer_can_be_stopped_during_an_outage(client: Client, queue: str, proxy: Proxy) -> None:
    with streams(client, queue):
        eventually(lambda: proxy.connections >= 2, "it listens")
        proxy.refuse()
        proxy.cut()
        begin = time.monotonic()
    assert time.monotonic() - begin < 3


def test_unread_messages_are_forgotten_quietly_when_there_is_no_connection(
    make_client: MakeClient, proxied: str, queue: str, proxy: Proxy, sql18: Sql
) -> None:
    """They come back when their leases are over; to leave the loop must not take long, nor raise."""
    client = make_client(proxied)
    send(sql18, *range(10))
    consumer = client.consume(queue, wait=0, batch_size=10, visibility_timeout=1)
    begin = 0.0
    for message in consumer:
        assert message.payload == 0
        proxy.refuse()
        proxy.cut()
        begin = time.monotonic()
        break
    consumer.close()
    assert time.monotonic() - begin < 5
    proxy.admit()
    got = [message.payload for message in islice(client.consume(queue, wait=20), 10)]
    assert sorted(got) == list(range(10))


# Leases


def is_extended(message: Any, until: datetime) -> bool:
    return bool(message.leased_until > until)


def is_lost_or(message: Any, other: Callable[[], bool]) -> bool:
    return bool(message.is_lost) or other()


def test_a_lease_is_kept_over_a_cut(make_client: MakeClient, proxied: str, queue: str, proxy: Proxy) -> None:
    client = make_client(proxied)
    client.send(queue, 1)
    consumer = client.consume(queue, wait=0, visibility_timeout=3, auto_extend=True, reraise=True)
    for message in consumer:
        with message:
            until = message.leased_until
            proxy.cut()
            eventually(partial(is_extended, message, until), "it is extended", 10)
            proxy.cut()
            until = message.leased_until
            eventually(partial(is_extended, message, until), "it is extended", 10)
            assert not message.is_lost
    assert client.get_queue_statistics(queue)[0].processing_count == 0


def test_a_lease_that_cannot_be_kept_is_lost(
    proxied: str, queue: str, proxy: Proxy, sql18: Sql, log: pytest.LogCaptureFixture
) -> None:
    """Frozen: no error ever comes, and the message says in time that it is lost; another gets it."""
    taken: list[bool] = []

    def take() -> bool:
        taken.append(is_taken(sql18))
        return any(taken)

    with sync_clients() as make:
        client = make(proxied, retry_for=0)
        client.send(queue, 1)
        lease, late, was_lost = time.monotonic() + 1, -1.0, False
        for message in client.consume(queue, wait=0, visibility_timeout=1, auto_extend=True, batch_size=1):
            proxy.freeze()
            with message:
                eventually(partial(is_lost_or, message, take), "its lease is over", 10)
                late, was_lost = time.monotonic() - lease, message.is_lost
                eventually(take, "another consumer gets it", 10)
                proxy.cut()
                proxy.thaw()
            break
        assert late > -0.1
        assert was_lost, "however soon another consumer gets it"
        assert client.get_queue_statistics(queue)[0].processing_count == 1, "not acked"
    assert told(log, "the lease on") == 1


def is_taken(sql: Sql) -> bool:
    sql.execute("select penstock.maintain()")
    return sql.execute("select from penstock.consume_messages_batch('q', 'other')").rowcount == 1


async def test_a_block_whose_lease_cannot_be_kept_is_cancelled(
    proxied: str, queue: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    outcome: list[Any] = []
    async with AsyncClient(proxied, retry_for=0) as client:
        await client.send(queue, 1)
        lease = time.monotonic() + 1
        async for message in client.consume(
            queue, wait=0, visibility_timeout=1, auto_extend=True, batch_size=1
        ):
            proxy.freeze()
            async with message:
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    outcome.append(time.monotonic() - lease)
                    raise
            proxy.cut()
            proxy.thaw()
            assert message.is_lost
            break
    assert len(outcome) == 1
    assert -0.1 < outcome[0] < 5, "not at the end of its sleep"
    assert "could not be kept: the block was cancelled" in caplog.text


async def test_the_task_around_such_a_block_lives_on(proxied: str, queue: str, proxy: Proxy) -> None:
    async with AsyncClient(proxied, retry_for=0) as client:
        await client.send(queue, 1)
        async for message in client.consume(
            queue, wait=0, visibility_timeout=1, auto_extend=True, reraise=True, batch_size=1
        ):
            proxy.freeze()
            with pytest.raises(LeaseLost, match="cancelled"):
                async with message:
                    await asyncio.sleep(10)
            proxy.cut()
            proxy.thaw()
            break
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)


def test_a_claim_whose_answer_was_lost_is_delivered_again(
    client: Client, queue: str, proxy: Proxy, sql18: Sql
) -> None:
    send(sql18, 1, 2)
    client.open()
    trap = proxy.cut_at("consume_messages_batch", Cut.AFTER)
    got = []
    for message in client.consume(queue, wait=3, visibility_timeout=1):
        message.ack()
        got.append((message.payload, message.attempt))
        if len(got) == 2:
            break
    assert trap.times == 0
    assert sorted(got) == [(1, 2), (2, 2)]
