"""In a database with the extension Citus the installer keeps its objects on this node.

Citus itself is not here: a row of the catalog stands for it, and an event trigger notes the setting that
Citus reads at each command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from penstock import schema

from .conftest import Cluster, Open

WATCH = """
    create table public.seen (command text, propagation text);
    create function public.note() returns event_trigger language plpgsql as $$
    begin
        insert into public.seen values (tg_tag, current_setting('citus.enable_ddl_propagation', true));
    end $$;
    create event trigger watch on ddl_command_start execute function public.note();
"""
EXTENSION = """
    set allow_system_table_mods = on;
    insert into pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
    select max(e.oid::bigint) + 100000, 'citus', 10, 'pg_catalog'::regnamespace, false, '14.0'
    from pg_extension e;
    reset allow_system_table_mods;
    set citus.enable_ddl_propagation = on;
"""
Sql = psycopg.Connection[Any]


@pytest.fixture
def watched(cluster: Cluster, open_connection: Open) -> Callable[[bool], Sql]:
    """A database that notes each DDL command with the setting; with Citus or without."""

    def make(has_citus: bool) -> Sql:
        sql = open_connection(cluster.make_database())
        if has_citus:
            sql.execute(EXTENSION)
        else:
            sql.execute("set citus.enable_ddl_propagation = on")
        sql.execute(WATCH)
        return sql

    return make


def propagation(sql: Sql) -> dict[str, set[str]]:
    """The values of the setting by command, since the last time."""
    found: dict[str, set[str]] = {}
    for command, value in sql.execute("delete from public.seen returning command, propagation").fetchall():
        found.setdefault(command, set()).add(value)
    return found


def now(sql: Sql) -> str:
    (value,) = sql.execute("show citus.enable_ddl_propagation").fetchone() or ("",)
    return str(value)


def test_no_command_is_spread(watched: Callable[[bool], Sql]) -> None:
    sql = watched(True)
    schema.install(sql)
    found = propagation(sql)
    assert {"CREATE SCHEMA", "CREATE TABLE", "CREATE FUNCTION", "CREATE TYPE", "GRANT"} <= found.keys()
    assert set().union(*found.values()) == {"off"}
    assert now(sql) == "on", "it is for the installation alone"
    schema.uninstall(sql)
    assert propagation(sql)["DROP SCHEMA"] == {"off"}
    assert now(sql) == "on"


def test_nor_by_the_script(watched: Callable[[bool], Sql]) -> None:
    sql = watched(True)
    sql.execute(schema.script())
    assert set().union(*propagation(sql).values()) == {"off"}
    assert now(sql) == "on"


def test_what_follows_in_the_transaction_of_the_caller_is(watched: Callable[[bool], Sql]) -> None:
    sql = watched(True)
    with sql.transaction():
        schema.install(sql)
        propagation(sql)
        sql.execute("create table public.mine ()")
        assert propagation(sql) == {"CREATE TABLE": {"on"}}


def test_without_the_extension_nothing_is_set(watched: Callable[[bool], Sql]) -> None:
    sql = watched(False)
    schema.install(sql)
    assert set().union(*propagation(sql).values()) == {"on"}
