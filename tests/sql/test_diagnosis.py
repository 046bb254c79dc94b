"""What the functions that diagnose tell, and at what cost."""

from __future__ import annotations

import secrets
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from ..conftest import Connect
from .conftest import Clock
from .engine import Engine

Sql = psycopg.Connection[Any]
INVOKERS = ("server", "holders", "tables", "statements")
DEFINERS = ("engine", "errors", "groups", "leases", "priorities", "queues", "parked")


def diagnose(sql: Sql, what: str) -> list[dict[str, Any]]:
    cursor = sql.cursor(row_factory=dict_row)
    return cursor.execute(f"select * from penstock.diagnose_{what}()".encode()).fetchall()


def queue(sql: Sql, name: str = "q") -> dict[str, Any]:
    (found,) = [row for row in diagnose(sql, "queues") if row["queue_name"] == name]
    return found


def cheapest(sql: Sql) -> dict[str, Any]:
    """The probe that took the fewest blocks, of some: a visit of autovacuum has statements planned anew."""
    found = []
    for turn in range(6):
        if turn == 3:
            sql.execute("discard plans")
        found.append(queue(sql))
    return min(found, key=lambda each: each["probe_blocks"])


def test_the_caller_sees_sessions_with_its_own_rights_only(sql: Sql) -> None:
    found = dict(
        sql.execute("select proname, prosecdef from pg_proc where proname like 'diagnose%'").fetchall()
    )
    assert found == {
        **{f"diagnose_{name}": False for name in INVOKERS},
        **{f"diagnose_{name}": True for name in DEFINERS},
    }
    # As an owner that could not even see its own tables it would see the same.
    texts = sql.execute(
        "select proname, prosrc from pg_proc where proname = any(%s)",
        [[f"diagnose_{name}" for name in INVOKERS]],
    ).fetchall()
    assert [name for name, text in texts if "penstock." in text.replace("'penstock.' || f.name", "")] == []


@pytest.mark.parametrize("what", [*INVOKERS, *DEFINERS])
def test_a_transaction_that_only_reads_will_do(engine: Engine, sql: Sql, what: str) -> None:
    engine.queue("q")
    for isolation in ("read committed", "serializable"):
        sql.execute(f"begin isolation level {isolation} read only".encode())
        diagnose(sql, what)
        sql.execute("rollback")


def test_waiting_messages_and_seen_consumers(engine: Engine, sql: Sql, clock: Clock) -> None:
    engine.queue("q", retry_delays=[60])
    empty = queue(sql)
    assert (empty["ready_count"], empty["waiting_since"], empty["is_probed"]) == (0, None, True)
    assert (empty["last_claimed_at"], empty["last_settled_at"]) == (None, None)
    first = engine.now()
    engine.send_many("q", [1] * 5)
    assert queue(sql)["ready_count"] == 5
    assert abs((queue(sql)["waiting_since"] - first).total_seconds()) < 5
    message = engine.take("q", "me", vt_seconds=30)
    taken = queue(sql)
    assert (taken["ready_count"], taken["active_count"], taken["expired_count"]) == (4, 1, 0)
    assert taken["last_claimed_at"] is not None
    clock.advance(31)
    late = queue(sql)
    assert (late["active_count"], late["expired_count"]) == (0, 1)
    assert late["expired_since"] == message.vt
    engine.query("select from penstock.maintain()")
    retried = queue(sql)
    assert (retried["expired_count"], retried["overdue_count"]) == (0, 0)
    assert retried["last_settled_at"] is not None
    clock.advance(61)
    assert queue(sql)["overdue_count"] == 1


def test_dead_letters_by_the_hour(engine: Engine, sql: Sql, clock: Clock) -> None:
    engine.queue("q")
    for error in ("one\ntwo", "one\nthree", None):
        engine.send("q")
        engine.reject(engine.take("q", "me"), error=error)
    assert (queue(sql)["dead_last_hour"], queue(sql)["dead_day_before"]) == (3, 0)
    told = [(row["reason"], row["error"], row["dead_count"]) for row in diagnose(sql, "errors")]
    assert told == [("failed", "one", 2), ("failed", None, 1)]
    clock.advance(3601)
    assert (queue(sql)["dead_last_hour"], queue(sql)["dead_day_before"]) == (0, 3)
    assert diagnose(sql, "errors") == []
    clock.advance(24 * 3600)
    assert queue(sql)["dead_day_before"] == 0


def test_the_first_message_is_found_wherever_it_is(engine: Engine, sql: Sql) -> None:
    engine.queue("q")
    assert queue(sql)["floor_behind"] <= 1
    # Far from the floor, as after a million messages of other queues.
    engine.query("select setval('penstock.message_ids', 50000000)")
    engine.send("q", priority=3)
    found = queue(sql)
    assert (found["ready_count"], found["is_probed"]) == (1, True)
    assert found["floor_behind"] >= 49999999
    # Step by step, each ten times as wide as the last; one that is held up by others is not counted as quick.
    assert found["probe_blocks"] < 1000
    engine.query("select penstock.raise_floor('q')")
    assert queue(sql)["probe_blocks"] < 30


