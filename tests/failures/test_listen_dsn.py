"""Where the one connection that listens goes: listen_dsn of a client, an app and a worker, of commands, and
the environment. What is said where nothing can listen.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock.calls
from penstock import App
from penstock.sql_call import Call
from tests.cli.command import Command
from tests.embedded.processes import eventually
from tests.failures.clients import MakeClient
from tests.failures.conftest import Sql, backends
from tests.failures.test_listener import POLLED_SECONDS, send_and_time, streams, told

POOLED = "polling for messages, which takes up to a second: this connection leads through a pooler"
NOWHERE = "postgresql://no_user@127.0.0.1:1/none"
JOBS = """
import penstock

app = penstock.App()

@app.task(queue="q", result=True)
async def double(x: int) -> int:
    return 2 * x
"""


@pytest.fixture
def ears(tcp_dsn: str) -> str:
    """The same database, for sessions that can be told apart."""
    return f"{tcp_dsn}?application_name=ears"


def hears(sql: Sql) -> bool:
    """Whether one of those listens, and no other."""
    others = [query for query in backends(sql).values() if query.lower().startswith("listen ")]
    return others == [] and any(
        query.lower().startswith("listen ") for query in backends(sql, "ears").values()
    )


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], bool]], None]:
    """Makes the n-th connections that are asked look as if a pooler were in between."""
    original = penstock.calls.session

    def pretend(chosen: Callable[[int], bool]) -> None:
        asked = iter(range(1_000_000))

        def session() -> Call[penstock.calls.Session]:
            call, is_pooled = original(), chosen(next(asked))

            def parse(rows: Any) -> penstock.calls.Session:
                found = call.parse(rows)
                return found._replace(pid=found.pid + is_pooled)

            return Call(call.function, call.text, call.parameters, parse, call.repeat)

        monkeypatch.setattr(penstock.calls, "session", session)

    return pretend


def test_behind_a_pooler_that_is_said_once(
    *,
    make_client: MakeClient,
    tcp_dsn: str,
    queue: str,
    sql18: Sql,
    caplog: pytest.LogCaptureFixture,
    pooled: Callable[[Callable[[int], bool]], None],
) -> None:
    pooled(lambda _: True)
    client = make_client(tcp_dsn, maintain=False)
    for _ in range(2):
        with streams(client, queue) as (stream,):
            assert send_and_time(sql18, stream, 1) < POLLED_SECONDS
            eventually(lambda: told(caplog, POOLED), "it is said")
    assert told(caplog, POOLED) == 1
    (record,) = [record for record in caplog.records if POOLED in record.getMessage()]
    assert record.levelno == logging.WARNING
    for way in ("listen_dsn", "--listen-dsn", "PENSTOCK_LISTEN_URL"):
        assert way in record.getMessage()


@pytest.mark.usefixtures("no_polling")
def test_with_a_way_past_it_nothing_is_said(
    *,
    make_client: MakeClient,
    tcp_dsn: str,
    ears: str,
    queue: str,
    sql18: Sql,
    caplog: pytest.LogCaptureFixture,
    pooled: Callable[[Callable[[int], bool]], None],
) -> None:
    pooled(lambda number: number == 0)
    client = make_client(tcp_dsn, listen_dsn=ears, maintain=False)
    with streams(client, queue) as (stream,):
        eventually(lambda: hears(sql18), "it listens there")
        assert send_and_time(sql18, stream, 1) < POLLED_SECONDS
    assert caplog.records == []


def test_a_way_that_leads_through_a_pooler_is_none(
    *,
    make_client: MakeClient,
    tcp_dsn: str,
    ears: str,
    queue: str,
    sql18: Sql,
    caplog: pytest.LogCaptureFixture,
    pooled: Callable[[Callable[[int], bool]], None],
) -> None:
    """There LISTEN would be taken, and nothing ever heard."""
    pooled(lambda number: number > 0)
    client = make_client(tcp_dsn, listen_dsn=ears, maintain=False)
    with streams(client, queue) as (stream,):
        assert send_and_time(sql18, stream, 1) < POLLED_SECONDS
        eventually(lambda: told(caplog, POOLED), "it is said")
        eventually(lambda: not backends(sql18, "ears"), "the connection is closed again")


@contextmanager
def process(command: list[str], folder: Path, environ: dict[str, str]) -> Iterator[Callable[[], str]]:
    """A command in the background, and what it prints."""
    log = folder / "log"
    with log.open("wb") as file:
        running = subprocess.Popen(command, cwd=folder, env=environ, stdout=file, stderr=file)
    try:
        yield log.read_text
    finally:
        running.terminate()
        running.wait(20)


WAYS: dict[str, tuple[list[str], bool]] = {
    "worker by option": (["worker", "jobs"], False),
    "workers by option": (["worker", "jobs", "--processes", "2"], False),
    "worker by environment": (["worker", "jobs"], True),
    "consume by option": (["consume", "q", "--ack", "--follow"], False),
    "consume by environment": (["consume", "q", "--ack", "--follow"], True),
    "consume a command": (["consume", "q", "--follow", "--exec", "cat"], False),
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.usefixtures("queue")
def test_commands(*, tmp_path: Path, tcp_dsn: str, ears: str, sql18: Sql, way: str) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    arguments, by_environment = WAYS[way]
    environ = Command(tcp_dsn, tmp_path).environment({"PENSTOCK_LISTEN_URL": ears} if by_environment else {})
    given = [] if by_environment else ["--listen-dsn", ears]
    with process([sys.executable, "-m", "penstock.cli", *arguments, *given], tmp_path, environ) as log:
        eventually(lambda: hears(sql18), f"it listens there: {log()}", 20)


def test_a_worker_says_why_it_cannot_listen(tmp_path: Path, tcp_dsn: str) -> None:
    """Its database is there: nothing else would tell."""
    (tmp_path / "jobs.py").write_text(JOBS)
    command = [sys.executable, "-m", "penstock.cli", "worker", "jobs", "--listen-dsn", NOWHERE]
    with process(command, tmp_path, Command(tcp_dsn, tmp_path).environment()) as log:
        eventually(lambda: "not listening for messages" in log(), "it is said", 20)
        eventually(lambda: "working on q" in log(), "it works", 20)
    assert "127.0.0.1" in log()
    assert log().count("not listening for messages") == 1


async def test_an_app_and_its_worker(tcp_dsn: str, ears: str, queue: str, sql18: Sql) -> None:
    app = App(tcp_dsn, listen_dsn=ears)

    @app.task(queue=queue, result=True)
    async def double(x: int) -> int:
        return 2 * x

    async with app, penstock.Worker(app):
        handle = await double.enqueue_async(4)
        assert await handle.result_async(timeout=20) == 8
        eventually(lambda: hears(sql18), "both listen there")


def test_another_database_for_an_app_has_another_place_to_listen() -> None:
    app = App("dbname=a", listen_dsn="dbname=a_direct")
    with app.connected_to("dbname=b"):
        assert (app.clients.dsn, app.clients.listen_dsn) == ("dbname=b", None)
    assert (app.clients.dsn, app.clients.listen_dsn) == ("dbname=a", "dbname=a_direct")
    app.use("dbname=c", listen_dsn="dbname=c_direct")
    assert (app.clients.dsn, app.clients.listen_dsn) == ("dbname=c", "dbname=c_direct")
