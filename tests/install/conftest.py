"""Empty databases to install into."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from penstock.embedded import Server, throwaway
from tests.conftest import MAJORS, SETTINGS, in_memory, require_binaries

Open = Callable[..., psycopg.Connection[Any]]


class Cluster:
    """A server and what a test makes on it; all of that goes when the test is over."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.root = psycopg.connect(server.dsn("postgres"), autocommit=True)
        self._databases: list[str] = []
        self._logins: list[str] = []

    def make_database(self, owner: str = "postgres", options: str = "") -> str:
        """An empty database: its DSN."""
        name = f"install_{secrets.token_hex(6)}"
        # Files are copied in half the time that it takes by way of the log.
        self.root.execute(f"create database {name} owner {owner} {options} strategy file_copy")
        self._databases.append(name)
        return self.server.dsn(name)

    def make_login(self, options: str = "") -> str:
        """A role that is not a superuser."""
        name = f"login_{secrets.token_hex(6)}"
        self.root.execute(f"create role {name} login {options}")
        self._logins.append(name)
        return name

    def roles(self) -> list[str]:
        rows = self.root.execute("select rolname from pg_roles where rolname like 'penstock%' order by 1")
        return [row[0] for row in rows]

    def clean(self) -> None:
        for name in self._databases:
            self.root.execute(f"drop database {name} with (force)")
        for name in self._logins:
            self.root.execute(f"drop owned by {name}")
            self.root.execute(f"drop role {name}")
        self.root.close()


@pytest.fixture
def cluster(server: Server) -> Iterator[Cluster]:
    """The server of all tests, to install into databases of it."""
    cluster = Cluster(server)
    yield cluster
    cluster.clean()


@pytest.fixture(scope="session", params=MAJORS)
def bare_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    binaries = require_binaries(request.param)
    with throwaway(settings=SETTINGS, binaries=binaries, directory=in_memory()) as server:
        yield server


@pytest.fixture
def bare(bare_server: Server) -> Iterator[Cluster]:
    """A server without the roles, to see which call creates them, and that they are dropped."""
    cluster = Cluster(bare_server)
    yield cluster
    cluster.clean()
    with psycopg.connect(bare_server.dsn("postgres"), autocommit=True) as root:
        for (name,) in root.execute("select rolname from pg_roles where rolname like 'penstock%'").fetchall():
            root.execute(f"drop role {name}")


@pytest.fixture
def open_connection() -> Iterator[Open]:
    """Open autocommit connections that are closed at the end of the test."""
    with ExitStack() as stack:

        def open_one(dsn: str, user: str = "postgres") -> psycopg.Connection[Any]:
            return stack.enter_context(psycopg.connect(dsn, user=user, autocommit=True))

        yield open_one
