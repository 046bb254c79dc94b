"""`penstock schedule`, run as its users run it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from penstock import Client
from penstock.embedded import Server
from penstock.tasks.periodic import Cron, Every
from tests.cli.test_schema import failure, penstock

NOON = datetime(2126, 5, 5, 12, tzinfo=UTC)


@pytest.fixture
def queue(database18: str) -> Any:
    """A database with three schedules."""
    with Client(database18) as client:
        client.declare_queue("chores")
        for name, times in (("report", Cron("0 3 * * *", "Europe/Riga")), ("sweep", Every(60))):
            client.put_schedule(
                name,
                "chores",
                {"of": name},
                definition=times.definition(),
                next_at=NOON,
                headers={"task": f"{name}_task"},
            )
        client.put_schedule("theirs", "chores", {}, definition={"moon": "full"}, next_at=NOON)
        yield client


def test_list(queue: Client, database18: str) -> None:
    queue.pause_schedule("sweep")
    queue.resume_schedule("theirs", datetime(2020, 1, 1, tzinfo=UTC))
    answer = penstock("schedule", "list", "--dsn", database18)
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = [line.rstrip() for line in answer.stdout.splitlines()]
    assert lines == [
        "NAME    TIMES                  QUEUE   NEXT                       LAST  STATE",
        "report  0 3 * * * Europe/Riga  chores  2126-05-05 12:00:00+00:00  -     active",
        "sweep   every 60 s             chores  2126-05-05 12:00:00+00:00  -     paused",
        'theirs  {"moon": "full"}       chores  2020-01-01 00:00:00+00:00  -     overdue: no worker has it',
    ]


def test_list_speaks_json(queue: Client, database18: str) -> None:
    queue.advance_schedule("sweep", NOON, NOON + timedelta(minutes=1), [NOON])
    answer = penstock("schedule", "list", "--json", DATABASE_URL=database18)
    assert answer.returncode == 0, answer.stderr
    report, sweep, theirs = json.loads(answer.stdout)
    assert report["definition"] == {"cron": "0 3 * * *", "tz": "Europe/Riga"}
    assert (report["task"], report["missed"], report["last_tick"]) == ("report_task", "skip", None)
    assert datetime.fromisoformat(sweep["last_tick"]) == NOON
    assert datetime.fromisoformat(sweep["next_at"]) == NOON + timedelta(minutes=1)
    assert sweep["paused_at"] is None
    assert theirs["task"] is None


def test_nothing_to_list(database18: str) -> None:
    answer = penstock("schedule", "list", "--dsn", database18)
    assert (answer.returncode, answer.stdout) == (0, "")
    assert answer.stderr.startswith("There are no periodic tasks")
    assert json.loads(penstock("schedule", "list", "--json", "--dsn", database18).stdout) == []


def test_pause_resume_and_run(queue: Client, database18: str) -> None:
    def sweep() -> Any:
        (found,) = [schedule for schedule in queue.list_schedules() if schedule.name == "sweep"]
        return found

    answer = penstock("schedule", "pause", "sweep", "--dsn", database18)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "sweep: paused\n")
    assert sweep().paused_at is not None
    answer = penstock("schedule", "run", "sweep", "--dsn", database18)
    assert answer.returncode == 0, answer.stderr
    details = queue.get_message("chores", int(answer.stdout))
    assert details is not None
    assert details.payload == {"of": "sweep"}
    assert sweep().next_at == NOON
    answer = penstock("schedule", "resume", "sweep", "--dsn", database18)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "sweep: goes on\n")
    assert sweep().paused_at is None
    assert sweep().next_at == NOON


def test_what_went_by_in_a_pause_is_not_made_up_for(queue: Client, database18: str) -> None:
    queue.resume_schedule("sweep", datetime(2020, 1, 1, tzinfo=UTC))
    queue.pause_schedule("sweep")
    began = queue.clock()
    assert penstock("schedule", "resume", "sweep", "--dsn", database18).returncode == 0
    times = {schedule.name: schedule.next_at for schedule in queue.list_schedules()}
    assert Every(60).next_after(began) <= times["sweep"] <= Every(60).next_after(queue.clock())
    # One that was not paused is late, and stays so.
    queue.resume_schedule("report", datetime(2020, 1, 1, tzinfo=UTC))
    assert penstock("schedule", "resume", "report", "--dsn", database18).returncode == 0
    times = {schedule.name: schedule.next_at for schedule in queue.list_schedules()}
    assert times["report"] == datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("command", ["pause", "resume", "run"])
def test_an_unknown_name_is_one_line(queue: Client, database18: str, command: str) -> None:
    assert 'schedule "nothing" does not exist' in failure(
        penstock("schedule", command, "nothing", "--dsn", database18)
    )


def test_a_database_without_the_schema_is_one_line(server18: Server) -> None:
    with psycopg.connect(server18.dsn(), autocommit=True) as root:
        root.execute("create database periodic_test")
        try:
            line = failure(penstock("schedule", "list", "--dsn", server18.dsn("periodic_test")))
        finally:
            root.execute("drop database periodic_test with (force)")
    assert "has no schema penstock" in line
    assert "penstock migrate" in line
