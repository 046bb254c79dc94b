"""`penstock topic`."""

from __future__ import annotations

import penstock

from .command import Command
from .inside import Inside


def test_a_topic_is_created_listed_shown_and_deleted(
    command: Command, inside: Inside, queue: penstock.Client
) -> None:
    nothing = inside("topic", "list").ok()
    assert nothing.out == ""
    assert "penstock topic create" in nothing.err
    made = command("topic", "create", "orders").ok()
    assert (made.out, made.err) == ("", "topic orders is there\n")
    queue.create_queue("billing", topic="orders")
    queue.create_queue("mail", topic="orders")
    queue.create_queue("alone")
    listed = command("topic", "list").ok()
    assert listed.err == ""
    heading, row = listed.out.splitlines()
    assert heading.split() == ["NAME", "QUEUES", "CREATED"]
    assert row.split()[:2] == ["orders", "2"]
    (found,) = queue.list_topics()
    assert found.created_at.isoformat(sep=" ", timespec="seconds") in row
    assert inside("topic", "show", "orders").ok().out.splitlines()[-1] == "queues   billing, mail"
    inside("topic", "delete", "orders").failed(2, "2 queues", "--yes")
    deleted = command("topic", "delete", "orders", "--yes").ok()
    assert (deleted.out, deleted.err) == ("", "topic orders deleted\n")
    assert [each.name for each in queue.list_queues()] == ["alone"]
    assert queue.list_topics() == []


def test_json(inside: Inside, queue: penstock.Client) -> None:
    assert inside("topic", "list", "--json").ok().json == []
    made = inside("topic", "create", "orders", "--json").ok().json
    assert inside("topic", "create", "orders", "--json").ok().json == made, "done already"
    queue.create_queue("billing", topic="orders")
    (listed,) = inside("topic", "list", "--json").ok().json
    assert made == {"id": listed["id"], "name": "orders"}
    assert listed["queue_count"] == 1
    assert inside("topic", "show", "orders", "--json").ok().json == {**listed, "queues": ["billing"]}
    answer = inside("topic", "delete", "orders", "--yes", "--json").ok().json
    assert answer == {"name": "orders", "queues": ["billing"], "deleted": True}


def test_mistakes(inside: Inside, queue: penstock.Client) -> None:
    for verb in ("show", "delete"):
        line = inside("topic", verb, "nix").failed(3, 'topic "nix" does not exist', "penstock topic list")
        assert len(line.splitlines()) == 1
    inside("topic", "create").failed(2, "Missing argument 'TOPIC'")
    inside("topic", "create", "").failed(2, "1 to 255")
    inside("topic", "create", "n" * 256).failed(2, "256")
    inside("topic", "create", "half \udcff").failed(2, "topic_name")
    inside("topic", "make", "x").failed(2, "make")
    assert queue.list_topics() == []


def test_names_are_data(inside: Inside, queue: penstock.Client) -> None:
    names = ["-x", "--all", "a b", "\"'`$(id)", "日本", "line\nbreak\x1b[31m", "n" * 255]
    for name in names:
        inside("topic", "create", "--", name).ok()
    assert sorted(each.name for each in queue.list_topics()) == sorted(names)
    assert sorted(each["name"] for each in inside("topic", "list", "--json").ok().json) == sorted(names)
    assert len(inside("topic", "list").ok().out.splitlines()) == 1 + len(names)
    shown = inside("topic", "show", "line\nbreak\x1b[31m").ok()
    assert "\x1b" not in shown.out
    for name in names:
        inside("topic", "delete", "--", name).ok()
    assert queue.list_topics() == []


def test_a_topic_with_queues_asks(command: Command, queue: penstock.Client) -> None:
    queue.create_topic("orders")
    queue.create_queue("billing", topic="orders")
    for answer, code, left in (("\x03", 130, 1), ("n\n", 1, 1), ("y\n", 0, 0)):
        with command.terminal("topic", "delete", "orders") as terminal:
            assert "Delete topic orders with 1 queue and all messages in them?" in terminal.until("[y/N]")
            terminal.type(answer)
            assert terminal.wait() == code
        assert len(queue.list_topics()) == len(queue.list_queues()) == left
