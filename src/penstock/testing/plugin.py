"""The pytest plugin: a server for a run, a database for each test, its clock, and a tester for tasks.

Loaded in every pytest run where Penstock is installed, so it imports nothing heavy before a fixture is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from penstock import testing


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "penstock_dsn",
        f"a PostgreSQL server for the databases of tests; {testing.VARIABLE} goes before it, and without"
        " either there is a throwaway server",
        default="",
    )


@pytest.fixture(scope="session")
def penstock_server(pytestconfig: pytest.Config) -> Iterator[testing.DatabaseServer]:
    """A server for databases of tests: a throwaway server, or the configured one."""
    configured = os.environ.get(testing.VARIABLE) or pytestconfig.getini("penstock_dsn")
    with testing.server(configured or None) as server:
        yield server


@pytest.fixture(scope="session")
def penstock_template(penstock_server: testing.DatabaseServer) -> str:
    """The DSN of the template that databases of tests are copied from. Override it to create your tables."""
    return penstock_server.template()


@pytest.fixture
def penstock_dsn(penstock_server: testing.DatabaseServer, penstock_template: str) -> Iterator[str]:  # noqa: ARG001
    """The DSN of a database with the schema, for this test alone."""
    with penstock_server.database() as dsn:
        yield dsn


@pytest.fixture
def penstock_clock(penstock_dsn: str) -> Iterator[testing.Clock]:
    """The time of the test's database: advance() moves it."""
    with testing.Clock(penstock_dsn) as clock:
        yield clock


@pytest.fixture
def penstock_tasks(penstock_dsn: str, penstock_clock: testing.Clock) -> Iterator[testing.TaskTester]:
    """Connects apps to the test's database, runs their tasks, and lists enqueued tasks."""
    with testing.TaskTester(penstock_dsn, clock=penstock_clock) as tester:
        yield tester
