"""`penstock up`: real processes, real signals, real servers."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

import penstock
from penstock import schema
from penstock.embedded import Server, throwaway
from tests.embedded.processes import answer, eventually, processes_in, supervisor

from .command import PATIENCE, Command

pytestmark = pytest.mark.slow


class Up:
    """`penstock up --json` as a process; ended with the test, if not before."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._err: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._about: dict[str, Any] | None = None

    def _read(self) -> None:
        assert self.process.stderr is not None
        self._err.extend(iter(self.process.stderr.readline, b""))

    @property
    def err(self) -> str:
        return b"".join(self._err).decode()

    @property
    def about(self) -> dict[str, Any]:
        """What it prints when all is up, waited for."""
        if self._about is None:
            assert self.process.stdout is not None
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
            assert ready, f"it says nothing: {self.err}"
            line = self.process.stdout.readline()
            assert line, f"it has ended: {self.err}"
            self._about = json.loads(line)
        return self._about

    @property
    def dsn(self) -> str:
        return str(self.about["dsn"])

    def ready(self) -> tuple[int, str]:
        """What /readyz answers."""
        try:
            with urllib.request.urlopen(f"{self.about['health']}/readyz", timeout=10) as found:  # noqa: S310
                return found.status, found.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode()

    def says(self, text: str) -> None:
        eventually(lambda: text in self.err, f"{text!r} on stderr", PATIENCE)

    def end(self, number: int = signal.SIGTERM, within: float = 20) -> str:
        """Stop it by a signal: it ends in order, and in time. What it said on stderr."""
        self.process.send_signal(number)
        assert self.process.wait(within) == 0, self.err
        self._reader.join(PATIENCE)
        assert "Traceback" not in self.err
        assert self.process.stdout is not None
        assert self.process.stdout.read() == b"", "one object, and nothing else"
        return self.err

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


