"""`penstock publish` and `penstock send`: what is put in, from where, and what is refused."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from penstock.cli import reading
from penstock.cli.interrupts import Interrupts

from .command import PATIENCE, PROGRAM, Answer, Command
from .inside import Quick


@pytest.fixture
def command(database18: str, tmp_path: Path) -> Command:
    """Without a process for each call: what these tests look at is what it prints and does."""
    return Quick(database18, tmp_path)


@pytest.fixture
def orders(queue: penstock.Client) -> penstock.Client:
    """A client of a database with a queue `orders`."""
    queue.create_queue("orders")
    return queue


def payloads(client: penstock.Client, name: str = "orders") -> list[Any]:
    """What is in a queue, in order; it is empty after that."""
    messages = list(client.consume(name, batch_size=100, wait=0))
    client.ack_many(messages)
    return [message.payload for message in messages]


@contextmanager
def piped(command: Command, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, with pipes to and from it."""
    with subprocess.Popen(
        [PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=command.environment(),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_arguments_are_json_text_or_bytes(command: Command, orders: penstock.Client) -> None:
    sent = command("send", "orders", '{"a": [1, 2.5, null]}', '"text"', "12345678901234567890123").ok()
    first, second, third = (int(line) for line in sent.out.splitlines())
    assert first < second < third
    assert payloads(orders) == [{"a": [1, 2.5, None]}, "text", 12345678901234567890123]
    assert set(command("send", "orders", "--text", "plain äöü", "--json").ok().json) == {"id"}
    command("send", "orders", "--raw", "bytes").ok()
    # Of two keys that are the same the last one counts, as it does for PostgreSQL.
    command("send", "orders", '{"a": 1, "a": 2}').ok()
    assert payloads(orders) == ["plain äöü", b"bytes", {"a": 2}]


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        ("hello", "no JSON: invalid character (byte 0)"),
        ("", "no JSON"),
        ("NaN", "no JSON"),
        ("1e400", "no JSON: Number out of range"),
        ('"\\u0000"', "payload has a NUL character at position 0"),
        ('["\\ud800"]', "no JSON"),
        ('"\udcff"', "no UTF-8: byte 0xff at position 1"),
        ("[" * 501 + "]" * 501, "nested"),
        ("[" * 5000 + "]" * 5000, "nested"),
        ("1" * 5000, "out of range"),
    ],
)
def test_what_is_no_json(payload: str, fault: str) -> None:
    with pytest.raises(reading.Unreadable, match=re.escape(fault)):
        reading.json(os.fsencode(payload))


def test_an_argument_that_is_no_json_is_refused_before_anything_is_sent(
    command: Command, orders: penstock.Client
) -> None:
    command("send", "orders", "1", "hello").failed(2, "'hello': no JSON", "--text", "--raw")
    command("send", "orders", "1", '"\\u0000"').failed(2, "NUL")
    assert payloads(orders) == []


def test_numbers_are_stored_as_they_are_written(
    command: Command, orders: penstock.Client, sql18: psycopg.Connection[Any]
) -> None:
    written = [
        "0.12345678901234567890123",
        "123456789012345678901234567890",
        '{"price": 1.50, "rate": 1E-30}',
        "[1e5]",
    ]
    command("send", "orders", *written).ok()
    command("send", "orders", "--lines", stdin="\n".join(written)).ok()
    command("send", "orders", "--lines", "--envelope", stdin='{"payload": 0.12345678901234567890123}').ok()
    in_postgres = [
        row[0] for row in sql18.execute("select x::jsonb::text from unnest(%s::text[]) x", [written])
    ]
    lines = command("consume", "orders", "-n", "0", "--ack", "--json").ok().out.splitlines()
    found = [line.partition('"payload":')[2].partition(',"headers"')[0] for line in lines]
    assert found == [*in_postgres, *in_postgres, in_postgres[0]]


def test_a_number_that_is_too_small_for_a_numeric_is_zero(command: Command, orders: penstock.Client) -> None:
    command("send", "orders", "1e-20000", f"0.{'1' * 20000}").ok()
    assert payloads(orders) == [0, 0.1111111111111111]


