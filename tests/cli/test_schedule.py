"""`penstock schedule`, run as its users run it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import penstock
from penstock.models import ListedSchedule
from penstock.tasks.periodic import Cron, Every

from .command import Command
from .inside import Inside

NOON = datetime(2126, 5, 5, 12, tzinfo=UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def times(queue: penstock.Client) -> penstock.Client:
    """A database with three schedules."""
    queue.declare_queue("chores")
    for name, times in (("report", Cron("0 3 * * *", "Europe/Riga")), ("sweep", Every(60))):
        queue.put_schedule(
            name,
            "chores",
            {"of": name},
            definition=times.definition(),
            next_at=NOON,
            headers={"task": f"{name}_task"},
        )
    queue.put_schedule("theirs", "chores", {}, definition={"moon": "full"}, next_at=NOON)
    return queue


def schedule_of(queue: penstock.Client, name: str) -> ListedSchedule:
    (found,) = [each for each in queue.list_schedules() if each.name == name]
    return found


def test_list(command: Command, times: penstock.Client) -> None:
    times.pause_schedule("sweep")
    times.resume_schedule("theirs", LONG_AGO)
    answer = command("schedule", "list").ok()
    assert answer.err == ""
    assert answer.out.splitlines() == [
        "NAME    TIMES                  QUEUE   NEXT                       LAST  STATE",
        "report  0 3 * * * Europe/Riga  chores  2126-05-05 12:00:00+00:00  -     active",
        "sweep   every 60 s             chores  2126-05-05 12:00:00+00:00  -     paused",
        'theirs  {"moon":"full"}        chores  2020-01-01 00:00:00+00:00  -     overdue: no worker has it',
    ]


@pytest.mark.parametrize(
    ("stored", "is_late"),
    [
        ("200000-01-01 00:00Z", False),
        ("infinity", False),
        ("4000-01-01 00:00Z BC", True),
        ("-infinity", True),
    ],
)
def test_times_that_python_does_not_know(
    command: Command,
    times: penstock.Client,
    sql18: psycopg.Connection[Any],
    stored: str,
    is_late: bool,
) -> None:
    """put_schedule() refuses these times. A list shows the nearest that Python knows."""
    sql18.execute("update penstock.schedules set next_at = %s where name = 'sweep'", [stored])
    answer = command("schedule", "list").ok()
    (line,) = [line for line in answer.out.splitlines() if line.startswith("sweep")]
    assert ("0001-01-01 00:00:00" if is_late else "9999-12-31 23:59:59") in line
    assert ("overdue" if is_late else "active") in line
    answer = command("doctor", "--check", "schedules")
    assert "Traceback" not in answer.err
    assert ("schedule sweep" in answer.out) == is_late


def test_list_on_a_terminal(command: Command, times: penstock.Client) -> None:
    with command.terminal("schedule", "list", environ={"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 0
        assert "───" in terminal.text
        assert "0 3 * * * Europe/Riga" in terminal.text


def test_list_speaks_json(command: Command, times: penstock.Client) -> None:
    times.advance_schedule("sweep", NOON, NOON + timedelta(minutes=1), [NOON])
    report, sweep, theirs = command("schedule", "list", "--json").ok().json
    assert report["definition"] == {"cron": "0 3 * * *", "tz": "Europe/Riga"}
    assert (report["task"], report["missed"], report["last_tick"]) == ("report_task", "skip", None)
    assert datetime.fromisoformat(sweep["last_tick"]) == NOON
    assert datetime.fromisoformat(sweep["next_at"]) == NOON + timedelta(minutes=1)
    assert sweep["paused_at"] is None
    assert theirs["task"] is None


def test_nothing_to_list(inside: Inside) -> None:
    answer = inside("schedule", "list").ok()
    assert answer.out == ""
    assert answer.err.startswith("There are no periodic tasks")
    assert inside("schedule", "list", "--json").ok().json == []


def test_pause_resume_and_run(command: Command, times: penstock.Client) -> None:
    answer = command("schedule", "pause", "sweep").ok()
    assert (answer.out, answer.err) == ("", "sweep: paused\n")
    assert schedule_of(times, "sweep").paused_at is not None
    # Paused or not.
    answer = command("schedule", "run", "sweep").ok()
    assert answer.err == ""
    details = times.get_message("chores", int(answer.out))
    assert details is not None
    assert (details.payload, details.headers["task"]) == ({"of": "sweep"}, "sweep_task")
    assert schedule_of(times, "sweep").next_at == NOON
    answer = command("schedule", "resume", "sweep").ok()
    assert (answer.out, answer.err) == ("", "sweep: goes on\n")
    assert schedule_of(times, "sweep").paused_at is None
    assert schedule_of(times, "sweep").next_at == NOON


def test_each_speaks_json(inside: Inside, times: penstock.Client) -> None:
    assert inside("schedule", "pause", "sweep", "--json").ok().json == {"name": "sweep", "paused": True}
    assert inside("schedule", "resume", "sweep", "--json").ok().json == {"name": "sweep", "paused": False}
    ran = inside("schedule", "run", "theirs", "--json").ok().json
    (sent,) = times.list_messages("chores")
    assert ran == {"name": "theirs", "message_id": sent.message_id}
    answer = inside("schedule", "delete", "theirs", "--yes", "--json").ok()
    assert answer.json == {"name": "theirs", "deleted": True}


def test_what_went_by_in_a_pause_is_not_made_up_for(inside: Inside, times: penstock.Client) -> None:
    times.resume_schedule("sweep", LONG_AGO)
    times.pause_schedule("sweep")
    began = times.clock()
    inside("schedule", "resume", "sweep").ok()
    next_at = schedule_of(times, "sweep").next_at
    assert began <= next_at <= times.clock()
    assert times.advance_schedule("sweep", next_at, NOON, [LONG_AGO, began, next_at]) == []
    # One that was not paused is late, and stays so.
    times.resume_schedule("report", LONG_AGO)
    inside("schedule", "resume", "report").ok()
    assert schedule_of(times, "report").next_at == LONG_AGO
    assert len(times.advance_schedule("report", LONG_AGO, NOON, [LONG_AGO])) == 1


def test_delete_asks(command: Command, times: penstock.Client) -> None:
    command("schedule", "delete", "sweep").failed(2, "Delete schedule sweep?", "--yes")
    for answer, code, left in (("\x03", 130, 3), ("n\n", 1, 3), ("y\n", 0, 2)):
        with command.terminal("schedule", "delete", "sweep") as terminal:
            terminal.until("Delete schedule sweep? [y/N]")
            terminal.type(answer)
            assert terminal.wait() == code
        assert len(times.list_schedules()) == left
    deleted = command("schedule", "delete", "report", "-y").ok()
    assert (deleted.out, deleted.err) == ("", "report: deleted\n")
    assert [each.name for each in times.list_schedules()] == ["theirs"]


def test_names_are_data(inside: Inside, times: penstock.Client) -> None:
    for name in ("--json", "a b", "日本", "x\x1b[31m\ny"):
        times.put_schedule(name, "chores", {}, definition={"every": 60}, next_at=NOON)
        inside("schedule", "run", "--", name).ok()
        assert "\x1b" not in inside("schedule", "pause", "--", name).ok().err
    assert len(inside("schedule", "list").ok().out.splitlines()) == 1 + 7
    assert times.get_queue_statistics("chores")[0].pending_count == 4


def test_mistakes(inside: Inside, times: penstock.Client) -> None:
    for verb in ("pause", "resume", "run", "delete"):
        line = inside("schedule", verb, "nothing").failed(3, 'schedule "nothing" does not exist')
        assert line.count("\n") == 1
        assert "penstock schedule list" in line
        inside("schedule", verb).failed(2, "Missing argument 'NAME'")
    inside("schedule", "list", "sweep").failed(2, "sweep")
    # Its queue is gone.
    times.delete_queue("chores")
    assert inside("schedule", "list").ok().out.count("its queue is gone") == 3
    inside("schedule", "run", "sweep").failed(3, 'queue "chores" does not exist', "penstock queue list")
