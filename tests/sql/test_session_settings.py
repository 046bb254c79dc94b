"""Whatever a session has set: the functions do the same in it."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any

import psycopg
import pytest

from .conftest import Clock, drop_days
from .engine import Engine

SETTINGS = [
    ("search_path", ""),
    ("search_path", "elsewhere, pg_catalog"),
    ("timezone", "Asia/Kolkata"),
    ("timezone", "Pacific/Kiritimati"),
    ("timezone", "America/St_Johns"),
    ("intervalstyle", "sql_standard"),
    ("standard_conforming_strings", "off"),
    ("plan_cache_mode", "force_custom_plan"),
    ("enable_indexscan", "off"),
    ("default_transaction_deferrable", "on"),
    ("default_transaction_isolation", "read uncommitted"),
    ("array_nulls", "off"),
    ("bytea_output", "escape"),
    ("client_encoding", "LATIN1"),
    ("extra_float_digits", "-15"),
    ("plpgsql.extra_errors", "all"),
    ("plpgsql.variable_conflict", "use_column"),
    ("transform_null_equals", "on"),
]


@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_a_message_lives_its_life(
    engine: Engine, clock: Clock, sql: psycopg.Connection[Any], name: str, value: str
) -> None:
    sql.execute("set client_min_messages = error")
    sql.execute("select set_config(%s, %s, false)", (name, value))
    engine.topic("t", "q", "other", max_delivery_attempts=2, visibility_backoff=1.5)
    due = engine.now() + timedelta(seconds=5)
    message_id = engine.publish("t", "x" * 5000, deliver_after=due, tenant="acme", dedup_key="k\\'")
    assert engine.message("q", message_id).due_at == due
    clock.advance(6)
    assert engine.maintain()["promoted"] == 2
    message = engine.take("q", vt_seconds=30)
    assert message.vt > engine.now() + timedelta(seconds=20)
    assert engine.nack(message, error="a\\'b")
    assert engine.reject(engine.take("q"))
    assert engine.value("requeue_dlq_messages", "q") == 1
    assert engine.explain("q", message_id)
    assert engine.statistics("q").pending_count == 1
    assert engine.ack(engine.take("q"))
    assert [row.state for row in engine.rows("list_messages", "q")] == ["done"]
    tomorrow = clock.now().astimezone(UTC) + timedelta(days=1)
    clock.advance(86400)
    engine.ack(engine.take("other"))
    day = f"done_{tomorrow:%Y%m%d}"
    assert engine.query(f"select id from penstock.{day}") == [(message_id,)]
    clock.advance(3 * 86400)
    assert drop_days(engine, clock) >= 1
    assert engine.states("q") == engine.states("other") == {}


@pytest.mark.parametrize("style", ["German, DMY", "SQL, DMY", "SQL, MDY", "Postgres, YMD"])
def test_days_are_the_same_however_dates_are_written(
    engine: Engine, clock: Clock, sql: psycopg.Connection[Any], style: str
) -> None:
    sql.execute("select set_config('datestyle', %s, false)", (style,))
    engine.queue("q")
    assert engine.maintain()["days added"] == 7
    clock.advance(86400)
    message_id = engine.send("q")
    ((token,),) = engine.query("select consumer_token from penstock.consume_message('q')")
    assert engine.value("ack_message", "q", message_id, token)
    assert engine.query(f"select id from penstock.done_{clock.now():%Y%m%d}") == [(message_id,)]
    clock.advance(3 * 86400)
    assert drop_days(engine, clock) >= 1


def test_days_are_where_the_other_tables_are(engine18: Engine, sql18: psycopg.Connection[Any]) -> None:
    sql18.execute("set allow_in_place_tablespaces = on")
    sql18.execute("create tablespace elsewhere location ''")
    try:
        sql18.execute("set default_tablespace = elsewhere")
        assert engine18.maintain()["days added"] == 7
        elsewhere = "select relname from pg_class where relname ~ '^done' and reltablespace <> 0"
        assert engine18.query(elsewhere) == []
    finally:
        sql18.execute("reset default_tablespace")
        sql18.execute("drop tablespace elsewhere")


def test_functions_of_the_same_name_elsewhere_are_not_called(
    engine: Engine, sql: psycopg.Connection[Any]
) -> None:
    with sql.transaction(force_rollback=True):
        sql.execute("create schema elsewhere")
        for name, returns in (
            ("clock_timestamp()", "timestamptz"),
            ("nextval(text)", "bigint"),
            ("pg_notify(text, text)", "void"),
            ("gen_random_uuid()", "uuid"),
            ("octet_length(bytea)", "int"),
            ("char_length(text)", "int"),
            ("format(text, text)", "text"),
        ):
            sql.execute(
                f"create function elsewhere.{name} returns {returns} language plpgsql"
                " as $$ begin raise exception 'this is not the function you want'; end $$".encode()
            )
        sql.execute("set local search_path = elsewhere, pg_catalog")
        engine.topic("t", "q")
        engine.publish("t", "x" * 5000)
        engine.send_body("q", b"bytes")
        for message in engine.take_many("q", 10):
            assert engine.ack(message)
        engine.maintain()


def test_ids_may_be_long(engine: Engine, sql: psycopg.Connection[Any]) -> None:
    sql.execute("select setval('penstock.message_ids', %s)", (10**17,))
    engine.queue("q")
    message_id = engine.send("q", "x" * 5000, tenant="acme")
    assert message_id > 10**17
    message = engine.take("q")
    engine.nack(message)
    engine.value("raise_floor", "q")
    assert engine.message("q", message_id).state == "ready"
    rows = engine.rows("list_messages", "q", page_size=1)
    assert engine.rows("list_messages", "q", page_size=1, after=rows[0].cursor) == []
    engine.reject(engine.take("q"))
    rows = engine.rows("list_dlq_messages", page_size=1)
    assert engine.rows("list_dlq_messages", page_size=1, after=rows[0].cursor) == []
    assert engine.value("requeue_dlq_messages", "q", [message_id]) == 1
    assert engine.ack(engine.take("q"))