def test_stdin_is_one_payload_or_a_message_a_line(command: Command, orders: penstock.Client) -> None:
    command("send", "orders", stdin='{\n  "a": 1\n}\n').ok()
    command("send", "orders", "-", stdin="\ufeff[2]").ok()
    command("send", "orders", "--text", stdin="three\n").ok()
    command("send", "orders", "--raw", stdin=b"\x00\xff\n").ok()
    several = command("send", "orders", "--lines", stdin=b"\xef\xbb\xbf5\r\n\r\n  \n[6]\n\n7").ok()
    assert (several.out, several.err.partition(" in ")[0]) == ("", "3 messages sent")
    command("send", "orders", "--lines", "--text", stdin="eight\r\n\r\nnine\r\n").ok()
    command("send", "orders", "--lines", "--raw", stdin=b"ten\r\n").ok()
    expected = [{"a": 1}, [2], "three", b"\x00\xff\n", 5, [6], 7, "eight", "nine", b"ten\r"]
    assert payloads(orders) == expected
    command("send", "orders", stdin="1\n2\n").failed(1, "stdin: no JSON", "--lines")
    command("send", "orders", stdin=b"\xff\xfe1\x00").failed(1, "stdin: no UTF-8: byte 0xff at position 0")
    command("send", "orders", "--raw").failed(4, "stdin is empty: nothing was sent")
    command("send", "orders", "--lines", stdin="\n \n").failed(4, "stdin has no lines: nothing was sent")
    assert payloads(orders) == []


def test_files(command: Command, orders: penstock.Client, tmp_path: Path) -> None:
    (tmp_path / "many.ndjson").write_text("1\n2\n")
    (tmp_path / "one.json").write_text("[3,\n4]")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x00")
    (tmp_path / "empty.jsonl").write_text("")
    summary = command("send", "orders", "--file", "many.ndjson", "--json").ok().json
    assert summary["count"] == 2
    assert summary["first_id"] < summary["last_id"]
    ids = command("send", "orders", "--file", "many.ndjson", "--ids").ok()
    assert len(ids.out.splitlines()) == 2
    assert set(command("send", "orders", "-f", "many.ndjson", "--atomic", "--ids", "--json").lines[1]) == {
        "id"
    }
    command("send", "orders", "--file", "one.json").ok()
    command("send", "orders", "--file", "picture.png", "--raw").ok()
    assert payloads(orders) == [1, 2, 1, 2, 1, 2, [3, 4], b"\x89PNG\r\n\x00"]
    command("send", "orders", "--file", "many.ndjson", "--no-lines").failed(1, "many.ndjson: no JSON")
    command("send", "orders", "--file", "empty.jsonl").failed(4, "empty.jsonl has no lines")
    command("send", "orders", "--file", "nosuch.json").failed(1, "nosuch.json: No such file")
    command("send", "orders", "--file", str(tmp_path)).failed(1, "Is a directory")
    if os.geteuid():
        (tmp_path / "one.json").chmod(0)
        command("send", "orders", "--file", "one.json").failed(1, "Permission denied")
    assert payloads(orders) == []


