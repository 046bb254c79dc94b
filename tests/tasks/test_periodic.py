"""When periodic tasks are due: over changes of clocks, from anywhere, and after a long absence."""

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.models import Missed
from penstock.tasks.periodic import MOST_TICKS, Cron, Every, Periodic, Times, times_of

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def walk(times: Times, moment: datetime, until: datetime) -> list[datetime]:
    """All times between two moments, one after the other."""
    found = []
    while (moment := times.next_after(moment)) <= until:
        assert moment.tzinfo is UTC
        found.append(moment)
    return found


def local(moments: list[datetime], tz: str) -> list[str]:
    return [moment.astimezone(ZoneInfo(tz)).strftime("%d %H:%M %Z") for moment in moments]


# A daily job whose time of the day is left out, or comes twice

DAILY = [
    # Clocks go forward from 03:00 to 04:00, from 02:00 to 03:00, from 02:00 to 02:30.
    ("Europe/Riga", "30 3 * * *", "2026-03-28", ["28 03:30 EET", "29 04:00 EEST", "30 03:30 EEST"]),
    ("Europe/Riga", "30 2 * * *", "2026-03-28", ["28 02:30 EET", "29 02:30 EET", "30 02:30 EEST"]),
    ("America/New_York", "30 2 * * *", "2026-03-07", ["07 02:30 EST", "08 03:00 EDT", "09 02:30 EDT"]),
    (
        "Australia/Lord_Howe",
        "15 2 * * *",
        "2026-10-03",
        ["03 02:15 +1030", "04 02:30 +11", "05 02:15 +11"],
    ),
    ("Australia/Lord_Howe", "30 2 * * *", "2026-10-03", ["03 02:30 +1030", "04 02:30 +11", "05 02:30 +11"]),
    # They go back from 04:00 to 03:00, from 02:00 to 01:00, from 02:00 to 01:30: the first of the two counts.
    ("Europe/Riga", "30 3 * * *", "2026-10-24", ["24 03:30 EEST", "25 03:30 EEST", "26 03:30 EET"]),
    ("Europe/Riga", "30 2 * * *", "2026-10-24", ["24 02:30 EEST", "25 02:30 EEST", "26 02:30 EET"]),
    ("America/New_York", "30 1 * * *", "2026-10-31", ["31 01:30 EDT", "01 01:30 EDT", "02 01:30 EST"]),
    ("America/New_York", "30 2 * * *", "2026-10-31", ["31 02:30 EDT", "01 02:30 EST", "02 02:30 EST"]),
    (
        "Australia/Lord_Howe",
        "45 1 * * *",
        "2026-04-04",
        ["04 01:45 +11", "05 01:45 +11", "06 01:45 +1030"],
    ),
    # No midnight on that day.
    ("Africa/Cairo", "0 0 * * *", "2026-04-23", ["23 00:00 EET", "24 01:00 EEST", "25 00:00 EEST"]),
    # A day that was left out as a whole: the job of that day ran when it was over, with the next one's.
    ("Pacific/Apia", "0 12 * * *", "2011-12-29", ["29 12:00 -10", "31 00:00 +14", "31 12:00 +14"]),
    # Two of that hour are one.
    ("America/New_York", "0,30 2 * * *", "2026-03-08", ["08 03:00 EDT", "09 02:00 EDT", "09 02:30 EDT"]),
    ("America/New_York", "0 2,3 * * *", "2026-03-08", ["08 03:00 EDT", "09 02:00 EDT", "09 03:00 EDT"]),
]


@pytest.mark.parametrize(("tz", "expression", "day", "expected"), DAILY)
def test_a_daily_job_runs_once_a_day(tz: str, expression: str, day: str, expected: list[str]) -> None:
    times = Cron(expression, tz)
    moment = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(tz)).astimezone(UTC) - timedelta(seconds=1)
    found = walk(times, moment, moment + 4 * DAY)
    assert local(found, tz)[: len(expected)] == expected


