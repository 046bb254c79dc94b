"""Databases for tests, on a throwaway server or a given one: copies of a template with the schema."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus

from penstock import schema
from penstock.dsn import complete, resolve_dsn, unavailable
from penstock.embedded import EmbeddedError, Server, find_binaries, throwaway
from penstock.errors import PenstockError

from . import VARIABLE

__all__ = ["DatabaseServer", "database", "server"]

# Fast settings, because the data need not survive a power cut; all other settings are the defaults.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "200",
    "max_wal_size": "128MB",
}

MEMORY = Path("/dev/shm")  # noqa: S108 - the server makes a directory of its own there
ENOUGH_BYTES = 1_000_000_000

# Names of databases for tests: home database, run, number. A run holds the advisory lock of its key.
PREFIX = "penstock_test"
LOCK_CLASS = 1346719316
HOME = """
    select d.oid::bigint from pg_catalog.pg_database d
    where d.datname operator(pg_catalog.=) pg_catalog.current_database()
"""
ABANDONED = """
    select d.datname, r.key
    from pg_catalog.pg_database d
    cross join lateral (select pg_catalog.split_part(d.datname, '_', 4) as key) r
    where pg_catalog.starts_with(d.datname, %s) and r.key operator(pg_catalog.~) '^[0-9]{1,9}$'
"""


@contextmanager
def server(dsn: str | None = None) -> Iterator[DatabaseServer]:
    """A server for databases of tests.

    dsn: of any database of a server, with the right to create databases there; else the environment variable
    PENSTOCK_TEST_DATABASE_URL; else a throwaway server, which is removed at the end.
    """
    given = resolve_dsn(dsn or os.environ.get(VARIABLE) or None, {})
    if given is not None:
        made = DatabaseServer(given)
        try:
            made._remove_abandoned()
            yield made
        finally:
            made._close(tidy=True)
        return
    with _throwaway() as embedded:
        made = DatabaseServer(embedded.dsn(), strategy="file_copy")
        try:
            yield made
        finally:
            made._close(tidy=False)


def _throwaway() -> AbstractContextManager[Server]:
    try:
        binaries = find_binaries()
    except EmbeddedError as exc:
        raise EmbeddedError(f"{exc} Or name a server for tests in {VARIABLE}.") from exc
    return throwaway(settings=SETTINGS, binaries=binaries, directory=_quick_directory())


def _quick_directory() -> Path | None:
    """A directory in memory, if there is enough memory and TMPDIR is not set: databases copy faster there."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return None
    return MEMORY if shutil.disk_usage(MEMORY).free >= ENOUGH_BYTES else None


@contextmanager
def database(dsn: str | None = None) -> Iterator[str]:
    """Create a database with the schema, and drop it at the end; yields its DSN. dsn: as in server().

    For many databases start a server() once.
    """
    with server(dsn) as made, made.database() as found:
        yield found


