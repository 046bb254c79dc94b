"""Which database a client uses: the argument, the environment in its order, else the embedded server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock import Client
from penstock.embedded.shared import SYSTEM_DIRECTORY
from tests.embedded.processes import eventually, processes_in
from tests.failures.clients import MakeClient
from tests.failures.conftest import Sql, port_of

WRONG = "postgresql://no_user@127.0.0.1:1/wrong"


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PG") or name.endswith("DATABASE_URL")]:
        monkeypatch.delenv(name)


def works(client: Client, queue: str, sql: Sql) -> bool:
    """Whether what is sent arrives in the test's database."""
    number = client.send(queue, 1)
    return sql.execute("select from penstock.get_message(%s, %s)", (queue, number)).rowcount == 1


@pytest.mark.parametrize("depth", range(3))
def test_the_first_one_counts(
    *,
    make_client: MakeClient,
    tcp_dsn: str,
    queue: str,
    sql18: Sql,
    monkeypatch: pytest.MonkeyPatch,
    depth: int,
) -> None:
    """The right one, and behind it wrong ones."""
    monkeypatch.setenv("PGHOST", "nowhere.invalid")
    for place, name in ((1, "PENSTOCK_DATABASE_URL"), (2, "DATABASE_URL")):
        if place >= depth:
            monkeypatch.setenv(name, tcp_dsn if place == depth else WRONG)
    assert works(make_client(tcp_dsn if depth == 0 else None), queue, sql18)


def test_an_empty_variable_is_none(
    make_client: MakeClient, tcp_dsn: str, queue: str, sql18: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", "")
    monkeypatch.setenv("DATABASE_URL", tcp_dsn)
    assert works(make_client(), queue, sql18)


def test_the_variables_of_libpq(
    make_client: MakeClient, tcp_dsn: str, queue: str, sql18: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(port_of(tcp_dsn)),
        "PGDATABASE": sql18.info.dbname,
        "PGUSER": "postgres",
        "PGPASSWORD": urlsplit(tcp_dsn).password or "",
    }.items():
        monkeypatch.setenv(name, value)
    client = make_client()
    assert works(client, queue, sql18)
    assert "libpq's own variables" in repr(client)


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgres", "postgresql+asyncpg"])
@pytest.mark.parametrize("way", ["argument", "PENSTOCK_DATABASE_URL", "DATABASE_URL"])
def test_schemes_of_others(
    *,
    make_client: MakeClient,
    tcp_dsn: str,
    queue: str,
    sql18: Sql,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    way: str,
) -> None:
    dsn = tcp_dsn.replace("postgresql", scheme, 1)
    if way != "argument":
        monkeypatch.setenv(way, dsn)
    assert works(make_client(dsn if way == "argument" else None), queue, sql18)


def test_listen_dsn_takes_them_too(make_client: MakeClient, tcp_dsn: str, queue: str, sql18: Sql) -> None:
    dsn = tcp_dsn.replace("postgresql", "postgresql+psycopg", 1)
    client = make_client(dsn, listen_dsn=dsn, maintain=False)
    consumer = iter(client.consume(queue, wait=5))
    sql18.execute("select penstock.send_message(%s, '1')", (queue,))
    assert next(consumer).payload == 1


EMBEDDED = """
import asyncio, sys
import penstock

with penstock.connect() as queue, penstock.connect() as other:
    queue.create_queue("q")
    queue.send("q", 1)
    print(repr(queue))
    print([message.payload for message in other.consume("q", wait=0)])

async def main():
    async with penstock.connect_async() as queue:
        await queue.create_queue("q")

asyncio.run(main())
"""


def run_python(code: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program that has nothing of ours but the path."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_else_the_embedded_server_and_that_is_said_once(tmp_path: Path) -> None:
    if os.geteuid() == 0 and SYSTEM_DIRECTORY.exists():
        pytest.skip("root's server is the system's, whatever HOME is")
    done = run_python(EMBEDDED, {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")})
    assert done.returncode == 0, done.stderr
    assert done.stderr == "No database given: using the embedded server.\n"
    assert done.stdout.splitlines() == ["<Client of the embedded server>", "[1]"]
    eventually(lambda: not processes_in(tmp_path), "the server has stopped")


def test_with_a_database_the_embedded_server_stays_out(tmp_path: Path, tcp_dsn: str) -> None:
    code = "import penstock\nwith penstock.connect() as queue: print(queue.clock().year > 2000)"
    done = run_python(code, {"HOME": str(tmp_path), "DATABASE_URL": tcp_dsn})
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)
    assert not list(tmp_path.iterdir())
