"""Passwords on the command line: not to be seen in `ps`, nor in anything that a command prints or leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.cli.hiding import hide, restore
from tests.cli.command import Command
from tests.embedded.processes import eventually
from tests.failures.conftest import Sql, port_of

SECRET = "xyzzy4711"  # noqa: S105 - not a real one
JOBS = """
import os, subprocess, sys
import penstock

app = penstock.App("postgresql://no_user@127.0.0.1:1/not_this_one")

@app.task
def look():
    seen = subprocess.run(["env"], capture_output=True, text=True).stdout + repr(sys.argv[:1]) + repr(app)
    open("seen", "w").write(seen + repr(app.client) + repr(app.clients))
"""


@pytest.fixture
def dsn(tcp_dsn: str, sql18: Sql) -> Iterator[str]:
    """The test's database for a role with a password."""
    sql18.execute("drop role if exists secretive")
    sql18.execute(f"create role secretive login superuser password '{SECRET}'")
    yield f"postgresql://secretive:{SECRET}@127.0.0.1:{port_of(tcp_dsn)}/{sql18.info.dbname}"
    sql18.execute("drop role secretive")


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """`penstock` that knows of no database."""
    (tmp_path / "jobs.py").write_text(JOBS)
    return Command(None, tmp_path)


def command_lines(folder: Path) -> list[str]:
    """Of all processes that work in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@contextmanager
def running(command: Command, *arguments: str) -> Iterator[Callable[[], str]]:
    """A command in the background; what it has printed. It is ended with Ctrl-C, and must end."""
    log = command.folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("penstock")), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=command.environment(),
            cwd=command.folder,
        )
    try:
        yield log.read_text
        process.send_signal(signal.SIGINT)
        process.wait(30)
    finally:
        process.kill()
        process.wait()


LONG = {
    "worker": (("worker", "jobs", "--log-level", "debug"), "working on", 1),
    "workers": (("worker", "jobs", "--processes", "2", "--log-level", "debug"), "working on", 3),
    "up": (("up",), "maintenance", 1),
    "up json": (("up", "--json"), "maintenance", 1),
    "maintain": (("maintain", "--follow"), "", 1),
    "consume": (("consume", "q", "--ack", "--follow"), "", 1),
    "top": (("top", "--json", "--interval", "100ms"), "queues", 1),
    "bench": (("bench", "--yes", "--seconds", "20", "--only", "send", "-n", "10000000"), "", 2),
}


@pytest.mark.parametrize("way", ["--dsn X", "--dsn=X"])
@pytest.mark.parametrize("name", list(LONG))
def test_not_in_ps(*, command: Command, dsn: str, queue: str, sql18: Sql, name: str, way: str) -> None:
    arguments, word, count = LONG[name]
    given = ["--dsn", dsn] if way == "--dsn X" else [f"--dsn={dsn}"]
    with running(command, *arguments, *given) as log:
        eventually(
            lambda: word in log() and len(command_lines(command.folder)) >= count and _connected(sql18),
            f"it runs: {log()} {command_lines(command.folder)}",
            30,
        )
        lines = command_lines(command.folder)
        assert SECRET not in "\n".join(lines)
        assert "--dsn ***" in "\n".join(lines)
        left = sql18.execute("select application_name, query from pg_stat_activity").fetchall()
        assert SECRET not in str(left)
        assert SECRET not in str(sql18.execute("select * from penstock.list_workers()").fetchall())
    assert SECRET not in log()
    assert "Traceback" not in log()
    assert queue


def _connected(sql: Sql) -> bool:
    found = sql.execute("select count(*) from pg_stat_activity where usename = 'secretive'").fetchone()
    return found is not None and found[0] > 0


def test_not_in_what_handlers_see(command: Command, dsn: str, tcp_dsn: str, sql18: Sql) -> None:
    """The DSN of the option is used, and what a handler starts does not inherit it."""
    with penstock.connect(tcp_dsn, maintain=False) as client:
        client.declare_queue("default")
        with running(command, "worker", "jobs", "--dsn", dsn, "--listen-dsn", dsn, "--processes", "2") as log:
            client.send("default", {}, headers={"task": "look"})
            seen = command.folder / "seen"
            eventually(lambda: seen.exists() and "Clients" in seen.read_text(), f"it has run: {log()}", 30)
    assert SECRET not in seen.read_text()
    assert "PENSTOCK_HIDDEN" not in seen.read_text()
    assert SECRET not in log()
    assert sql18.info.dbname in seen.read_text()


def test_not_in_what_commands_run(command: Command, dsn: str, queue: str, sql18: Sql) -> None:
    sql18.execute("select penstock.send_message(%s, '1')", (queue,))
    done = command("consume", queue, "--dsn", dsn, "--exec", "env; tr '\\0' ' ' < /proc/$PPID/cmdline").ok()
    assert "PENSTOCK_MESSAGE_ID" in done.out
    assert "--dsn ***" in done.out
    assert SECRET not in done.out + done.err
    assert "PENSTOCK_HIDDEN" not in done.out


SHORT = [
    ("version",),
    ("migrate",),
    ("doctor",),
    ("doctor", "--json"),
    ("top", "--once"),
    ("stats",),
    ("workers",),
    ("queue", "show", "q"),
    ("queue", "show", "nothing"),
    ("send", "q", '{"a": 1}'),
    ("bench", "--yes", "--quick", "-n", "10", "--only", "send"),
]


@pytest.mark.parametrize("arguments", SHORT, ids=" ".join)
@pytest.mark.usefixtures("queue")
def test_not_in_what_is_printed(command: Command, dsn: str, arguments: tuple[str, ...]) -> None:
    answer = command(*arguments, "--dsn", dsn)
    assert SECRET not in answer.out + answer.err
    assert answer.code == (3 if "nothing" in arguments else 0), answer
    wrong = command(*arguments, "--dsn", dsn.replace(SECRET, f"{SECRET}wrong"))
    assert wrong.code == 1
    assert SECRET not in wrong.out + wrong.err
    assert "secretive" in wrong.err
    unknown = command(*arguments, "--dsn", f"{dsn}?foo=1")
    assert unknown.code == 2
    assert 'parameter "foo"' in unknown.err
    assert SECRET not in unknown.err


def test_as_a_module_too(command: Command, dsn: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-m", "penstock.cli", "queue", "list", "--json", "--dsn", dsn],
        env=command.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, json.loads(done.stdout)) == (0, [])


@pytest.mark.parametrize(
    "arguments",
    [
        ["queue", "list", "--dsn", "postgresql://u:p@h/db"],
        ["queue", "list", "--dsn=postgresql://u:p@h/db", "--json"],
        ["worker", "--dsn", "user=u password=p", "--listen-dsn", "u:p@h", "app"],
        ["--dsn", "postgresql://h/db?password=p", "--", "--dsn", "not:an@option"],
        ["--dsn", "--dsn", "--dsn", "a:b@c"],
        ["--dsn"],
    ],
)
def test_what_is_hidden_comes_back(arguments: list[str]) -> None:
    shown, environ = hide(arguments)
    normal = [part for argument in arguments for part in _split(argument)]
    if "--" in arguments:
        normal = [*arguments[: arguments.index("--")], *arguments[arguments.index("--") :]]
    assert "p@" not in " ".join(shown[: shown.index("--")] if "--" in shown else shown)
    assert "password=" not in " ".join(shown)
    before = dict(environ)
    assert restore(shown, environ) == normal
    assert environ == {}
    assert hide(normal) == (shown, before)


def _split(argument: str) -> list[str]:
    option, equals, value = argument.partition("=")
    return [option, value] if equals and option == "--dsn" else [argument]


@pytest.mark.parametrize(
    "dsn", ["postgresql:///shop", "postgresql://user@host:5432/db", "host=h user=u", "service=x"]
)
def test_a_dsn_without_a_password_stays(dsn: str) -> None:
    assert hide(["queue", "list", "--dsn", dsn]) == (["queue", "list", "--dsn", dsn], {})
