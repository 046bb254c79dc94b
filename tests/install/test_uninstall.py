"""Uninstalling leaves nothing."""

from __future__ import annotations

import pytest

from penstock import schema
from penstock.errors import SchemaUnsafe

from .catalog import everything
from .conftest import Cluster, Open


def test_it_leaves_nothing(bare: Cluster, open_connection: Open) -> None:
    connection = open_connection(bare.make_database())
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


def test_roles_that_another_database_uses_stay(bare: Cluster, open_connection: Open) -> None:
    one, other = (open_connection(bare.make_database()) for _ in range(2))
    schema.install(one)
    schema.install(other)
    schema.uninstall(one)
    assert len(bare.roles()) == 4
    schema.check(other)
    schema.uninstall(other)
    assert bare.roles() == []


def test_in_the_callers_transaction(cluster: Cluster, open_connection: Open) -> None:
    connection = open_connection(cluster.make_database())
    schema.install(connection)
    before = everything(connection)
    with connection.transaction(force_rollback=True):
        schema.uninstall(connection)
        assert connection.execute("show client_min_messages").fetchone() == ("notice",)
        assert schema.installed_version(connection) is None
    assert everything(connection) == before


def test_a_schema_of_another_owner_is_not_dropped(cluster: Cluster, open_connection: Open) -> None:
    connection = open_connection(cluster.make_database())
    schema.install(connection)
    connection.execute("set role pg_monitor")
    with pytest.raises(SchemaUnsafe):
        schema.uninstall(connection)
    connection.execute("reset role")
    schema.check(connection)
