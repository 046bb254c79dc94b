"""How values read: lengths of time, counts, tables, and what would steer a terminal."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.cli.output import Output, age, as_json, count, facts, moment, printable
from penstock.models import DeadLetter

NOON = datetime(2026, 5, 5, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0 ms"),
        (0.0004, "0 ms"),
        (0.85, "850 ms"),
        (1, "1 s"),
        (1.9, "1 s"),
        (59.999, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h"),
        (3659, "1 h"),
        (7500, "2 h 5 min"),
        (86399, "23 h 59 min"),
        (86400, "1 d"),
        (4 * 86400 + 3 * 3600 + 59 * 60, "4 d 3 h"),
        (1e9, "11574 d 1 h"),
        (-0.5, "-500 ms"),
        (-90, "-1 min 30 s"),
        (timedelta(milliseconds=12), "12 ms"),
        (timedelta(days=2, hours=1), "2 d 1 h"),
        (timedelta(seconds=-5), "-5 s"),
    ],
)
def test_a_length_of_time_has_two_units_at_most(seconds: float | timedelta | None, text: str) -> None:
    assert age(seconds) == text


def test_a_length_of_time_never_has_a_thousand_milliseconds_or_minus_nothing() -> None:
    assert age(0.9996) in {"999 ms", "1 s"}
    # Two clocks that differ by less than the output shows.
    assert age(-0.0001) == "0 ms"


@pytest.mark.parametrize(
    ("number", "thing", "things", "text"),
    [
        (0, "message", None, "0 messages"),
        (1, "message", None, "1 message"),
        (2_000, "message", None, "2,000 messages"),
        (1, "id is", "ids are", "1 id is"),
        (3, "id is", "ids are", "3 ids are"),
        (10**12, "queue", None, "1,000,000,000,000 queues"),
    ],
)
def test_a_count_is_singular_for_one_only(number: int, thing: str, things: str | None, text: str) -> None:
    assert count(number, thing, things) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("", ""),
        ("a \"b\" 'c' [bold]d[/bold] \\e", "a \"b\" 'c' [bold]d[/bold] \\e"),
        ("日本 ü é 🙂", "日本 ü é 🙂"),
        ("a\tb\nc\rd", "a b c d"),
        ("no\u00a0break, wide\u3000space", "no break, wide space"),
        ("\x1b[31mred\x07\x00\x7f", "\ufffd[31mred\ufffd\ufffd\ufffd"),
        # One byte that begins a sequence in a terminal of eight bits, and marks that turn text around.
        ("\x9b31m \u202egnp.exe", "\ufffd31m \ufffdgnp.exe"),
        ("half \udcff", "half \ufffd"),
    ],
)
def test_what_would_steer_a_terminal_is_not_printed(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_moment_is_in_seconds_and_has_its_zone() -> None:
    assert moment(None) == "-"
    assert moment(NOON.replace(microsecond=999_999)) == "2026-05-05 12:00:00+00:00"
    assert moment(NOON.astimezone(timezone(timedelta(hours=-3, minutes=-30)))) == "2026-05-05 08:30:00-03:30"


def test_a_table_in_a_pipe_is_aligned_and_has_a_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        ("orders", 5, None, True, NOON, ["a", "b"]),
        ("a\nb\x1b[1m", 12_345, 1.5, False, None, []),
        ("", None, None, True, None, {}),
    ]
    # Any iterable will do.
    Output().table(("NAME", "COUNT", "SHARE", "ON", "AT", "MORE"), iter(rows))
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines() == [
        "NAME     COUNT  SHARE  ON   AT                         MORE",
        "orders       5      -  yes  2026-05-05 12:00:00+00:00  a, b",
        "a b\ufffd[1m  12345    1.5  no   -                          -",
        "-            -      -  yes  -                          -",
    ]


def test_a_column_without_a_value_stands_like_text(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("ID", "TENANT", "STATE"), [(1, None, "ready"), (20, None, "done")])
    assert capsys.readouterr().out.splitlines() == [
        "ID  TENANT  STATE",
        " 1  -       ready",
        "20  -       done",
    ]


def test_wide_characters_keep_the_columns_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(
        ("NAME", "STATE"), [("日本", "active"), ("e\u0301te\u0301", "paused"), ("orders", "active")]
    )
    wide, combined, plain = capsys.readouterr().out.splitlines()[1:]
    assert plain == "orders  active"
    assert wide == "日本    active", "each takes two cells"
    assert combined == "e\u0301te\u0301     paused", "an accent of its own takes none"


def test_an_empty_table_is_a_sentence_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("NAME",), [], empty="There is nothing.")
    Output().table(("NAME",), [])
    assert capsys.readouterr() == ("", "There is nothing.\n")


def test_a_record_has_a_line_a_field_and_more_for_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Output().record(
        {
            "name": "orders",
            "no": None,
            "nothing": "",
            "zero": 0,
            "body": b"\x00\xff",
            "headers": {"a": [1]},
            "errors": "one\n\x1b[31mtwo\x1b[0m\n",
        }
    )
    Output().record({})
    assert capsys.readouterr().out.splitlines() == [
        "name     orders",
        "no       -",
        "nothing  -",
        "zero     0",
        "body     2 bytes",
        'headers  {"a":[1]}',
        "errors   one",
        "         \ufffd[31mtwo\ufffd[0m",
    ]


def test_a_sentence_is_for_a_person_and_facts_for_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    Output().done("queue a\x1b[1mb deleted", name="a\x1b[1mb")
    assert capsys.readouterr() == ("", "queue a\ufffd[1mb deleted\n")
    Output(as_json=True).done("queue a\x1b[1mb deleted", name="a\x1b[1mb")
    assert capsys.readouterr() == ('{"name":"a\\u001b[1mb"}\n', "")


@pytest.mark.parametrize(
    ("payload", "shown", "body"),
    [
        ({"a": 1}, {"a": 1}, None),
        ("", "", None),
        (None, None, None),
        (False, False, None),
        (b"", None, ""),
        (b"\x00\xff", None, base64.b64encode(b"\x00\xff").decode()),
    ],
)
def test_a_payload_of_bytes_is_a_body_in_base64(payload: Any, shown: Any, body: str | None) -> None:
    dead = DeadLetter("q", 1, payload, 1, "failed", None, (), NOON, 2, None, {}, NOON, "k", "1")
    found = facts(dead)
    assert found["payload"] == shown
    assert found.get("body") == body
    assert ("body" in found) is (body is not None)


def test_json_is_one_line_and_keeps_every_character() -> None:
    assert as_json({"a": "x\ny\u2028 ü 日本", "at": NOON}) == (
        '{"a":"x\\ny\u2028 ü 日本","at":"2026-05-05T12:00:00Z"}'
    )
