"""Databases by penstock.testing itself, on the server that the other tests use, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.embedded import Server
from penstock.testing import DatabaseServer, TaskTester
from penstock.testing import server as testing_server


@pytest.fixture(scope="session")
def databases(server18: Server) -> Iterator[DatabaseServer]:
    with testing_server(server18.dsn()) as server:
        yield server


@pytest.fixture
def dsn(databases: DatabaseServer) -> Iterator[str]:
    with databases.database() as found:
        yield found


@pytest.fixture
def tester(dsn: str) -> Iterator[TaskTester]:
    with TaskTester(dsn) as tester:
        yield tester
