"""Attempts, delays and the time to live that comes of them."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import App, Exponential, InvalidArgument
from penstock.tasks.policy import Policy

LONGEST = 2**31 - 1
# Slow where the machine has much else to do.
relaxed = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def policy(
    max_attempts: int = 1, attempt_timeout: Any = None, retry_delays: Any = None, ttl: Any = None
) -> Policy:
    return Policy.of(max_attempts, attempt_timeout, retry_delays, ttl)


# Delays


def test_a_constant_delay_follows_each_attempt() -> None:
    assert [policy(5, retry_delays=7).delay_after(n) for n in (1, 2, 3, 100)] == [7, 7, 7, 7]


def test_of_a_list_the_last_one_repeats() -> None:
    listed = policy(5, retry_delays=[1, timedelta(minutes=1), 0])
    assert [listed.delay_after(n) for n in (1, 2, 3, 4, 100)] == [1, 60, 0, 0, 0]


def test_parts_of_a_second_are_rounded_up() -> None:
    assert policy(5, retry_delays=[0.1, 1.0, 1.001]).delay_after(1) == 1
    assert [policy(5, retry_delays=[0.1, 1.0, 1.001]).delay_after(n) for n in (2, 3)] == [1, 2]


def test_no_delays_given_grow_from_a_second_to_an_hour() -> None:
    usual = policy(5)
    assert usual.delays == Exponential()
    assert usual.delay_after(1) == 1
    assert math.ceil(3600 * 0.8) <= usual.delay_after(1000) <= 3600


def test_an_exponential_delay_without_chance() -> None:
    delays = policy(9, retry_delays=Exponential(first=2, factor=3, longest=100, jitter=0))
    assert [delays.delay_after(n) for n in (1, 2, 3, 4, 5, 6, 1000)] == [2, 6, 18, 54, 100, 100, 100]


@relaxed
@given(
    first=st.floats(0, 10_000),
    factor=st.floats(1, 1000),
    longest=st.floats(0, 100_000),
    jitter=st.floats(0, 1),
    attempt=st.integers(1, 1_000_000),
)
def test_an_exponential_delay_keeps_its_bounds(
    first: float, factor: float, longest: float, jitter: float, attempt: int
) -> None:
    delays = Exponential(first=first, factor=factor, longest=longest, jitter=jitter)
    try:
        grown = first * factor ** (attempt - 1)
    except OverflowError:
        grown = math.inf if first else 0.0
    # A number that is not in reach of floats counts as any large one.
    most = longest if math.isnan(grown) else min(grown, longest)
    assert delays.most(attempt) == pytest.approx(most)
    after = delays.after(attempt)
    assert delays.most(attempt) * (1 - jitter) * (1 - 1e-12) <= after <= delays.most(attempt)


def test_chance_spreads_what_failed_together() -> None:
    delays = Exponential(first=100, jitter=0.5)
    seen = [delays.after(1) for _ in range(200)]
    assert min(seen) < 65
    assert max(seen) > 85
    assert all(50 <= delay <= 100 for delay in seen)


def test_a_small_factor_reaches_the_longest_delay_in_the_end() -> None:
    delays = Exponential(first=1, factor=1.1, longest=3600, jitter=0)
    assert delays.most(85) == pytest.approx(1.1**84)
    assert delays.most(100) == 3600


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("first", value) for value in (-1, "x", None, math.nan, math.inf, True)],
        *[("longest", value) for value in (-1, "x", None, math.nan, True)],
        *[("factor", value) for value in (0.5, 0, -2, 1001, "2", None, math.nan, True)],
        *[("jitter", value) for value in (-0.1, 1.1, "x", None, math.nan, True)],
    ],
)
def test_a_bad_exponential_is_refused_by_name(option: str, value: Any) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(InvalidArgument, match=option):
        Exponential(**options)


def test_an_exponential_may_be_given_in_timedeltas() -> None:
    first, longest = timedelta(seconds=2), timedelta(minutes=1)
    delays = Exponential(first=first, longest=longest, jitter=0)  # type: ignore[arg-type,unused-ignore]
    assert [policy(9, retry_delays=delays).delay_after(n) for n in (1, 2, 20)] == [2, 4, 60]


# The time to live


def test_a_time_to_live_that_is_given_is_taken() -> None:
    assert policy(3, 10, 5, ttl=timedelta(minutes=1)).ttl == 60
    assert policy(3, None, 5, ttl=7).ttl == 7


def test_without_a_limit_of_attempts_there_is_no_time_to_live() -> None:
    assert policy(3, None, 5).ttl is None


@pytest.mark.parametrize(
    ("max_attempts", "attempt_timeout", "retry_delays", "ttl"),
    [
        (1, 30, 10, 30),
        (2, 30, 10, 70),
        (3, 30, 10, 110),
        (3, 30, [1, 2], 93),
        (5, 30, [1, 2], 157),
        (2, 30, [1, 2, 3], 61),
        (3, 0.5, [0.1, 0.1], 3.5),
        (4, 10, Exponential(first=1, factor=2, longest=3, jitter=0.9), 46),
        (4, 10, None, 47),
    ],
)
def test_the_time_to_live_is_what_all_attempts_take(
    max_attempts: int, attempt_timeout: float, retry_delays: Any, ttl: float
) -> None:
    assert policy(max_attempts, attempt_timeout, retry_delays).ttl == ttl


durations = st.integers(0, 10_000) | st.floats(0, 10_000)


@relaxed
@given(
    max_attempts=st.integers(1, 400),
    attempt_timeout=st.floats(0.001, 10_000),
    retry_delays=durations | st.lists(durations, min_size=1, max_size=10),
)
def test_the_time_to_live_is_the_sum_of_its_parts(
    max_attempts: int, attempt_timeout: float, retry_delays: Any
) -> None:
    computed = policy(max_attempts, attempt_timeout, retry_delays)
    between = sum(computed.delay_after(attempt) for attempt in range(1, max_attempts))
    assert computed.ttl == pytest.approx(min(max_attempts * attempt_timeout + between, LONGEST))


@relaxed
@given(
    max_attempts=st.integers(1, 300),
    first=st.floats(0, 100),
    factor=st.floats(1, 10),
    longest=st.floats(0, 10_000),
    jitter=st.floats(0, 1),
)
def test_the_time_to_live_is_enough_whatever_chance_says(
    max_attempts: int, first: float, factor: float, longest: float, jitter: float
) -> None:
    delays = Exponential(first=first, factor=factor, longest=longest, jitter=jitter)
    computed = policy(max_attempts, 1, delays)
    ttl = computed.ttl
    assert ttl is not None
    assert max_attempts + sum(computed.delay_after(n) for n in range(1, max_attempts)) <= ttl
    # And no longer than the longest delays, each in whole seconds.
    assert ttl == max_attempts + sum(math.ceil(delays.most(n)) for n in range(1, max_attempts))


def test_the_time_to_live_ends_where_the_schema_does() -> None:
    assert policy(1_000_000, 3600, 3600).ttl == LONGEST


# As it is sent


def living(app: App, **options: Any) -> float:
    """How long a task lives from when it is enqueued."""
    number = len(app.tasks)
    asked = options.pop("call", {})

    def handler() -> None: ...

    task = app.task(name=f"policy {number}", queue="test_policy", **options)(handler)
    message = app.client.get_message("test_policy", task.options(**asked).enqueue().id)
    assert message is not None
    if message.expires_at is None:
        return math.inf
    return (message.expires_at - message.published_at).total_seconds()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, math.inf),
        ({"max_attempts": 3}, math.inf),
        ({"ttl": 50}, 50),
        ({"attempt_timeout": 10, "max_attempts": 3, "retry_delays": [1, 5]}, 36),
        ({"attempt_timeout": 10, "call": {"delay": 100}}, 110),
        ({"attempt_timeout": 0.2, "call": {"delay": 0.2}}, 1),
        ({"ttl": 50, "call": {"delay": 20}}, 50),
        ({"attempt_timeout": 10, "call": {"ttl": 7, "delay": 3}}, 7),
        ({"attempt_timeout": 10, "call": {"ttl": timedelta(hours=1)}}, 3600),
        ({"max_attempts": 1_000_000, "attempt_timeout": 3600, "call": {"delay": 5}}, LONGEST),
        ({"attempt_timeout": 10, "call": {"delay": LONGEST}}, LONGEST),
    ],
)
def test_the_time_to_live_as_it_is_sent(shared: App, options: dict[str, Any], expected: float) -> None:
    assert living(shared, **options) == expected


def test_the_time_to_live_counts_from_when_the_task_is_due(shared: App) -> None:
    for moment, expected in [
        (datetime.now(UTC) + timedelta(hours=1), 3610),
        (datetime.now(UTC) - timedelta(hours=1), 10),
    ]:
        lived = living(shared, attempt_timeout=10, call={"deliver_after": moment})
        assert expected - 3 <= lived <= expected + 1


def test_a_far_moment_is_no_trouble(shared: App) -> None:
    far = datetime.now(UTC) + timedelta(days=365 * 500)
    assert living(shared, attempt_timeout=10, call={"deliver_after": far}) >= LONGEST


@pytest.mark.parametrize("value", ["tomorrow", 5, datetime(2026, 1, 1), datetime(2026, 1, 1).date()])
def test_a_bad_moment_is_refused(shared: App, value: Any) -> None:
    task = shared.task(queue="test_policy", attempt_timeout=10)(lambda: None)
    with pytest.raises(InvalidArgument, match="deliver_after"):
        task.options(deliver_after=value).enqueue()
