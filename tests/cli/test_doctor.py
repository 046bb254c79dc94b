"""`penstock doctor`: what it prints, and how it ends. What it finds is tested in tests/doctor."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock.doctor import CHECKS

from .command import Command
from .inside import Quick

NAMES = [check.name for check in CHECKS]


@pytest.fixture
def command(database18: str, tmp_path: Path) -> Command:
    """Without a process for each call: what these tests look at is what it prints and does."""
    return Quick(database18, tmp_path)


@pytest.fixture
def healthy(queue: penstock.Client) -> penstock.Client:
    queue.create_queue("billing")
    while not queue.diagnose_engine().maintained_at:
        queue.maintain()
    return queue


@pytest.mark.usefixtures("healthy")
def test_a_healthy_database(command: Command) -> None:
    answer = command("doctor", "--strict").ok()
    assert [line.split()[0] for line in answer.out.splitlines()] == ["ok"] * len(NAMES)
    assert answer.err == f"{len(NAMES)} ok\n"
    quiet = command("doctor", "--quiet").ok()
    assert (quiet.out, quiet.err) == ("", "")
    found = command("doctor", "--json").ok().json
    assert [finding["check"] for finding in found] == NAMES
    assert {finding["status"] for finding in found} == {"ok"}
    assert found[0].keys() == {"check", "status", "subject", "found", "advice", "command"}


def test_what_is_wrong_comes_last_with_what_to_do(
    command: Command, healthy: penstock.Client, database18: str
) -> None:
    healthy.create_queue("lonely")
    healthy.send("lonely", 1)
    healthy.pause_queue("billing")
    healthy.send("billing", 1)
    with psycopg.connect(database18) as connection:
        connection.execute("select penstock.send_message('billing', '1')")
        pid = connection.info.backend_pid
        answer = command("doctor", "--patience", "0", "--skip", "held-vacuum", "--skip", "maintenance")
        assert answer.code == 1
        words = [line.split()[0] for line in answer.out.splitlines() if not line.startswith(" ")]
        assert words == ["ok"] * (len(NAMES) - 5) + ["warning", "problem", "problem"]
        lines = answer.out.splitlines()
        assert "warning  paused: queue billing" in lines
        assert "problem  floors: queue billing" in lines
        assert "problem  consumers: queue lonely" in lines
        assert f"             select pg_terminate_backend({pid});" in lines
        assert "             penstock peek lonely" in lines
        assert answer.err == f"2 problems, 1 warning, {len(NAMES) - 5} ok\n"
        some = command("doctor", "--patience", "0", "--check", "floors", "--check", "paused", "--json")
        assert (some.code, [finding["check"] for finding in some.json]) == (1, ["floors", "paused"])
    # A warning alone is no failure, unless it is to be one.
    warned = command("doctor", "--patience", "0s", "--check", "paused", "--quiet").ok()
    assert warned.out.startswith("warning  paused: queue billing\n")
    assert command("doctor", "--patience", "0s", "--check", "paused", "--strict").code == 1


def test_in_a_terminal(command: Command, healthy: penstock.Client) -> None:
    healthy.pause_queue("billing")
    healthy.send("billing", 1)
    with command.terminal("doctor", "--patience", "0", "--check", "paused", "--check", "schema") as terminal:
        assert terminal.wait() == 0
        assert "ok       schema:" in terminal.text
        assert "penstock queue resume billing" in terminal.text
        assert b"\x1b[33mwarning\x1b[0m" in terminal.raw
    plain = command.terminal("doctor", "--check", "schema", environ={"NO_COLOR": "1"})
    with plain as terminal:
        assert terminal.wait() == 0
        assert "ok       schema:" in terminal.text
        assert b"\x1b[32m" not in terminal.raw


def test_without_the_schema_and_without_rights(command: Command, database18: str, tmp_path: Path) -> None:
    with psycopg.connect(database18, autocommit=True) as connection:
        connection.execute("create role cli_doctor_stranger login")
        try:
            stranger = command(
                "doctor", "--dsn", psycopg.conninfo.make_conninfo(database18, user="cli_doctor_stranger")
            )
        finally:
            connection.execute("drop role cli_doctor_stranger")
        # Told once for all of them.
        assert stranger.ok().out.count("may not look into the schema penstock") == 1
        assert 'grant penstock_viewer to "cli_doctor_stranger";' in stranger.out
        assert "not checked" in stranger.err
        connection.execute("drop schema penstock cascade")
    missing = Command(database18, tmp_path)("doctor")
    assert missing.code == 1
    assert "problem  schema: " in missing.out
    assert missing.out.rstrip().endswith("penstock migrate")


def test_wrong_usage_and_no_database(command: Command) -> None:
    command("doctor", "--check", "everything").failed(2, "no check 'everything'", "held-vacuum")
    command("doctor", "--patience", "soon").failed(2, "length of time")
    command("doctor", "--dsn", "postgresql://127.0.0.1:1/x").failed(
        1, "cannot connect to host=127.0.0.1 port=1"
    )
    listed = command("doctor", "--list").ok().out.splitlines()
    assert [line.split()[0] for line in listed[1:]] == NAMES


@pytest.mark.parametrize("patience", ["1s", "5m", "1d"])
@pytest.mark.parametrize(
    ("late", "state", "status"), [(30, "active", "ok"), (90, "overdue: no worker has it", "warning")]
)
def test_a_schedule_is_late_for_doctor_where_it_is_overdue_in_the_list(
    *, command: Command, healthy: penstock.Client, late: int, state: str, status: str, patience: str
) -> None:
    due = healthy.clock() - timedelta(seconds=late)
    healthy.put_schedule("hourly", "billing", {}, definition="@hourly", next_at=due)
    listed = command("schedule", "list").ok().out.splitlines()[-1]
    (found,) = command("doctor", "--check", "schedules", "--json", "--patience", patience).lines[0]
    assert listed.endswith(state)
    # The patience only tells how bad it is: a problem after twelve times that.
    assert found["status"] == ("problem" if status == "warning" and patience == "1s" else status)


def test_maintenance_tells_what_it_has_seen(command: Command, healthy: penstock.Client) -> None:
    """Only the chores of each minute leave a trace, however often maintain() is called."""
    done_at = healthy.diagnose_engine().maintained_at
    healthy.maintain()
    assert healthy.diagnose_engine().maintained_at == done_at
    (found,) = command("doctor", "--check", "maintenance", "--json").ok().json
    assert found["found"].startswith("The chores of each minute were done ")
