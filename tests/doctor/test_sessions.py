"""Sessions that hold back vacuum, keep a floor down or lock a table: named by pid, with what to do."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest
from psycopg.pq import ExecStatus

import penstock
from penstock.doctor import examine
from penstock.doctor.facts import known
from tests.conftest import Connect
from tests.embedded.processes import eventually

from .examining import Patient, Sql, pid_of, transaction

pytestmark = pytest.mark.usefixtures("queue")


def test_a_transaction_that_holds_back_vacuum(patient: Patient, sql: Sql, connect: Connect) -> None:
    reader = connect(application_name="report")
    with transaction(reader, "select 'a  long' as report", isolation="repeatable read") as pid:
        sql.execute("select penstock.send_message('billing', '1')")
        assert patient.one("held-vacuum").status == "ok"
        assert f"pid {pid}" in patient.one("held-vacuum").found
        found = patient.one("held-vacuum", patience=0)
        assert (found.status, found.subject) == ("problem", f"pid {pid}")
        for part in ("report of postgres", "idle in transaction", "select 'a long' as report"):
            assert part in found.found
        assert found.command == f"select pg_terminate_backend({pid});"
        sql.execute(found.command.encode())
        eventually(lambda: patient.one("held-vacuum", patience=0).status == "ok", "it has ended")
        with pytest.raises(psycopg.OperationalError):
            reader.execute("select 1")


def test_a_statement_that_runs_is_cancelled(patient: Patient, sql: Sql, connect: Connect) -> None:
    busy = connect()
    ended = list[type[BaseException]]()

    def run() -> None:
        try:
            busy.execute("select pg_sleep(60)")
        except psycopg.Error as exc:
            ended.append(type(exc))

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: patient.wrong("held-vacuum", patience=0), "it is seen")
    found = patient.one("held-vacuum", patience=0)
    assert found.command == f"select pg_cancel_backend({pid_of(busy)});"
    sql.execute(found.command.encode())
    thread.join(30)
    assert ended == [psycopg.errors.QueryCanceled]


def test_a_prepared_transaction_holds_vacuum_and_the_floor(patient: Patient, sql: Sql) -> None:
    sql.execute("begin")
    sql.execute("select penstock.send_message('billing', '1')")
    sql.execute("prepare transaction 'it''s forgotten'")
    try:
        vacuum, floor = patient.wrong("held-vacuum", "floors", patience=0)
        assert vacuum.subject == "prepared transaction it's forgotten"
        assert floor.subject == "queue billing"
        assert "prepared transaction it's forgotten (of postgres)" in floor.found
        assert vacuum.command == floor.command == "rollback prepared 'it''s forgotten';"
    finally:
        sql.execute("rollback prepared 'it''s forgotten'")
    assert patient.wrong("held-vacuum", "floors", patience=0) == []


def test_a_publisher_that_stays_open_keeps_the_floor_down(
    patient: Patient, connect: Connect, queue: penstock.Client
) -> None:
    queue.create_queue("other")
    with transaction(connect(), "select penstock.send_message('billing', '1')") as pid:
        assert patient.one("floors").status == "ok"
        found = patient.one("floors", patience=0)
        assert (found.status, found.subject) == ("problem", "queue billing")
        assert f"pid {pid}" in found.found
        assert found.command == f"select pg_terminate_backend({pid});"


def test_claims_that_walk_over_the_dead(patient: Patient, sql: Sql, connect: Connect) -> None:
    sql.execute("select penstock.create_queue('busy', notify => false)")
    with (
        transaction(connect(), "select 1", isolation="repeatable read"),
        transaction(connect(), "select penstock.send_message('busy', '1')") as pid,
    ):
        for _ in range(4):
            sql.execute("select from penstock.send_messages('busy', array_fill('1'::jsonb, array[10000]))")
            sql.execute("select from penstock.consume_messages_batch('busy', 'me', batch_size => 10000)")
        began = time.monotonic()
        claims, floor = patient.findings("claims", "floors", patience=0)[:2][::-1]
        assert time.monotonic() - began < 2
        assert (claims.status, claims.subject) == ("warning", "queue busy")
        assert (floor.status, floor.subject) == ("problem", "queue busy")
        assert f"pid {pid}" in floor.found
    # The publisher has ended: no session keeps the floor down, but none has raised it.
    with transaction(connect(), "select 1", isolation="repeatable read"):
        (found,) = [finding for finding in patient.wrong("floors") if finding.subject == "queue busy"]
        assert found.status == "warning"
        assert found.command is not None
        sql.execute(found.command.encode())
        assert patient.wrong("floors", "claims") == []


def test_a_maintain_that_never_ends_is_named(patient: Patient, connect: Connect) -> None:
    with transaction(connect(), "select from penstock.maintain()") as pid:
        found = patient.wrong("maintenance", patience=0)[0]
        assert (found.status, found.subject) == ("problem", f"pid {pid}")
        assert "no other session can" in found.found


def test_a_locked_table_does_not_stop_the_doctor(patient: Patient, connect: Connect) -> None:
    with transaction(connect(), "lock table penstock.ready in access exclusive mode") as pid:
        began = time.monotonic()
        found = {finding.check: finding for finding in patient.wrong(patience=0)}
        assert time.monotonic() - began < 4
    assert (found["locks"].status, found["locks"].subject) == ("problem", f"pid {pid}")
    assert "penstock.ready" in found["locks"].found
    assert found["consumers"].status == "unknown"
    assert "another session has locked" in found["consumers"].found
    assert patient.wrong("locks", patience=0) == []


def test_an_advisory_lock_that_a_login_holds(patient: Patient, sql: Sql, connect: Connect) -> None:
    number = sql.execute("select id from penstock.queues where name = 'billing'").fetchone()
    assert number is not None
    login, publisher = connect(application_name="console"), connect()
    login.execute("select pg_advisory_lock(1346719315, %s)", number)
    assert patient.one("locks").status == "ok"
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(publisher.execute, "select penstock.send_message('billing', '1')")
        waits = "select from pg_locks where not granted and pid = %s"
        eventually(lambda: sql.execute(waits, [pid_of(publisher)]).rowcount, "the publisher waits")
        found = patient.one("locks", patience=0)
        assert (found.status, found.subject) == ("problem", f"pid {pid_of(login)}")
        for part in (
            "console of postgres",
            "the lock of queue billing outside of a transaction",
            "1 session",
        ):
            assert part in found.found
        assert "pg_advisory_lock" in found.found
        assert found.command == f"select pg_terminate_backend({pid_of(login)});"
        sql.execute(found.command.encode())
        assert sent.result(30).fetchone() is not None
    assert patient.one("locks", patience=0).status == "ok"


def test_an_exclusive_advisory_lock_in_a_transaction(patient: Patient, connect: Connect) -> None:
    with transaction(connect(), "select pg_advisory_xact_lock(1346719315, id) from penstock.queues") as pid:
        found = patient.one("locks", patience=0)
        assert (found.status, found.subject) == ("problem", f"pid {pid}")
        assert "the lock of queue billing exclusively" in found.found
    # A publisher has it shared: it keeps the floor down, and blocks no session.
    with transaction(connect(), "select penstock.send_message('billing', '1')"):
        assert patient.one("locks", patience=0).status == "ok"


# Replication


@contextmanager
def standby(dsn: str, slot: str | None, xmin: int) -> Iterator[int]:
    """What a standby does that tells of a snapshot on its side; its pid here."""
    connection = psycopg.connect(dsn, autocommit=True, replication="yes", application_name="standby")
    try:
        pgconn = connection.pgconn
        named = f"SLOT {slot} " if slot else ""
        pgconn.send_query(f"START_REPLICATION {named}PHYSICAL {_position(dsn)}".encode())
        pgconn.flush()
        result = pgconn.get_result()
        assert result is not None
        assert result.status == ExecStatus.COPY_BOTH, result.error_message
        # Its feedback: xmin and no catalog_xmin, both of epoch 0.
        pgconn.put_copy_data(b"h" + struct.pack("!qIIII", 0, xmin, 0, 0, 0))
        pgconn.flush()
        yield connection.info.backend_pid
    finally:
        connection.close()


def _position(dsn: str) -> str:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


@pytest.fixture
def snapshot(sql: Sql) -> int:
    """The next transaction id, and some that come after it."""
    row = sql.execute("select pg_snapshot_xmin(pg_current_snapshot())::text::bigint").fetchone()
    for _ in range(3):
        sql.execute("select penstock.send_message('billing', '1')")
    assert row is not None
    xmin: int = row[0]
    return xmin


def test_a_replication_slot_without_a_reader(patient: Patient, sql: Sql, snapshot: int) -> None:
    sql.execute("select pg_create_physical_replication_slot('left_behind', true)")
    try:
        with standby(patient.dsn, "left_behind", snapshot):
            eventually(
                lambda: sql.execute("select from pg_replication_slots where xmin is not null").rowcount,
                "xmin",
            )
        eventually(
            lambda: sql.execute("select from pg_replication_slots where not active").rowcount, "it is left"
        )
        (found,) = patient.wrong("held-vacuum", patience=0)
        assert (found.status, found.subject) == ("problem", "replication slot left_behind")
        assert "transactions ago" in found.found
        assert found.command == "select pg_drop_replication_slot('left_behind');"
        sql.execute(found.command.encode())
        assert patient.wrong("held-vacuum", patience=0) == []
    finally:
        sql.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active")


def test_the_feedback_of_a_standby(patient: Patient, snapshot: int) -> None:
    with standby(patient.dsn, None, snapshot) as pid:
        eventually(
            lambda: any(h.kind == "standby" and h.held_age for h in known(patient.facts().holders)),
            "feedback",
        )
        facts = patient.facts()
        (holder,) = [holder for holder in known(facts.holders) if holder.kind == "standby"]
        assert (holder.pid, holder.holds_vacuum) == (pid, True)
        # For how long is not known, so it is judged by how many transactions there were since.
        assert examine(facts, only=["held-vacuum"])[0].status == "ok"
        aged = replace(facts, holders=[replace(holder, held_age=2_000_000)])
        (found,) = examine(aged, only=["held-vacuum"])
        assert (found.status, found.subject) == ("warning", f"pid {pid}")
        assert "hot_standby_feedback" in (found.advice or "")
