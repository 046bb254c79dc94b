"""How the values of arguments are read."""

from __future__ import annotations

import click
import pytest

from penstock.cli.arguments import duration, list_of, priority, whole_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("5min", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("2w", 1_209_600),
        ("1h30m", 5400),
        ("1d 2h", 93600),
        (" 5 M ", 300),
        ("0.5h", 1800),
    ],
)
def test_a_length_of_time(text: str, seconds: float) -> None:
    assert duration(text) == seconds
    assert isinstance(duration(text), int) is (seconds == int(seconds))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "m",
        "-1",
        "-5m",
        "5x",
        "1m30",
        "1,5h",
        "1e3",
        "nan",
        "inf",
        "5 5",
        "1h;",
        "one",
        "9" * 400,
        "9" * 400 + "d",
    ],
)
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(click.BadParameter) as wrong:
        duration(text)
    assert "30s" in wrong.value.message or "years" in wrong.value.message, "how to write it"


def test_a_fraction_of_a_second_is_not_rounded_in_silence() -> None:
    assert whole_seconds("1500ms500ms") == 2
    # Neither is what binary fractions make of it.
    assert [whole_seconds(each) for each in ("1.1d", "1.15m", "0.1h")] == [95040, 69, 360]
    for text in ("1ms", "1.5", "1500ms", "0.001h"):
        with pytest.raises(click.BadParameter, match="whole"):
            whole_seconds(text)


def test_a_priority_is_a_number_or_a_name() -> None:
    assert [priority(each) for each in ("0", "1", "2", "3")] == [0, 1, 2, 3]
    assert [priority(each) for each in ("urgent", "High", "NORMAL", "low")] == [0, 1, 2, 3]
    for text in ("", "4", "-1", "1.0", "middle", "00"):
        with pytest.raises(click.BadParameter, match="urgent, high, normal, low"):
            priority(text)


def test_a_list_has_commas() -> None:
    assert list_of(int)("40, 30,20 ,10") == [40, 30, 20, 10]
    assert list_of(duration)("1s,1m") == [1, 60]
    for text in ("", "1,,2", "1,2,", "1;2", "x"):
        with pytest.raises(click.BadParameter):
            list_of(int)(text)
    with pytest.raises(click.BadParameter, match="soon"):
        list_of(duration)("1s,soon")