class Ups:
    """Starts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[Up] = []

    def start(self, *arguments: str, **environ: str) -> Up:
        command = Command(None, self.folder)
        one = Up(command.start("up", "--json", "--health-port", "0", *arguments, environ=environ))
        self._started.append(one)
        return one

    def close(self) -> None:
        for one in self._started:
            one.close()


@pytest.fixture
def ups(tmp_path: Path) -> Iterator[Ups]:
    started = Ups(tmp_path)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def empty(server18: Server) -> Iterator[str]:
    """A database without the schema, reached with a password."""
    with psycopg.connect(server18.dsn(), autocommit=True) as admin:
        admin.execute('create database "bare"')
    try:
        yield server18.tcp_dsn("bare")
    finally:
        with psycopg.connect(server18.dsn(), autocommit=True) as admin:
            admin.execute('drop database "bare" with (force)')


def test_the_embedded_server_with_two_of_them(ups: Ups, tmp_path: Path) -> None:
    first = ups.start()
    told = first.about["embedded"]
    directory = Path(told["data_directory"]).parent
    if not directory.is_relative_to(tmp_path):
        pytest.skip("root's server cannot be in root's home here")
    assert first.about["pid"] == first.process.pid
    assert first.ready() == (200, "ready: up\n")
    with penstock.connect(first.dsn) as client:
        assert client.schema_version().package_version == first.about["schema"]
    password = quote(Path(told["password_file"]).read_text(), safe="")
    assert password not in json.dumps(first.about)
    assert answer(told["tcp_dsn"].replace("postgres@", f"postgres:{password}@")) == 1

    # Another one, in a terminal: what it prints can be pasted, however narrow the terminal is.
    with Command(None, tmp_path).terminal("up", columns=60) as terminal:
        text = terminal.until("Ctrl-C stops it.")
        assert "is up." in text
        lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.raw.decode()).splitlines()
        assert f"  export PENSTOCK_DATABASE_URL='{first.dsn}'" in lines
        assert password not in terminal.raw.decode()
        pasted = "\n".join(lines).partition('export PENSTOCK_DATABASE_URL="')[2].partition('"')[0]
        echoed = subprocess.run(["sh", "-c", f'echo "{pasted}"'], capture_output=True, text=True, check=True)
        assert answer(echoed.stdout.strip()) == 1
        terminal.type("\x03")
        assert terminal.wait(20) == 0
        assert "stays up" in terminal.text
    assert first.ready()[0] == 200

    # The supervisor of the server is killed, and the server with it.
    os.kill(supervisor(directory), signal.SIGKILL)
    first.says("the database cannot be reached, waiting for it")
    first.says("the database is there again")
    eventually(lambda: first.ready()[0] == 200, "it is ready again")

    assert "the embedded server with it" in first.end(signal.SIGINT)
    assert not processes_in(directory), "it has said that the server has stopped"


def test_the_demo(ups: Ups, database18: str) -> None:
    demo = ups.start("--demo", "--dsn", database18)
    assert "demo" in demo.about["services"]
    another = ups.start("--demo", "--dsn", database18)
    assert another.about["health"] != demo.about["health"]
    with penstock.connect(database18) as client:
        assert len(client.list_topics()) == 3
        names = {queue.name for queue in client.list_queues()}
        assert len(names) >= 9
        eventually(lambda: len(client.list_workers()) == 2, "each has a worker")

        def seen() -> set[str]:
            return {
                each.queue_name
                for each in client.get_queue_statistics()
                if each.pending_count + (each.total_count or 0) + (each.dead_count or 0)
            }

        eventually(lambda: seen() == names, "each queue has seen messages", PATIENCE)
        eventually(client.list_dlq_messages, "there are dead letters", PATIENCE)
        assert all(letter.last_error for letter in client.list_dlq_messages())
        eventually(
            lambda: all(schedule.last_tick for schedule in client.list_schedules()),
            "the periodic task was enqueued",
            PATIENCE,
        )
        orders = client.list_messages("demo.billing", page_size=1000)
        assert len({message.tenant for message in orders}) > 1
        assert len({message.priority for message in orders}) > 1

        assert "failed" not in another.end()
        assert demo.ready()[0] == 200
        # What another session has changed or deleted meanwhile does not end it.
        client.alter_queue("demo.billing", max_delivery_attempts=7)
        client.delete_queue("demo.ledger")
        eventually(lambda: "demo.ledger" in seen(), "it was created again, and is used", PATIENCE)
        demo.end(signal.SIGINT)
        assert client.list_workers() == []
        # What was claimed was given back.
        assert sum(each.processing_count for each in client.get_queue_statistics()) == 0


def test_a_given_database(ups: Ups, empty: str, tmp_path: Path) -> None:
    command = Command(None, tmp_path)
    command("up", "--no-migrate", "--dsn", empty).failed(
        1, 'database "bare" has no schema', "penstock migrate"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, psycopg.connect(empty) as connection:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE)
        up = ups.start(PENSTOCK_DATABASE_URL=empty, NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert up.about["embedded"] is None
        assert up.about["services"].keys() == {"dashboard", "history", "maintenance"}
        assert schema.check(connection).package_version == up.about["schema"]
        password = psycopg.conninfo.conninfo_to_dict(empty)["password"]
        assert str(password) not in json.dumps(up.about) + up.err
        while "READY=1" not in systemd.recv(4096).decode():
            pass
        assert "Stopped.\n" in up.end()
        while "STOPPING=1" not in systemd.recv(4096).decode():
            pass
    # What it prints for a person has no password either; in a pipe it is plain text.
    with command.start("up", "--dsn", empty, "--no-migrate") as process:
        assert process.stdout is not None
        lines = list(iter(process.stdout.readline, b"Ctrl-C stops it.\n"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert lines[0] == f"Penstock {penstock.__version__} is up.\n".encode()
    assert b"\x1b" not in b"".join(lines)
    assert str(password).encode() not in b"".join(lines)


def test_what_cannot_work_is_reported(tmp_path: Path, database18: str) -> None:
    command = Command(None, tmp_path)
    unreachable = f"host={tmp_path} dbname=none"
    command("up", "--dsn", unreachable).failed(1, "cannot connect to")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command("up", "--dsn", database18, "--health-port", port).failed(1, port, "is in use")
    # A role that may only read cannot do the maintenance: the command does not wait for the right.
    viewer = f"{database18}&options=-crole%3Dpenstock_viewer"
    command("up", "--no-migrate", "--dsn", viewer).failed(1, "permission denied for function maintain")
    nothing = {"PENSTOCK_PG_BIN": str(tmp_path)}
    command("up", environ=nothing).failed(1, "PENSTOCK_PG_BIN", "penstock up --dsn")


def test_the_database_goes_away_and_comes_back(ups: Ups) -> None:
    with throwaway(settings={"fsync": "off"}) as server:
        up = ups.start("--demo", "--dsn", server.dsn())
        assert up.ready()[0] == 200
        server.stop()
        eventually(lambda: up.ready()[0] == 503, "it is not ready")
        assert "cannot be reached" in up.ready()[1]
        server.start()
        eventually(lambda: up.ready()[0] == 200, "it is ready again", PATIENCE)
        with penstock.connect(server.dsn()) as client:
            newest = client.send("demo.reminders", {})

            def goes_on() -> bool:
                listed = [
                    client.list_messages(name, page_size=1000) for name in ("demo.billing", "demo.tasks")
                ]
                return all(any(message.message_id > newest for message in found) for found in listed)

            eventually(goes_on, "the demo publishes and enqueues", PATIENCE)
        lines = [line for line in up.err.splitlines() if " WARNING " in line or " ERROR " in line]
        loggers = [re.search(r" penstock\.(\w+)", line)[1] for line in lines]  # type: ignore[index]
        assert "up" in loggers
        assert len(set(loggers)) == len(loggers), "each service tells it at most once"
        assert up.err.count("the database is there again") == 1
        # It stops without one, too.
        server.stop()
        eventually(lambda: up.ready()[0] == 503, "it is not ready")
        up.end()


def test_the_demo_reports_its_trouble(ups: Ups, database18: str) -> None:
    """The feeds cannot publish, while the maintenance and the worker do their work."""
    signature = "select oid::regprocedure from pg_proc where oid = to_regproc('penstock.publish_message')"
    up = ups.start("--demo", "--dsn", database18)
    assert up.ready()[0] == 200
    with psycopg.connect(database18, autocommit=True) as connection:
        (function,) = connection.execute(signature).fetchone() or ("",)
        connection.execute(f"alter function {function} rename to publish_elsewhere".encode())
        eventually(lambda: up.ready()[0] == 503, "it is not ready")
        assert up.ready()[1].startswith("not ready: demo: ")
        moved = function.replace("publish_message", "publish_elsewhere")
        connection.execute(f"alter function {moved} rename to publish_message".encode())
    eventually(lambda: up.ready() == (200, "ready: up\n"), "it is ready again", PATIENCE)
    up.end()


def test_the_second_signal_hurries(ups: Ups, database18: str) -> None:
    up = ups.start("--dsn", database18)
    assert up.ready()[0] == 200
    with psycopg.connect(database18, autocommit=True) as watcher, psycopg.connect(database18) as connection:
        connection.execute("lock table penstock.queues in access exclusive mode")
        blocked = "select count(*) > 0 from pg_locks where not granted and database is not null"
        eventually(lambda: watcher.execute(blocked).fetchone() == (True,), "maintain() waits for the lock")
        up.process.send_signal(signal.SIGTERM)
        up.says("SIGTERM: stopping; once more to hurry.")
        begun = time.monotonic()
        assert "SIGTERM: hurrying." in up.end()
        assert time.monotonic() - begun < 4.5, "it did not wait for the call to come back"


def test_a_signal_while_it_starts(ups: Ups, tmp_path: Path) -> None:
    """As from a user that started it in the wrong terminal."""
    up = ups.start()
    up.says("using the embedded server")
    up.end()
    eventually(lambda: not processes_in(tmp_path), "nothing is left of the server")