# Jobs that go by real time

CHANGES = [
    ("Europe/Riga", "2026-03-29 01:00"),
    ("Europe/Riga", "2026-10-25 01:00"),
    ("America/New_York", "2026-03-08 07:00"),
    ("America/New_York", "2026-11-01 06:00"),
    ("Australia/Lord_Howe", "2026-10-03 15:30"),
    ("Australia/Lord_Howe", "2026-04-04 15:00"),
    ("Africa/Cairo", "2026-04-23 22:00"),
    ("Africa/Cairo", "2026-10-29 21:00"),
]


@pytest.mark.parametrize(("tz", "change"), CHANGES)
@pytest.mark.parametrize(("expression", "minutes"), [("*/5 * * * *", 5), ("*/30 * * * *", 30)])
def test_no_hole_and_nothing_twice(tz: str, change: str, expression: str, minutes: int) -> None:
    at, step = utc(change), timedelta(minutes=minutes)
    assert (at - MINUTE).astimezone(ZoneInfo(tz)).utcoffset() != at.astimezone(ZoneInfo(tz)).utcoffset()
    found = walk(Cron(expression, tz), at - 4 * HOUR - step, at + 4 * HOUR)
    assert found == [at - 4 * HOUR + n * step for n in range(int(8 * HOUR / step) + 1)]


def test_an_hour_with_a_star_in_its_minutes_is_left_out_or_comes_twice() -> None:
    spring = walk(Cron("*/20 2 * * *", "America/New_York"), utc("2026-03-08"), utc("2026-03-09"))
    assert spring == []
    autumn = walk(Cron("*/20 1 * * *", "America/New_York"), utc("2026-11-01"), utc("2026-11-02"))
    assert local(autumn, "America/New_York") == [
        "01 01:00 EDT",
        "01 01:20 EDT",
        "01 01:40 EDT",
        "01 01:00 EST",
        "01 01:20 EST",
        "01 01:40 EST",
    ]


def test_an_hour_after_half_an_hour_that_was_left_out_is_whole() -> None:
    found = walk(
        Cron("*/10 3 * * *", "Australia/Lord_Howe"), utc("2026-10-03 12:00"), utc("2026-10-04 12:00")
    )
    assert local(found, "Australia/Lord_Howe") == [f"04 03:{minute:02} +11" for minute in range(0, 60, 10)]


# Against a look at each minute

ZONES = ["Europe/Riga", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kolkata", "UTC"]
FIRST_MINUTE = {tz: [utc(change) for zone, change in CHANGES if zone == tz] for tz in ZONES}


@st.composite
def fields(draw: st.DrawFn, size: int) -> tuple[str, frozenset[int]]:
    """A field of an expression, and the numbers that it stands for."""
    kind = draw(st.sampled_from(["*", "*/", ",", "-"]))
    if kind == "*":
        return "*", frozenset(range(size))
    if kind == "*/":
        step = draw(st.integers(1, size - 1))
        return f"*/{step}", frozenset(range(0, size, step))
    numbers = sorted(draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=4)))
    if kind == ",":
        return ",".join(map(str, numbers)), frozenset(numbers)
    return f"{numbers[0]}-{numbers[-1]}", frozenset(range(numbers[0], numbers[-1] + 1))


def minute_by_minute(  # noqa: PLR0917
    minutes: frozenset[int], hours: frozenset[int], is_fixed: bool, tz: str, first: datetime, last: datetime
) -> Iterator[datetime]:
    """The times of `minutes hours * * *`, by Debian's rules, the slow way."""
    zone = ZoneInfo(tz)

    def matches(wall: datetime) -> bool:
        return wall.minute in minutes and wall.hour in hours

    before = (first - MINUTE).astimezone(zone).replace(tzinfo=None)
    moment = first
    while moment <= last:
        shown = moment.astimezone(zone)
        wall = shown.replace(tzinfo=None)
        left_out = [before + n * MINUTE for n in range(1, int((wall - before) / MINUTE))]
        if (matches(wall) and not (is_fixed and shown.fold)) or (is_fixed and any(map(matches, left_out))):
            yield moment
        before, moment = wall, moment + MINUTE


