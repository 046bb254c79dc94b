# Written by tools/unasync.py from tests/client/asynchronous/test_transactions.py:
# change that, run `make generate`.

"""client.transaction(): calls and statements take effect together or not at all."""

# ruff: noqa: PT012 - it is a whole block that raises

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from penstock import Client, InvalidArgument, LeaseLost, NewMessage, PenstockError, QueueNotFound
from tests.client.conftest import Activity
from tests.sql.engine import Engine


@pytest.fixture
def effects(engine18: Engine) -> Any:
    """A table of the user's own, and what is in it."""
    engine18.connection.execute(
        "drop table if exists public.effects; create table public.effects (n integer)"
    )

    def rows() -> list[int]:
        return [n for (n,) in engine18.query("select n from public.effects order by n")]

    yield rows
    engine18.connection.execute("drop table public.effects")


def test_commit(client: Client, engine18: Engine, effects: Any) -> None:
    engine18.topic("t", "q")
    with client.transaction() as transaction:
        first = transaction.publish("t", 1)
        second = transaction.send("q", 2)
        third = transaction.send_many("q", [3, NewMessage(4, priority=0)])
        transaction.connection.execute("insert into public.effects values (1)")
        assert engine18.states("q") == {}
        assert effects() == []
    assert engine18.states("q") == dict.fromkeys([first, second, *third], "ready")
    assert effects() == [1]


def test_rollback(client: Client, engine18: Engine, effects: Any) -> None:
    engine18.topic("t", "q")
    with engine18.unchanged(), pytest.raises(ZeroDivisionError), client.transaction() as transaction:
        transaction.publish("t", 1)
        transaction.create_queue("another")
        transaction.connection.execute("insert into public.effects values (1)")
        raise ZeroDivisionError
    assert effects() == []
    assert client.send("q", "the client goes on") > 0


def test_an_interrupt_rolls_back(client: Client, engine18: Engine) -> None:
    engine18.queue("q")
    with pytest.raises(KeyboardInterrupt), client.transaction() as transaction:
        transaction.send("q", 1)
        raise KeyboardInterrupt
    assert engine18.states("q") == {}
    assert client.list_queues() != []


def test_every_call_sees_the_others(client: Client, engine18: Engine) -> None:
    with client.transaction() as transaction:
        transaction.create_queue("q")
        message_id = transaction.send("q", {"a": 1})
        (message,) = transaction.consume_batch("q")
        assert (message.id, message.payload) == (message_id, {"a": 1})
        message.ack(result=5)
        details = transaction.get_message("q", message_id)
        assert details is not None
        assert (details.state, details.result) == ("done", 5)
        assert client.list_queues() == []
    assert engine18.state("q", message_id) == "done"


@pytest.mark.parametrize("claimed_in_it", [False, True])
def test_an_error_in_the_block_of_a_message_rolls_back(
    client: Client, engine18: Engine, effects: Any, claimed_in_it: bool
) -> None:
    """The block of the message is inside of the transaction: the error must reach the transaction."""
    engine18.queue("q")
    message_id = client.send("q", 1)
    message = None if claimed_in_it else client.consume_one("q")
    with pytest.raises(ZeroDivisionError), client.transaction() as transaction:
        message = message or transaction.consume_one("q")
        assert message is not None
        with message:
            transaction.connection.execute("insert into public.effects values (1)")
            transaction.ack(message)
            raise ZeroDivisionError
    assert effects() == []
    assert engine18.state("q", message_id) == ("ready" if claimed_in_it else "active")


def test_an_effect_and_its_ack_happen_together(client: Client, engine18: Engine, effects: Any) -> None:
    engine18.queue("q", max_delivery_attempts=10)
    client.send_many("q", range(5))
    failed = set()
    for message in client.consume("q", wait=0):
        with message, client.transaction() as transaction:
            transaction.connection.execute("insert into public.effects values (%s)", (message.payload,))
            if message.payload % 2 and message.attempt == 1:
                failed.add(message.payload)
                raise ValueError("before the ack")
            transaction.ack(message)
            if message.attempt == 1:
                failed.add(message.payload)
                raise ValueError("after the ack, before the commit")
    assert failed == set(range(5))
    assert effects() == [*range(5)]
    assert set(engine18.states("q").values()) == {"done"}
    assert {row.delivery_attempts for row in engine18.rows("list_messages", "q")} == {2}
    assert engine18.rows("list_messages", "q", state="active") == []


