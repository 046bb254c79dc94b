# Written by tools/unasync.py from tests/client/asynchronous/test_unreadable.py:
# change that, run `make generate`.

"""A message that cannot be read costs no other message anything."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest

from penstock import Client, InvalidArgument, MessageUnreadable, PayloadInvalid, QueueNotFound
from tests.poison import damage
from tests.sql.engine import Engine

NOISE = {"noise": [str(n) for n in range(20000)]}
# What PostgreSQL stores, and Python does not read.
LONG_INTEGER = "('{\"n\": 1' || repeat('0', 5000) || '}')::jsonb"
DEEP = "('{\"n\": ' || repeat('[', 5000) || repeat(']', 5000) || '}')::jsonb"


@pytest.fixture
def ids(client: Client, engine18: Engine) -> list[int]:
    """Queue q: a message that can be read, one that cannot, and another that can."""
    client.create_queue("q")
    first = client.send("q", "first")
    bad = client.send("q", NOISE)
    damage(engine18.connection, "payloads")
    return [first, bad, client.send("q", "last")]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def claim_in_transaction(client: Client) -> int:
    with client.transaction() as transaction:
        return len(transaction.consume_batch("q"))


def test_a_batch_comes_without_it(
    client: Client, engine18: Engine, ids: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    first, bad, last = ids
    messages = client.consume_batch("q")
    assert [message.id for message in messages] == [first, last]
    assert [message.attempt for message in messages] == [1, 1]
    (line,) = told(caplog)
    assert f"message {bad} of queue 'q' cannot be read: payload: missing chunk" in line
    assert "dead letter" in line
    (letter,) = client.list_dlq_messages("q")
    assert (letter.message_id, letter.reason, letter.delivery_attempts) == (bad, "failed", 0)
    assert "missing chunk" in letter.payload["penstock_unreadable"]
    assert "cannot be read" in (letter.last_error or "")
    assert engine18.states("q") == {first: "active", last: "active", bad: "dead"}


def test_one_by_one(client: Client, ids: list[int]) -> None:
    found = [client.consume_one("q"), client.consume_one("q"), client.consume_one("q")]
    assert [message and message.id for message in found] == [ids[0], ids[2], None]


def test_a_token_of_ones_own_holds_what_was_claimed(client: Client, ids: list[int]) -> None:
    mine = "mine"
    assert len(client.consume_batch("q", token=mine)) == 2
    assert client.pulse(mine, 60) == 2
    assert len(ids) == 3


def test_an_iteration_goes_on(client: Client, engine18: Engine, ids: list[int]) -> None:
    payloads = []
    for message in client.consume("q", wait=0):
        with message:
            payloads.append(message.payload)
    assert payloads == ["first", "last"]
    assert engine18.state("q", ids[1]) == "dead"


def test_in_a_transaction_it_is_an_error_that_says_what_to_do(client: Client, ids: list[int]) -> None:
    with pytest.raises(MessageUnreadable, match="missing chunk") as caught:
        claim_in_transaction(client)
    assert "reject_unreadable" in (caught.value.hint or "")
    (rejected,) = client.reject_unreadable("q")
    assert (rejected.message_id, "missing chunk" in rejected.error) == (ids[1], True)
    assert claim_in_transaction(client) == 2
    assert client.reject_unreadable("q", batch_size=1) == []


def test_what_cannot_be_rejected_is_an_error(client: Client, engine18: Engine, ids: list[int]) -> None:
    """Not found among the messages: then the claim fails, and says why."""
    engine18.connection.execute(
        "create function public.no() returns trigger language plpgsql as"
        " $$ begin raise exception 'no' using errcode = 'XX001'; end $$;"
        " create trigger no before insert on penstock.active execute function public.no()"
    )
    try:
        with pytest.raises(MessageUnreadable, match="no"):
            client.consume_batch("q")
    finally:
        engine18.connection.execute("drop function public.no() cascade")
    assert [message.id for message in client.consume_batch("q")] == [ids[0], ids[2]]


def test_bad_input(client: Client) -> None:
    with pytest.raises(QueueNotFound):
        client.reject_unreadable("nowhere")
    client.create_queue("q")
    with pytest.raises(InvalidArgument, match="batch_size"):
        client.reject_unreadable("q", batch_size=0)


def test_it_can_be_looked_at(client: Client, ids: list[int]) -> None:
    bad = ids[1]
    details = client.get_message("q", bad)
    assert details is not None
    assert "missing chunk" in details.payload["penstock_unreadable"]
    assert [message.message_id for message in client.list_messages("q")] == ids
    assert "behind 1 other" in client.explain_delivery("q", bad)


@pytest.mark.parametrize("value", [LONG_INTEGER, DEEP])
def test_what_python_cannot_read(client: Client, engine18: Engine, value: str) -> None:
    """PostgreSQL sends it: so it is claimed, and fails when it is looked at."""
    client.create_queue("q", max_delivery_attempts=1)
    engine18.query(f"select penstock.send_message('q', {value}, headers => {value})")
    client.send("q", "next")
    seen = []
    for message in client.consume("q", wait=0):
        with message:
            if message.attempt and message.id == 1:
                with pytest.raises(PayloadInvalid, match="headers cannot be read by Python"):
                    _ = message.headers
            seen.append(message.payload)
    assert seen == ["next"]
    (letter,) = client.list_dlq_messages("q")
    assert (letter.message_id, letter.reason) == (1, "no_attempts_left")
    assert "Python cannot read it" in letter.headers["penstock_unreadable"]
    details = client.get_message("q", 1)
    assert details is not None
    assert isinstance(details.payload, str), "as text"


def test_times_that_python_does_not_know(client: Client, engine18: Engine) -> None:
    client.create_queue("q")
    for year in ("9999", "20000", "294276"):
        engine18.query(
            "select penstock.send_message('q', '1', deliver_after => %s)", f"{year}-12-31 23:00+00"
        )
    end = datetime.max.replace(tzinfo=UTC)
    due = [message.due_at for message in client.list_messages("q")]
    assert due == [datetime(9999, 12, 31, 23, tzinfo=UTC), end, end]
    details = client.get_message("q", 3)
    assert details is not None
    assert details.due_at == end
    assert "294276" in client.explain_delivery("q", 3)