@settings(deadline=None, max_examples=60)
@given(data=st.data(), tz=st.sampled_from(ZONES), minute=fields(60), hour=fields(24))
def test_the_times_are_those_of_a_look_at_each_minute(
    data: st.DataObject, tz: str, minute: tuple[str, frozenset[int]], hour: tuple[str, frozenset[int]]
) -> None:
    times = Cron(f"{minute[0]} {hour[0]} * * *", tz)
    around = data.draw(st.sampled_from(FIRST_MINUTE[tz] or [utc("2026-06-01")]))
    first = around + data.draw(st.integers(-6 * 60, 2 * 60)) * MINUTE
    last = first + 7 * HOUR
    is_fixed = not minute[0].startswith("*") and not hour[0].startswith("*")
    expected = list(minute_by_minute(minute[1], hour[1], is_fixed, tz, first, last))
    assert walk(times, first - MINUTE, last) == expected
    # Going back gives the same, from anywhere and however many.
    until = first + data.draw(st.integers(0, 7 * 60)) * MINUTE
    most = data.draw(st.sampled_from([1, 3, 50, 2000]))
    assert times.newest(first - MINUTE, until, most) == [at for at in expected if at <= until][-most:]


@settings(deadline=None, max_examples=200)
@given(
    times=st.one_of(
        st.builds(
            Cron,
            st.sampled_from(
                ["*/5 * * * *", "30 2 * * *", "0 3 * * 1-5", "59 23 L * *", "15 1 29 2 *", "* * * * * *"]
            ),
            st.sampled_from(ZONES),
        ),
        st.builds(Every, st.floats(0.1, 1e6) | st.integers(1, 10**6)),
    ),
    moment=st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)),
    earlier=st.timedeltas(timedelta(), timedelta(days=2)),
)
def test_times_grow_and_are_the_same_for_all(times: Times, moment: datetime, earlier: timedelta) -> None:
    after = times.next_after(moment)
    assert after > moment
    assert times.next_after(after) > after
    # A start between two times gives the same.
    assert times.next_after(moment + (after - moment) / 2) == after
    assert times.next_after(after - timedelta(microseconds=1)) == after
    # So does a walk from an earlier time.
    newest = times.newest(moment - earlier, moment, 1)
    if newest:
        assert times.next_after(newest[0]) == after
    assert times.newest(moment, after, 5) == [after]
    elsewhere = moment.astimezone(ZoneInfo("Asia/Kathmandu"))
    assert times.next_after(elsewhere) == after
    again = times_of(times.definition())
    assert again == times
    assert again.next_after(moment) == after


# Intervals


def test_an_interval_counts_from_the_epoch() -> None:
    assert Every(3600).next_after(utc("2026-01-01 10:00")) == utc("2026-01-01 11:00")
    assert Every(3600).next_after(utc("2026-01-01 10:59:59.999999")) == utc("2026-01-01 11:00")
    assert Every(timedelta(days=1)).next_after(utc("2026-01-01 10:00")) == utc("2026-01-02")
    assert Every(0.25).next_after(utc("2026-01-01 10:00")) == utc("2026-01-01 10:00:00.250000")
    assert Every(3600).next_after(utc("1969-12-31 22:30")) == utc("1969-12-31 23:00")


def test_a_thousand_steps_of_a_fraction_do_not_drift() -> None:
    found = walk(Every(0.1), utc("2026-01-01"), utc("2026-01-01 00:01:40"))
    assert len(found) == 1000
    assert found[-1] == utc("2026-01-01 00:01:40")


