"""Many processes that install at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg

from penstock import schema
from penstock.embedded import Server

from .catalog import describe
from .conftest import MakeDatabase, Open
from .older import write_older

Work = Callable[[psycopg.Connection[Any]], schema.Installed]


def _at_once(dsns: list[str], work: Work) -> list[schema.Installed]:
    barrier = Barrier(len(dsns))

    def one(dsn: str) -> schema.Installed:
        with psycopg.connect(dsn) as connection:
            connection.isolation_level = (
                psycopg.IsolationLevel.REPEATABLE_READ
            )  # as a careful caller may have it
            barrier.wait(timeout=60)
            return work(connection)

    with ThreadPoolExecutor(len(dsns)) as pool:
        return list(pool.map(one, dsns))


def test_twenty_install_into_one_database(make_database: MakeDatabase, open_connection: Open) -> None:
    dsn = make_database()
    done = _at_once([dsn] * 20, schema.install)
    assert len([each for each in done if each.changed]) == 1
    assert len({each.after for each in done}) == 1
    schema.check(open_connection(dsn))


def test_twenty_upgrade_one_database(
    make_database: MakeDatabase, open_connection: Open, tmp_path: Path
) -> None:
    fresh, dsn = open_connection(make_database()), make_database()
    schema.install(fresh)
    upgraded = open_connection(dsn)
    schema.install(upgraded, write_older(tmp_path, fresh))
    done = _at_once([dsn] * 20, schema.install)
    assert len([each for each in done if each.changed]) == 1
    assert describe(upgraded) == describe(fresh)


def test_twenty_run_the_script(make_database: MakeDatabase, open_connection: Open) -> None:
    dsn, script = make_database(), schema.script()

    def run(connection: psycopg.Connection[Any]) -> schema.Installed:
        connection.autocommit = True
        connection.execute(script)
        version = schema.check(connection)
        return schema.Installed(None, version, ())

    _at_once([dsn] * 20, run)
    schema.check(open_connection(dsn))


def test_five_databases_that_all_want_the_roles(
    server_without_roles: Server, make_database_without_roles: MakeDatabase, open_connection: Open
) -> None:
    # Roles belong to the whole server, the lock to one database: here nothing keeps the installers apart.
    root = open_connection(server_without_roles.dsn("postgres"))
    for _ in range(5):
        assert root.execute("select from pg_roles where rolname like 'penstock%'").fetchone() is None
        dsns = [make_database_without_roles() for _ in range(5)]
        _at_once(dsns * 2, schema.install)
        connections = [open_connection(dsn) for dsn in dsns]
        found = [describe(connection) for connection in connections]
        assert all(each == found[0] for each in found)
        assert "penstock_viewer=X" in "".join(found[0])
        members = root.execute(
            "select count(*) from pg_auth_members where member = 'penstock_admin'::regrole"
        ).fetchone()
        assert members == (3,)
        for connection in connections:
            schema.uninstall(connection)
