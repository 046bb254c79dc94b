"""`penstock stats`."""

from __future__ import annotations

import pytest

import penstock

from .command import Command
from .inside import Inside


@pytest.fixture
def busy(queue: penstock.Client) -> penstock.Client:
    """Two queues; in `busy` something in each state."""
    queue.create_queue("busy", tenant_max_active=2)
    queue.create_queue("idle")
    queue.send_many("busy", [1, 2, 3], tenant="acme", priority=penstock.HIGH)
    queue.send("busy", "ö", tenant="größte 日本")
    queue.send("busy", "later", delay=3600, tenant="acme")
    for tenant in "abc":
        queue.send("busy", "x", tenant=tenant, priority=penstock.URGENT)
    done, dead, _active = queue.consume_batch("busy", batch_size=3, visibility_timeout=3600)
    queue.ack(done)
    queue.reject(dead)
    queue.maintain()
    return queue


def test_each_queue_and_state(command: Command, busy: penstock.Client) -> None:
    answer = command("stats").ok()
    assert answer.err == ""
    heading, first, second = answer.out.splitlines()
    assert heading.split() == ["QUEUE", "PENDING", "ACTIVE", "DELAYED", "WAITING", "DONE", "DEAD", "OLDEST"]
    assert first.split()[:7] == ["busy", "5", "1", "1", "1", "1", "1"]
    assert second.split() == ["idle", "0", "0", "0", "0", "0", "0", "-"]
    found = command("stats", "busy", "--json").ok().json
    assert len(found) == 1
    (counts,) = busy.get_queue_statistics("busy")
    for name in (
        "pending_count",
        "processing_count",
        "completed_count",
        "total_count",
        "dead_count",
        "waiting_count",
    ):
        assert found[0][name] == getattr(counts, name), name
    assert 0 <= found[0]["oldest_pending_seconds"] <= (counts.oldest_pending_seconds or 0)


def test_by_priority(inside: Inside, busy: penstock.Client) -> None:
    rows = [line.split() for line in inside("stats", "busy", "--by", "priority").ok().out.splitlines()[1:]]
    assert [row[1:5] for row in rows] == [
        ["0", "urgent", "0", "1"],
        ["1", "high", "3", "0"],
        ["2", "normal", "2", "0"],
        ["3", "low", "0", "0"],
    ]
    # What is not counted that way is told as such, not as 0.
    assert all(row[7:9] == ["-", "-"] for row in rows)
    found = inside("stats", "busy", "--by", "priority", "--json").ok().json
    assert [(each["priority"], each["pending_count"], each["dead_count"]) for each in found] == [
        (0, 0, None),
        (1, 3, None),
        (2, 2, None),
        (3, 0, None),
    ]


def test_by_tenant(inside: Inside, busy: penstock.Client) -> None:
    lines = inside("stats", "--by", "tenant").ok().out.splitlines()
    assert lines[0].split()[:3] == ["QUEUE", "TENANT", "PENDING"]
    assert any("größte 日本" in line for line in lines)
    found = inside("stats", "busy", "--by", "tenant", "--top", "1", "--json").ok().json
    assert [(each["tenant"], each["pending_count"]) for each in found] == [("acme", 4)], "the largest"
    assert [each["is_estimate"] for each in found] == [False]


def test_an_estimate_says_that_it_is_one(inside: Inside, busy: penstock.Client) -> None:
    def estimates() -> set[tuple[str, str]]:
        heading, *lines = inside("stats", "--by", "tenant").ok().out.splitlines()
        assert heading.split()[-1] == "ESTIMATE"
        return {(line.split()[0], line.split()[-1]) for line in lines}

    assert estimates() == {("busy", "no")}
    busy.create_queue("long")
    busy.send_many("long", [1] * 1000, tenant="acme")
    assert estimates() == {("busy", "no"), ("long", "yes")}
    assert "ESTIMATE" not in inside("stats").ok().out
    assert "ESTIMATE" not in inside("queue", "list").ok().out
    busy.send_many("long", [1] * 10000)
    for command in (("stats",), ("queue", "list")):
        heading, *lines = inside(*command).ok().out.splitlines()
        assert heading.split()[-1] == "ESTIMATE"
        assert {(line.split()[0], line.split()[-1]) for line in lines} >= {("busy", "no"), ("long", "yes")}
    assert "estimates" in inside("queue", "show", "long").ok().out
    assert "estimates" not in inside("queue", "show", "busy").ok().out


def test_nothing_to_count_and_mistakes(inside: Inside) -> None:
    nothing = inside("stats").ok()
    assert nothing.out == ""
    assert nothing.err != ""
    assert inside("stats", "--json").ok().json == []
    inside("stats", "nix").failed(3, 'queue "nix"', "penstock queue list")
    inside("stats", "--by", "size").failed(2, "size", "tenant")
    for wrong in ("0", "1001", "x"):
        inside("stats", "--by", "tenant", "--top", wrong).failed(2, "--top")
    inside("stats", "--top", "5").failed(2, "--by tenant")
    inside("stats", "a", "b").failed(2)
