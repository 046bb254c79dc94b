"""Roles that may install: a superuser, a database owner with and without the right to create roles."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from penstock import schema
from penstock.errors import SchemaUnsafe

from .catalog import describe
from .conftest import Cluster, Open

PUBLISHER = {
    *("publish_message", "publish_messages", "send_message", "send_messages", "cancel_message"),
    *("declare_queue", "queue_difference", "create_group", "put_schedule", "advance_schedule"),
    *("list_schedules", "get_result", "deliver_message_now", "deliver_messages_now"),
}
EVERY_ROLE = {"clock", "schema_version", "done_channel"}


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


def test_an_owner_that_may_create_roles(bare: Cluster, open_connection: Open) -> None:
    owner = bare.make_login("createrole")
    connection = open_connection(bare.make_database(owner), owner)
    schema.install(connection)
    assert len(bare.roles()) == 4
    assert _callable(connection, "penstock_publisher") == PUBLISHER | EVERY_ROLE
    assert _callable(connection, "penstock_admin") >= _callable(connection, "penstock_consumer") | PUBLISHER
    for role in bare.roles():
        assert connection.execute(
            "select pg_has_role('penstock_admin', %s, 'member')", [role]
        ).fetchone() == (True,)
    schema.uninstall(connection)
    assert bare.roles() == []


def test_an_owner_that_may_not_create_roles(bare: Cluster, open_connection: Open) -> None:
    owner = bare.make_login("nocreaterole")
    dsn = bare.make_database(owner)
    connection, superuser = open_connection(dsn, owner), open_connection(dsn)
    schema.install(connection)
    assert bare.roles() == []
    assert connection.execute("select penstock.create_topic('orders')").fetchone()

    assert not schema.install(connection).changed

    # A superuser creates the roles later, and the owner installs again: then each may call what it should.
    for role in schema.ROLES:
        superuser.execute(f"create role {role}".encode())
    superuser.execute("grant penstock_publisher, penstock_consumer, penstock_viewer to penstock_admin")
    schema.install(connection)
    assert _callable(connection, "penstock_publisher") == PUBLISHER | EVERY_ROLE
    assert _owners(connection) == {owner}
    again = schema.install(connection)
    assert again.before == again.after

    # And the owner upgrades, with roles that are not the owner's.
    before = describe(connection)
    connection.execute(schema.script())
    assert describe(connection) == before

    schema.uninstall(connection)
    assert len(bare.roles()) == 4
    schema.uninstall(superuser)
    assert bare.roles() == []


def test_an_upgrade_is_for_the_owner(bare: Cluster, open_connection: Open) -> None:
    source = schema.load()
    more = schema.File("9999_more", "create table penstock.more (); create type penstock.also as (x int)")
    newer = schema.Source("999.0", (*source.tables, more), source.functions, source.roles)
    owner = bare.make_login()
    dsn = bare.make_database(owner)
    connection, superuser = open_connection(dsn, owner), open_connection(dsn)
    schema.install(connection)
    with pytest.raises(SchemaUnsafe, match=f'belongs to role "{owner}", not to "postgres"'):
        schema.install(superuser, newer)
    schema.install(connection, newer)
    assert _owners(superuser) == {owner}


def test_an_owner_that_cannot_log_in(bare: Cluster, open_connection: Open) -> None:
    owner = bare.make_login()
    bare.root.execute(f"alter role {owner} nologin".encode())
    dsn = bare.make_database(owner)
    deployer = bare.make_login(f"in role {owner}")
    connection = open_connection(dsn, deployer)
    connection.execute(f"set role {owner}".encode())
    schema.install(connection)
    assert _owners(connection) == {owner}
    connection.execute("reset role")
    with pytest.raises(psycopg.errors.DatabaseError) as caught:
        connection.execute(schema.script().encode())
    assert caught.value.sqlstate == "PN009"
    assert (caught.value.diag.message_hint or "").endswith(f"with the option -c role={owner}.")


def test_a_schema_that_a_superuser_made_for_another_role(bare: Cluster, open_connection: Open) -> None:
    owner = bare.make_login()
    dsn = bare.make_database()
    open_connection(dsn).execute(f"create schema penstock authorization {owner}")
    connection = open_connection(dsn, owner)
    schema.install(connection)
    connection.execute(schema.script())
    assert _owners(connection) == {owner}


def test_a_role_without_rights_is_refused(bare: Cluster, open_connection: Open) -> None:
    stranger = bare.make_login()
    dsn = bare.make_database()
    connection, superuser = open_connection(dsn, stranger), open_connection(dsn)
    assert schema.installed_version(connection) is None
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        schema.install(connection)
    schema.install(superuser)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        schema.check(connection)

    with pytest.raises(SchemaUnsafe):
        schema.uninstall(connection)

    superuser.execute(f"grant penstock_publisher to {stranger}")
    schema.check(connection)
    assert not schema.install(connection).changed
    for query in ("select from penstock.ready", "select penstock.maintain()", "select penstock._floor(1)"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(query)
