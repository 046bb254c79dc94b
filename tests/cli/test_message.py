"""`penstock message`."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any

import pytest

import penstock
from tests.sql.engine import fingerprint

from .command import Command
from .inside import Inside

HUGE = "ü" * 2_000_000
PAYLOADS: tuple[Any, ...] = ("", None, False, 0, [], {"a": [1, "ü日本"]}, "two\nlines \x1b[31m", HUGE)
BYTES = b"\x00\xff\x1b]0;title\x07\n"


@pytest.fixture
def states(queue: penstock.Client) -> dict[str, int]:
    """A queue with a message in each state: their ids."""
    queue.create_queue("q", tenant_max_active=3)
    done = queue.send("q", {"n": 1}, priority=penstock.URGENT, headers={"task": "pay"})
    dead = queue.send("q", b"\x00\x01", priority=penstock.URGENT)
    active = queue.send("q", "active", priority=penstock.URGENT, dedup_key="only one")
    first, second, _ = queue.consume_batch("q", batch_size=3, token="me", visibility_timeout=3600)  # noqa: S106
    queue.ack(first, result={"paid": True})
    queue.reject(second, "line one\nline two \x1b[31m")
    ready = queue.send("q", "ready", tenant="acme", ttl=3600)
    queue.send_many("q", ["ready too", "and this"], tenant="acme")
    queue.maintain()
    waiting = queue.send("q", "waiting", tenant="acme")
    scheduled = queue.send("q", "scheduled", delay=3600, priority=penstock.LOW)
    return {
        "active": active,
        "ready": ready,
        "waiting": waiting,
        "scheduled": scheduled,
        "dead": dead,
        "done": done,
    }


def test_list_shows_each_state(command: Command, states: dict[str, int]) -> None:
    listed = command("message", "list", "q").ok()
    assert listed.err == ""
    heading, *rows = listed.out.splitlines()
    assert heading.split()[:3] == ["ID", "STATE", "PRIORITY"]
    found = {row.split()[1]: row for row in rows}
    # Those that run first, then those that come next.
    assert list(found) == list(states)
    for state, message_id in states.items():
        if state != "ready":
            assert found[state].split()[0] == str(message_id)
    assert "0 urgent" in found["active"]
    assert found["active"].rstrip().endswith(fingerprint("me")), "its holder"
    assert "acme" in found["waiting"]
    assert "3 low" in found["scheduled"]
    assert "failed" in found["dead"]
    as_json = command("message", "list", "q", "--json").ok().json
    assert [each["state"] for each in as_json] == [row.split()[1] for row in rows]
    assert {each["message_id"] for each in as_json} >= set(states.values())
    (active,) = [each for each in as_json if each["state"] == "active"]
    assert (active["consumer"], active["delivery_attempts"], active["priority"]) == (fingerprint("me"), 1, 0)
    assert datetime.fromisoformat(active["leased_until"]) > datetime.fromisoformat(active["published_at"])


def test_list_of_one_state(inside: Inside, states: dict[str, int]) -> None:
    for state, message_id in states.items():
        found = inside("message", "list", "q", "--state", state, "--json").ok().json
        assert {each["state"] for each in found} == {state}
        assert found[0]["message_id"] == message_id
    inside("message", "cancel", "q", str(states["scheduled"])).ok()
    nothing = inside("message", "list", "q", "--state", "scheduled").ok()
    assert nothing.out == ""
    assert "queue q" in nothing.err
    assert inside("message", "list", "q", "--state", "scheduled", "--json").ok().json == []


def test_ten_thousand_messages_by_pages(command: Command, inside: Inside, queue: penstock.Client) -> None:
    queue.create_queue("q")
    ids = queue.send_many("q", range(10_000), priority=penstock.NORMAL)
    queue.send_many("q", range(10), priority=penstock.LOW, delay=3600)
    found: list[dict[str, Any]] = []
    after: list[str] = []
    while page := inside("message", "list", "q", "--count", "3000", "--json", *after).ok().json:
        found += page
        after = ["--after", page[-1]["cursor"]]
    assert [each["message_id"] for each in found[:10_000]] == ids
    assert [each["state"] for each in found[10_000:]] == ["scheduled"] * 10
    # What a person is told to type works in a shell, for the rest is there.
    first = command("message", "list", "q", "-n", "9999").ok()
    assert len(first.out.splitlines()) == 10_000
    assert "There may be more: " in first.err
    cursor = first.err.split("--after ")[1].strip()
    assert cursor.startswith("'")
    rest = inside("message", "list", "q", "--after", cursor.strip("'")).ok()
    assert [line.split()[0] for line in rest.out.splitlines()[1:2]] == [str(ids[-1])]
    assert rest.err == ""
    # By default not all of them.
    assert len(inside("message", "list", "q").ok().out.splitlines()) == 101


def test_show_in_each_state(inside: Inside, states: dict[str, int]) -> None:
    shown = {state: inside("message", "show", "q", str(number)).ok() for state, number in states.items()}
    for state, answer in shown.items():
        fields = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in answer.out.splitlines()}
        assert fields["state"] == state
        assert fields["message id"] == str(states[state])
        assert answer.err == ""
        assert "\x1b" not in answer.out
    assert "only one" in shown["active"].out
    assert "payload" in shown["dead"].out.splitlines()[-1]
    assert shown["dead"].out.splitlines()[-1].endswith("2 bytes")
    # All lines of an error, not the first only.
    assert "line one\n" in shown["dead"].out
    assert "line two \ufffd[31m" in shown["dead"].out
    assert '{"paid":true}' in shown["done"].out
    assert "expires at" in shown["ready"].out
    assert "expires at" not in shown["scheduled"].out
    found = inside("message", "show", "q", str(states["done"]), "--json").ok().json
    assert (found["state"], found["payload"], found["result"]) == ("done", {"n": 1}, {"paid": True})
    assert (found["headers"], found["queue_name"]) == ({"task": "pay"}, "q")
    found = inside("message", "show", "q", str(states["dead"]), "--json").ok().json
    assert base64.b64decode(found["body"]) == b"\x00\x01"
    assert found["payload"] is None
    assert found["errors"][0]["error"] == found["last_error"] == "line one\nline two \x1b[31m"


def test_show_any_payload(command: Command, inside: Inside, queue: penstock.Client) -> None:
    queue.create_queue("q")
    for payload in PAYLOADS:
        number = str(queue.send("q", payload))
        found = inside("message", "show", "q", number, "--json").ok().json
        assert found["payload"] == payload
        assert "body" not in found
        alone = inside("message", "show", "q", number, "--payload").ok()
        assert json.loads(alone.out) == payload
        assert alone.out.count("\n") == 1
        line = inside("message", "show", "q", number).ok().out.splitlines()[-1]
        assert line.startswith("payload")
        assert json.loads(line.removeprefix("payload")) == payload
    number = str(queue.send("q", BYTES))
    assert command("message", "show", "q", number, "--payload").ok().raw == BYTES, "byte for byte"
    assert inside("message", "show", "q", number).ok().out.endswith(f"{len(BYTES)} bytes\n")
    alone = inside("message", "show", "q", number, "--payload", "--json").ok()
    assert base64.b64decode(alone.json["body"]) == BYTES
    with command.terminal("message", "show", "q", number, "--payload") as terminal:
        assert terminal.wait() == 0
        assert b"\x1b" not in terminal.raw
        assert b"\x07" not in terminal.raw
        assert "]0;title" in terminal.text


def test_explain(inside: Inside, queue: penstock.Client, states: dict[str, int]) -> None:
    for state, number in states.items():
        answer = inside("message", "explain", "q", str(number)).ok()
        assert answer.err == ""
        if state != "dead":
            assert answer.out == queue.explain_delivery("q", number) + "\n"
            continue
        # What others wrote is made harmless.
        assert "line one" in answer.out
        assert "line two \ufffd[31m" in answer.out
    answer = inside("message", "explain", "q", str(states["ready"]), "--json").ok()
    assert answer.json["explanation"] == queue.explain_delivery("q", states["ready"])
    assert (answer.json["queue_name"], answer.json["message_id"]) == ("q", states["ready"])
    assert (answer.json["state"], answer.json["remedies"]) == ("ready", [])
    queue.pause_queue("q")
    assert "paused" in inside("message", "explain", "q", str(states["ready"])).ok().out
    unknown = inside("message", "explain", "q", "999999")
    assert (unknown.code, "999999" in unknown.out + unknown.err) == (3, True)


def test_deliver_now(inside: Inside, queue: penstock.Client, states: dict[str, int]) -> None:
    scheduled, ready = states["scheduled"], states["ready"]
    answer = inside("message", "deliver-now", "q", str(scheduled)).ok()
    assert (answer.out, answer.err) == ("", f"message {scheduled} is ready\n")
    found = queue.get_message("q", scheduled)
    assert found is not None
    assert found.state in ("ready", "waiting")
    refused = inside("message", "deliver-now", "q", str(ready))
    assert (refused.code, "not scheduled: it is ready" in refused.err) == (1, True)
    assert inside("message", "deliver-now", "q", "999999").code == 3


def test_cancel(inside: Inside, queue: penstock.Client, states: dict[str, int]) -> None:
    answer = inside("message", "cancel", "q", str(states["ready"])).ok()
    assert (answer.out, answer.err) == ("", f"message {states['ready']} cancelled\n")
    waiting = str(states["waiting"])
    assert inside("message", "cancel", "q", waiting, "--json").ok().json == {
        "queue_name": "q",
        "message_id": states["waiting"],
        "cancelled": True,
    }
    inside("message", "cancel", "q", str(states["scheduled"])).ok()
    for state in ("active", "dead", "done"):
        inside("message", "cancel", "q", str(states[state])).failed(1, state, str(states[state]))
    inside("message", "cancel", "q", waiting).failed(3, waiting)
    left = {each.state for each in queue.list_messages("q")}
    assert left == {"active", "ready", "dead", "done"}


def test_mistakes(inside: Inside, queue: penstock.Client) -> None:
    queue.create_queue("q")
    for verb in ("show", "explain", "cancel"):
        inside("message", verb, "nix", "1").failed(3, 'queue "nix"', "penstock queue list")
        for number in ("x", "0", "-1", "1.5", str(2**63)):
            inside("message", verb, "q", "--", number).failed(2, number)
        inside("message", verb, "q").failed(2, "Missing argument 'ID'")
    inside("message", "show", "q", "1").failed(3, "no message 1 in queue q")
    inside("message", "list", "nix").failed(3, 'queue "nix"', "penstock queue list")
    inside("message", "list", "q", "--state", "late").failed(2, "late", "scheduled")
    inside("message", "list", "q", "--after", "nonsense").failed(2, "nonsense")
    inside("message", "list", "q", "-n", "0").failed(2, "--count")
    inside("message", "list", "q", "-n", "9999999").failed(2, "100000")
