"""`penstock peek`."""

from __future__ import annotations

import base64
import json
from typing import Any

import penstock

from .command import Command
from .inside import Inside

PAYLOADS: tuple[Any, ...] = ({"a": 1}, "", None, False, 0, [], "two\nlines \x1b[31m日本", "x" * 3_000_000)


def test_the_next_ones_are_printed_and_stay(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("q")
    queue.send_many("q", PAYLOADS)
    assert command("peek", "q").ok().out == '{"a":1}\n'
    many = command("peek", "q", "--count", "1000").ok()
    assert [json.loads(line) for line in many.out.splitlines()] == list(PAYLOADS), "a line each"
    assert many.err == ""
    details = command("peek", "q", "-n", "3", "--json").ok().lines
    assert [each["payload"] for each in details] == list(PAYLOADS[:3])
    assert {each["state"] for each in details} == {"ready"}
    (counts,) = queue.get_queue_statistics("q")
    assert (counts.pending_count, counts.processing_count) == (len(PAYLOADS), 0)
    assert all(each.delivery_attempts == 0 for each in queue.list_messages("q"))


def test_the_order_is_that_of_delivery(inside: Inside, queue: penstock.Client) -> None:
    queue.create_queue("q")
    queue.send("q", "low", priority=penstock.LOW)
    queue.send("q", "later", delay=3600, priority=penstock.URGENT)
    queue.send("q", "urgent", priority=penstock.URGENT)
    queue.send("q", "normal")
    assert inside("peek", "q", "-n", "9").ok().out == '"urgent"\n"normal"\n"low"\n'
    # A paused queue is what one looks into.
    queue.pause_queue("q")
    assert inside("peek", "q").ok().out == '"urgent"\n'
    queue.resume_queue("q")
    first = queue.consume_one("q")
    assert first is not None
    assert inside("peek", "q").ok().out == '"normal"\n', "the other is with a consumer"


def test_bytes_are_bytes_except_on_a_terminal(command: Command, queue: penstock.Client) -> None:
    body = b"\x00\xff\x1b]0;title\x07"
    queue.create_queue("q")
    queue.send_many("q", [body, body])
    assert command("peek", "q").ok().raw.rstrip(b"\n") == body
    assert command("peek", "q", "-n", "2").ok().raw == body + b"\n" + body + b"\n", "a line each"
    found = command("peek", "q", "--json").ok().json
    assert (found["payload"], base64.b64decode(found["body"])) == (None, body)
    with command.terminal("peek", "q") as terminal:
        assert terminal.wait() == 0
        assert b"\x1b" not in terminal.raw
        assert b"\x07" not in terminal.raw
        assert "]0;title" in terminal.text


def test_nothing_there_is_exit_code_4(inside: Inside, queue: penstock.Client) -> None:
    queue.create_queue("q")
    queue.send("q", "later", delay=3600)
    inside("peek", "q").failed(4, "queue q")
    assert inside("peek", "q", "--json").failed(4) == ""
    inside("peek", "nix").failed(3, 'queue "nix"', "penstock queue list")
    for wrong in ("0", "-1", "1001", "x"):
        inside("peek", "q", f"--count={wrong}").failed(2, "--count", wrong)
    inside("peek").failed(2, "Missing argument 'QUEUE'")
    inside("peek", "q", "more").failed(2, "more")
