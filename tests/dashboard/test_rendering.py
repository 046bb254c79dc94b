"""Words, numbers and times of pages."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from penstock.dashboard.exact_json import pretty, pretty_text
from penstock.dashboard.rendering import ago, bdi, is_long, number, rate, stacked, times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("leased until 2026-11-18 20:21:12+00 (attempt 1)", "2026-11-18T20:21:12.000+00:00"),
        ("since 2026-11-18 20:21:12.5+05:30", "2026-11-18T14:51:12.500+00:00"),
    ],
)
def test_times_in_a_sentence(text: str, expected: str) -> None:
    assert f'<time datetime="{expected}" data-time="when"' in times(text)


def test_a_sentence_stays_text() -> None:
    assert times("<b> 2026-99-18 20:21:12+00") == "&lt;b&gt; 2026-99-18 20:21:12+00"
    assert bdi("<b>") == "<bdi>&lt;b&gt;</bdi>"


def test_a_time_may_be_over() -> None:
    now = datetime.now(UTC)
    assert ">in " in ago(now + timedelta(minutes=5))
    assert ">5 min ago<" in ago(now - timedelta(minutes=5))


def test_numbers() -> None:
    assert [number(each, estimate=True) for each in (0, 12_345, None)] == ["0", "~12,345", "\N{EN DASH}"]
    assert [rate(each) for each in (0, 0.001, 0.05, 2.34, 1234.5)] == ["0", "<0.01", "0.05", "2.3", "1,234"]


def test_a_bar_of_several_counts() -> None:
    bar = stacked([("active", 1), ("ready", 3)], 8)
    assert '<rect class="active" x="0.00" width="12.50"' in bar
    assert '<rect class="ready" x="12.50" width="37.50"' in bar
    assert 'aria-label="1 active, 3 ready"' in bar
    assert stacked([("active", 0)], 0)


def test_what_is_folded_up() -> None:
    assert [is_long(each) for each in ("ValueError: x\n", "a\nb", "x" * 301)] == [False, True, True]


def test_text_that_turns_round_is_written_as_escapes() -> None:
    stored = '{"name": "a\u202egnp.exe \u05d0"}'
    shown = pretty_text(stored, 1000)
    assert shown == '{\n  "name": "a\\u202egnp.exe \u05d0"\n}'
    assert json.loads(shown) == json.loads(stored)
    assert pretty(json.loads(stored)) == shown
