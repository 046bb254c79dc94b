"""`penstock queue`."""

from __future__ import annotations

import penstock

from .command import Command


def test_a_queue_is_created_shown_and_deleted(command: Command, queue: penstock.Client) -> None:
    command("topic", "create", "orders").ok()
    made = command("queue", "create", "billing", "--topic", "orders", "--retry-delays", "1s,1m").ok()
    assert (made.out, made.err) == ("", "queue billing is there\n")
    found = {each.name: each for each in queue.list_queues()}["billing"]
    assert (found.topic_name, found.retry_delays) == ("orders", (1, 60))
    assert command("queue", "list", "--json").ok().json[0]["retry_delays"] == [1, 60]
    command("queue", "delete", "billing").failed(2, "--yes")
    command("queue", "delete", "billing", "--yes").ok()
    assert queue.list_queues() == []
    command("queue", "show", "billing").failed(3, 'queue "billing" does not exist')


def test_what_destroys_asks_first(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("billing")
    with command.terminal("queue", "delete", "billing") as terminal:
        terminal.until("[y/N]")
        terminal.type("n\n")
        assert terminal.wait() == 1
    assert len(queue.list_queues()) == 1
    with command.terminal("queue", "delete", "billing") as terminal:
        terminal.until("[y/N]")
        terminal.type("y\n")
        assert terminal.wait() == 0
    assert queue.list_queues() == []
