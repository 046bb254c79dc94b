"""A message that cannot be read, in every command that shows messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from tests.poison import damage

from .command import Command
from .inside import Quick

NOISE = {"noise": [str(n) for n in range(20000)]}


@pytest.fixture
def command(database18: str, tmp_path: Path) -> Command:
    """Without a process for each call: what these tests look at is what it prints and does."""
    return Quick(database18, tmp_path)


@pytest.fixture
def bad(queue: penstock.Client, sql18: psycopg.Connection[Any]) -> int:
    """A damaged message, between two that are fine."""
    queue.create_queue("q")
    queue.send("q", "first")
    message_id = queue.send("q", NOISE)
    damage(sql18, "payloads")
    queue.send("q", "last")
    return message_id


def test_while_it_is_ready(command: Command, bad: int) -> None:
    first, note, last = command("peek", "q", "-n", "9").ok().out.splitlines()
    assert (first, last) == ('"first"', '"last"')
    assert "missing chunk" in note
    assert "missing chunk" in command("message", "show", "q", str(bad)).ok().out
    assert (
        "missing chunk"
        in command("message", "show", "q", str(bad), "--json").ok().json["payload"]["penstock_unreadable"]
    )
    assert str(bad) in command("message", "list", "q").ok().out
    assert "behind 1 other" in command("message", "explain", "q", str(bad)).ok().out


def test_consume_goes_on_without_it(command: Command, bad: int) -> None:
    consumed = command("consume", "q", "-n", "0", "--ack", "--wait", "0").ok()
    assert consumed.out == '"first"\n"last"\n'
    assert f"message {bad} of queue 'q' cannot be read" in consumed.err


def test_as_a_dead_letter(command: Command, queue: penstock.Client, bad: int) -> None:
    queue.reject_unreadable("q")
    assert "cannot be read" in command("dlq", "list", "q").ok().out
    (listed,) = command("dlq", "list", "q", "--json").ok().json
    assert "missing chunk" in listed["payload"]["penstock_unreadable"]
    assert "missing chunk" in command("dlq", "show", "q", str(bad)).ok().out
    assert "cannot be read" in command("message", "explain", "q", str(bad)).ok().out
    assert command("dlq", "requeue", "q", str(bad)).ok()
    command("consume", "q", "-n", "0", "--ack", "--wait", "0").ok()
    assert [letter.message_id for letter in queue.list_dlq_messages("q")] == [bad]


def test_a_time_that_python_does_not_know(
    command: Command, queue: penstock.Client, sql18: psycopg.Connection[Any]
) -> None:
    queue.create_queue("q")
    sql18.execute("select penstock.send_message('q', '1', deliver_after => '294276-12-31 23:00+00')")
    assert "due in" in command("message", "list", "q").ok().out
    assert "9999-12-31" in command("message", "show", "q", "1").ok().out
    assert "294276" in command("message", "explain", "q", "1").ok().out
