"""What holds for every command: help, options, exit codes, which database, output without a reader."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import penstock
from penstock import schema
from penstock.cli import COMMANDS, main
from tests.conftest import Connect, Servers

from .command import PATIENCE, PROGRAM, Command
from .inside import Inside

# Each command that can be called, as its user types it.
Leaf = tuple[tuple[str, ...], click.Command]

WITHOUT_DATABASE = {"sql", "completion"}
# Load on a database is not what one wants by mistake.
DISTURBS = {"bench"}
DESTROYS = {
    *("topic delete", "queue purge", "queue delete", "queue open", "schedule delete"),
    *("dlq purge", "dlq delete"),
}
# What --help may not wait for.
SLOW = {
    "psycopg",
    "rich",
    "asyncio",
    "msgspec",
    "penstock._sync.client",
    "penstock._async.client",
    "penstock.worker",
}


def leaves(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    context = click.Context(group, **main.context_settings)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


LEAVES = {" ".join(path): command for path, command in leaves()}


def options_of(command: click.Command) -> dict[str, click.Option]:
    return {
        name: each
        for each in command.params
        if isinstance(each, click.Option)
        for name in (*each.opts, *each.secondary_opts)
    }


# Help


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    context = click.Context(main, **main.context_settings)
    for name, entry in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
        said = (command.short_help or (command.help or "").strip().split("\n\n")[0]).replace("\n", " ")
        assert said.startswith(entry.help.rstrip(".")), (
            f"{name}: {entry.help!r} in the list, {said!r} in its help"
        )
        assert entry.help.endswith(".")


def test_each_command_and_option_has_its_help() -> None:
    for name, command in LEAVES.items():
        first = (command.help or "").strip().splitlines()
        assert first, name
        assert first[0][0].isupper(), name
        assert command.callback is not None
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts}"
                assert all(option == option.lower() for option in parameter.opts if option[:2] == "--"), (
                    f"{name} {parameter.opts}"
                )


def test_help_is_asked_for_in_two_ways_and_nothing_is_cut(inside: Inside) -> None:
    groups = {" ".join(path[:-1]) for path, _ in leaves()}
    for name in [*groups, *LEAVES]:
        answer = inside(*name.split(), "--help").ok()
        assert answer.err == ""
        assert answer.out.startswith(f"Usage: penstock {name}".rstrip())
        assert inside(*name.split(), "-h").ok().out == answer.out
        assert "..." not in answer.out.split("Options:")[1].replace("]...", "").replace("host=...", ""), name
        assert max(map(len, answer.out.splitlines())) <= 100
        if name in LEAVES and name.split()[0] not in WITHOUT_DATABASE:
            assert "--dsn" in answer.out


def test_those_that_connect_have_dsn_and_json() -> None:
    for name, command in LEAVES.items():
        options = options_of(command)
        connects = name not in WITHOUT_DATABASE
        assert ("--dsn" in options) is connects, name
        assert ("--json" in options) is connects, name
        if "--json" in options:
            assert options["--json"].is_flag, name


def test_what_destroys_can_be_told_not_to_ask() -> None:
    asking = DESTROYS | DISTURBS
    assert {name for name, command in LEAVES.items() if "--yes" in options_of(command)} == asking
    for name in asking:
        assert options_of(LEAVES[name])["--yes"] is options_of(LEAVES[name])["-y"]


def test_the_front_page_lists_all_and_the_exit_codes(inside: Inside) -> None:
    page = inside("--help").ok().out
    for name, entry in COMMANDS.items():
        assert f"\n  {name} " in page
        assert entry.help in page
    for part in ("0 done", "1 failed", "2 wrong", "3 not found", "4 nothing", "130", "PENSTOCK_DATABASE_URL"):
        assert part in " ".join(page.split())


@pytest.mark.parametrize(
    "arguments", [["--help"], ["queue", "--help"], ["dlq", "requeue", "--help"], ["--version"]]
)
def test_help_loads_nothing_that_takes_time(arguments: list[str]) -> None:
    code = f"""
import sys
from penstock.cli import main
try:
    main({arguments!r}, prog_name="penstock")
except SystemExit as exc:
    assert exc.code == 0
