"""The checker on histories written by hand: those that are not live must be rejected, the others not."""

from __future__ import annotations

import pytest

from .checker import violations
from .history import Ended, Event, Gone, History, Limits, Published, Started, Up

BOUND = 5.0
END = 100.0
LEASE = 2.0


def up(at: float = 0.0, worker: int = 1, *tasks: str, threads: int = 2) -> Up:
    return Up(at, worker, list(tasks or ("task",)), {"async": 100, "thread": threads})


def sent(message: int = 1, at: float = 10.0, **options: object) -> Published:
    return Published(at, message, "q", **({"task": "task"} | options))  # type: ignore[arg-type]


def ran(message: int, began: float, ended: float, worker: int = 1, **options: object) -> list[Event]:
    return [
        Started(began, message, worker),
        Ended(ended, message, worker, **options),  # type: ignore[arg-type]
    ]


def late(*events: Event, **limits: dict[str, int]) -> list[int]:
    """The messages that a checker complains about."""
    found = violations(History(list(events), Limits(LEASE, **limits), END), BOUND)
    return sorted({wait.message.message for wait in found})


def test_a_message_that_starts_at_once_is_fine() -> None:
    assert late(up(), sent(), *ran(1, 10.1, 10.2)) == []


def test_a_message_that_never_starts_is_late() -> None:
    assert late(up(), sent()) == [1]


def test_a_message_that_starts_late_is_late() -> None:
    assert late(up(), sent(), *ran(1, 15.1, 15.2)) == [1]
    assert late(up(), sent(), *ran(1, 14.9, 15.2)) == []


def test_others_that_are_delivered_meanwhile_are_no_excuse() -> None:
    others = [event for n in range(2, 92) for event in (sent(n, n), *ran(n, n + 0.1, n + 1.0))]
    assert late(up(), sent(), *others) == [1]


def test_a_delay_counts_until_it_is_over() -> None:
    assert late(up(), sent(delay=30), *ran(1, 41, 42)) == []
    assert late(up(), sent(delay=30), *ran(1, 46, 47)) == [1]


def test_a_message_whose_time_to_live_is_over_need_not_start() -> None:
    assert late(up(), sent(ttl=4)) == []
    assert late(up(), sent(ttl=30)) == [1], "it could have been started before"


@pytest.mark.parametrize("delay", [0.0, 3.0])
def test_a_retry_is_due_after_its_delay(delay: float) -> None:
    first = ran(1, 10, 11, is_last=False, delay=delay)
    assert late(up(), sent(), *first, *ran(1, 12 + delay, 13 + delay)) == []
    assert late(up(), sent(), *first, *ran(1, 17 + delay, 18 + delay)) == [1]
    assert late(up(), sent(), *first) == [1]


def test_what_a_lost_worker_ran_is_deliverable_after_the_lease() -> None:
    lost: list[Event] = [up(0, 1), up(0, 2), sent(), Started(10.1, 1, 1), Gone(11, 1)]
    assert late(*lost, *ran(1, 17.5, 18, worker=2)) == []
    assert late(*lost, *ran(1, 19, 20, worker=2)) == [1]
    assert late(*lost) == [1]


def test_a_worker_that_runs_on_is_not_lost() -> None:
    assert late(up(), sent(), Started(10.1, 1, 1)) == []


def test_a_lost_worker_excuses_what_it_may_have_claimed_for_a_lease_only() -> None:
    assert late(up(0, 1), up(0, 2), Gone(11, 1), sent(), *ran(1, 16.9, 18, worker=2)) == []
    assert late(up(0, 1), up(0, 2), Gone(11, 1), sent(), *ran(1, 17.1, 18, worker=2)) == [1]


def test_an_unknown_task_waits_for_a_worker_that_knows_it() -> None:
    assert late(up(), sent(task="new")) == []
    assert late(up(), sent(task="new"), up(50, 2, "task", "new"), *ran(1, 54, 55, worker=2)) == []
    assert late(up(), sent(task="new"), up(50, 2, "task", "new"), *ran(1, 56, 57, worker=2)) == [1]
    assert late(up(), sent(task="new"), up(50, 2, "task", "new")) == [1]


def test_without_workers_nothing_is_late() -> None:
    assert late(sent()) == []
    assert late(up(), Gone(9, 1), sent(), up(60, 2), *ran(1, 62, 63, worker=2)) == []


def threads_busy() -> list[Event]:
    """Two messages keep the threads of worker 1 busy, for good."""
    return [
        *(sent(n, 9, kind="thread") for n in (2, 3)),
        *(Started(9.5, n, 1) for n in (2, 3)),
    ]


def test_a_kind_that_is_full_is_an_excuse_for_that_kind_only() -> None:
    busy = threads_busy()
    assert late(up(), *busy, sent(kind="thread")) == []
    assert late(up(), *busy, sent(kind="async")) == [1]


def test_a_kind_is_not_full_while_another_worker_has_a_free_slot() -> None:
    busy = threads_busy()
    assert late(up(), up(30, 2), *busy, sent(kind="thread"), *ran(1, 34, 35, worker=2)) == []
    assert late(up(), up(30, 2), *busy, sent(kind="thread"), *ran(1, 38, 39, worker=2)) == [1]


def test_a_cap_that_is_used_up_is_an_excuse() -> None:
    busy: list[Event] = [sent(2, 9), Started(9.5, 2, 1)]
    assert late(up(), *busy, sent(), max_active={"q": 1}) == []
    assert late(up(), *busy, sent(), max_active={"q": 2}) == [1]
    assert late(up(), *busy, sent(), max_active={"other": 1}) == [1]


def test_a_cap_of_another_tenant_is_no_excuse() -> None:
    busy: list[Event] = [sent(2, 9, tenant="noisy"), Started(9.5, 2, 1)]
    assert late(up(), *busy, sent(tenant="noisy"), tenant_max_active={"q": 1}) == []
    assert late(up(), *busy, sent(tenant="quiet"), tenant_max_active={"q": 1}) == [1]


def test_a_permit_that_changes_hands_is_in_use_all_the_time() -> None:
    """Between two runs there is a moment in which the next one is claimed."""
    hand_over = [event for n in range(2, 80) for event in (sent(n, 9), *ran(n, 10.0 + n, 10.6 + n))]
    assert late(up(), *hand_over, sent(), *ran(1, 91, 92), max_active={"q": 1}) == []


def test_a_permit_that_stays_free_is_no_excuse() -> None:
    runs = [event for n in range(2, 6) for event in (sent(n, 3.0 * n), *ran(n, 4.0 * n, 4.0 * n + 0.1))]
    assert late(up(), *runs, sent(), *ran(1, 30, 31), max_active={"q": 1}) == [1]


def test_permits_of_a_lost_worker_are_in_use_until_its_lease_is_over() -> None:
    lost: list[Event] = [
        up(0, 1),
        up(0, 2),
        sent(2, 9),
        Started(9.5, 2, 1),
        Gone(20, 1),
        *ran(2, 22, 60, worker=2),
    ]
    assert late(*lost, sent(), *ran(1, 60.5, 61, worker=2), max_active={"q": 1}) == []
