"""A stage for workers: an app in a folder, a database, and the processes that a test starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.embedded import Server
from tests.failures.conftest import port_of, through
from tests.failures.proxy import Proxy
from tests.worker.stage import Stage


@pytest.fixture
def stage(tmp_path: Path, database18: str) -> Iterator[Stage]:
    """Starts workers of an app that the test writes; all that is left of them ends with the test."""
    one = Stage(tmp_path, database18)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def proxy(server18: Server) -> Iterator[Proxy]:
    """A proxy in front of the server."""
    with closing(Proxy(lambda: port_of(server18.tcp_dsn()))) as one:
        yield one


@pytest.fixture
def proxied(server18: Server, sql18: psycopg.Connection[Any], proxy: Proxy) -> str:
    """The test's database through the proxy."""
    return through(server18.tcp_dsn(sql18.info.dbname), proxy.port)
