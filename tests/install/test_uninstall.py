"""Uninstalling leaves nothing."""

from __future__ import annotations

import psycopg
import pytest

from penstock import schema
from penstock.embedded import Server

from .catalog import everything
from .conftest import MakeDatabase, Open


def test_it_leaves_nothing(
    server_without_roles: Server, make_database_without_roles: MakeDatabase, open_connection: Open
) -> None:
    connection = open_connection(make_database_without_roles())
    before = everything(connection)
    schema.install(connection)
    assert len(everything(connection) - before) > 100
    connection.execute("select penstock.create_topic('orders')")
    connection.execute("select penstock.create_queue('billing', 'orders')")
    connection.execute("""select penstock.publish_message('orders', '{"order": 1}')""")
    connection.execute("select penstock.maintain()")
    schema.uninstall(connection)
    assert everything(connection) == before
    schema.uninstall(connection)
    assert schema.install(connection).before is None
    schema.uninstall(connection)
    assert everything(connection) == before


def test_roles_that_another_database_uses_stay(
    make_database_without_roles: MakeDatabase, open_connection: Open
) -> None:
    one, other = (open_connection(make_database_without_roles()) for _ in range(2))
    schema.install(one)
    schema.install(other)
    schema.uninstall(one)
    assert one.execute("select count(*) from pg_roles where rolname like 'penstock%'").fetchone() == (4,)
    schema.check(other)
    schema.uninstall(other)
    assert one.execute("select count(*) from pg_roles where rolname like 'penstock%'").fetchone() == (0,)


def test_in_the_callers_transaction(make_database: MakeDatabase, open_connection: Open) -> None:
    connection = open_connection(make_database())
    schema.install(connection)
    before = everything(connection)
    with connection.transaction(force_rollback=True):
        schema.uninstall(connection)
        assert connection.execute("show client_min_messages").fetchone() == ("notice",)
        assert schema.installed_version(connection) is None
    assert everything(connection) == before


def test_somebody_elses_schema_is_not_dropped(make_database: MakeDatabase, open_connection: Open) -> None:
    connection = open_connection(make_database())
    schema.install(connection)
    connection.execute("set role pg_monitor")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        schema.uninstall(connection)
    connection.execute("reset role")
    schema.check(connection)
