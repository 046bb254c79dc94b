"""`penstock maintain`."""

from __future__ import annotations

import json
import signal
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

import penstock

from .command import Command
from .inside import Inside


def lapse(queue: penstock.Client, name: str) -> None:
    """A message whose consumer has let its lease end: maintain() has something to do."""
    queue.send(name, "x")
    assert queue.consume_one(name, visibility_timeout=0) is not None


def settle(queue: penstock.Client) -> None:
    """Until there is nothing to do for now."""
    while queue.maintain():
        pass


def test_it_does_what_is_due_and_says_so(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("q \x1b[31m")
    settle(queue)
    lapse(queue, "q \x1b[31m")
    answer = command("maintain").ok()
    assert answer.err == ""
    assert "in q \ufffd[31m: 1" in answer.out
    assert [each.state for each in queue.list_messages("q \x1b[31m")] == ["ready"]
    lapse(queue, "q \x1b[31m")
    done = command("maintain", "--json").ok().lines
    assert {"queue_name", "action", "affected"} == set(done[0])
    assert ("q \x1b[31m", 1) in [(each["queue_name"], each["affected"]) for each in done]


def test_nothing_to_do(inside: Inside, queue: penstock.Client) -> None:
    queue.create_queue("q")
    settle(queue)
    answer = inside("maintain").ok()
    assert (answer.out, answer.err) == ("", "There was nothing to do.\n")
    answer = inside("maintain", "--json").ok()
    assert answer.out == ""


def test_it_goes_on_until_interrupted(
    command: Command, queue: penstock.Client, database18: str, sql18: psycopg.Connection[Any]
) -> None:
    queue.create_queue("q")
    settle(queue)
    dsn = make_conninfo(database18, application_name="cli_maintain")
    process = command.start("maintain", "--follow", "--interval", "100ms", "--json", "--dsn", dsn)
    try:
        assert process.stdout is not None
        lapse(queue, "q")
        first = json.loads(process.stdout.readline())
        assert (first["queue_name"], first["affected"]) == ("q", 1)
        # A connection that is lost is no reason to give up.
        ended = sql18.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'cli_maintain'"
        )
        assert ended.fetchall() == [(True,)]
        lapse(queue, "q")
        for line in process.stdout:
            if json.loads(line)["action"] == first["action"]:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    assert all(json.loads(line) for line in out.splitlines())


def test_control_c_in_a_terminal(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("q")
    settle(queue)
    lapse(queue, "q")
    with command.terminal("maintain", "-f") as terminal:
        terminal.until("in q: 1")
        terminal.type("\x03")
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.text
        assert terminal.is_sane()


def test_mistakes(inside: Inside) -> None:
    inside("maintain", "--follow", "--interval", "soon").failed(2, "soon", "500ms")
    inside("maintain", "--follow", "--interval", "0").failed(2, "--interval", "100 ms")
    inside("maintain", "--follow", "--interval", "99999999999d").failed(2, "99999999999d")
    inside("maintain", "--interval", "1s").failed(2, "--follow")
    inside("maintain", "q").failed(2, "q")
