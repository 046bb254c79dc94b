"""Settling and other calls while connections fail: retried, and no success where the outcome is unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Client, ConnectionLost, DatabaseUnavailable, DeliveryUnknown, LeaseLost, Receipt
from tests.embedded.processes import eventually
from tests.failures.clients import MakeClient
from tests.failures.conftest import Sql, terminate
from tests.failures.proxy import Cut, Proxy

Settle = Callable[[Any], None]

WAYS: dict[str, tuple[str, Settle, str]] = {
    "ack": ("ack_message", lambda message: message.ack(), "done"),
    "nack": ("nack_message", lambda message: message.nack(delay=60), "scheduled"),
    "release": ("release_message", lambda message: message.release(), "ready"),
    "reject": ("reject_message", lambda message: message.reject("no"), "dead"),
}
ALL_WAYS = pytest.mark.parametrize("way", list(WAYS))


@pytest.fixture
def client(make_client: MakeClient, proxied: str, queue: str, sql18: Sql) -> Client:
    """A client that is connected through the proxy; what is done stays to be seen."""
    sql18.execute("select penstock.alter_queue(%s, retain_completed_seconds => 3600)", (queue,))
    client = make_client(proxied, maintain=False, retry_for=1)
    client.open()
    return client


def claim(client: Client, queue: str, payload: object = "work") -> Any:
    """A message that was just claimed."""
    client.send(queue, payload)
    message = client.consume_one(queue, visibility_timeout=60)
    assert message is not None
    return message


def states(sql: Sql, queue: str) -> list[str]:
    """The states of all messages of a queue."""
    found = sql.execute("select state from penstock.list_messages(%s) order by message_id", (queue,))
    return [state for (state,) in found]


@ALL_WAYS
def test_what_did_not_arrive_is_done_again(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, way: str
) -> None:
    function, settle, state = WAYS[way]
    message = claim(client, queue)
    trap = proxy.cut_at(message.token, Cut.BEFORE, times=2)
    settle(message)
    assert trap.times == 0
    assert states(sql18, queue) == [state]
    with pytest.raises(LeaseLost, match=function):
        settle(message)


@ALL_WAYS
def test_what_was_done_and_not_heard_of_is_neither_lost_nor_a_success(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, way: str
) -> None:
    _, settle, state = WAYS[way]
    message = claim(client, queue)
    trap = proxy.cut_at(message.token, Cut.AFTER)
    with pytest.raises(ConnectionLost, match="not known") as caught:
        settle(message)
    assert not isinstance(caught.value, DeliveryUnknown)
    assert trap.times == 0
    assert states(sql18, queue) == [state]


def test_an_ack_that_is_too_late_is_no_success(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, connect18: Callable[[], Sql]
) -> None:
    """The first attempt does not arrive, and another consumer has the message by the second."""
    message = claim(client, queue)

    def take_away() -> None:
        with connect18() as other:
            other.execute("select penstock.release_message(%s, %s, %s)", (queue, message.id, message.token))
            other.execute("select penstock.consume_messages_batch(%s, 'other')", (queue,))

    proxy.cut_at(message.token, Cut.BEFORE, then=take_away)
    with pytest.raises((ConnectionLost, LeaseLost)):
        message.ack()
    assert states(sql18, queue) == ["active"]


def test_an_ack_whose_answer_never_comes_says_that_it_may_be_done(
    client: Client, queue: str, proxy: Proxy, sql18: Sql
) -> None:
    message = claim(client, queue)
    proxy.cut_at(message.token, Cut.AFTER, then=proxy.refuse)
    with pytest.raises(ConnectionLost):
        message.ack()
    assert states(sql18, queue) == ["done"]


def test_an_ack_to_an_unreachable_server_is_not_sent(
    client: Client, queue: str, proxy: Proxy, sql18: Sql
) -> None:
    message = claim(client, queue)
    proxy.refuse()
    proxy.cut()
    with pytest.raises(DatabaseUnavailable) as caught:
        message.ack()
    assert not isinstance(caught.value, ConnectionLost)
    proxy.admit()
    message.ack()
    assert states(sql18, queue) == ["done"]


@pytest.mark.parametrize("cut", list(Cut), ids=["not committed", "committed"])
def test_many_acks(client: Client, queue: str, proxy: Proxy, sql18: Sql, cut: Cut) -> None:
    client.send_many(queue, range(5))
    messages = client.consume_batch(queue, batch_size=5, visibility_timeout=60)
    proxy.cut_at("ack_messages", cut)
    receipts = [message.receipt for message in messages]
    if cut is Cut.BEFORE:
        client.ack_many(receipts)
    else:
        with pytest.raises(ConnectionLost):
            client.ack_many(receipts)
    assert states(sql18, queue) == ["done"] * 5


def test_a_block_whose_ack_is_lost_is_not_nacked(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is the connection's, not the handler's."""
    message = claim(client, queue)
    proxy.cut_at(message.token, Cut.AFTER)
    with message:
        pass
    assert states(sql18, queue) == ["done"]
    assert [record.levelname for record in caplog.records if record.name == "penstock"] == ["WARNING"]
    assert "not known" in caplog.text