def test_the_dead_show_in_blocks(engine18: Engine, sql18: Sql, connect18: Connect) -> None:
    # An id of its own: dead rows that other tests left under the first ids would be walked over.
    engine18.query("select setval(pg_get_serial_sequence('penstock.queues', 'id'), 1000000)")
    engine18.queue("q")
    reader = connect18()
    reader.execute("begin isolation level repeatable read")
    reader.execute("select 1")
    engine18.query("select count(*) from penstock.send_messages('q', array_fill('1'::jsonb, array[5000]))")
    fresh = cheapest(sql18)
    engine18.query("select count(*) from penstock.consume_messages_batch('q', 'me', batch_size => 5000)")
    walked = cheapest(sql18)
    assert engine18.query("select penstock.raise_floor('q')") == [(True,)]
    raised = cheapest(sql18)
    assert 2 * fresh["probe_blocks"] < walked["probe_blocks"], (fresh, walked, raised)
    assert 2 * raised["probe_blocks"] < walked["probe_blocks"], (fresh, walked, raised)
    assert (walked["floor_behind"], raised["floor_behind"]) == (5000, 0)
    assert (fresh["ready_count"], walked["ready_count"]) == (1000, 0)
    reader.execute("rollback")


def test_the_clock_and_the_sequences(engine: Engine, sql: Sql, clock: Clock) -> None:
    assert abs(diagnose(sql, "engine")[0]["clock_offset_seconds"]) < 0.5
    clock.advance(-7200)
    assert abs(diagnose(sql, "engine")[0]["clock_offset_seconds"] + 7200) < 0.5
    engine.query("select setval('penstock.message_ids', 9223372036854775806)")
    (found,) = diagnose(sql, "engine")
    assert (found["sequence_name"], round(found["sequence_used"], 3)) == ("message_ids", 1.0)
    assert (found["maintained_at"], found["days_ahead"]) == (None, None)


def test_locks_of_a_queue_are_told_by_its_id(engine: Engine, sql: Sql, connect: Connect) -> None:
    engine.queue("q")
    (number,) = engine.query("select id from penstock.queues")[0]
    # The days of the coming week are there: to make them would take more locks.
    engine.maintain_all()
    other = connect()
    other.execute("begin")
    other.execute("select penstock.send_message('q', '1')")
    (holder,) = [row for row in diagnose(sql, "holders") if row["pid"] == other.info.backend_pid]
    assert (holder["kind"], holder["advisory_keys"], holder["locked_tables"]) == ("session", [number], None)
    assert (holder["own"], holder["holds_vacuum"]) == (False, True)
    other.execute("lock table penstock.queues in share mode")
    other.execute("select from penstock.maintain()")
    (holder,) = [row for row in diagnose(sql, "holders") if row["pid"] == other.info.backend_pid]
    assert (sorted(holder["advisory_keys"]), holder["locked_tables"]) == ([-1, number], ["queues"])
    other.execute("rollback")
    assert [row["own"] for row in diagnose(sql, "holders")] == [True]


def test_a_session_of_another_database_does_not_hold_back_vacuum(sql: Sql) -> None:
    with psycopg.connect(sql.info.dsn, dbname="postgres") as other:
        other.execute("select pg_current_xact_id()")
        (holder,) = [row for row in diagnose(sql, "holders") if not row["own"]]
        assert (holder["pid"], holder["database_name"]) == (other.info.backend_pid, "postgres")
        assert not holder["holds_vacuum"]


def test_tables(sql: Sql) -> None:
    # The statistics may be those of a test before.
    sql.execute("vacuum (analyze) penstock.ready, penstock.floors")
    tables = {row["table_name"]: row for row in diagnose(sql, "tables")}
    assert {"ready", "active", "done_default", "queues"} <= tables.keys()
    assert all(row["autovacuum"] and row["size_bytes"] >= 0 for row in tables.values())
    assert tables["ready"]["vacuum_threshold"] < tables["floors"]["vacuum_threshold"] + 50


def test_a_viewer_with_pg_read_all_stats_sees_what_holds_vacuum_back(
    engine: Engine, connect: Connect
) -> None:
    """PostgreSQL hides the snapshots of other roles from a role without pg_read_all_stats."""
    holder = connect(autocommit=False)
    holder.execute("set transaction isolation level repeatable read")
    holder.execute("select txid_current()")
    role = f"viewer {secrets.token_hex(4)}"
    # A test of the dashboard may have granted it.
    engine.connection.execute("revoke pg_read_all_stats from penstock_viewer")
    engine.connection.execute(f'create role "{role}" in role penstock_viewer'.encode())
    try:
        seen = []
        for grant in (None, f'grant pg_read_all_stats to "{role}"'):
            if grant:
                engine.connection.execute(grant.encode())
            engine.connection.execute(f'set role "{role}"'.encode())
            rows = {row.pid: row for row in engine.rows("diagnose_holders")}
            engine.connection.execute("reset role")
            row = rows.get(holder.info.backend_pid)
            seen.append(row is not None and row.holds_vacuum and row.transaction_started_at is not None)
        assert seen == [False, True]
    finally:
        engine.connection.execute(f'drop role "{role}"'.encode())


def test_errors_that_differ_in_values_only_are_one_cause(engine: Engine) -> None:
    engine.queue("q")
    for number in range(3):
        engine.send("q")
        engine.reject(engine.take("q"), error=f"no customer {number}\ndetails")
    (found,) = engine.rows("diagnose_errors")
    assert (found.dead_count, found.error) == (3, "no customer 2")