print(*sorted({SLOW!r} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "penstock" in done.stdout
    assert done.stderr.split() == []


def test_help_takes_less_than_it_promises() -> None:
    """Time on the processor, which others do not lengthen by being busy: the best of some."""

    def seconds(argv: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds([PROGRAM, "--help"]) for _ in range(5)) < 0.3


# Wrong usage


def test_a_command_that_is_not_there(inside: Inside) -> None:
    inside("queu").failed(2, "queu", "queue")
    inside("zzzzz").failed(2, "zzzzz", "penstock --help")
    inside("queue", "remove", "x").failed(2, "remove")
    inside("--dsn", "x", "queue", "list").failed(2, "--dsn")
    answer = inside("queue")
    assert answer.code == 2
    assert "Commands:" in answer.err + answer.out


# Which database


@pytest.fixture
def others(servers: Servers, database18: str) -> Iterator[dict[str, str]]:
    """Databases with a topic of their own name."""
    server = servers.get(18)
    with servers.database(server) as second, servers.database(server) as third:
        found = {"first": database18, "second": second, "third": third}
        for name, dsn in found.items():
            with penstock.connect(dsn) as client:
                client.create_topic(name)
        yield found


def test_which_database(others: dict[str, str], tmp_path: Path) -> None:
    command = Command(None, tmp_path)
    first, second, third = others.values()

    def topic(*arguments: str, **environ: str) -> str:
        (found,) = command("topic", "list", "--json", *arguments, environ=environ).ok().json
        name: str = found["name"]
        return name

    def libpq(dsn: str) -> dict[str, str]:
        parts = conninfo_to_dict(dsn)
        names = {"host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE", "user": "PGUSER"}
        return {names[name]: str(value) for name, value in parts.items() if name in names}

    everything = {"PENSTOCK_DATABASE_URL": second, "DATABASE_URL": third, **libpq(third)}
    assert topic("--dsn", first, **everything) == "first"
    assert topic(**everything) == "second"
    assert topic(DATABASE_URL=first, **libpq(second)) == "first"
    assert topic(**libpq(third)) == "third"
    # As SQLAlchemy writes it.
    if first.startswith("postgresql://"):
        assert topic("--dsn", first.replace("postgresql://", "postgresql+psycopg://", 1)) == "first"
    # What is empty is not set.
    assert topic(PENSTOCK_DATABASE_URL="", DATABASE_URL=second) == "second"


def test_without_any_the_embedded_server_is_used(tmp_path: Path) -> None:
    command = Command(None, tmp_path)
    data = {"XDG_DATA_HOME": str(tmp_path / "data")}
    made = command("topic", "create", "mine", environ=data).ok()
    assert made.out == ""
    assert made.err.splitlines() == ["No database given: using the embedded server.", "topic mine is there"]
    listed = command("topic", "list", "--json", environ=data).ok()
    assert [each["name"] for each in listed.json] == ["mine"]


# A database that cannot do it

LOOKS: tuple[tuple[str, ...], ...] = (
    ("topic", "list"),
    ("topic", "show", "t"),
    ("queue", "list"),
    ("queue", "show", "q"),
    ("message", "list", "q"),
    ("message", "show", "q", "1"),
    ("message", "explain", "q", "1"),
    ("peek", "q"),
    ("stats",),
    ("stats", "q", "--by", "tenant"),
    ("dlq", "list"),
    ("schedule", "list"),
    ("workers",),
)
CHANGES: tuple[tuple[str, ...], ...] = (
    ("topic", "create", "new"),
    ("topic", "delete", "t", "--yes"),
    ("queue", "create", "new"),
    ("queue", "alter", "q", "--max-active", "1"),
    ("queue", "pause", "q"),
    ("queue", "resume", "q"),
    ("queue", "purge", "q", "--yes"),
    ("queue", "purge", "q", "--completed", "--yes"),
    ("queue", "delete", "q", "--yes"),
    ("message", "cancel", "q", "1"),
    ("dlq", "requeue", "q", "--all"),
    ("dlq", "add-retries", "q", "1"),
    ("dlq", "purge", "q", "--yes"),
    ("dlq", "purge", "--all", "--yes"),
    ("schedule", "run", "s"),
    ("schedule", "pause", "s"),
    ("schedule", "resume", "s"),
    ("schedule", "delete", "s", "--yes"),
    ("maintain",),
)


def one_line(answer: Any, code: int, *parts: str) -> None:
    line = answer.failed(code, *parts)
    assert line.count("\n") == 1, line
    assert line.startswith("Error: "), line


def test_a_role_that_may_only_read(
    inside: Inside, queue: penstock.Client, database18: str, sql18: psycopg.Connection[Any]
) -> None:
    queue.create_topic("t")
    queue.create_queue("q")
    assert queue.send("q", {"n": 1}) == 1
    queue.put_schedule("s", "q", 1, definition={"every": 60}, next_at=queue.clock())
    sql18.execute("create role cli_viewer login in role penstock_viewer")
    try:
        viewer = make_conninfo(database18, user="cli_viewer")
        for arguments in LOOKS:
            assert inside(*arguments, "--dsn", viewer).ok()
        before = queue.list_queues(), queue.list_topics(), queue.list_schedules(), queue.list_messages("q")
        for arguments in CHANGES:
            one_line(inside(*arguments, "--dsn", viewer), 1, "permission denied", "penstock_")
        assert before == (
            queue.list_queues(),
            queue.list_topics(),
            queue.list_schedules(),
            queue.list_messages("q"),
        )
    finally:
        sql18.execute("drop role cli_viewer")


def test_a_schema_that_is_missing_older_or_newer(inside: Inside, servers: Servers) -> None:
    server = servers.get(18)
    with psycopg.connect(server.dsn(), autocommit=True) as root:
        root.execute("create database cli_empty")
        try:
            for arguments in (*LOOKS, *CHANGES):
                answer = inside(*arguments, "--dsn", server.dsn("cli_empty"))
                one_line(answer, 1, "no schema penstock", "penstock migrate")
        finally:
            root.execute("drop database cli_empty with (force)")
    source = schema.load()
    for version, what in (("999.0", "pip install --upgrade penstock"), ("0.0.1", "penstock migrate")):
        other = schema.Source(version, source.tables, source.functions, source.roles + "-- another")
        with servers.database(server) as dsn:
            with psycopg.connect(dsn) as connection:
                schema.uninstall(connection)
                schema.install(connection, other)
            for arguments in LOOKS[:3]:
                one_line(inside(*arguments, "--dsn", dsn), 1, version, what)


def test_a_server_that_is_not_there(inside: Inside) -> None:
    for dsn, part in (
        ("postgresql://u:hunter2@127.0.0.1:1/d", "Connection refused"),
        ("host=/nowhere password=hunter2", "No such file or directory"),
    ):
        for arguments in (*LOOKS, *CHANGES):
            answer = inside(*arguments, "--dsn", dsn)
            one_line(answer, 1, part)
            assert "hunter2" not in answer.err
    for arguments in LOOKS[:3]:
        one_line(inside(*arguments, "--dsn", "nonsense"), 2, "nonsense")


def test_control_c_while_the_database_does_not_answer(
    command: Command, sql18: psycopg.Connection[Any], connect18: Connect
) -> None:
    """A command that waits for a lock is interrupted at once, and so is its statement."""
    waiting = "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with connect18(autocommit=False) as holder:
        holder.execute("lock table penstock.queues in access exclusive mode")
        process = command.start("queue", "list")
        until(lambda: sql18.execute(waiting).fetchone() is not None)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (130, b"", b"")
        until(lambda: sql18.execute(waiting).fetchone() is None)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Output without a reader

WRITES: tuple[tuple[str, ...], ...] = (
    ("--help",),
    ("queue", "--help"),
    ("queue", "list"),
    ("queue", "list", "--json"),
    ("queue", "show", "q"),
    ("peek", "q"),
    ("sql",),
)


def test_a_full_disk_is_one_line(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("q")
    queue.send("q", b"\x00")
    for arguments in WRITES:
        with open("/dev/full", "wb") as full:  # noqa: PTH123
            done = subprocess.run(
                [PROGRAM, *arguments],
                stdout=full,
                stderr=subprocess.PIPE,
                env=command.environment(),
                check=False,
            )
        assert done.returncode == 1, arguments
        assert done.stderr == b"Error: cannot write to stdout: No space left on device\n", arguments


def test_a_reader_that_has_seen_enough(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("q")
    queue.send_many("q", range(3000))
    for arguments in (["message", "list", "q", "-n", "3000"], ["sql"], ["peek", "q", "-n", "1000", "--json"]):
        process = command.start(*arguments)
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        error = process.stderr.read()
        process.stderr.close()
        assert process.wait(60) in {0, 1, 141}
        assert error == b"", arguments


def test_stdout_or_stderr_closed(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("q")
    for arguments in ("queue list", "queue show q", "queue list --json"):
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$0" {arguments} >&-', PROGRAM],
            stderr=subprocess.PIPE,
            env=command.environment(),
            check=False,
        )
        assert b"Traceback" not in done.stderr
        assert done.returncode in {0, 1}
    # The command does its work also where it cannot report it.
    for closing in ("2>&-", "2>/dev/full"):
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$0" queue pause q {closing}', PROGRAM],
            env=command.environment(),
            check=False,
        )
        assert done.returncode == 0, closing
    assert queue.list_queues()[0].paused_at is not None


def test_a_terminal_that_knows_few_characters(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("größte 日本")
    answer = command("queue", "list", environ={"PYTHONIOENCODING": "latin-1"})
    assert answer.code == 0
    assert answer.err == ""
    assert "größte ??".encode("latin-1") in answer.raw
    with_json = command("queue", "list", "--json", environ={"PYTHONIOENCODING": "latin-1"}).ok()
    assert with_json.json[0]["name"] == "größte 日本", "JSON is UTF-8 wherever it is written"
