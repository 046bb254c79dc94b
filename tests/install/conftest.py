"""Empty databases to install into."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from penstock.embedded import EmbeddedError, Server, find_binaries, throwaway

MakeDatabase = Callable[..., str]
Open = Callable[[str], psycopg.Connection[Any]]


@contextmanager
def _databases(server: Server) -> Iterator[MakeDatabase]:
    made: list[sql.Identifier] = []
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:

        def make(owner: str = "postgres") -> str:
            name = f"install_{secrets.token_hex(6)}"
            made.append(sql.Identifier(name))
            connection.execute(sql.SQL("create database {} owner {}").format(made[-1], sql.Identifier(owner)))
            return server.dsn(name)

        yield make
        for identifier in made:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(identifier))


@pytest.fixture
def make_database(server: Server) -> Iterator[MakeDatabase]:
    """Make an empty database, of an owner if one is named: returns its DSN."""
    with _databases(server) as make:
        yield make


@pytest.fixture(scope="session", params=[18, 15])
def server_without_roles(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server on which nothing was ever installed, to see who creates the roles, and that they go."""
    try:
        binaries = find_binaries(request.param)
    except EmbeddedError:
        pytest.skip(f"PostgreSQL {request.param} is not here")
    with throwaway(settings={"fsync": "off"}, binaries=binaries) as server:
        yield server


@pytest.fixture
def make_database_without_roles(server_without_roles: Server) -> Iterator[MakeDatabase]:
    """The same on the server without roles."""
    with _databases(server_without_roles) as make:
        yield make


@pytest.fixture
def open_connection() -> Iterator[Open]:
    """Open autocommit connections that are closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda dsn: stack.enter_context(psycopg.connect(dsn, autocommit=True))
