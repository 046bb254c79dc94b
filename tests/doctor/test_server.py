"""Settings, rights, limits and versions; and what can only be imagined, as facts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock import schema
from penstock.diagnoses import EngineDiagnosis, Holder, ServerDiagnosis, StatementDiagnosis
from penstock.doctor import Facts, Finding, examine, gather
from penstock.doctor.facts import ClockReading
from penstock.embedded import Server, throwaway
from tests.conftest import Connect, Servers
from tests.embedded.processes import eventually
from tests.failures.pgbouncer import pgbouncer, require_pgbouncer

from .examining import Patient, Sql, transaction


def test_autovacuum_that_is_off_for_a_table(patient: Patient, sql: Sql) -> None:
    sql.execute("alter table penstock.ready set (autovacuum_enabled = off)")
    found = patient.one("autovacuum")
    assert (found.status, found.subject) == ("problem", "penstock.ready")
    assert found.command is not None
    sql.execute(found.command.encode())
    assert patient.one("autovacuum").status == "ok"
    settings = sql.execute("select reloptions from pg_class where oid = 'penstock.ready'::regclass")
    assert settings.fetchall()[0][0] == [
        "autovacuum_vacuum_scale_factor=0.02",
        "autovacuum_vacuum_cost_delay=0",
    ]


# The schema


def test_a_database_without_the_schema(server: Server) -> None:
    found = Patient(server.dsn()).wrong()
    assert (found[0].check, found[0].status, found[0].command) == ("schema", "problem", "penstock migrate")
    assert {(each.status, each.found) for each in found[1:]} == {
        ("unknown", "Not checked: the database has no schema penstock.")
    }


def test_a_schema_of_another_version(patient: Patient, sql: Sql) -> None:
    sql.execute("update penstock.installation set digest = 'another'")
    found = patient.one("schema")
    assert (found.status, found.command) == ("problem", "penstock migrate")
    sql.execute("insert into penstock.migrations values (99, '0099_future', '99.0')")
    found = patient.one("schema")
    assert (found.status, found.command) == ("problem", "pip install --upgrade penstock")


def test_a_schema_that_cannot_tell_yet(patient: Patient, sql: Sql) -> None:
    sql.execute("drop function penstock.diagnose_queues()")
    found = patient.one("floors")
    assert (found.status, found.command) == ("unknown", "penstock migrate")


# Rights


@pytest.fixture
def role(sql: Sql) -> Iterator[str]:
    sql.execute('create role "night watch" login')
    yield "night watch"
    sql.execute('drop owned by "night watch"; drop role "night watch"')


def test_a_viewer_is_told_what_it_may_not_see(
    patient: Patient, queue: penstock.Client, sql: Sql, role: str, connect: Connect
) -> None:
    sql.execute(f'grant penstock_viewer to "{role}"'.encode())
    queue.send("billing", 1)
    with transaction(
        connect(), "select penstock.send_message('billing', '\"secret\"')", isolation="repeatable read"
    ) as pid:
        found = patient.findings(user=role)
        shown = {finding.check: finding for finding in found}
        assert {finding.check for finding in found if finding.status != "ok"} == {"privileges"}
        assert shown["privileges"].status == "unknown"
        assert shown["privileges"].command == f'grant pg_read_all_stats to "{role}";'
        # The role may see the session's pid and user, but neither its age nor its statement.
        assert f"pid {pid} (of postgres)" in shown["held-vacuum"].found
        assert "secret" not in repr(patient.facts(user=role))
        assert patient.one("consumers", patience=0, user=role).subject == "queue billing"
        sql.execute(shown["privileges"].command.encode())
        assert patient.one("privileges", user=role).status == "ok"
        assert "secret" in patient.one("held-vacuum", patience=0, user=role).found


def test_a_role_that_may_see_nothing_gets_a_message(patient: Patient, sql: Sql, role: str) -> None:
    found = patient.wrong(user=role)
    assert {finding.status for finding in found if finding.check != "roles"} == {"unknown"}
    assert patient.one("roles", user=role).status == "warning"
    assert {finding.command for finding in found} == {f'grant penstock_viewer to "{role}";'}
    checked = {finding.check for finding in patient.findings(user=role) if finding.status == "ok"}
    assert checked == {"clock", "pooler"}
    sql.execute((found[0].command or "").encode())
    assert {finding.check for finding in patient.wrong(user=role)} == {"privileges", "maintenance"} & {
        finding.check for finding in patient.wrong(user=role)
    }


# Roles


def test_what_each_missing_role_means(patient: Patient, sql: Sql, role: str) -> None:
    sql.execute(f'grant penstock_consumer to "{role}"'.encode())
    first, *missing = patient.findings("roles", user=role)
    assert (first.status, first.subject, first.found) == ("ok", role, "It may consume.")
    assert [finding.status for finding in missing] == ["ok"] * 3
    publisher, viewer, admin = missing
    assert "cannot run periodic tasks" in publisher.found
    assert f'grant penstock_publisher to "{role}";' in publisher.found
    assert "penstock_viewer" in viewer.found
    assert "cannot change queues" in admin.found
    for finding in missing:
        sql.execute((finding.command or "").encode())
    assert patient.one("roles", user=role).found == "It may publish, consume, view and administer."
    assert patient.one("roles").found == "It may publish, consume, view and administer.", "a superuser"


def test_queues_that_a_viewer_does_not_see_are_counted(
    patient: Patient, queue: penstock.Client, sql: Sql, role: str
) -> None:
    sql.execute(f'grant penstock_viewer, pg_read_all_stats to "{role}"'.encode())
    queue.create_queue("secret")
    assert patient.one("privileges", user=role).status == "ok"
    queue.grant_queue("penstock_admin", "secret", "publish")
    found = patient.one("privileges", user=role)
    assert found.status == "unknown"
    assert found.found.startswith("1 of 2 queues cannot be checked")
    queue.grant_queue(role, "secret", "view")
    assert patient.one("privileges", user=role).status == "ok"


def test_a_role_with_rights_on_tables(patient: Patient, sql: Sql, role: str) -> None:
    sql.execute(f'grant select, trigger on penstock.ready to "{role}"'.encode())
    (found,) = patient.wrong("roles")
    assert (found.status, found.subject) == ("warning", role)
    assert "rights on 1 table of the schema penstock, such as ready: SELECT, TRIGGER." in found.found
    assert found.command is not None
    sql.execute(found.command.encode())
    sql.execute("grant select (name) on penstock.queues to public")
    (found,) = patient.wrong("roles")
    assert found.subject == "PUBLIC"
    assert found.command is not None
    sql.execute(found.command.encode())
    assert patient.wrong("roles") == []


def test_a_grant_to_a_role_that_was_removed(patient: Patient, queue: penstock.Client, sql: Sql) -> None:
    sql.execute('create role "long gone"')
    queue.grant_queue("long gone", "billing", "consume")
    assert patient.wrong("roles") == []
    sql.execute('drop role "long gone"')
    (found,) = patient.wrong("roles")
    assert (found.status, found.subject) == ("warning", "queue billing")
    assert found.command == "penstock queue revoke 'long gone' billing consume"
    queue.revoke_queue("long gone", "billing", "consume")
    assert patient.wrong("roles") == []


# Limits of a server of our own


@pytest.fixture(scope="module")
def small(servers: Servers) -> Iterator[Server]:
    """A server that has little of everything."""
    servers.get(18)
    settings = {
        "fsync": "off",
        "max_connections": "10",
        "max_notify_queue_pages": "64",
        "shared_preload_libraries": "pg_stat_statements",
    }
    with throwaway(settings=settings) as server:
        with psycopg.connect(server.dsn()) as connection:
            schema.install(connection)
            connection.execute("create extension pg_stat_statements")
        yield server


def test_autovacuum_that_is_off(small: Server) -> None:
    patient = Patient(small.dsn())
    with psycopg.connect(small.dsn(), autocommit=True) as connection:
        for name in ("autovacuum", "track_counts"):
            connection.execute(f"alter system set {name} = off".encode())
            connection.execute("select pg_reload_conf()")
            eventually(lambda: patient.one("autovacuum").status == "problem", f"{name} is off")
            found = patient.one("autovacuum")
            assert (found.status, found.subject) == ("problem", "the server")
            assert found.command == f"alter system set {name} = on; select pg_reload_conf();"
            for statement in found.command.split("; "):
                connection.execute(statement.encode())
            eventually(lambda: patient.one("autovacuum").status == "ok", f"{name} is on")


def test_a_superuser_reads_no_statistics_through_the_view_of_another_role(small: Server) -> None:
    query = "select max(calls) from penstock.diagnose_statements()"
    with psycopg.connect(small.dsn(), autocommit=True) as connection:
        connection.execute("select penstock.maintain()")
        row = connection.execute(query).fetchone()
        assert row is not None
        assert row[0] >= 1
        with connection.transaction(force_rollback=True):
            connection.execute("create role keeper")
            connection.execute("alter view pg_stat_statements owner to keeper")
            assert connection.execute(query).fetchone() == (None,)


def test_a_database_that_takes_no_writes(patient: Patient, sql: Sql) -> None:
    name = sql.info.dbname
    sql.execute(f"alter database {name} set default_transaction_read_only = on".encode())
    found = patient.one("postgresql")
    assert (found.status, found.subject) == ("problem", name)
    assert found.command is not None
    with psycopg.connect(patient.dsn, autocommit=True) as connection:
        for statement in found.command.split("; "):
            connection.execute(statement.encode())
    assert patient.one("postgresql").status == "ok"


def test_connections_near_the_limit(small: Server) -> None:
    patient = Patient(small.dsn())

    def finds(status: str, text: str = "") -> None:
        """In one look: the session of the one before may not have ended yet, and is counted, too."""

        def is_found() -> bool:
            found = patient.one("connections")
            return found.status == status and text in f"{found.subject}: {found.found}"

        eventually(is_found, f"{status}: {text}")

    finds("ok")
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(psycopg.connect(small.dsn(), application_name="greedy"))
        finds("warning")
        stack.enter_context(psycopg.connect(small.dsn(), application_name="greedy"))
        finds("problem", "the server: 7 of 7 connections are in use. Most of them: 6 greedy of postgres")


def test_a_topic_with_more_queues_than_the_server_has_locks_for(small: Server) -> None:
    patient = Patient(small.dsn())
    assert patient.one("fan-out").status == "ok"
    with psycopg.connect(small.dsn(), autocommit=True) as connection:
        connection.execute("select penstock.create_topic('wide')")
        create = (
            "select count(penstock.create_queue('wide' || n, 'wide')) from generate_series(%s::int, %s) n"
        )
        connection.execute(create, [1, 128])
        assert "wide has 128 queues" in patient.one("fan-out").found
        connection.execute(create, [129, 200])
        found = patient.one("fan-out")
        assert (found.status, found.subject) == ("warning", "topic wide")
        assert "room for 6 such transactions" in found.found
        assert found.command == "alter system set max_locks_per_transaction = 100;"
        connection.execute("select penstock.delete_topic('wide')")


def test_a_listener_that_does_not_listen(small: Server) -> None:
    patient = Patient(small.dsn())
    assert patient.one("notify").status == "ok"
    with (
        psycopg.connect(small.dsn(), autocommit=True, application_name="deaf") as listener,
        psycopg.connect(small.dsn(), autocommit=True) as sender,
    ):
        listener.execute("listen there")
        listener.execute("begin")
        for n in range(60):
            sender.execute("select pg_notify('there', %s)", [f"{n:07000d}"])
        found = patient.one("notify")
        assert found.status == "problem"
        assert f"pid {listener.info.backend_pid} (deaf of postgres)" in found.found
        assert found.command == f"select pg_terminate_backend({listener.info.backend_pid});"
        listener.execute("commit")


def test_statements_that_define_functions_are_no_calls_of_them(small: Server) -> None:
    """Whatever a backslash means in the session that asks."""
    with psycopg.connect(small.dsn(), autocommit=True) as connection:
        connection.execute("set standard_conforming_strings = off; set escape_string_warning = off")
        connection.execute("do $$ begin perform penstock.pulse('x', 1); end $$")
        connection.execute("select pg_stat_statements_reset()")
        connection.execute("do $$ begin perform penstock.pulse('x', 1); end $$")
        found = connection.execute(
            "select calls from penstock.diagnose_statements() where function_name = 'pulse'"
        ).fetchall()
    assert found == [(None,)]


def test_statements_that_were_measured(small: Server) -> None:
    with psycopg.connect(small.dsn(), autocommit=True) as connection:
        connection.execute("select penstock.create_queue('measured')")
        for n in range(3):
            connection.execute("select penstock.send_message('measured', %s)", [str(n)])
    facts = Patient(small.dsn()).facts()
    assert isinstance(facts.statements, list)
    (sent,) = [each for each in facts.statements if each.function_name == "send_message"]
    assert sent.calls == 3
    assert sent.mean_ms is not None
    assert "The slowest call" in Patient(small.dsn()).one("claims").found


# A pooler


def test_a_pooler_in_between(servers: Servers, server18: Server, tmp_path: Path) -> None:
    program = require_pgbouncer()
    with servers.database(server18) as dsn:
        name = dsn.partition("?")[0].rpartition("/")[2]
        with pgbouncer(program, server18.tcp_dsn(name), tmp_path, pool_size=2) as bouncer:
            with psycopg.connect(bouncer.dsn) as connection:
                facts = gather(connection, lambda: psycopg.connect(bouncer.dsn))
            (found,) = examine(facts, only=["pooler"])
            assert (found.status, facts.pooling) == ("warning", "transaction")
            assert "listen_dsn=" in (found.command or "")
            # Nothing was left behind on the sessions that others get next.
            with psycopg.connect(bouncer.dsn) as connection:
                left = connection.execute("select current_setting('statement_timeout')").fetchone()
                assert left == ("0",)


# What takes years, or a disk


@pytest.fixture
def facts(patient: Patient) -> Facts:
    return patient.facts()


def wrong(facts: Facts, check: str) -> Finding:
    (found,) = examine(facts, only=[check])
    assert found.status != "ok"
    assert found.command
    return found


def test_transaction_ids_that_run_out(facts: Facts) -> None:
    assert isinstance(facts.server, ServerDiagnosis)
    server = replace(facts.server, oldest_database="old", oldest_age=1_100_000_000)
    assert wrong(replace(facts, server=server), "wraparound").status == "warning"
    server = replace(server, oldest_multixact_age=1_700_000_000)
    found = wrong(replace(facts, server=server), "wraparound")
    assert (found.status, found.subject) == ("problem", "database old")


def test_a_standby(facts: Facts) -> None:
    assert isinstance(facts.server, ServerDiagnosis)
    found = wrong(replace(facts, server=replace(facts.server, is_standby=True)), "postgresql")
    assert "a standby" in found.found


def test_versions_of_the_server(facts: Facts) -> None:
    old, *_ = examine(replace(facts, server_version=140012), only=["postgresql"])
    assert (old.status, old.subject) == ("problem", "PostgreSQL 14")
    new, *_ = examine(replace(facts, server_version=190000), only=["postgresql"])
    assert (new.status, new.subject) == ("warning", "PostgreSQL 19")


def test_clocks_that_differ(facts: Facts) -> None:
    def judged(offset: float, uncertainty: float) -> str:
        reading = ClockReading(offset, uncertainty)
        return next(iter(examine(replace(facts, clock=reading), only=["clock"]))).status

    assert judged(1.5, 0.001) == "ok"
    assert judged(-2.5, 0.001) == "warning"
    assert judged(2.5, 1.0) == "ok"
    assert judged(-61, 0.1) == "problem"


def test_a_sequence_that_runs_out(facts: Facts) -> None:
    assert isinstance(facts.engine, EngineDiagnosis)
    engine = replace(facts.engine, sequence_name="queues_id_seq", sequence_used=0.6)
    assert wrong(replace(facts, engine=engine), "sequences").subject == "penstock.queues_id_seq"


def test_slots_and_an_archiver_that_keep_wal(facts: Facts) -> None:
    assert isinstance(facts.server, ServerDiagnosis)
    assert isinstance(facts.holders, list)
    own: Holder = facts.holders[0]
    slot = replace(
        replace(own, kind="replication slot", own=False, pid=None, name="it's", is_active=False),
        wal_status="extended",
        retained_bytes=30 * 2**30,
        holds_vacuum=False,
    )
    found = wrong(replace(facts, holders=[slot]), "wal")
    assert (found.status, found.command) == ("problem", "select pg_drop_replication_slot('it''s');")
    assert "30 GB" in found.found
    server = replace(facts.server, archive_failed_at=facts.server.now)
    assert wrong(replace(facts, server=server), "wal").subject == "the archiver"


def test_slow_calls(facts: Facts) -> None:
    slow = StatementDiagnosis("consume_messages_batch", 1000, 80.0, 900.0)
    found = wrong(replace(facts, statements=[slow]), "claims")
    assert (found.status, found.subject) == ("warning", "penstock.consume_messages_batch")
    few = replace(slow, calls=10)
    assert examine(replace(facts, statements=[few]), only=["claims"])[0].status == "ok"


def test_queues_that_there_was_no_time_for(patient: Patient, queue: penstock.Client) -> None:
    facts = patient.facts()
    assert isinstance(facts.queues, list)
    late = replace(facts.queues[0], is_probed=False, probe_ms=None, probe_blocks=None)
    (found,) = examine(replace(facts, queues=[late]), only=["claims"])
    assert (found.status, found.found) == ("unknown", "There was no time left to look at 1 other queue.")
    lost = replace(late, probe_ms=1000.0, probe_blocks=90000)
    assert examine(replace(facts, queues=[lost]), only=["claims"])[0].status == "problem"
    queue.close()