@pytest.mark.parametrize("cut", list(Cut), ids=["not committed", "committed"])
def test_a_claim_whose_answer_is_lost_comes_back_when_its_lease_is_over(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, cut: Cut
) -> None:
    client.send(queue, 1)
    proxy.cut_at("consume_messages_batch", cut)
    message = client.consume_one(queue, visibility_timeout=1)
    if cut is Cut.AFTER:
        assert message is None, "the first attempt has it"
        found = eventually_claimed(client, queue)
        assert found.attempt == 2
    else:
        assert message is not None
        assert message.attempt == 1


def eventually_claimed(client: Client, queue: str) -> Any:
    """The next message, once its former lease is over."""
    found: list[Any] = []

    def claimed() -> bool:
        client.maintain()
        found.extend(client.consume_batch(queue))
        return bool(found)

    eventually(claimed, "it comes back")
    return found[0]


@pytest.mark.parametrize("cut", list(Cut), ids=["not committed", "committed"])
def test_other_calls_are_just_repeated(client: Client, proxy: Proxy, cut: Cut) -> None:
    for name in (
        "create_topic",
        "create_queue",
        "alter_queue",
        "list_queues",
        "get_queue_statistics",
        "pulse",
    ):
        proxy.cut_at(f"penstock.{name}(", cut)
    number = client.create_topic("t")
    assert client.create_topic("t") == number
    created = client.create_queue("new", topic="t", max_delivery_attempts=7)
    assert client.create_queue("new", topic="t", max_delivery_attempts=7) == created
    client.alter_queue("new", max_delivery_attempts=8)
    assert {queue.name: queue.max_delivery_attempts for queue in client.list_queues()}["new"] == 8
    assert len(client.get_queue_statistics("new")) == 1
    assert client.pulse("no_holder", 10) == 0


@pytest.mark.parametrize("cut", list(Cut), ids=["not committed", "committed"])
def test_an_extension_is_repeated(client: Client, queue: str, proxy: Proxy, cut: Cut) -> None:
    message = claim(client, queue)
    before = message.leased_until
    proxy.cut_at("batch_extend_message_vt", cut)
    after = message.extend(30)
    assert after == message.leased_until
    assert (after - before).total_seconds() >= 29


@pytest.mark.parametrize("cut", list(Cut), ids=["not committed", "committed"])
def test_what_would_delete_more_a_second_time_is_left_to_the_caller(
    client: Client, queue: str, proxy: Proxy, sql18: Sql, cut: Cut
) -> None:
    client.send(queue, 1)
    proxy.cut_at("purge_queue", cut)
    with pytest.raises(ConnectionLost) as caught:
        client.purge_queue(queue)
    assert not isinstance(caught.value, DeliveryUnknown)
    assert states(sql18, queue) == ([] if cut is Cut.AFTER else ["ready"])


def test_a_cancellation_that_may_be_done_is_neither_true_nor_false(
    client: Client, queue: str, proxy: Proxy, sql18: Sql
) -> None:
    number = client.send(queue, 1)
    proxy.cut_at("cancel_message", Cut.AFTER)
    with pytest.raises(ConnectionLost):
        client.cancel_message(queue, number)
    assert states(sql18, queue) == []


def test_a_receipt_works_over_any_connection(client: Client, queue: str, proxy: Proxy, sql18: Sql) -> None:
    message = claim(client, queue)
    terminate(sql18)
    eventually(lambda: proxy.connections == 0, "all was forwarded")
    client.ack(Receipt(queue, message.id, message.token))
    assert states(sql18, queue) == ["done"]
