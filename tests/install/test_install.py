"""Installing into an empty database, again, and away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from penstock import __version__, schema
from penstock.errors import MIGRATE, InvalidArgument, SchemaMissing, SchemaOutdated, SchemaTooNew

from .catalog import describe, everything
from .conftest import Cluster, Open
from .older import write_older


def test_a_fresh_install(cluster: Cluster, open_connection: Open) -> None:
    connection = open_connection(cluster.make_database())
    assert schema.installed_version(connection) is None
    done = schema.install(connection)
    assert done.before is None
    assert done.after.package_version == __version__
    assert done.after == schema.installed_version(connection) == schema.check(connection)
    assert done.migrations == tuple(file.name for file in schema.load().tables)
    assert done.changed


def test_again_changes_nothing(cluster: Cluster, open_connection: Open) -> None:
    connection = open_connection(cluster.make_database())
    first = schema.install(connection)
    before = describe(connection)
    second = schema.install(connection)
    assert (second.before, second.after, second.migrations) == (first.after, first.after, ())
    assert not second.changed
    assert describe(connection) == before


def test_again_by_the_script_changes_nothing_but_the_time(cluster: Cluster, open_connection: Open) -> None:
    connection = open_connection(cluster.make_database())
    schema.install(connection)
    before = describe(connection)
    connection.execute(schema.script())
    assert describe(connection) == before
    schema.check(connection)


def test_a_database_without_an_encoding_is_refused(cluster: Cluster, open_connection: Open) -> None:
    """It would take a tenant whose name no client can read."""
    without = cluster.make_database(options="encoding 'SQL_ASCII' locale 'C' template template0")
    connection = open_connection(without)
    with pytest.raises(InvalidArgument, match="has the encoding SQL_ASCII"):
        schema.install(connection)
    assert schema.installed_version(connection) is None


def test_every_body_is_valid(cluster: Cluster, open_connection: Open) -> None:
    # The files are installed in any order, so bodies are not looked at then.
    connection = open_connection(cluster.make_database())
    schema.install(connection)
    connection.execute("set check_function_bodies = on")
    connection.execute("set search_path = pg_catalog")
    connection.execute("""
        select case l.lanname when 'plpgsql' then plpgsql_validator(p.oid) else fmgr_sql_validator(p.oid) end
        from pg_proc p join pg_language l on l.oid = p.prolang
        where p.pronamespace = 'penstock'::regnamespace and l.lanname in ('sql', 'plpgsql')
    """)


def test_the_order_of_the_files_does_not_matter(
    cluster: Cluster, open_connection: Open, tmp_path: Path
) -> None:
    source = schema.load()
    backwards = schema.Source(source.package_version, source.tables, source.functions[::-1], source.roles)
    one, other = open_connection(cluster.make_database()), open_connection(cluster.make_database())
    schema.install(one, source)
    schema.install(other, backwards)
    assert describe(one) == describe(other)


@pytest.mark.parametrize("autocommit", [True, False])
def test_the_connection_is_left_as_it_was(cluster: Cluster, open_connection: Open, autocommit: bool) -> None:
    dsn = cluster.make_database()
    connection = psycopg.connect(dsn, autocommit=autocommit, row_factory=dict_row)
    with connection:
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        connection.read_only = True
        schema.install(connection)
        assert connection.info.transaction_status == TransactionStatus.IDLE
        schema.check(connection)
        assert connection.info.transaction_status == TransactionStatus.IDLE
        assert connection.autocommit is autocommit
        assert connection.isolation_level == psycopg.IsolationLevel.SERIALIZABLE
        assert connection.execute("select 1 as one").fetchone() == {"one": 1}
        schema.check(open_connection(dsn))


# What functions took before they took more: none of these may stay as an overload.
OLD_SIGNATURES = """
create function penstock.nack_message(text, bigint, text, int default null, text default null)
returns boolean language sql as 'select true';
create function penstock.release_message(text, bigint, text) returns boolean language sql as 'select true';
create function penstock.add_retries(text, int) returns bigint language sql as 'select 1::bigint';
create function penstock._give_back(int, bigint[], text, timestamptz, int, text)
returns bigint language sql as 'select 1::bigint';
"""

SETTINGS = "select name, setting from pg_settings where name <> 'transaction_read_only' order by name"


def test_it_takes_part_in_the_callers_transaction(cluster: Cluster, open_connection: Open) -> None:
    dsn = cluster.make_database()
    connection, other = open_connection(dsn), open_connection(dsn)
    with connection.transaction():
        connection.execute("do 'begin create table mine (); end'")  # PL/pgSQL brings settings of its own
        before = connection.execute(SETTINGS).fetchall()
        role = connection.execute("select current_user").fetchall()
        schema.install(connection)
        assert connection.info.transaction_status == TransactionStatus.INTRANS
        assert connection.execute(SETTINGS).fetchall() == before
        assert connection.execute("select current_user").fetchall() == role
        schema.check(connection)
        assert schema.installed_version(other) is None
    schema.check(other)


def test_a_transaction_that_rolls_back_leaves_nothing(cluster: Cluster, open_connection: Open) -> None:
    connection = open_connection(cluster.make_database())
    before = everything(connection)
    with connection.transaction(force_rollback=True):
        schema.install(connection)
    assert everything(connection) == before
    assert schema.installed_version(connection) is None


def test_a_failing_file_leaves_nothing(cluster: Cluster, open_connection: Open) -> None:
    connection = open_connection(cluster.make_database())
    before = everything(connection)
    source = schema.load()
    broken = (*source.tables, schema.File("9999_broken", "create table penstock.fine (); select 1 / 0"))
    with pytest.raises(psycopg.errors.DivisionByZero):
        schema.install(
            connection, schema.Source(source.package_version, broken, source.functions, source.roles)
        )
    assert everything(connection) == before


def test_check_says_what_to_do(cluster: Cluster, open_connection: Open) -> None:
    connection = open_connection(cluster.make_database())
    with pytest.raises(SchemaMissing, match="has no schema penstock") as missing:
        schema.check(connection)
    assert missing.value.hint
    assert "penstock migrate" in missing.value.hint
    connection.execute("create schema penstock")
    with pytest.raises(SchemaMissing):
        schema.check(connection)
    schema.install(connection)
    schema.check(connection)


def _changed(number: int | None = None, version: str = __version__, roles: str = "") -> schema.Source:
    source = schema.load()
    more = () if number is None else (schema.File(f"{number:04}_more", "create table penstock.more ()"),)
    return schema.Source(version, source.tables + more, source.functions, source.roles + roles)


@pytest.mark.parametrize(
    "newer", [_changed(number=9999), _changed(version="999.0", roles="-- another"), _changed(9999, "999.0")]
)
def test_a_newer_schema_is_refused(cluster: Cluster, open_connection: Open, newer: schema.Source) -> None:
    connection = open_connection(cluster.make_database())
    schema.install(connection, newer)
    before = describe(connection)
    with pytest.raises(
        SchemaTooNew, match=f"of version {newer.package_version} .*this package of"
    ) as refused:
        schema.install(connection)
    assert refused.value.hint == schema.UPGRADE
    with pytest.raises(psycopg.Error) as by_script:
        connection.execute(schema.script())
    connection.rollback()
    assert by_script.value.diag.sqlstate == "PN007"
    assert by_script.value.diag.message_hint == schema.UPGRADE
    with pytest.raises(SchemaTooNew, match="this package of") as found:
        schema.check(connection)
    assert (str(found.value), found.value.hint) == (str(refused.value), schema.UPGRADE)
    assert describe(connection) == before


def test_an_older_client_goes_on_after_a_patch(cluster: Cluster, open_connection: Open) -> None:
    """Else no order of a rolling deployment would work."""
    connection = open_connection(cluster.make_database())
    series = ".".join(__version__.split(".")[:2])
    schema.install(connection, _changed(version=f"{series}.999", roles="-- another"))
    assert schema.check(connection).package_version == f"{series}.999"
    with pytest.raises(SchemaTooNew):
        schema.install(connection)


def test_a_newer_package_with_the_same_sql_is_no_hindrance(cluster: Cluster, open_connection: Open) -> None:
    connection = open_connection(cluster.make_database())
    schema.install(connection)
    done = schema.install(connection, _changed(version="999.0"))
    assert done.after.package_version == "999.0"
    schema.check(connection)
    assert not schema.install(connection).changed


def test_an_older_schema_is_told_from_a_current_one(cluster: Cluster, open_connection: Open) -> None:
    connection = open_connection(cluster.make_database())
    schema.install(connection)
    with pytest.raises(SchemaOutdated, match=f"migration {schema.load().number}") as outdated:
        schema.check(connection, _changed(number=9999))
    assert outdated.value.hint == MIGRATE
    with pytest.raises(SchemaOutdated):
        schema.check(connection, _changed(roles="-- another"))


def test_an_upgrade_gives_what_a_fresh_install_gives(
    cluster: Cluster, open_connection: Open, tmp_path: Path
) -> None:
    fresh, upgraded = open_connection(cluster.make_database()), open_connection(cluster.make_database())
    schema.install(fresh)
    older = write_older(tmp_path, fresh)
    schema.install(upgraded, older)
    assert describe(upgraded) != describe(fresh)
    done = schema.install(upgraded)
    assert done.before
    assert done.before.package_version == "0.0.9"
    assert done.migrations == ()
    assert describe(upgraded) == describe(fresh)


def test_an_upgrade_from_each_migration_gives_what_a_fresh_install_gives(
    cluster: Cluster, open_connection: Open, tmp_path: Path
) -> None:
    fresh = open_connection(cluster.make_database())
    schema.install(fresh)
    newest = schema.load()
    for number in range(1, newest.number):
        upgraded = open_connection(cluster.make_database())
        tables = tuple(file for file in newest.tables if file.number <= number)
        functions = (schema.File("old", OLD_SIGNATURES),)
        schema.install(upgraded, schema.Source("0.0.9", tables, functions, "select 1;"))
        done = schema.install(upgraded)
        assert done.migrations == tuple(file.name for file in newest.tables if file.number > number)
        assert describe(upgraded) == describe(fresh)


def test_an_upgrade_runs_the_files_that_are_new(cluster: Cluster, open_connection: Open) -> None:
    fresh, upgraded = open_connection(cluster.make_database()), open_connection(cluster.make_database())
    newer = _changed(number=9999, version="999.0")
    schema.install(fresh, newer)
    schema.install(upgraded)
    done = schema.install(upgraded, newer)
    assert done.migrations == ("9999_more",)
    assert describe(upgraded) == describe(fresh)


def test_grants_of_others_survive_an_upgrade(cluster: Cluster, open_connection: Open) -> None:
    connection = open_connection(cluster.make_database())
    schema.install(connection)
    grantees = """
        select array_agg(a.grantee::regrole::text order by a.grantee)
        from pg_proc p, aclexplode(p.proacl) a where p.proname = 'pulse'
    """
    connection.execute("grant execute on function penstock.pulse to pg_monitor")
    before = connection.execute(grantees).fetchall()
    schema.install(connection, _changed(roles="-- another"))
    assert connection.execute(grantees).fetchall() == before
    assert "pg_monitor" in str(before)


def test_two_files_may_not_have_one_number(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "roles.sql").touch()
    for name in ("0001_one.sql", "0001_two.sql"):
        (tmp_path / "tables" / name).touch()
    with pytest.raises(ValueError, match="same number"):
        schema.load(tmp_path)


def test_any_text_can_be_run_once(cluster: Cluster, open_connection: Open) -> None:
    connection = open_connection(cluster.make_database())
    body = "$sql$ select $sql1$100% 'x' $sql2$ $sql1$ $sql$"
    text = f"create function penstock._odd() returns text language sql as {body}"
    source = schema.load()
    tables = (
        *source.tables,
        schema.File("9999_odd", text + "; drop function penstock._odd() -- $do$ $penstock$"),
    )
    schema.install(connection, schema.Source(source.package_version, tables, source.functions, source.roles))
    row: Any = connection.execute("select name from penstock.migrations where number = 9999").fetchone()
    assert row == ("9999_odd",)
