"""Real servers and databases with the schema in them.

`server`, `database`, `connect` and `sql` run a test on each PostgreSQL that is here, the embedded 18 and the
system's 15; `server18`, `database18`, `connect18` and `sql18` on the embedded one only. Each test has a
database of its own. PENSTOCK_TEST_MAJORS names other major versions: `17`, or `17,16`. The first of them
takes the place of 18.
"""

import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from penstock.embedded import Binaries, EmbeddedError, Server, find_binaries, throwaway

TEMPLATE = "penstock_template"

MAJORS_VARIABLE = "PENSTOCK_TEST_MAJORS"
MAJORS = tuple(int(major) for major in os.environ.get(MAJORS_VARIABLE, "18,15").split(","))

# Quick, because nothing has to outlive a power cut; all else as a user has it.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_prepared_transactions": "20",
}


ROOM_BYTES = 8 * 2**30

# A script ignores SIGINT and SIGQUIT for what it starts in the background, and nohup ignores SIGHUP. Some
# tests send these signals.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def in_memory() -> Path | None:
    """A folder in memory, where there is one with room: a database for each test is a lot of files."""
    memory = Path("/dev/shm")  # noqa: S108
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        return None
    return memory if shutil.disk_usage(memory).free >= ROOM_BYTES else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow ones first: the last minute should not be a wait for one of them."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


class Connect(Protocol):
    """Opens an autocommit connection to the test's database; it is closed after the test."""

    def __call__(self, **options: Any) -> psycopg.Connection[Any]: ...


class Servers:
    """One server for each major version, started when the first test asks for it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[int, Server] = {}
        self._templates: set[int] = set()
        self._admins: dict[int, psycopg.Connection[Any]] = {}
        self._numbers = itertools.count(1)

    def get(self, major: int) -> Server:
        if major not in self._started:
            binaries = find_binaries(major=major)
            server = self._stack.enter_context(
                throwaway(settings=SETTINGS, binaries=binaries, directory=in_memory())
            )
            self._started[major] = server
        return self._started[major]

    @contextmanager
    def database(self, server: Server) -> Iterator[str]:
        """A fresh database with the schema: its DSN."""
        self._make_template(server)
        name = f"test_{next(self._numbers)}"
        # Files are copied in half the time that it takes by way of the log.
        self._administer(server, f'create database "{name}" template "{TEMPLATE}" strategy file_copy')
        try:
            yield server.dsn(name)
        finally:
            self._administer(server, f'drop database "{name}" with (force)')

    def _administer(self, server: Server, statement: str) -> None:
        """On a connection that is kept: there are thousands of databases."""
        admin = self._admins.get(server.version)
        try:
            if admin is not None:
                admin.execute("select 1")
        except psycopg.OperationalError:
            admin = None  # a test has ended all sessions
        if admin is None:
            admin = self._admins[server.version] = self._stack.enter_context(
                psycopg.connect(server.dsn(), autocommit=True)
            )
        admin.execute(statement.encode())

    def _make_template(self, server: Server) -> None:
        if server.version in self._templates:
            return
        from penstock import schema

        # An install that failed in an earlier test left an empty one behind.
        self._administer(server, f'drop database if exists "{TEMPLATE}" with (force)')
        self._administer(server, f'create database "{TEMPLATE}"')
        with psycopg.connect(server.dsn(TEMPLATE)) as connection:
            schema.install(connection)
        self._templates.add(server.version)


@contextmanager
def connections(dsn: str) -> Iterator[Connect]:
    """A factory of connections, and their end."""
    with ExitStack() as stack:

        def connect(**options: Any) -> psycopg.Connection[Any]:
            connection: psycopg.Connection[Any] = psycopg.connect(dsn, **{"autocommit": True, **options})
            stack.callback(connection.close)
            return connection

        yield connect


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


def require_binaries(major: int) -> Binaries:
    """The programs of a major version. Without them tests are skipped, unless the environment names it."""
    try:
        return find_binaries(major=major)
    except EmbeddedError:
        if major == MAJORS[0] or MAJORS_VARIABLE in os.environ:
            raise
        pytest.skip(f"PostgreSQL {major} is not installed")


@pytest.fixture(scope="session", params=MAJORS, ids=[f"pg{major}" for major in MAJORS])
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """Each PostgreSQL that is here, in turn."""
    require_binaries(request.param)
    return servers.get(request.param)


@pytest.fixture(scope="session")
def server18(servers: Servers) -> Server:
    """The embedded PostgreSQL 18, or what the environment names first."""
    return servers.get(MAJORS[0])


@pytest.fixture
def database(servers: Servers, server: Server) -> Iterator[str]:
    """The DSN of a fresh database with the schema."""
    with servers.database(server) as dsn:
        yield dsn


@pytest.fixture
def database18(servers: Servers, server18: Server) -> Iterator[str]:
    """The DSN of a fresh database with the schema, on 18 only."""
    with servers.database(server18) as dsn:
        yield dsn


@pytest.fixture
def connect(database: str) -> Iterator[Connect]:
    """Opens connections to the test's database."""
    with connections(database) as factory:
        yield factory


@pytest.fixture
def connect18(database18: str) -> Iterator[Connect]:
    """Opens connections to the test's database, on 18 only."""
    with connections(database18) as factory:
        yield factory


@pytest.fixture
def sql(connect: Connect) -> psycopg.Connection[Any]:
    """A connection to the test's database."""
    return connect()


@pytest.fixture
def sql18(connect18: Connect) -> psycopg.Connection[Any]:
    """A connection to the test's database, on 18 only."""
    return connect18()
