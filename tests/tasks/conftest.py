"""Apps: without a database, on one of the test's own, and on one that tests share."""

from collections.abc import Iterator

import pytest

import penstock
from penstock.embedded import Server
from tests.conftest import Servers

# Nothing listens there: a connection attempt fails.
NOWHERE = "postgresql://no_user@127.0.0.1:1/nothing"


@pytest.fixture
def unconnected() -> penstock.App:
    """An app that cannot reach a database: what works with it has sent nothing."""
    return penstock.App(NOWHERE)


@pytest.fixture
def app(database18: str) -> Iterator[penstock.App]:
    """An app on a database of its own."""
    with penstock.App(database18) as app:
        yield app


@pytest.fixture(scope="session")
def shared_dsn(servers: Servers, server18: Server) -> Iterator[str]:
    """A database that tests share which need nothing but a queue of their own."""
    with servers.database(server18) as dsn:
        yield dsn


@pytest.fixture
def shared(shared_dsn: str) -> Iterator[penstock.App]:
    """An app on the shared database: name the queues after the test."""
    with penstock.App(shared_dsn) as app:
        yield app
