"""A server on which every system of tasks gets a database of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from penstock.embedded import throwaway

CHECKPOINTS_FAR_APART = {"max_wal_size": "16GB", "checkpoint_timeout": "1h"}
"""For all alike: a checkpoint in the slice of one of them would be noise. All else is the default."""


class Arena:
    """The server, which makes a database on request."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    @property
    def version(self) -> str:
        return self.setting("server_version")

    def setting(self, name: str) -> str:
        """A setting of the server."""
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute("select current_setting(%s)", (name,)).fetchone()
        return str(row and row[0])

    def database(
        self, name: str, *, template: str | None = None, settings: Mapping[str, str] | None = None
    ) -> str:
        """A fresh database, empty or a copy of another one of these; settings: of its sessions."""
        self.drop(name)
        identifier = sql.Identifier(_full(name))
        create = sql.SQL("create database {}").format(identifier)
        if template is not None:
            create += sql.SQL(" template {}").format(sql.Identifier(_full(template)))
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(create)
            for setting, value in (settings or {}).items():
                connection.execute(
                    sql.SQL("alter database {} set {} = {}").format(
                        identifier, sql.Identifier(setting), value
                    )
                )
        if self.dsn.startswith("postgresql://postgres@/postgres?"):  # the peers' drivers want a URI
            return self.dsn.replace("@/postgres?", f"@/{_full(name)}?")
        return make_conninfo(self.dsn, dbname=_full(name))

    def drop(self, name: str) -> None:
        """Drop a database, if it is there."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            identifier = sql.Identifier(_full(name))
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(identifier))


def _full(name: str) -> str:
    return f"bench_worker_{name}"


@contextmanager
def arena(settings: Mapping[str, str] | None = None) -> Iterator[Arena]:
    """A throwaway server with its default durability, or the one of PENSTOCK_BENCH_DSN."""
    given = os.environ.get("PENSTOCK_BENCH_DSN")
    if given:
        yield Arena(given)
        return
    with throwaway(settings=CHECKPOINTS_FAR_APART | dict(settings or {})) as server:
        yield Arena(server.dsn())
