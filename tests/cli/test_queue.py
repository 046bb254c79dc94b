"""`penstock queue`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import penstock

from .command import PROGRAM, Command, Terminal
from .inside import Inside

# Names are data: whatever a shell can hand over.
ODD_NAMES = (
    "with space",
    "日本 ü 🙂",
    "\"double\" 'single' `back` $HOME; \\",
    "[bold]markup[/bold]",
    "-n",
    "--help",
    "tab\tline\nescape \x1b[31mred\x1b]0;title\x07",
    "n" * 255,
)


def names_of(queue: penstock.Client) -> list[str]:
    return [each.name for each in queue.list_queues()]


def fill(queue: penstock.Client, name: str) -> None:
    """Two ready, one later, one active, one done, one dead."""
    queue.create_queue(name)
    for number in range(5):
        queue.send(name, number)
    queue.send(name, "later", delay=3600)
    done, dead, _active = queue.consume_batch(name, batch_size=3, visibility_timeout=3600)
    queue.ack(done)
    queue.reject(dead, "no")


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
    command("queue", "show", "billing").failed(3, 'queue "billing" does not exist', "penstock queue list")


def test_every_setting_can_be_given_and_altered(inside: Inside, queue: penstock.Client) -> None:
    queue.create_topic("orders")
    settings = {
        "--max-delivery-attempts": "7",
        "--visibility-timeout": "1h30m",
        "--visibility-backoff": "2.5",
        "--retry-delays": "1s, 1m,2h",
        "--message-ttl": "1d",
        "--retain-completed": "0",
        "--retain-dead": "2w",
        "--max-payload-bytes": "1000",
        "--max-active": "20",
        "--min-active": "2",
        "--priority-shares": "100,0,0,0",
        "--tenant-max-active": "3",
        "--keep-alive": "10m",
        "--topic": "orders",
    }
    given = [part for pair in settings.items() for part in pair]
    made = inside("queue", "create", "q", *given, "--exclusive", "--no-notify", "--json").ok()
    (found,) = queue.list_queues()
    assert made.json == {"id": found.id, "name": "q"}
    expected: dict[str, Any] = {
        "max_delivery_attempts": 7,
        "visibility_timeout_seconds": 5400,
        "visibility_backoff": 2.5,
        "retry_delays": [1, 60, 7200],
        "message_ttl_seconds": 86400,
        "retain_completed_seconds": 0,
        "retain_dead_seconds": 14 * 86400,
        "max_payload_bytes": 1000,
        "max_active": 20,
        "min_active": 2,
        "priority_shares": [100, 0, 0, 0],
        "tenant_max_active": 3,
        "notify": False,
        "exclusive": True,
        "topic_name": "orders",
    }
    shown = inside("queue", "show", "q", "--json").ok().json
    assert {name: shown[name] for name in expected} == expected
    assert shown["keep_alive_until"] is not None
    assert shown["paused_at"] is None
    assert shown["statistics"]["pending_count"] == shown["statistics"]["dead_count"] == 0

    # 0 takes a limit away, what is not given stays.
    altered = inside(
        "queue", "alter", "q", "--max-active", "0", "--tenant-max-active", "0", "--notify", "--json"
    ).ok()
    expected |= {"max_active": None, "tenant_max_active": None, "notify": True}
    assert {name: altered.json[name] for name in expected} == expected
    answer = inside("queue", "alter", "q", "--retry-delays", "5").ok()
    assert (answer.out, answer.err) == ("", "queue q altered\n")
    assert queue.list_queues()[0].retry_delays == (5,)


def test_create_again_is_done_already_unless_it_differs(inside: Inside, queue: penstock.Client) -> None:
    first = inside("queue", "create", "q", "--json").ok().json
    assert inside("queue", "create", "q", "--json").ok().json == first
    line = inside("queue", "create", "q", "--max-active", "10").failed(
        1, "max_active", "penstock queue alter"
    )
    assert "alter_queue()" not in line, "a command, not a function"
    assert queue.list_queues()[0].max_active is None


WRONG: tuple[tuple[list[str], list[str]], ...] = (
    (["create"], ["Missing argument 'QUEUE'"]),
    (["create", "q", "--max-active", "-1"], ["--max-active", "-1"]),
    (["create", "q", "--max-active", "99999999999"], ["99999999999"]),
    (["create", "q", "--retry-delays", "1s,soon"], ["--retry-delays", "'soon'", "5m"]),
    (["create", "q", "--retry-delays", ""], ["--retry-delays"]),
    (["create", "q", "--visibility-timeout", "500ms"], ["--visibility-timeout", "500ms", "second"]),
    (["create", "q", "--visibility-timeout", "99999999999d"], ["--visibility-timeout", "99999999999d"]),
    (["create", "q", "--visibility-backoff", "0.5"], ["0.5"]),
    (["create", "q", "--visibility-backoff", "nan"], ["nan"]),
    (["create", "q", "--priority-shares", "1,2,x"], ["--priority-shares", "40,30,20,10"]),
    (["create", "q", "--priority-shares", "50,20"], ["100"]),
    (["create", "q", "--keep-alive", "10s"], ["--exclusive"]),
    (["create", ""], ["1 to 255"]),
    (["create", "n" * 256], ["255", "256"]),
    (["create", "half \udcff of it"], ["queue_name"]),
    (["create", "--x"], ["--x"]),
    (["alter", "q"], ["say what to change"]),
    (["list", "extra"], ["extra"]),
    (["list", "--dsn"], ["--dsn"]),
    (["crate", "q"], ["create"]),
)


def test_wrong_usage(inside: Inside, queue: penstock.Client) -> None:
    for arguments, parts in WRONG:
        line = inside("queue", *arguments).failed(2, *parts)
        assert "=>" not in line, "not how SQL is written"
    assert queue.list_queues() == []


def test_a_queue_or_topic_that_is_not_there(inside: Inside) -> None:
    for arguments in (
        ["show", "nix"],
        ["alter", "nix", "--max-active", "1"],
        ["pause", "nix"],
        ["resume", "nix"],
        ["purge", "nix", "--yes"],
        ["delete", "nix", "--yes"],
    ):
        assert len(inside("queue", *arguments).failed(3, '"nix"', "penstock queue list").splitlines()) == 1
    inside("queue", "create", "q", "--topic", "nix").failed(3, 'topic "nix"', "penstock topic list")


def test_list_in_a_pipe_and_as_json(command: Command, inside: Inside, queue: penstock.Client) -> None:
    nothing = inside("queue", "list").ok()
    assert nothing.out == ""
    assert "penstock queue create" in nothing.err
    assert inside("queue", "list", "--json").ok().json == []
    queue.create_topic("orders")
    queue.create_queue("billing", topic="orders")
    fill(queue, "busy")
    inside("queue", "pause", "billing").ok()
    listed = command("queue", "list").ok()
    assert listed.err == ""
    heading, billing, busy = listed.out.splitlines()
    assert heading.split() == ["NAME", "TOPIC", "PENDING", "ACTIVE", "DEAD", "OLDEST", "STATE"]
    assert billing.split() == ["billing", "orders", "0", "0", "0", "-", "paused"]
    assert busy.split()[:5] == ["busy", "-", "3", "1", "1"]
    assert busy.split()[-1] == "active"
    # No colours, no lines around it: it is for awk.
    assert "\x1b" not in listed.out
    assert "─" not in listed.out
    found = command("queue", "list", "--json").ok().json
    assert [(each["name"], each["topic_name"], bool(each["paused_at"])) for each in found] == [
        ("billing", "orders", True),
        ("busy", None, False),
    ]
    statistics = found[1]["statistics"]
    assert (statistics["pending_count"], statistics["processing_count"]) == (3, 1)
    assert (statistics["delayed_count"], statistics["dead_count"]) == (1, 1)
    # The whole history is not counted here: better nothing than a wrong number.
    assert "completed_count" not in statistics


def test_show_says_what_is_in_it_and_every_setting(inside: Inside, queue: penstock.Client) -> None:
    fill(queue, "busy")
    shown = inside("queue", "show", "busy").ok()
    fields = dict(line.split("  ", 1) for line in shown.out.splitlines())
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    assert fields["name"] == "busy"
    assert fields["retain-dead"] == "30 d", "as a person would write it"
    assert fields["visibility-timeout"] == "30 s"
    assert fields["max-active"] == "any number"
    assert fields["state"] == "active"
    assert fields["completed"] == fields["dead"] == "1"
    assert fields["pending"].startswith("3, of these 1 delayed")
    assert shown.err == ""
    counts = inside("queue", "show", "busy", "--json").ok().json["statistics"]
    assert counts["completed_count"] == 1
    assert counts["oldest_pending_seconds"] > 0
    queue.pause_queue("busy")
    assert "paused" in inside("queue", "show", "busy").ok().out


def test_pause_and_resume(inside: Inside, queue: penstock.Client) -> None:
    fill(queue, "q")
    answer = inside("queue", "pause", "q").ok()
    assert (answer.out, answer.err) == ("", "queue q is paused\n")
    assert queue.consume_one("q") is None
    assert inside("queue", "pause", "q", "--json").ok().json == {"name": "q", "paused": True}
    answer = inside("queue", "resume", "q").ok()
    assert (answer.out, answer.err) == ("", "queue q delivers\n")
    assert queue.consume_one("q") is not None
    assert inside("queue", "resume", "q", "--json").ok().json == {"name": "q", "paused": False}


def test_purge_takes_what_is_unfinished_or_what_is_done(inside: Inside, queue: penstock.Client) -> None:
    fill(queue, "q")
    line = inside("queue", "purge", "q").failed(2, "4 unfinished messages", "--yes")
    assert "Delete 4 unfinished messages of queue q?" in line
    inside("queue", "purge", "q", "--completed").failed(2, "1 completed message", "--yes")
    answer = inside("queue", "purge", "q", "--completed", "-y", "--json").ok()
    assert answer.json == {"name": "q", "purged": 1}
    answer = inside("queue", "purge", "q", "--yes").ok()
    assert (answer.out, answer.err) == ("", "4 messages deleted\n")
    (left,) = queue.get_queue_statistics("q")
    assert (left.pending_count, left.processing_count, left.completed_count, left.dead_count) == (0, 0, 0, 1)
    # Nothing to destroy: the command does not ask.
    assert inside("queue", "purge", "q").ok().err == "0 messages deleted\n"


def test_what_destroys_asks_first(command: Command, queue: penstock.Client) -> None:
    fill(queue, "billing")
    before = names_of(queue)
    for answer, code in (("n\n", 1), ("\n", 1), ("\x03", 130), ("\x04", 130)):
        with command.terminal("queue", "delete", "billing") as terminal:
            question = terminal.until("[y/N]")
            assert "Delete queue billing with 4 unfinished messages and 1 dead letter?" in question
            terminal.type(answer)
            assert terminal.wait() == code, repr(answer)
            assert terminal.is_sane()
            assert "Traceback" not in terminal.text
            # Whatever was typed, the shell's prompt comes on a line of its own.
            assert terminal.raw.endswith(b"\n"), terminal.raw
    assert names_of(queue) == before
    with command.terminal("queue", "delete", "billing") as terminal:
        terminal.until("[y/N]")
        terminal.type("perhaps\n")
        terminal.until(lambda text: text.count("[y/N]") == 2)
        terminal.type("y\n")
        assert terminal.wait() == 0
        assert "queue billing deleted" in terminal.text
    assert names_of(queue) == []


def test_the_question_is_seen_where_the_answer_is_piped_on(command: Command, queue: penstock.Client) -> None:
    fill(queue, "q")
    argv = ["/bin/sh", "-c", 'exec "$0" queue purge q --json > answer.json', PROGRAM]
    with Terminal(argv, command.environment(), command.folder, 100, 20) as terminal:
        terminal.until("Delete 4 unfinished messages of queue q? [y/N]")
        terminal.type("y\n")
        assert terminal.wait() == 0
    assert json.loads((command.folder / "answer.json").read_text()) == {"name": "q", "purged": 4}


def test_with_yes_the_command_does_not_ask(command: Command, queue: penstock.Client) -> None:
    fill(queue, "q")
    with command.terminal("queue", "purge", "q", "--yes") as terminal:
        assert terminal.wait() == 0
        assert terminal.text == "4 messages deleted"
    assert command("queue", "delete", "q", "-y", "--json").ok().json == {"name": "q", "deleted": True}
    assert names_of(queue) == []


def test_any_name_will_do(command: Command, inside: Inside, queue: penstock.Client) -> None:
    for name in ODD_NAMES:
        inside("queue", "create", "--", name).ok()
    assert sorted(names_of(queue)) == sorted(ODD_NAMES)
    assert sorted(each["name"] for each in command("queue", "list", "--json").ok().json) == sorted(ODD_NAMES)
    lines = command("queue", "list").ok().out.splitlines()
    assert len(lines) == 1 + len(ODD_NAMES), "a line each"
    assert "tab line escape \ufffd[31mred\ufffd]0;title\ufffd" in "\n".join(lines)
    assert "[bold]markup[/bold]" in "\n".join(lines)
    for name in ODD_NAMES[-3:]:
        assert inside("queue", "show", "--json", "--", name).ok().json["name"] == name
        inside("queue", "delete", "--yes", "--", name).ok()
    assert sorted(names_of(queue)) == sorted(ODD_NAMES[:-3])


def test_a_name_does_not_steer_the_terminal(command: Command, queue: penstock.Client) -> None:
    name = "x\x1b]0;title\x07\x1b[31mred\nDelete queue y? [y/N]: "
    queue.create_queue(name)
    for arguments in (["pause", name], ["show", name], ["show", name + "!"], ["delete", name]):
        with command.terminal("queue", *arguments) as terminal:
            if arguments[0] == "delete":
                terminal.until("dead letters?")
                terminal.type("n\n")
            terminal.wait()
            assert b"\x1b]0" not in terminal.raw
            assert b"\x07" not in terminal.raw
            assert b"\x1b[31m" not in terminal.raw
            assert "red" in terminal.text


def test_a_table_on_a_terminal(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("日本")
    queue.create_queue("orders")
    with command.terminal("queue", "list", columns=100) as terminal:
        assert terminal.wait() == 0
        assert b"\x1b[1m" in terminal.raw, "headings are bold"
        lines = terminal.text.strip("\n").splitlines()
    (rule,) = [line for line in lines if "───" in line]
    assert lines.index(rule) == 1
    # Where a name takes two cells a character, what follows stands below its heading all the same.
    for column in ("TOPIC", "STATE"):
        at = lines[0].index(column)
        assert all(cells(line)[at] not in " " for line in lines[2:4])
    with command.terminal("queue", "list", environ={"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 0
        assert b"\x1b[3" not in terminal.raw
        assert "orders" in terminal.text
    with command.terminal("queue", "list", "--json") as terminal:
        assert terminal.wait() == 0
        assert b"\x1b" not in terminal.raw
    # A long name is folded, not cut: it has to be copied.
    queue.create_queue("n" * 255)
    with command.terminal("queue", "list", columns=60, lines=80) as terminal:
        assert terminal.wait() == 0
        assert sum(line.count("n") for line in terminal.text.splitlines()) >= 255
        assert max(map(len, terminal.text.splitlines())) <= 60


def cells(line: str) -> list[str]:
    """The cells of a line of the screen; the second one of a wide character is empty."""
    found: list[str] = []
    for character in line:
        found += [character, ""] if "\u3000" < character < "\uffff" else [character]
    return found


def test_payload_limit_is_kept(command: Command, queue: penstock.Client) -> None:
    command("queue", "create", "small", "--max-payload-bytes", "10").ok()
    with pytest.raises(penstock.PayloadTooLarge):
        queue.send("small", json.dumps(list(range(10))))


# Rights


def test_grant_revoke_and_open(inside: Inside, queue: penstock.Client) -> None:
    queue.create_queue("q")
    assert "open" in inside("queue", "grants").ok().err
    assert "open to all roles" in inside("queue", "show", "q").ok().out
    answer = inside("queue", "grant", "penstock_viewer", "q", "view", "--json").ok()
    assert answer.json == {"name": "q", "role": "penstock_viewer", "right": "view"}
    inside("queue", "grant", "penstock_publisher", "q", "publish").ok()
    assert "restricted" in inside("queue", "show", "q").ok().out
    heading, *rows = inside("queue", "grants").ok().out.splitlines()
    assert heading.split() == ["QUEUE", "ROLE", "RIGHT", "NOTE"]
    assert [row.split() for row in rows] == [
        ["q", "penstock_publisher", "publish", "-"],
        ["q", "penstock_viewer", "view", "-"],
    ]
    assert [each["role_exists"] for each in inside("queue", "grants", "q", "--json").ok().json] == [True] * 2
    assert inside("queue", "revoke", "penstock_viewer", "q", "view", "--json").ok().json["revoked"] is True
    assert "had no right" in inside("queue", "revoke", "penstock_viewer", "q", "view").ok().err
    inside("queue", "open", "q").failed(2, "--yes")
    inside("queue", "open", "q", "--yes").ok()
    assert not queue.list_queues()[0].restricted


def test_a_queue_without_grants_is_listed_as_restricted(inside: Inside, queue: penstock.Client) -> None:
    queue.create_queue("q")
    queue.grant_queue("penstock_viewer", "q", "view")
    queue.revoke_queue("penstock_viewer", "q", "view")
    assert "administrators only" in inside("queue", "grants").ok().out
    inside("queue", "open", "q").ok()


def test_grants_that_cannot_be(inside: Inside, queue: penstock.Client) -> None:
    queue.create_queue("q")
    inside("queue", "grant", "no such role", "q", "view").failed(2, "no such role")
    inside("queue", "grant", "penstock_viewer", "none", "view").failed(3, "none")
    inside("queue", "grant", "penstock_viewer", "q", "own").failed(2, "own")
    inside("queue", "grants", "none").failed(3, "none")


def test_history(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("q")
    assert (
        "no history yet"
        in command("queue", "history", "q").ok().err + command("queue", "history", "q").ok().out
    )
    queue.send_many("q", [1, 2, 3])
    queue.sample()
    heading, *rows = command("queue", "history", "q", "--since", "1m", "--step", "10s").ok().out.splitlines()
    assert heading.split()[:4] == ["AT", "READY", "ACTIVE", "DEAD"]
    assert rows[-1].split()[2:5] == ["3", "0", "0"]
    found = command("queue", "history", "q", "--json").ok().json
    assert found[-1]["ready_count"] == 3
