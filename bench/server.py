"""The server that the benchmarks run on: a throwaway one, or the one that PENSTOCK_BENCH_DSN names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from bench import reference
from bench.queues import IDLE_QUEUE, QUEUE
from penstock.embedded import throwaway
from penstock.schema import install

STATEMENTS = "pg_stat_statements"


class Host:
    """A server on which each thing that is measured gets a fresh database."""

    def __init__(self, dsn: Callable[[str], str]) -> None:
        self._dsn = dsn
        with psycopg.connect(dsn("postgres"), autocommit=True) as connection:
            preloaded = connection.execute("show shared_preload_libraries").fetchone()
            version = connection.execute("show server_version").fetchone()
        self.counts_statements = bool(preloaded and STATEMENTS in preloaded[0])
        self.version = str(version and version[0])

    def database(self, name: str, *, nested_statements: bool = False) -> str:
        """The DSN of a fresh database with both sides installed and no message in it."""
        name = f"bench_{name}"
        self._recreate(name)
        dsn = self._dsn(name)
        with psycopg.connect(dsn, autocommit=True) as connection:
            if self.counts_statements:
                connection.execute(f"create extension {STATEMENTS}")
                if nested_statements:
                    connection.execute(f"alter database {name} set {STATEMENTS}.track = 'all'")
            install(connection)
            connection.execute(reference.SCHEMA)
            for queue in (QUEUE, IDLE_QUEUE):
                create = "select penstock.create_queue(%s, retain_completed_seconds => 0)"
                connection.execute(create, (queue,))
        return dsn

    def _recreate(self, name: str) -> None:
        identifier = sql.Identifier(name)
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(identifier))
            connection.execute(sql.SQL("create database {}").format(identifier))


@contextmanager
def host(*, count_statements: bool) -> Iterator[Host]:
    """A server with its default durability; where asked, with pg_stat_statements."""
    given = os.environ.get("PENSTOCK_BENCH_DSN")
    if given:
        yield Host(lambda database: make_conninfo(given, dbname=database))
        return
    settings = {"shared_preload_libraries": STATEMENTS} if count_statements else {}
    with throwaway(settings=settings) as server:
        yield Host(server.dsn)


def tidy(dsn: str, *, checkpoint: bool = False) -> None:
    """Vacuum and analyze both sides, so that what came before is not measured."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("vacuum (analyze)")
        if checkpoint:
            connection.execute("checkpoint")