class DatabaseServer:
    """A server for databases of tests. Made by server()."""

    def __init__(self, dsn: str, *, strategy: str | None = None) -> None:
        self._dsn = dsn
        self._copying = sql.SQL(f"strategy {strategy}" if strategy else "")
        self._creating = _Errands(dsn)
        try:
            self._dropping = _Errands(dsn)
        except BaseException:
            self._creating.close()
            raise
        self._home = self._dropping.value(HOME)
        self._key = self._lock()
        self._numbers = itertools.count(1)
        self._template: str | None = None
        self._ahead: str | None = None
        self._taken = 0

    def dsn(self, database: str | None = None) -> str:
        """The DSN of a database of this server; without a name, of the database of the given DSN."""
        if database is None:
            return self._dsn
        if "://" not in self._dsn:
            return make_conninfo(self._dsn, dbname=database)
        return urlunsplit(urlsplit(self._dsn)._replace(path=f"/{quote(database, safe='')}"))

    def template(self) -> str:
        """The DSN of the template: the database with the schema that all others are copied from.

        Create tables that each test needs here, before the first copy. No session may be connected to the
        template while copies are made.
        """
        if self._template is None:
            name = self._name("template")
            self._creating.send(sql.SQL("create database {}").format(sql.Identifier(name)))
            self._creating.wait()
            try:
                with psycopg.connect(complete(self.dsn(name))) as connection:
                    schema.install(connection)
            except BaseException:
                self._drop(name)
                raise
            self._template = name
        return self.dsn(self._template)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Copy the template, and drop the copy at the end; yields the DSN of the copy."""
        name = self._take()
        try:
            yield self.dsn(name)
        finally:
            # The drop runs in the background.
            self._drop(name)

    # From the second database on, the next database is made ahead: the server copies while a test runs.

    def _take(self) -> str:
        self.template()
        name, self._ahead = self._ahead or self._begin(), None
        try:
            self._creating.wait()
        except psycopg.errors.ObjectInUse as exc:
            raise PenstockError(
                "the template of the databases for tests cannot be copied: a session is connected to it",
                hint="close all connections to the DSN of the template before the first test",
            ) from exc
        self._taken += 1
        if self._taken > 1:
            self._ahead = self._begin()
        return name

    def _begin(self) -> str:
        assert self._template is not None
        name = self._name(next(self._numbers))
        self._creating.send(
            sql.SQL("create database {} template {} {}").format(
                sql.Identifier(name), sql.Identifier(self._template), self._copying
            )
        )
        return name

    def _drop(self, name: str) -> None:
        self._dropping.send(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def _close(self, *, tidy: bool) -> None:
        """tidy: drop the databases, because the server continues to run."""
        try:
            if tidy:
                try:
                    self._creating.wait()
                finally:
                    for name in (self._ahead, self._template):
                        if name is not None:
                            self._drop(name)
                self._dropping.wait()
        finally:
            self._creating.close()
            self._dropping.close()

    # Names and owners of the databases

    def _name(self, last: object) -> str:
        return f"{PREFIX}_{self._home}_{self._key}_{last}"

    def _lock(self) -> int:
        key = secrets.randbelow(10**9)
        self._dropping.value("select pg_catalog.pg_advisory_lock(%s, %s)", LOCK_CLASS, key)
        return key

    def _remove_abandoned(self) -> None:
        """Drop databases of killed runs: the advisory lock of their key is free."""
        own = str(self._key)
        found = self._dropping.rows(ABANDONED, f"{PREFIX}_{self._home}_")
        for key in {key for _, key in found if key != own}:
            if not self._dropping.value(
                "select pg_catalog.pg_try_advisory_lock(%s, %s)", LOCK_CLASS, int(key)
            ):
                continue
            for name in [name for name, whose in found if whose == key]:
                self._drop(name)
            self._dropping.wait()
            self._dropping.value("select pg_catalog.pg_advisory_unlock(%s, %s)", LOCK_CLASS, int(key))


class _Errands:
    """A connection that sends a statement without waiting for it. The next statement waits for the last one.

    Uses no thread, because a program under test may fork.
    """

    def __init__(self, dsn: str) -> None:
        try:
            self._connection = psycopg.connect(complete(dsn), autocommit=True)
            return
        except psycopg.OperationalError as exc:
            failure = unavailable(exc, dsn)
        raise failure

    def send(self, statement: sql.Composed) -> None:
        self.wait()
        self._connection.pgconn.send_query(statement.as_bytes(self._connection))

    def wait(self) -> None:
        """Wait until the last statement is done; raises its error."""
        failure = None
        while (result := self._connection.pgconn.get_result()) is not None:
            if result.status == ExecStatus.FATAL_ERROR:
                failure = psycopg.errors.error_from_result(result)
        if failure is not None:
            raise failure

    def rows(self, query: str, *parameters: object) -> list[tuple[str, str]]:
        self.wait()
        return self._connection.execute(query.encode(), parameters).fetchall()

    def value(self, query: str, *parameters: object) -> int:
        self.wait()
        found = self._connection.execute(query.encode(), parameters).fetchone()
        assert found is not None
        value: int = found[0]
        return value

    def close(self) -> None:
        self._connection.close()
