"""Many processes that install at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg
import pytest

from penstock import schema

from .catalog import describe
from .conftest import Cluster, Open
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


def test_twenty_install_into_one_database(cluster: Cluster, open_connection: Open) -> None:
    dsn = cluster.make_database()
    done = _at_once([dsn] * 20, schema.install)
    assert len([each for each in done if each.changed]) == 1
    assert len({each.after for each in done}) == 1
    schema.check(open_connection(dsn))


def test_twenty_upgrade_one_database(cluster: Cluster, open_connection: Open, tmp_path: Path) -> None:
    fresh, dsn = open_connection(cluster.make_database()), cluster.make_database()
    schema.install(fresh)
    upgraded = open_connection(dsn)
    schema.install(upgraded, write_older(tmp_path, fresh))
    done = _at_once([dsn] * 20, schema.install)
    assert len([each for each in done if each.changed]) == 1
    assert describe(upgraded) == describe(fresh)


@pytest.mark.slow
def test_twenty_run_the_script(cluster: Cluster, open_connection: Open) -> None:
    dsn, script = cluster.make_database(), schema.script()

    def run(connection: psycopg.Connection[Any]) -> schema.Installed:
        connection.autocommit = True
        connection.execute(script)
        version = schema.check(connection)
        return schema.Installed(None, version, ())

    _at_once([dsn] * 20, run)
    schema.check(open_connection(dsn))


@pytest.mark.slow
def test_five_databases_that_all_want_the_roles(bare: Cluster, open_connection: Open) -> None:
    # Roles belong to the whole server, the lock to one database: here nothing keeps the installers apart.
    for _ in range(3):
        assert bare.roles() == []
        dsns = [bare.make_database() for _ in range(5)]
        _at_once(dsns * 2, schema.install)
        connections = [open_connection(dsn) for dsn in dsns]
        found = [describe(connection) for connection in connections]
        assert all(each == found[0] for each in found)
        assert all(f"{role}=X/" in "".join(found[0]) for role in bare.roles())
        assert len(bare.roles()) == 4
        members = """
            select count(*) from pg_auth_members m join pg_roles r on r.oid = m.member
            where r.rolname = 'penstock_admin'
        """
        assert bare.root.execute(members).fetchone() == (3,)
        for connection in connections:
            schema.uninstall(connection)
