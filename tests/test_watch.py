"""A watch: who of a client's consumers looks, when, and which role the session should have."""

from __future__ import annotations

import pytest

from penstock import watch
from penstock.watch import BEHIND_SECONDS, BUSY_EVENTS, LINGER_SECONDS, PAUSES, QUIET_SECONDS, Role, Watch


class Flag:
    """Counts how often it is set."""

    def __init__(self) -> None:
        self.times = 0

    def set(self) -> None:
        self.times += 1


class Time:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(watch, "now", clock)
    return clock


@pytest.fixture
def changes() -> list[None]:
    return []


@pytest.fixture
def one(time: Time, changes: list[None]) -> Watch:
    """A watch of a session that stands by."""
    made = Watch("q", lambda _: changes.append(None))
    made.begin(Role.STANDBY)
    return made


def wanted(one: Watch) -> Role:
    return one.wanted


def test_a_session_tries_to_watch_when_its_first_consumer_waits(one: Watch, changes: list[None]) -> None:
    assert wanted(one) is Role.STANDBY
    one.enter(Flag())
    assert wanted(one) is Role.IDLE
    assert len(changes) == 1
    one.stay()
    assert wanted(one) is Role.STANDBY
    one.enter(Flag())
    assert len(changes) == 1


def test_a_session_that_stands_by_tries_again_with_each_slow_look(one: Watch, changes: list[None]) -> None:
    flag = Flag()
    one.enter(flag)
    one.stay()
    pauses = [one.looked(flag, 0, 0.001) for _ in range(len(PAUSES) - 1)]
    assert pauses == list(PAUSES[:-1])
    assert wanted(one) is Role.STANDBY
    before = len(changes)
    assert 0.8 <= one.looked(flag, 0, 0.001) <= 1.2
    assert wanted(one) is Role.IDLE
    assert len(changes) == before + 1


def test_a_session_that_stands_by_tries_after_a_handover(one: Watch) -> None:
    one.enter(Flag())
    one.stay()
    one.offer()
    assert wanted(one) is Role.IDLE


def test_a_consumer_looks_after_each_change_of_the_role(one: Watch) -> None:
    flag = Flag()
    one.enter(flag)
    for times, role in enumerate((Role.IDLE, Role.POLLING, Role.IDLE, Role.DEAF, Role.STANDBY), 1):
        one.begin(role)
        assert flag.times == times


def test_a_busy_session_polls_until_the_queue_is_quiet(one: Watch, time: Time) -> None:
    flag = Flag()
    one.enter(flag)
    one.begin(Role.IDLE)
    for _ in range(BUSY_EVENTS):
        assert wanted(one) is Role.IDLE
        one.looked(flag, 1, 0.001)
    assert wanted(one) is Role.POLLING
    one.begin(Role.POLLING)
    assert one.looked(flag, 0, 0.0001) == watch.POLL_SECONDS
    assert one.looked(flag, 0, 0.01) == 0.01
    assert one.looked(flag, 0, 1.0) == watch.LONGEST_POLL_SECONDS
    for _ in range(watch.EMPTY_LOOKS):
        one.looked(flag, 0, 0.0001)
    assert one.looked(flag, 0, 0.0001) == watch.SLOW_POLL_SECONDS
    assert one.looked(flag, 1, 0.0001) == watch.POLL_SECONDS
    time.at += QUIET_SECONDS - 0.001
    assert wanted(one) is Role.POLLING
    time.at += 0.002
    assert wanted(one) is Role.IDLE
    # A send was just testing whether the session is idle.
    one.stay()
    assert wanted(one) is Role.POLLING
    assert one.check_at - time.at < 0.01
    time.at = one.check_at
    assert wanted(one) is Role.IDLE


def test_a_session_that_another_one_keeps_from_being_idle_polls_slowly(one: Watch, time: Time) -> None:
    flag = Flag()
    one.enter(flag)
    one.begin(Role.POLLING)
    one.looked(flag, 1, 0.001)
    time.at += 100
    assert one.looked(flag, 0, 0.001) == 1
    one.stay()
    assert one.check_at == time.at + 1
    assert one.looked(flag, 1, 0.001) < 0.01


def test_finds_over_a_longer_time_are_not_busy(one: Watch, time: Time) -> None:
    flag = Flag()
    one.enter(flag)
    one.begin(Role.IDLE)
    for _ in range(10 * BUSY_EVENTS):
        one.looked(flag, 1, 0.001)
        time.at += 0.06
    assert wanted(one) is Role.IDLE


def test_a_batch_and_notifications_without_a_message_are_busy(one: Watch) -> None:
    flag = Flag()
    one.enter(flag)
    one.begin(Role.IDLE)
    one.looked(flag, 100, 0.001)
    assert wanted(one) is Role.POLLING
    one.begin(Role.POLLING)
    one.begin(Role.IDLE)
    for _ in range(BUSY_EVENTS):
        assert wanted(one) is Role.IDLE
        one.wake()
        one.looked(flag, 0, 0.001)
    assert wanted(one) is Role.POLLING