# What was missed

EVERY_MINUTE = [Every(60), Cron("* * * * *"), Cron("* * * * *", "Europe/Riga")]


@pytest.mark.parametrize("times", EVERY_MINUTE, ids=str)
class TestMissed:
    START = utc("2026-05-05 12:00")

    def due(self, times: Times, seconds: float, missed: Missed, **options: Any) -> tuple[list[str], str]:
        ticks, next_at = times.due(self.START, self.START + timedelta(seconds=seconds), missed, **options)
        return [f"{tick:%H:%M}" for tick in ticks], f"{next_at:%H:%M}"

    @pytest.mark.parametrize("missed", ["skip", "one", "all"])
    def test_not_yet(self, times: Times, missed: Missed) -> None:
        assert self.due(times, -0.001, missed) == ([], "12:00")

    @pytest.mark.parametrize("missed", ["skip", "one", "all"])
    @pytest.mark.parametrize("late", [0, 0.5, 59.9])
    def test_on_time(self, times: Times, missed: Missed, late: float) -> None:
        assert self.due(times, late, missed) == (["12:00"], "12:01")

    def test_a_while(self, times: Times) -> None:
        late = 3 * 60 + 1
        assert self.due(times, late, "skip") == (["12:03"], "12:04")
        assert self.due(times, late, "one") == (["12:03"], "12:04")
        assert self.due(times, late, "all") == (["12:00", "12:01", "12:02", "12:03"], "12:04")

    def test_too_late_for_what_is_skipped(self, times: Times) -> None:
        late, grace = 3 * 60 + 30, timedelta(seconds=29)
        assert self.due(times, late, "skip", grace=grace) == ([], "12:04")
        assert self.due(times, late - 1, "skip", grace=grace) == (["12:03"], "12:04")
        assert self.due(times, late, "one", grace=grace) == (["12:03"], "12:04")
        assert len(self.due(times, late, "all", grace=grace)[0]) == 4

    def test_years(self, times: Times) -> None:
        now = self.START + timedelta(days=20 * 365, seconds=30)
        began = time.perf_counter()
        for missed, count in (("skip", 1), ("one", 1), ("all", MOST_TICKS)):
            ticks, next_at = times.due(self.START, now, missed)  # type: ignore[arg-type]
            newest = now.replace(second=0)
            assert ticks == [newest - n * MINUTE for n in range(count - 1, -1, -1)]
            assert next_at == newest + MINUTE
        assert time.perf_counter() - began < 2


def test_a_time_that_was_moved_by_hand_counts() -> None:
    moved = utc("2026-05-05 12:00:17")
    for missed in ("skip", "one", "all"):
        assert Every(60).due(moved, moved, missed) == ([moved], utc("2026-05-05 12:01"))
        assert Cron("@daily").due(moved, moved, missed) == ([moved], utc("2026-05-06"))
    late = utc("2026-05-05 12:01:30")
    assert Every(60).due(moved, late, "all")[0] == [moved, utc("2026-05-05 12:01")]


def test_of_a_daily_job_a_day_that_was_missed() -> None:
    daily = Cron("0 3 * * *", "Europe/Riga")
    next_at, now = utc("2026-05-05 00:00"), utc("2026-05-06 12:00")
    assert daily.due(next_at, now, "skip") == ([], utc("2026-05-07 00:00"))
    assert daily.due(next_at, now, "one") == ([utc("2026-05-06 00:00")], utc("2026-05-07 00:00"))
    assert daily.due(next_at, now, "all")[0] == [utc("2026-05-05 00:00"), utc("2026-05-06 00:00")]


# What is written, and what is stored


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("@hourly", "0 * * * *"),
        ("@Daily", "0 0 * * *"),
        ("  */5  *  * *   * ", "*/5 * * * *"),
        ("@weekly", "0 0 * * 0"),
    ],
)
def test_other_ways_to_write_it(expression: str, same: str) -> None:
    assert Cron(expression) == Cron(same)
    assert Cron(expression).definition() == {"cron": same, "tz": "UTC"}