def test_options_of_a_message(command: Command, orders: penstock.Client) -> None:
    ids = command(
        *["send", "orders", "1", "--priority", "high", "--tenant", "acme", "--ttl", "1h"],
        *[
            "--header",
            "trace=abc",
            "--header",
            "n=5",
            "-H",
            'deep={"a": [1]}',
            "-H",
            "odd=a=b",
            "-H",
            "none=",
        ],
        *["--dedup-key", "only-once"],
    ).ok()
    assert command("send", "orders", "1", "--dedup-key", "only-once").ok().out == ids.out
    details = orders.get_message("orders", int(ids.out))
    assert details is not None
    assert (details.priority, details.tenant, details.dedup_key) == (1, "acme", "only-once")
    assert details.headers == {"trace": "abc", "n": 5, "deep": {"a": [1]}, "odd": "a=b", "none": ""}
    assert details.expires_at is not None
    assert details.expires_at - details.published_at == timedelta(hours=1)
    later = command("send", "orders", "2", "--delay", "90m").ok()
    at = command("send", "orders", "3", "--deliver-after", "2100-01-01T12:00:00+01:00").ok()
    local = command("send", "orders", "3", "--deliver-after", "2100-01-01", environ={"TZ": "Asia/Tokyo"}).ok()
    due = []
    for answer in (later, at, local):
        found = orders.get_message("orders", int(answer.out))
        assert found is not None
        assert found.due_at is not None
        due.append(found.due_at)
    assert timedelta(minutes=89) < due[0] - orders.clock() <= timedelta(minutes=90)
    assert due[1:] == [
        datetime.fromisoformat("2100-01-01T11:00:00Z"),
        datetime.fromisoformat("2099-12-31T15:00:00Z"),
    ]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["1", "--header", "nothing"], "KEY=VALUE"),
        (["1", "--header", "=x"], "KEY=VALUE"),
        (["1", "--priority", "9"], "no priority"),
        (["1", "--delay", "soon"], "no length of time"),
        (["1", "--deliver-after", "tomorrow"], "no time"),
        (["1", "--delay", "1s", "--deliver-after", "2100-01-01"], "either delay or deliver_after"),
        (["1", "--file", "x"], "not both"),
        (["1", "-"], "not both"),
        (["1", "2", "--dedup-key", "k"], "--dedup-key"),
    ],
)
def test_wrong_usage_sends_nothing(
    command: Command, orders: penstock.Client, arguments: list[str], fault: str
) -> None:
    command("send", "orders", *arguments).failed(2, fault)
    assert payloads(orders) == []


def test_where_there_is_no_queue_or_no_subscriber(command: Command, queue: penstock.Client) -> None:
    command("send", "nosuch", "1").failed(3, 'queue "nosuch" does not exist')
    command("publish", "nosuch", "1").failed(3, 'topic "nosuch" does not exist')
    command("publish", "nosuch", "--lines", stdin="1\n").failed(3, 'topic "nosuch" does not exist')
    queue.create_topic("news")
    assert "news has no queue" in command("publish", "news", "1").ok().err
    queue.create_queue("a", topic="news")
    queue.create_queue("b", topic="news")
    assert "no queue" not in command("publish", "news", "2", "3").ok().err
    assert command("publish", "news", "--lines", stdin="4\n").ok().err.startswith("1 message published in ")
    assert [payloads(queue, name) for name in ("a", "b")] == [[2, 3, 4], [2, 3, 4]]


def test_a_missing_queue_is_reported_before_stdin_is_read(command: Command, queue: penstock.Client) -> None:
    # The writer of the pipe would take what was read for sent.
    with piped(command, "send", "nosuch", "--lines") as process:
        assert process.wait(PATIENCE) == 3


def test_a_bad_line_in_a_file_means_that_nothing_is_sent(
    command: Command, orders: penstock.Client, tmp_path: Path
) -> None:
    good = [str(number) for number in range(25_000)]
    for bad, fault in {
        "{nope}": "no JSON",
        '"\\u0000"': "NUL",
        '"\udcff"': "no UTF-8: byte 0xff at position 1",
        "1 2": "trailing",
        "\0": "no JSON",
    }.items():
        (tmp_path / "many.jsonl").write_bytes(os.fsencode("\n".join([*good, bad, *good])))
        command("send", "orders", "--file", "many.jsonl").failed(
            1, "many.jsonl, line 25001: ", fault, "Nothing was sent."
        )
    assert payloads(orders) == []


def test_a_bad_line_from_a_pipe_ends_it_there(command: Command, orders: penstock.Client) -> None:
    piped = "1\n\n2\nnope\n3\n"
    shell = "cat | " + PROGRAM + " send orders --lines"

    def run(*more: str) -> Answer:
        done = subprocess.run(
            ["sh", "-c", " ".join([shell, *more])],
            input=piped.encode(),
            capture_output=True,
            check=False,
            env=command.environment(),
            timeout=PATIENCE,
        )
        return Answer(done)

    run().failed(1, "stdin, line 4: no JSON", "Lines 1 to 3 are sent (2 messages), and nothing after them.")
    assert payloads(orders) == [1, 2]
    run("--atomic").failed(1, "stdin, line 4: no JSON", "Nothing was sent.")
    assert payloads(orders) == []