def test_an_error_after_the_commit_does_not_undo_the_ack(client: Client, engine18: Engine) -> None:
    engine18.queue("q")
    message_id = client.send("q", 1)
    for message in client.consume("q", wait=0):
        with message:
            with client.transaction() as transaction:
                transaction.ack(message)
            raise ValueError("too late")
    assert engine18.state("q", message_id) == "done"


def test_a_swallowed_rollback_is_no_ack(client: Client, engine18: Engine) -> None:
    engine18.queue("q")
    message_id = client.send("q", 1)
    for message in client.consume("q", wait=0):
        with message, pytest.raises(ZeroDivisionError), client.transaction() as transaction:
            transaction.ack(message)
            raise ZeroDivisionError
    assert engine18.state("q", message_id) != "done"


def test_every_settlement_inside(client: Client, engine18: Engine) -> None:
    engine18.queue("q")
    ids = client.send_many("q", range(5))
    messages = client.consume_batch("q")
    with client.transaction() as transaction:
        transaction.ack(messages[0], result=1)
        transaction.nack(messages[1], error="e", delay=60)
        transaction.release(messages[2])
        transaction.reject(messages[3], "e")
        transaction.extend(messages[4], 60)
        with pytest.raises(LeaseLost):
            transaction.ack(messages[0])
        assert set(engine18.states("q").values()) == {"active"}
    states = engine18.states("q")
    assert [states[message_id] for message_id in ids] == ["done", "scheduled", "ready", "dead", "active"]
    assert engine18.message("q", ids[4]).vt == messages[4].leased_until


def test_a_failed_statement_is_not_passed_over(client: Client, engine18: Engine) -> None:
    """What goes on after an error believes that it was committed."""
    engine18.queue("q")
    with pytest.raises(PenstockError, match="rolled back"), client.transaction() as transaction:
        transaction.send("q", 1)
        with pytest.raises(QueueNotFound):
            transaction.send("none", 1)
    assert engine18.states("q") == {}


def test_a_savepoint_saves(client: Client, engine18: Engine) -> None:
    engine18.queue("q")
    with client.transaction() as transaction:
        first = transaction.send("q", 1)
        with pytest.raises(QueueNotFound), transaction.connection.transaction():
            transaction.send("none", 1)
        second = transaction.send("q", 2)
    assert [*engine18.states("q")] == [first, second]


def test_errors_of_the_users_own_statements_come_as_they_are(client: Client) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable), client.transaction() as transaction:
        transaction.connection.execute("select * from public.no_such_table")
    assert client.list_queues() == []


def test_errors_of_the_schema_are_ours(client: Client) -> None:
    with pytest.raises(QueueNotFound, match='"none"') as caught, client.transaction() as transaction:
        transaction.send("none", 1)
    assert isinstance(caught.value.__cause__, psycopg.Error)


def test_after_its_end_it_is_of_no_use(client: Client, engine18: Engine) -> None:
    engine18.queue("q")
    with client.transaction() as transaction:
        transaction.send("q", 1)
    before = engine18.states("q")
    with pytest.raises(InvalidArgument, match="over"):
        transaction.send("q", 2)
    with pytest.raises(InvalidArgument, match="over"):
        transaction.send_many("q", [3])
    with pytest.raises(InvalidArgument, match="over"):
        transaction.consume_one("q")
    assert engine18.states("q") == before


def test_two_at_once(client: Client, engine18: Engine, activity18: Activity) -> None:
    engine18.queue("q")
    with client.transaction() as first, client.transaction() as second:
        assert first.connection is not second.connection
        first.send("q", 1)
        second.send("q", 2)
        assert activity18.count("state = 'idle in transaction'") == 2
    assert len(engine18.states("q")) == 2


def test_bad_input_leaves_it_whole(client: Client, engine18: Engine) -> None:
    engine18.queue("q")
    with client.transaction() as transaction:
        transaction.send("q", 1)
        with pytest.raises(InvalidArgument):
            transaction.send("q", float("nan"))
        with pytest.raises(InvalidArgument):
            transaction.send("q", 1, priority="high")  # type: ignore[arg-type]
    assert len(engine18.states("q")) == 1


def test_using_a_connection_of_its_own_kind(client: Client, database18: str, engine18: Engine) -> None:
    engine18.queue("q")
    with psycopg.Connection.connect(database18) as connection:
        client.using(connection).send("q", 1)
        assert engine18.states("q") == {}
        connection.commit()
    assert len(engine18.states("q")) == 1