def test_seconds_names_and_last_days() -> None:
    start = utc("2026-01-15")
    assert Cron("*/10 * * * * *").next_after(start) == start + timedelta(seconds=10)
    assert Cron("0 9 * jan,mar MON-FRI").next_after(start) == utc("2026-01-15 09:00")
    assert Cron("0 0 L * *").next_after(start) == utc("2026-01-31")
    assert Cron("0 0 * * 1#2").next_after(start) == utc("2026-02-09")


@pytest.mark.parametrize(
    ("expression", "tz", "words"),
    [
        ("", "UTC", "cron must be a cron expression, not '': wrong number of fields"),
        ("* * * *", "UTC", "not '* * * *': wrong number of fields"),
        ("61 * * * *", "UTC", "not '61 * * * *': bad minute"),
        ("* 24 * * *", "UTC", "bad hour"),
        ("*/0 * * * *", "UTC", "bad minute"),
        ("0 0 31 2 *", "UTC", "bad day-of-month"),
        ("0 0 31 4,6 *", "UTC", "bad day-of-month"),
        ("@reboot", "UTC", "wrong number of fields"),
        ("* * * * FUN", "UTC", "bad day-of-week"),
        (5, "UTC", "cron must be a string, not 5"),
        ("* * * * *", "Europe/Rīga", "tz must be a time zone, as Europe/Riga, not 'Europe/Rīga'"),
        ("* * * * *", "", "tz must be a time zone"),
        ("* * * * *", "Europe", "tz must be a time zone"),
        ("* * * * *", "../etc/passwd", "tz must be a time zone"),
        ("* * * * *", "/etc/localtime", "tz must be a time zone"),
        ("* * * * *", None, "tz must be a time zone"),
    ],
)
def test_bad_expressions_are_named(expression: Any, tz: Any, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Cron(expression, tz)
    assert words in str(caught.value)


@pytest.mark.parametrize("seconds", [0, -1, 0.09, float("nan"), float("inf"), "60", None, True, 2**31])
def test_bad_intervals_are_named(seconds: Any) -> None:
    with pytest.raises(InvalidArgument, match="every must be"):
        Every(seconds)


def test_a_moment_without_a_time_zone_is_refused() -> None:
    for times in (Every(60), Cron("* * * * *")):
        with pytest.raises(InvalidArgument, match="must have a time zone"):
            times.next_after(datetime(2026, 1, 1))


def test_a_system_without_time_zones_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['tzdata'] = None\n"
        "import zoneinfo; zoneinfo.reset_tzpath(())\n"
        "from penstock.tasks.periodic import Cron\n"
        "Cron('* * * * *', 'UTC')\n"
        "try: Cron('* * * * *', 'Europe/Riga')\n"
        "except Exception as exc: print(exc.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("this system has no time zones: pip install tzdata\n", "")


def test_a_policy_for_missed_times_is_one_of_three() -> None:
    facts: dict[str, Any] = dict.fromkeys(["priority", "tenant", "ttl"])
    with pytest.raises(InvalidArgument, match='missed must be "skip", "one" or "all", not \'none\''):
        Periodic("a", "a", "q", {}, {}, **facts, schedule=Every(60), missed="none")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "definition",
    [None, 5, {}, {"cron": "* * * * *"}, {"cron": "x", "tz": "UTC"}, {"every": 0}, {"every": "1"}],
)
def test_a_definition_of_another_program_is_none_of_ours(definition: Any) -> None:
    assert times_of(definition) is None


def test_definitions_of_whole_numbers_are_whole() -> None:
    assert Every(60.0).definition() == {"every": 60}
    assert Every(timedelta(minutes=1)) == Every(60)
    assert Every(0.5).definition() == {"every": 0.5}