def test_what_a_queue_refuses_is_reported_with_its_lines(
    command: Command, queue: penstock.Client, tmp_path: Path
) -> None:
    queue.create_queue("small", max_payload_bytes=100)
    lines = [*["1"] * 20_000, json.dumps("x" * 200)]
    (tmp_path / "many.jsonl").write_text("\n".join(lines))
    for options, told in {(): "Lines 1 to 20000 are sent", ("--atomic",): "Nothing was sent."}.items():
        answer = command("send", "small", "--file", "many.jsonl", *options)
        answer.failed(2, "many.jsonl, lines 20001 to 20001: a payload of", told)
    assert queue.get_queue_statistics("small")[0].pending_count == 20_000


def test_what_is_too_long_is_not_read_into_memory(
    command: Command, orders: penstock.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(2**40)  # of nothing: it takes no room
    command("send", "orders", "--file", "huge", "--raw").failed(1, "too much for one message")
    monkeypatch.setattr(reading, "LONGEST_BYTES", 2_000_000)
    (tmp_path / "lines").write_bytes(b"1\n2\n" + b"3" * 10_000_000)
    with reading.Source.open(str(tmp_path / "lines")) as source:
        groups = source.groups(reading.json, Interrupts())
        assert [item.stored for item in next(groups).items] == ["1", "2"]
        with pytest.raises(reading.BadLine) as caught:
            next(groups)
    assert caught.value.number == 3
    assert "more than 2,000,000 bytes" in caught.value.fault


def test_what_was_sent_is_reported_though_its_ids_could_not_be_printed(
    command: Command, orders: penstock.Client, tmp_path: Path
) -> None:
    (tmp_path / "many.jsonl").write_text("1\n" * 25_000)
    with command.start("send", "orders", "--file", "many.jsonl", "--ids") as process:
        assert process.stderr is not None
        deadline = time.monotonic() + PATIENCE
        # The command waits for a reader of the ids.
        while orders.get_queue_statistics("orders")[0].pending_count < 20_000:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        while not select.select([process.stderr], [], [], 1.5)[0]:
            assert time.monotonic() < deadline
            process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert b"Lines 1 to 20000 are sent (20,000 messages)" in process.stderr.read()


def test_stdin_that_does_not_block(command: Command, orders: penstock.Client) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with subprocess.Popen(
        [PROGRAM, "send", "orders", "--lines"], stdin=reading, env=command.environment()
    ) as process:
        os.close(reading)
        time.sleep(1)  # it has found nothing there
        os.write(writing, b"1\n2\n")
        os.close(writing)
        assert process.wait(PATIENCE) == 0
    assert payloads(orders) == [1, 2]


def test_lines_of_a_pipe_are_sent_as_they_come(command: Command, orders: penstock.Client) -> None:
    with piped(command, "send", "orders", "--lines", "--ids") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for number in range(3):
            process.stdin.write(f"{number}\nhalf of".encode() if number == 1 else f"{number}\n".encode())
            process.stdin.flush()
            if number != 2:
                assert process.stdout.readline().strip().isdigit()
                assert payloads(orders) == [number]
        # That was `half of2`: a line that is not complete waits for its end.
        assert process.wait(PATIENCE) == 1
        assert b"line 3: no JSON" in process.stderr.read()


def test_ctrl_c_tells_what_was_sent(command: Command, orders: penstock.Client) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with piped(command, "send", "orders", "--lines", "--ids") as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.write(b"1\n")
            process.stdin.flush()
            process.stdout.readline()
            process.send_signal(number)
            assert process.wait(PATIENCE) == 130
            told = process.stderr.read().decode()
            assert told == "Interrupted. Lines 1 to 1 are sent (1 message), and nothing after them.\n"
    assert payloads(orders) == [1, 1]


def test_envelopes_have_options_of_their_own(command: Command, orders: penstock.Client) -> None:
    lines = [
        {"payload": {"a": 1}, "priority": 0, "tenant": "acme", "headers": {"n": 1}},
        {"payload": None, "body": "AP8=", "id": 7, "attempt": 2, "token": "t", "queue_name": "elsewhere"},
        {"payload": None, "delay": 3600},
        {"payload": 4, "deliver_after": "2100-01-01T00:00:00Z", "dedup_key": "k", "ttl": 60},
    ]
    text = "\n".join(map(json.dumps, lines))
    ids = command("send", "orders", "--envelope", "--ids", "--tenant", "all", stdin=text).ok().out.split()
    found = [orders.get_message("orders", int(one)) for one in ids]
    assert [each and each.payload for each in found] == [{"a": 1}, b"\x00\xff", None, 4]
    assert [each and (each.priority, each.tenant) for each in found] == [
        (0, "acme"),
        (2, "all"),
        (2, "all"),
        (2, "all"),
    ]
    assert [each and each.state for each in found] == ["ready", "ready", "scheduled", "scheduled"]
    assert found[0] is not None
    assert found[3] is not None
    assert (found[0].headers, found[3].dedup_key) == ({"n": 1}, "k")
    command("send", "orders", "--envelope", stdin='{"payload": 1, "tennant": 2}').failed(
        1, "line 1", "tennant"
    )


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("1", "no envelope"),
        ("{}", "no payload"),
        ('{"payload": 1, "prioritty": 1}', "prioritty"),
        ('{"payload": 1, "priority": 7}', "priority"),
        ('{"payload": 1, "tenant": 7}', "tenant"),
        ('{"payload": 1, "headers": [1]}', "headers"),
        ('{"payload": 1, "headers": {"a": "\\u0000"}}', "NUL"),
        ('{"payload": "\\u0000"}', "NUL"),
        ('{"payload": 1, "deliver_after": "2100-01-01T00:00:00"}', "timezone"),
        ('{"payload": 1, "body": "AA=="}', "both"),
        ('{"body": "#"}', "base64"),
    ],
)
def test_what_is_no_envelope(line: str, fault: str) -> None:
    with pytest.raises(reading.Unreadable, match=fault):
        reading.envelope(line.encode())


