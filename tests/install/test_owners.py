"""Who may install: a superuser, an owner of the database with and without the right to create roles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from penstock import schema
from penstock.embedded import Server

from .catalog import describe
from .conftest import MakeDatabase, Open

ROLES = "select rolname from pg_roles where rolname like 'penstock%' order by 1"


@contextmanager
def _login(root: psycopg.Connection[object], name: str, options: str) -> Iterator[str]:
    root.execute(f"create role {name} login password '{name}' {options}")
    yield name
    root.execute(f"drop role {name}")


@pytest.fixture
def root(server_without_roles: Server, open_connection: Open) -> psycopg.Connection[object]:
    return open_connection(server_without_roles.dsn("postgres"))


@pytest.fixture(autouse=True)
def no_roles_left(root: psycopg.Connection[object]) -> Iterator[None]:
    yield
    assert root.execute(ROLES).fetchall() == []


def _as(dsn: str, user: str) -> str:
    return psycopg.conninfo.make_conninfo(dsn, user=user, password=user)


def _called_by(connection: psycopg.Connection[object], role: str) -> set[object]:
    rows = connection.execute(
        "select proname from pg_proc where pronamespace = 'penstock'::regnamespace"
        " and has_function_privilege(%s, oid, 'execute')",
        [role],
    )
    return {row[0] for row in rows}  # type: ignore[index]


def test_an_owner_who_may_create_roles(
    make_database_without_roles: MakeDatabase, open_connection: Open, root: psycopg.Connection[object]
) -> None:
    with _login(root, "installer", "createrole") as installer:
        dsn = _as(make_database_without_roles(installer), installer)
        with psycopg.connect(dsn, autocommit=True) as connection:
            schema.install(connection)
            assert len(root.execute(ROLES).fetchall()) == 4
            assert _called_by(connection, "penstock_publisher") == {
                "publish_message",
                "publish_messages",
                "send_message",
                "send_messages",
                "cancel_message",
                "schema_version",
            }
            assert _called_by(connection, "penstock_admin") >= _called_by(connection, "penstock_consumer")
            schema.uninstall(connection)
        with psycopg.connect(root.info.dsn, dbname=psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]) as own:
            own.execute(f"drop owned by {installer}")
        root.execute(f"reassign owned by {installer} to current_user")


def test_an_owner_who_may_not(
    make_database_without_roles: MakeDatabase, open_connection: Open, root: psycopg.Connection[object]
) -> None:
    with _login(root, "installer", "nocreaterole") as installer:
        dsn = make_database_without_roles(installer)
        with psycopg.connect(_as(dsn, installer), autocommit=True) as connection:
            schema.install(connection)
            assert root.execute(ROLES).fetchall() == []
            assert connection.execute("select penstock.create_topic('orders')").fetchone()
            schema.check(connection)

        # Somebody who may creates the roles later, by running the same again.
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(schema.script())
            assert len(root.execute(ROLES).fetchall()) == 4
            assert "create_topic" in _called_by(connection, "penstock_admin")
            owners = connection.execute(
                "select distinct proowner::regrole::text from pg_proc"
                " where pronamespace = 'penstock'::regnamespace"
            )
            assert owners.fetchall() == [(installer,)]

        # And the owner upgrades, with roles that others have made.
        with psycopg.connect(_as(dsn, installer), autocommit=True) as connection:
            before = describe(connection)
            connection.execute(schema.script())
            assert describe(connection) == before
            schema.uninstall(connection)
            assert len(root.execute(ROLES).fetchall()) == 4
        with psycopg.connect(dsn, autocommit=True) as connection:
            schema.uninstall(connection)
        root.execute(f"reassign owned by {installer} to current_user")


def test_an_upgrade_by_a_superuser_keeps_one_owner(
    make_database_without_roles: MakeDatabase, open_connection: Open, root: psycopg.Connection[object]
) -> None:
    source = schema.load()
    more = schema.File("9999_more", "create table penstock.more (); create type penstock.also as (x int)")
    newer = schema.Source("999.0", (*source.tables, more), source.functions, source.roles)
    with _login(root, "installer", "") as installer:
        dsn = make_database_without_roles(installer)
        with psycopg.connect(_as(dsn, installer), autocommit=True) as connection:
            schema.install(connection)
        with psycopg.connect(dsn, autocommit=True) as connection:
            schema.install(connection, newer)
            assert connection.execute("select current_user, current_setting('role')").fetchone() == (
                connection.info.user,
                "none",
            )
            owners = connection.execute(
                "select relowner::regrole::text from pg_class where relnamespace = 'penstock'::regnamespace"
                " union select proowner::regrole::text from pg_proc"
                " where pronamespace = 'penstock'::regnamespace"
            )
            assert owners.fetchall() == [(installer,)]
            schema.uninstall(connection)
        root.execute(f"reassign owned by {installer} to current_user")


def test_somebody_without_rights_gets_a_plain_refusal(
    make_database_without_roles: MakeDatabase, open_connection: Open, root: psycopg.Connection[object]
) -> None:
    with _login(root, "stranger", "") as stranger:
        dsn = make_database_without_roles()
        with psycopg.connect(_as(dsn, stranger), autocommit=True) as connection:
            assert schema.installed_version(connection) is None
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                schema.install(connection)
            with psycopg.connect(dsn, autocommit=True) as owner:
                schema.install(owner)
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    schema.check(connection)
                owner.execute(f"grant penstock_publisher to {stranger}")
                schema.check(connection)
                assert not schema.install(connection).changed
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute("select * from penstock.ready")
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute("select penstock.purge_all_messages()")
                schema.uninstall(owner)
