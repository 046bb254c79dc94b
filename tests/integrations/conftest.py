"""The drivers, and a database that they share: each test has a queue of its own there."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock.embedded import Server
from tests.conftest import Servers

from .drivers import DRIVERS, Driver


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> Driver:
    """Each driver in turn."""
    chosen: Driver = request.param
    return chosen


@pytest.fixture(scope="session")
def shop(servers: Servers, server18: Server) -> Iterator[str]:
    """The DSN of a database with a table of the caller's own. What would wait for ever fails there."""
    with servers.database(server18) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create schema shop create table orders (queue text not null)")
            database = connection.info.dbname
            connection.execute(f"alter database {database} set lock_timeout = '5s'")
        yield dsn


@pytest.fixture(scope="session")
def shop_sql(shop: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that sees committed rows only."""
    with psycopg.connect(shop, autocommit=True) as connection:
        yield connection