def test_there_is_a_bar_in_a_terminal(command: Command, orders: penstock.Client, tmp_path: Path) -> None:
    (tmp_path / "many.jsonl").write_text("".join(f'{{"number": {number}}}\n' for number in range(50_000)))
    with command.terminal("send", "orders", "--file", "many.jsonl") as terminal:
        shown = terminal.until(lambda text: "sending" in text and "messages" in text and "%" in text)
        assert "/s" in shown
        assert terminal.wait() == 0
        assert terminal.text.startswith("50,000 messages sent in ")
        assert not terminal.cursor_is_hidden
    assert orders.get_queue_statistics("orders")[0].pending_count == 50_000
    # Ids are for the user at the terminal; a bar between them would be in the way.
    (tmp_path / "few.jsonl").write_text("1\n2\n")
    with command.terminal("send", "orders", "--file", "few.jsonl", "--ids") as terminal:
        assert terminal.wait() == 0
        assert "\x1b[?25l" not in terminal.raw.decode()


def test_a_bar_that_is_interrupted_leaves_the_terminal_as_it_was(
    command: Command, orders: penstock.Client, tmp_path: Path
) -> None:
    (tmp_path / "many.jsonl").write_text("".join(f'{{"number": {number}}}\n' for number in range(300_000)))
    with command.terminal("send", "orders", "--file", "many.jsonl") as terminal:
        terminal.until(lambda text: "sending" in text and "20,000 messages" in text)
        terminal.type("\x03")
        assert terminal.wait() == 130
        assert "Interrupted. Lines 1 to " in terminal.text
        assert not terminal.cursor_is_hidden
        told = int(terminal.text.partition("Lines 1 to ")[2].partition(" ")[0])
    assert orders.get_queue_statistics("orders")[0].pending_count == told


def test_in_a_terminal_a_payload_has_to_be_given_or_typed(command: Command, orders: penstock.Client) -> None:
    with command.terminal("send", "orders") as terminal:
        assert terminal.wait() == 2
        assert "give a PAYLOAD" in terminal.text
    with command.terminal("send", "orders", "-", "--lines") as terminal:
        terminal.until(lambda _: True)
        terminal.type("1\n2\n\x04")
        assert terminal.wait() == 0
    assert payloads(orders) == [1, 2]
