# Written by tools/unasync.py from tests/client/asynchronous/test_connections.py:
# change that, run `make generate`.

"""The client itself: its connections, and its end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from penstock import Client, ClientClosed, DatabaseUnavailable
from tests.client.both import Running, until
from tests.client.conftest import Activity


def test_a_closed_client_says_so(database18: str) -> None:
    client = Client(database18)
    client.create_queue("q")
    client.close()
    client.close()
    for attempt in (client.open, client.list_queues):
        with pytest.raises(ClientClosed):
            attempt()
    with pytest.raises(ClientClosed), client.transaction():
        pass
    begun = time.monotonic()
    with pytest.raises(ClientClosed):
        for _ in client.consume("q", wait=10):
            pass
    assert time.monotonic() - begun < 5, "there is nothing to wait for"


def test_it_connects_at_the_first_call(database18: str) -> None:
    client = Client(database18)
    assert client.list_queues() == []
    client.close()


def test_no_connection_is_left(database18: str, activity18: Activity) -> None:
    # By a name of their own: connections that another test gave up may still be on their way.
    dsn = make_conninfo(database18, application_name="counted")
    with Client(dsn) as client:
        client.list_queues()
        assert activity18.count(name="counted") == 1
        with Client(dsn) as another:
            another.list_queues()
            assert activity18.count(name="counted") == 2
        until(lambda: activity18.count(name="counted") == 1)
    until(lambda: activity18.count(name="counted") == 0)


def test_so_many_connections_and_no_more(database18: str) -> None:
    with Client(database18, max_connections=1, connection_timeout=0.1) as client:
        with client.transaction() as transaction:
            assert transaction.list_queues() == []
            with pytest.raises(DatabaseUnavailable, match="all 1 connections") as caught:
                client.list_queues()
        assert "max_connections" in (caught.value.hint or "")
        assert client.list_queues() == []


def test_a_call_is_one_round_trip(database18: str, tmp_path: Path) -> None:
    """Of a prepared statement, without a transaction around it."""
    with Client(database18) as client:
        client.create_topic("t")
        client.create_queue("q", topic="t")

        def four_calls() -> None:
            client.send("q", {"a": 1}, headers={"b": "c"})
            client.publish("t", {"a": 1})
            message = client.consume_one("q")
            assert message is not None
            message.ack()

        for _ in range(3):
            four_calls()
        with client.transaction() as transaction:
            pgconn = transaction.connection.pgconn  # of the connection that is used next
        trace = tmp_path / "trace"
        with trace.open("w") as file:
            pgconn.trace(file.fileno())
            four_calls()
            pgconn.untrace()
    # Of each line: the time, who sent it, how many bytes, and which message it is.
    sent = [line.split("\t")[3] for line in trace.read_text().splitlines() if line.split("\t")[1] == "F"]
    assert sent == ["Bind", "Describe", "Execute", "Sync"] * 4


def test_a_waiting_caller_gets_the_connection_that_comes_back(database18: str) -> None:
    with Client(database18, max_connections=1) as client:
        with client.transaction() as transaction:
            waiting = Running(client.list_queues)
            transaction.create_queue("q")
            assert not waiting.is_done()
        assert [queue.name for queue in waiting.result()] == ["q"]


def test_a_client_tells_where_it_leads_without_the_password() -> None:
    client = Client("postgresql://me:secret@example.org/db")
    assert "example.org" in repr(client)
    assert "secret" not in repr(client)