def test_a_session_that_polls_in_vain_polls_longer_the_next_time(one: Watch, time: Time) -> None:
    flag = Flag()
    one.enter(flag)
    for _ in range(4):
        one.begin(Role.POLLING)
        time.at += 10
        one.begin(Role.IDLE)
    one.begin(Role.POLLING)
    time.at += 1.5
    assert wanted(one) is Role.POLLING
    time.at += 0.2
    assert wanted(one) is Role.IDLE
    one.looked(flag, 1, 0.001)
    time.at += QUIET_SECONDS + 0.01
    assert wanted(one) is Role.IDLE


def test_a_consumer_takes_the_place_of_one_that_does_not_come_back_from_its_look(
    one: Watch, time: Time
) -> None:
    flags = [Flag() for _ in range(3)]
    for flag in flags:
        one.enter(flag)
    one.begin(Role.IDLE)
    time.at += BEHIND_SECONDS
    assert one.looked(flags[1], 0, 0.001) == PAUSES[0]
    one.wake()
    assert [flag.times for flag in flags] == [1, 1, 0]
    assert one.looked(flags[2], 0, 0.001) == 2 * BEHIND_SECONDS
    # The stuck one is back.
    assert one.looked(flags[0], 0, 5.0) == BEHIND_SECONDS


def test_a_consumer_that_found_nothing_waits_from_then_on(one: Watch) -> None:
    """In one step: else the first one could leave in between, and no consumer would look."""
    first, second = Flag(), Flag()
    one.looked(first, 0, 0.001)
    assert one.looked(second, 0, 0.001) == BEHIND_SECONDS
    one.leave(first)
    assert second.times == 1


def test_a_polling_session_does_not_heed_notifications(one: Watch) -> None:
    flag = Flag()
    one.enter(flag)
    one.begin(Role.POLLING)
    one.wake()
    assert flag.times == 1
    one.begin(Role.IDLE)
    one.wake()
    assert flag.times == 3


def test_a_session_in_any_role_looks_for_what_another_one_cannot_run(one: Watch) -> None:
    flag = Flag()
    one.enter(flag)
    for times, role in enumerate((Role.STANDBY, Role.IDLE, Role.POLLING), 1):
        one.begin(role)
        one.look()
        assert flag.times == 2 * times


def test_the_first_consumer_looks_for_all(one: Watch) -> None:
    flags = [Flag() for _ in range(3)]
    for flag in flags:
        one.enter(flag)
    one.begin(Role.IDLE)
    one.wake()
    assert [flag.times for flag in flags] == [2, 0, 0]
    assert one.looked(flags[1], 0, 0.001) == BEHIND_SECONDS
    one.looked(flags[0], 1, 0.001)
    one.leave(flags[0])
    assert [flag.times for flag in flags] == [2, 1, 0]
    one.leave(flags[2])
    assert [flag.times for flag in flags] == [2, 1, 0]
    one.wake()
    assert [flag.times for flag in flags] == [2, 2, 0]


@pytest.mark.parametrize("role", [Role.IDLE, Role.POLLING])
def test_a_session_without_room_hands_over_after_a_moment(
    one: Watch, time: Time, changes: list[None], role: Role
) -> None:
    flag = Flag()
    one.enter(flag)
    one.begin(role)
    one.looked(flag, 1, 0.001)
    before = len(changes)
    one.leave(flag)
    assert len(changes) == before + 1
    assert one.check_at == time.at + LINGER_SECONDS
    assert wanted(one) is role
    # The consumer is back in time, and leaves again: the listener need not be told twice.
    one.enter(flag)
    time.at += LINGER_SECONDS / 2
    one.leave(flag)
    assert len(changes) == before + 1
    time.at += LINGER_SECONDS / 2
    one.check()
    assert wanted(one) is role
    assert one.check_at == pytest.approx(time.at + LINGER_SECONDS / 2)
    time.at = one.check_at
    one.check()
    assert wanted(one) is Role.STANDBY


def test_a_session_that_became_idle_after_its_consumers_left_hands_over(one: Watch, time: Time) -> None:
    flag = Flag()
    one.enter(flag)
    one.leave(flag)
    one.begin(Role.IDLE)
    time.at = one.check_at
    one.check()
    assert wanted(one) is Role.STANDBY


def test_a_session_that_is_next_steps_back_after_a_moment_without_room(
    one: Watch, time: Time, changes: list[None]
) -> None:
    flag = Flag()
    one.enter(flag)
    one.be_next(True)
    one.stay()
    assert not one.is_next_in_vain
    before = len(changes)
    one.leave(flag)
    assert len(changes) == before + 1
    assert one.check_at == time.at + LINGER_SECONDS
    assert not one.is_next_in_vain
    time.at = one.check_at
    one.check()
    assert one.is_next_in_vain
    # A consumer has room again.
    one.enter(flag)
    assert not one.is_next_in_vain
    assert wanted(one) is Role.IDLE


def test_a_session_that_became_next_after_its_consumers_left_steps_back(one: Watch, time: Time) -> None:
    flag = Flag()
    one.enter(flag)
    one.leave(flag)
    one.be_next(True)
    time.at = one.check_at
    one.check()
    assert one.is_next_in_vain
    one.be_next(False)
    assert not one.is_next_in_vain


@pytest.mark.parametrize("role", [Role.IDLE, Role.POLLING, Role.DEAF])
def test_a_session_that_watches_or_listens_no_more_is_not_next(one: Watch, role: Role) -> None:
    one.be_next(True)
    one.begin(role)
    assert not one.is_next
