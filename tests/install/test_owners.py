"""Who may install: a superuser, an owner of the database with and without the right to create roles."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from penstock import schema

from .catalog import describe
from .conftest import Cluster, Open

PUBLISHER = {
    *("publish_message", "publish_messages", "send_message", "send_messages", "cancel_message"),
    *("declare_queue", "queue_difference", "create_group", "put_schedule", "advance_schedule"),
    *("list_schedules", "get_result"),
}
EVERYBODY = {"clock", "schema_version", "done_channel"}


def _callable(connection: psycopg.Connection[Any], role: str) -> set[str]:
    rows = connection.execute(
        "select proname from pg_proc where pronamespace = 'penstock'::regnamespace"
        " and has_function_privilege(%s, oid, 'execute')",
        [role],
    )
    return {row[0] for row in rows}


def _owners(connection: psycopg.Connection[Any]) -> set[str]:
    rows = connection.execute("""
        select relowner::regrole::text from pg_class where relnamespace = 'penstock'::regnamespace
        union select proowner::regrole::text from pg_proc where pronamespace = 'penstock'::regnamespace
        union select nspowner::regrole::text from pg_namespace where nspname = 'penstock'
    """)
    return {row[0] for row in rows}


def test_an_owner_who_may_create_roles(bare: Cluster, open_connection: Open) -> None:
    owner = bare.make_login("createrole")
    connection = open_connection(bare.make_database(owner), owner)
    schema.install(connection)
    assert len(bare.roles()) == 4
    assert _callable(connection, "penstock_publisher") == PUBLISHER | EVERYBODY
    assert _callable(connection, "penstock_admin") >= _callable(connection, "penstock_consumer") | PUBLISHER
    for role in bare.roles():
        assert connection.execute(
            "select pg_has_role('penstock_admin', %s, 'member')", [role]
        ).fetchone() == (True,)
    schema.uninstall(connection)
    assert bare.roles() == []


def test_an_owner_who_may_not(bare: Cluster, open_connection: Open) -> None:
    owner = bare.make_login("nocreaterole")
    dsn = bare.make_database(owner)
    connection, superuser = open_connection(dsn, owner), open_connection(dsn)
    schema.install(connection)
    assert bare.roles() == []
    assert connection.execute("select penstock.create_topic('orders')").fetchone()

    # Somebody who may creates the roles later, by running the same again.
    superuser.execute(schema.script())
    assert len(bare.roles()) == 4
    assert _callable(connection, "penstock_publisher") == PUBLISHER | EVERYBODY
    assert _owners(connection) == {owner}

    # And the owner upgrades, with roles that are not the owner's.
    before = describe(connection)
    connection.execute(schema.script())
    assert describe(connection) == before

    schema.uninstall(connection)
    assert len(bare.roles()) == 4
    schema.uninstall(superuser)
    assert bare.roles() == []


def test_an_upgrade_by_a_superuser_keeps_one_owner(bare: Cluster, open_connection: Open) -> None:
    source = schema.load()
    more = schema.File("9999_more", "create table penstock.more (); create type penstock.also as (x int)")
    newer = schema.Source("999.0", (*source.tables, more), source.functions, source.roles)
    owner = bare.make_login()
    dsn = bare.make_database(owner)
    schema.install(open_connection(dsn, owner))
    superuser = open_connection(dsn)
    schema.install(superuser, newer)
    assert _owners(superuser) == {owner}
    assert superuser.execute("select current_user, current_setting('role')").fetchone() == (
        "postgres",
        "none",
    )


def test_a_schema_that_a_superuser_made_for_somebody(bare: Cluster, open_connection: Open) -> None:
    owner = bare.make_login()
    dsn = bare.make_database()
    open_connection(dsn).execute(f"create schema penstock authorization {owner}")
    connection = open_connection(dsn, owner)
    schema.install(connection)
    connection.execute(schema.script())
    assert _owners(connection) == {owner}


def test_somebody_without_rights_is_refused(bare: Cluster, open_connection: Open) -> None:
    stranger = bare.make_login()
    dsn = bare.make_database()
    connection, superuser = open_connection(dsn, stranger), open_connection(dsn)
    assert schema.installed_version(connection) is None
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        schema.install(connection)
    schema.install(superuser)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        schema.check(connection)

    superuser.execute(f"grant penstock_publisher to {stranger}")
    schema.check(connection)
    assert not schema.install(connection).changed
    for query in ("select from penstock.ready", "select penstock.maintain()", "select penstock._floor(1)"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(query)
