"""`penstock workers`."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

import penstock
from tests.sql.engine import fingerprint

from .command import Command
from .inside import Inside


@pytest.fixture
def crew(queue: penstock.Client, sql18: psycopg.Connection[Any]) -> penstock.Client:
    """A worker that works, one that stops, and one of which nothing was heard for an hour."""
    for number, host in enumerate(("busy", "stopping", "lost \x1b[31m"), 1):
        queue.register_worker(
            f"token{number}",
            hostname=host,
            pid=1000 + number,
            version="1.2.3",
            queues=["mail", "chores"],
            tasks=["pay", "mail"],
            concurrency=20,
        )
    running = [{"task": "pay"}, {"task": "mail"}, {"task": "pay"}, "odd", {}]
    queue.beat_worker("token1", held=30, running=running, stopping=False)
    queue.beat_worker("token2", held=1, running="nothing of the kind", stopping=True)
    sql18.execute(
        "update penstock.workers set started_at = started_at - '2 h 5 min'::interval,"
        " seen_at = seen_at - '1 h'::interval where token = 'token3'"
    )
    return queue


def test_where_they_run_and_what_they_do(command: Command, crew: penstock.Client) -> None:
    answer = command("workers").ok()
    assert answer.err == ""
    assert "\x1b" not in answer.out
    heading, *rows = answer.out.splitlines()
    assert heading.startswith("WORKER")
    by_host = {row.split(":")[0]: row for row in rows}
    busy, stopping, lost = by_host["busy"], by_host["stopping"], by_host["lost \ufffd[31m"]
    assert "busy:1001" in busy
    assert "mail, chores" in busy
    assert " 30 " in busy
    assert "pay (2), mail (1)" in busy
    assert "None" not in busy
    assert busy.endswith("alive")
    assert stopping.endswith("stopping")
    assert lost.endswith("lost")
    assert "1 h" in lost
    assert "2 h 5 min" in lost


def test_only_those_alive(inside: Inside, crew: penstock.Client) -> None:
    found = inside("workers", "--json").ok().json
    assert {each["consumer"]: each["is_alive"] for each in found} == {
        fingerprint("token1"): True,
        fingerprint("token2"): True,
        fingerprint("token3"): False,
    }
    assert found[-1]["queues"] == ["mail", "chores"]
    alive = inside("workers", "--alive", "--json").ok().json
    assert {each["consumer"] for each in alive} == {fingerprint("token1"), fingerprint("token2")}
    assert len(inside("workers", "--alive").ok().out.splitlines()) == 3
    # None of those that are left.
    for token in ("token1", "token2"):
        crew.forget_worker(token)
    answer = inside("workers", "--alive").ok()
    assert answer.out == ""
    assert "alive" in answer.err, "there is one, but it is lost"


def test_there_are_none(inside: Inside) -> None:
    nothing = inside("workers").ok()
    assert nothing.out == ""
    assert "penstock worker" in nothing.err
    assert inside("workers", "--json").ok().json == []
    inside("workers", "all").failed(2, "all")
