# Written by tools/unasync.py from tests/client/asynchronous/test_trouble.py:
# change that, run `make generate`.

"""What goes wrong beside a consumer, and should not cost it: other queues, upgrades, a busy server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from penstock import Client, DatabaseUnavailable, QueueNotFound, schema
from penstock.concurrency import sleep
from penstock.embedded import Server
from tests.client.both import Running, until
from tests.conftest import Servers


@pytest.fixture
def fresh18(servers: Servers, server18: Server) -> Iterator[str]:
    """A database of its own, for tests that change settings or functions of it."""
    with servers.database(server18) as dsn:
        yield dsn


@pytest.fixture
def admin(fresh18: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(fresh18, autocommit=True) as connection:
        yield connection


def test_what_waits_for_its_turn_is_kept(client: Client) -> None:
    """With the default settings: a slow handler should not cost the rest of the batch its attempts."""
    client.create_queue("q", visibility_timeout=1, max_delivery_attempts=1)
    client.send_many("q", range(4))
    handled = []
    for message in client.consume("q", batch_size=4, wait=0):
        with message:
            sleep(0.6)
            handled.append((message.payload, message.attempt))
    assert handled == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert client.list_dlq_messages("q") == []


def test_a_queue_that_is_deleted_costs_no_other_its_leases(client: Client) -> None:
    for name in ("doomed", "other"):
        client.create_queue(name, visibility_timeout=1)
        client.send(name, 1)
    for other in client.consume("other", wait=0, auto_extend=True):
        with other:
            for doomed in client.consume("doomed", wait=0, auto_extend=True):
                with doomed:
                    client.delete_queue("doomed")
                    # Cancelled when its lease is over, or not (a thread): it is being extended until then.
                    sleep(2.5)
                break
            sleep(1.5)
            assert not other.is_lost
    assert (client.get_queue_statistics("other"))[0].completed_count == 1


def test_the_lease_extender_forgets_consumers_without_leases(client: Client) -> None:
    client.create_queue("q", visibility_timeout=1)
    client.send_many("q", range(5))
    messages = []
    for _ in range(5):
        for message in client.consume("q", batch_size=1, wait=0, auto_extend=True):
            messages.append(message)
            break
    for message in messages:
        with message:
            pass
    lease_extender: Any = client._runtime._lease_extender
    until(lambda: not lease_extender._consumers)


def test_an_upgrade_under_a_running_client(fresh18: str, admin: psycopg.Connection[Any]) -> None:
    """A function returns other columns than the statement was prepared for."""
    with Client(fresh18) as client:
        for _ in range(5):
            assert client.schema_version()
        admin.execute("alter function penstock.schema_version() rename to as_it_was")
        admin.execute(
            "create function penstock.schema_version() returns table "
            "(package_version text, migration bigint, digest text, installed_at timestamptz) "
            "language sql as $$ select * from penstock.as_it_was() $$"
        )
        assert (client.schema_version()).migration == schema.load().number


def test_a_consumer_waits_for_a_server_that_is_too_busy(
    fresh18: str, admin: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    with Client(make_conninfo(fresh18, options="-c statement_timeout=200ms")) as client:
        client.create_queue("q")
        client.send("q", 1)
        admin.execute("begin")
        admin.execute("lock table penstock.ready in access exclusive mode")
        with pytest.raises(DatabaseUnavailable, match="cannot do it now: canceling statement") as refused:
            client.consume_one("q")
        assert refused.value.sqlstate == "57014"

        def consume() -> list[Any]:
            seen = []
            for message in client.consume("q"):
                with message:
                    seen.append(message.payload)
                break
            return seen

        running = Running(consume)
        until(lambda: "waiting for the database" in caplog.text)
        admin.execute("rollback")
        assert running.result() == [1]


def test_another_encoding_of_the_session(database18: str) -> None:
    with Client(make_conninfo(database18, client_encoding="latin1")) as client:
        client.create_queue("käse")
        client.send("käse", {"price": "5 €"})
        message = client.consume_one("käse")
        assert message is not None
        assert message.payload == {"price": "5 €"}


def test_the_error_of_the_driver_is_the_cause(client: Client) -> None:
    with pytest.raises(QueueNotFound) as missing:
        client.send("nowhere", 1)
    assert isinstance(missing.value.__cause__, psycopg.Error)


def test_an_error_of_the_callers_own_keeps_its_cause(client: Client) -> None:
    client.create_queue("q")

    def payloads() -> Iterator[int]:
        yield from range(2500)
        raise RuntimeError("no more") from KeyError("x")

    with pytest.raises(RuntimeError) as broken:
        client.send_many("q", payloads())
    assert isinstance(broken.value.__cause__, KeyError)
    assert (client.get_queue_statistics("q"))[0].pending_count == 0


def test_a_default_isolation_that_is_stricter(fresh18: str, admin: psycopg.Connection[Any]) -> None:
    admin.execute(f"alter database {admin.info.dbname} set default_transaction_isolation = 'repeatable read'")
    with Client(fresh18) as client:
        client.create_queue("q")
        client.send("q", 1)
        assert client.consume_one("q") is not None
        with client.transaction() as transaction:
            cursor = transaction.connection.execute("show transaction_isolation")
            assert cursor.fetchone() == ("read committed",)
