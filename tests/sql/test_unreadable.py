"""Values that no client can be sent: refused at publish; where there is one, no other message suffers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from ..conftest import Connect
from ..poison import ENDLESS, damage, slip_in
from .engine import Engine

# A number of 16 bytes as stored; 131,072 digits as text.
LONG_NUMBER = "1e131071"
MANY = "(select jsonb_agg(1e131071::numeric) from generate_series(1, {}))"
# Of headers that are too long: 100 such numbers.
LONG_HEADERS = f"jsonb_build_object('x', {MANY.format(100)})"
# Of results that are too long.
LONG_RESULT = MANY.format(2000)


# Large enough to be kept out of line.
NOISE = {"noise": [str(n) for n in range(20000)]}


def call(engine: Engine, text: str) -> list[Any]:
    return engine.query(f"select penstock.{text}")


# Refused


@pytest.mark.slow
def test_a_payload_of_a_gigabyte_as_text_is_refused(engine: Engine) -> None:
    engine.queue("q")
    with engine.refused("PN005", "1073741824 or more bytes as text", "256000000", '"q"'):
        call(engine, f"send_message('q', jsonb_build_object('x', {ENDLESS}))")


@pytest.mark.parametrize(
    "text",
    [
        f"send_message('limited', '{LONG_NUMBER}')",
        f"send_message('limited', '{LONG_NUMBER}', tenant => 'acme')",
        f"send_message('limited', '{LONG_NUMBER}', priority => 0, dedup_key => 'k')",
        f"send_messages('limited', array['1', '{LONG_NUMBER}', '2']::jsonb[])",
        f"send_messages('limited', array_fill('{LONG_NUMBER}'::jsonb, array[10000]))",
        f"send_messages('limited', array['{LONG_NUMBER}']::jsonb[], priorities => array[1])",
        f"publish_message('t', '{LONG_NUMBER}')",
        f"publish_messages('t', array[null, '{LONG_NUMBER}']::jsonb[], bodies => array['x', null]::bytea[])",
        f"publish_message('t', to_jsonb(array(select repeat('x', 5000))) || '{LONG_NUMBER}')",
        f"put_schedule('s', 'limited', '{LONG_NUMBER}', null, 2, null, null, '1', 'skip', '2030-01-01')",
        f"create_group(1, 'limited', '{LONG_NUMBER}', null)",
    ],
)
def test_a_payload_is_limited_as_text_too(engine: Engine, text: str) -> None:
    engine.topic("t", "wide")
    engine.value("create_queue", "limited", "t", max_payload_bytes=100000)
    with engine.refused("PN005", "as text", "100000"):
        call(engine, text)


def test_the_limit_is_that_of_the_text(engine: Engine) -> None:
    engine.queue("limited", max_payload_bytes=2000)
    call(engine, f"send_message('limited', '1{'0' * 1999}')")
    with engine.refused("PN005", "2001 bytes as text", "limit of 2000"):
        call(engine, f"send_message('limited', '1{'0' * 2000}')")
    # A batch is longer than its messages.
    assert len(engine.send_many("limited", ["x" * 500] * 1000)) == 1000


@pytest.mark.parametrize(
    "text",
    [
        f"send_message('q', '1', headers => {LONG_HEADERS})",
        f"send_message('q', '1', headers => {LONG_HEADERS}, dedup_key => 'k')",
        f"send_messages('q', array['1', '2']::jsonb[], headers_list => array[null, {LONG_HEADERS}])",
        f"publish_message('t', '1', headers => {LONG_HEADERS})",
        f"put_schedule('s', 'q', '1', {LONG_HEADERS}, 2, null, null, '1', 'skip', '2030-01-01')",
        f"create_group(1, 'q', '1', {LONG_HEADERS})",
    ],
)
def test_headers_are_limited_as_text(engine: Engine, text: str) -> None:
    engine.topic("t", "q")
    with engine.refused("PN005", "headers", "as text", "10000000"):
        call(engine, text)


@pytest.mark.parametrize("headers", ["[1]", "1", '"text"', "null", "true"])
def test_headers_are_an_object(engine: Engine, headers: str) -> None:
    engine.topic("t", "q")
    for text in (
        f"send_message('q', '1', headers => '{headers}')",
        f"send_message('q', '1', headers => '{headers}', dedup_key => 'k')",
        f"send_messages('q', array['1']::jsonb[], headers_list => array['{headers}']::jsonb[])",
        f"publish_message('t', '1', headers => '{headers}')",
    ):
        with engine.refused("PN004", "headers", headers):
            call(engine, text)


def test_headers_that_a_table_has_compressed_are_measured_as_they_are(engine: Engine) -> None:
    engine.queue("q")
    with engine.connection.transaction(force_rollback=True):
        engine.connection.execute(f"create temp table h as select {LONG_HEADERS} as h".encode())
        engine.connection.execute(
            "insert into h select h || jsonb_build_object('y', repeat('x', 9000)) from h"
        )
        ((size,),) = engine.query("select min(pg_column_size(h)) from h")
        assert size < 1000
        with pytest.raises(psycopg.Error) as caught:
            engine.query("select penstock.send_message('q', '1', headers => h) from h")
        assert caught.value.sqlstate == "PN005"


def test_results_are_limited_as_text(engine: Engine) -> None:
    engine.queue("q")
    engine.send("q")
    engine.take("q", "me")
    for text in (
        f"ack_message('q', 1, 'me', {LONG_RESULT})",
        f"ack_messages('q', array[1, 2], array['me', 'other'], array['1', {LONG_RESULT}])",
    ):
        with engine.refused("PN005", "result", "as text", "256000000"):
            call(engine, text)


def test_what_workers_and_schedules_tell_is_limited_as_text(engine: Engine) -> None:
    engine.queue("q")
    call(engine, "register_worker('me', 'host', 1, '1', array['q'], array['t'], 1)")
    with engine.refused("PN005", "running", "1000000"):
        call(engine, f"beat_worker('me', 1, {MANY.format(10)}, false)")
    with engine.refused("PN005", "definition", "1000000"):
        call(
            engine,
            f"put_schedule('s', 'q', '1', null, 2, null, null, {MANY.format(10)}, 'skip', '2030-01-01')",
        )


def test_a_small_value_need_not_be_measured(engine: Engine) -> None:
    """The bound that the checks rely on: less than 10,000 bytes as text for each byte as stored."""
    for value in (
        "1e131071::numeric + round(0, 16383)",  # the densest there is: all digits that a numeric can have
        "-1e131071::numeric + round(0, 16383)",
        "round(0, 16383)",
        "1e-16383::numeric",
        "false",
        "null::int",
        r"E'\u0001\u0002\u0003\u0004'::text",
    ):
        ((stored, written),) = engine.query(
            f"""select pg_column_size(j), octet_length(j::text) from (
                select jsonb_agg({value}) as j from generate_series(1, 500)
            ) x"""
        )
        assert written < 10000 * stored, value


def test_an_error_of_any_length_is_taken(engine: Engine) -> None:
    engine.queue("q")
    engine.send("q")
    nack = "nack_message('q', message_id, consumer_token, 0, 'begin' || repeat('x', 50000000) || 'end')"
    assert call(engine, f"{nack} from penstock.consume_message('q')") == [(True,)]
    error = engine.message("q", 1).last_error
    begin, mark, end = error.split("\n")
    assert mark == f"[... {50_000_008 - len(begin) - len(end)} characters left out ...]"
    assert (begin[:6], end[-4:]) == ("beginx", "xend")
    assert 31_900 < len(error) <= 32_000


# Where one is there


@pytest.mark.slow
def test_one_that_cannot_be_sent_becomes_a_dead_letter(engine: Engine) -> None:
    engine.queue("q")
    first = engine.send("q", "first")
    bad = slip_in(engine.connection, "q", headers="'{\"a\": 1}'")
    last = engine.send("q", "last")
    with pytest.raises(psycopg.Error) as caught:
        engine.take_many("q", 10)
    assert caught.value.sqlstate == "54000"
    (rejected,) = engine.rows("reject_unreadable_messages", "q")
    assert rejected.message_id == bad
    assert rejected.error.startswith("cannot be read: payload: ")
    assert [message.message_id for message in engine.take_many("q", 10)] == [first, last]
    assert engine.query("select id, reason, headers, attempts, last_error from penstock.dead") == [
        (bad, "failed", {"a": 1}, 0, rejected.error)
    ]


def test_one_that_is_brought_back_is_rejected_again(engine: Engine) -> None:
    engine.queue("q")
    bad = engine.send("q", NOISE)
    damage(engine.connection, "payloads")
    for times in (1, 2):
        assert list(engine.message("q", bad).payload) == ["penstock_unreadable"]
        assert "next in line" in engine.explain("q", bad)
        assert [row.message_id for row in engine.rows("reject_unreadable_messages", "q")] == [bad]
        assert "cannot be read" in engine.explain("q", bad)
        assert len(engine.row("list_dlq_messages", "q", newest_first=True).errors) == times
        assert engine.value("requeue_dlq_messages", "q") == 1
    engine.rows("reject_unreadable_messages", "q")
    assert engine.value("purge_dlq", "q") == 1
    assert (engine.count("payloads"), engine.count("payload_references")) == (0, 0)


def test_a_damaged_payload(engine: Engine) -> None:
    engine.queue("q")
    engine.queue("other")
    bad = engine.send("q", NOISE, dedup_key="k")
    body = engine.send_body("q", bytes(range(256)) * 100)
    damage(engine.connection, "payloads")
    fine = engine.send("q", "fine")
    elsewhere = engine.send("other")
    assert list(engine.message("q", bad).payload) == ["penstock_unreadable"]
    assert engine.message("q", body).body.startswith(b"penstock_unreadable: ")
    with pytest.raises(psycopg.Error) as caught:
        engine.take_many("q", 10)
    assert caught.value.sqlstate == "XX001"
    rejected = {row.message_id: row.error for row in engine.rows("reject_unreadable_messages", "q")}
    assert list(rejected) == [bad, body]
    assert "payload: missing chunk" in rejected[bad]
    assert "body: missing chunk" in rejected[body]
    assert engine.take("q").message_id == fine
    assert engine.states("other") == {elsewhere: "ready"}
    letters = engine.rows("list_dlq_messages", "q")
    assert [letter.message_id for letter in letters] == [bad, body]
    assert "missing chunk" in letters[0].payload["penstock_unreadable"]
    assert engine.send("q", dedup_key="k") > fine, "the key is free"


def test_damaged_headers(engine: Engine) -> None:
    """They lie in the row itself, which no claim can move."""
    engine.queue("q")
    bad = engine.send("q", "payload", headers=NOISE, tenant="acme")
    damage(engine.connection, "ready")
    fine = engine.send("q", "fine")
    assert list(engine.message("q", bad).headers) == ["penstock_unreadable"]
    with pytest.raises(psycopg.Error):
        engine.take_many("q", 10)
    (rejected,) = engine.rows("reject_unreadable_messages", "q")
    assert (rejected.message_id, "headers: missing chunk" in rejected.error) == (bad, True)
    assert engine.take("q").message_id == fine
    letter = engine.row("list_dlq_messages", "q")
    assert (letter.payload, letter.headers, letter.tenant) == ("payload", None, "acme")


def test_what_is_only_too_long_is_kept(engine: Engine) -> None:
    engine.queue("q")
    bad = slip_in(engine.connection, "q", "'1'::jsonb", f"jsonb_build_object('x', {MANY.format(2000)})")
    (rejected,) = engine.rows("reject_unreadable_messages", "q")
    assert rejected.error.startswith("cannot be read: headers: it has 262")
    letter = engine.row("list_dlq_messages", "q")
    assert (letter.message_id, letter.payload, list(letter.headers)) == (bad, 1, ["penstock_unreadable"])
    assert engine.query("select jsonb_array_length(headers -> 'x') from penstock.dead") == [(2000,)]


def test_damage_in_every_state_can_be_looked_at(engine: Engine) -> None:
    engine.queue("q")
    ids = [engine.send("q", "p", headers=NOISE) for _ in range(4)]
    engine.ack(engine.take("q"))
    engine.reject(engine.take("q"), error="no")
    engine.take("q")
    ids.append(engine.send("q", "p", headers=NOISE, deliver_after=datetime(2500, 1, 1, tzinfo=UTC)))
    states = ["done", "dead", "active", "ready", "scheduled"]
    day = [name for (name,) in engine.query("select tableoid::regclass::text from penstock.done")]
    for table in (*states[1:], day[0].removeprefix("penstock.")):
        damage(engine.connection, table)
    found = [engine.message("q", message_id) for message_id in ids]
    assert [message.state for message in found] == states
    assert {tuple(message.headers) for message in found} == {("penstock_unreadable",)}
    assert [message.payload for message in found] == ["p"] * 5
    assert list(engine.states("q").values()) == ["active", "ready", "scheduled", "dead", "done"]
    assert list(engine.row("list_dlq_messages", "q").headers) == ["penstock_unreadable"]
    assert all(engine.explain("q", message_id) for message_id in ids)


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_active": 2}, {"tenant_max_active": 1}, {"max_active": 2, "priority_shares": [0] * 4}],
)
def test_of_every_priority_and_under_every_cap(engine: Engine, settings: dict[str, Any]) -> None:
    engine.queue("q", **settings)
    bad = [engine.send("q", NOISE, priority=p, tenant="acme" if p == 3 else None) for p in (0, 3)]
    damage(engine.connection, "payloads")
    fine = [engine.send("q", "fine", priority=p, tenant="acme" if p == 3 else None) for p in (0, 3)]
    assert [row.message_id for row in engine.rows("reject_unreadable_messages", "q", 1)] == bad
    taken = []
    for _ in range(4):
        for message in engine.take_many("q", 1):
            taken.append(message.message_id)
            engine.ack(message)
    assert sorted(taken) == fine
    assert engine.states("q") == {**dict.fromkeys(bad, "dead"), **dict.fromkeys(fine, "done")}


def test_one_that_another_claims_is_left_alone(engine: Engine, connect: Connect) -> None:
    engine.queue("q")
    engine.send("q", NOISE)
    damage(engine.connection, "payloads")
    other = connect()
    with other.transaction(force_rollback=True):
        other.execute("select message_id from penstock.consume_message('q')")
        assert engine.rows("reject_unreadable_messages", "q") == []
    assert len(engine.rows("reject_unreadable_messages", "q")) == 1


def test_nothing_that_can_be_sent_is_rejected(house: Engine) -> None:
    with house.unchanged():
        for queue in ("billing", "audit", "mail", "limited", "session", "paused"):
            assert house.rows("reject_unreadable_messages", queue, 10000) == []


def test_bad_input(house: Engine) -> None:
    with house.refused("PN001", "nowhere"):
        house.rows("reject_unreadable_messages", "nowhere")
    for size in (0, -1, 10001, None):
        with house.refused("PN004", "batch_size"):
            house.rows("reject_unreadable_messages", "mail", size)
