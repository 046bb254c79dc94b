"""Order of delivery: the most urgent first, tenants in turn, within a tenant the oldest."""

from __future__ import annotations

from datetime import timedelta
from itertools import groupby
from typing import Any

import pytest

from .conftest import Clock
from .engine import Engine


def taken(engine: Engine, number: int = 1000, batch_size: int = 1000) -> list[Any]:
    """Payloads in the order of delivery."""
    payloads: list[Any] = []
    while len(payloads) < number and (messages := engine.take_many("q", batch_size)):
        payloads += [m.payload for m in messages]
    return payloads


@pytest.fixture
def q(engine: Engine) -> Engine:
    engine.queue("q")
    return engine


def test_the_most_urgent_priority_comes_first_strictly(q: Engine) -> None:
    for priority in (3, 1, 2, 0):
        q.send_many("q", [f"{priority}a", f"{priority}b"], priority=priority)
    assert taken(q) == ["0a", "0b", "1a", "1b", "2a", "2b", "3a", "3b"]


def test_an_urgent_message_overtakes_what_waits(q: Engine) -> None:
    q.send_many("q", list(range(100)))
    q.send("q", "urgent", priority=0)
    assert q.take("q").payload == "urgent"


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_the_order_does_not_depend_on_the_size_of_claims(q: Engine, batch_size: int) -> None:
    q.send_many("q", list(range(24)), priorities=[3, 0, 2, 1] * 6)
    expected = [n for p in range(4) for n in range(24) if [3, 0, 2, 1][n % 4] == p]
    assert taken(q, batch_size=batch_size) == expected


def test_priority_stays_with_a_message_through_retries(q: Engine, clock: Clock) -> None:
    q.send("q", "urgent", priority=0)
    q.send("q", "normal")
    q.nack(q.take("q"))
    assert q.take_many("q", 10, vt_seconds=5)[0].payload == "urgent"
    clock.advance(6)
    q.maintain()
    message = q.take("q")
    assert (message.payload, message.priority) == ("urgent", 0)
    q.reject(message)
    q.value("requeue_dlq_messages", "q")
    assert q.take("q").payload == "urgent"


@pytest.mark.parametrize("how", ["one by one", "batch", "mixed batch", "delayed"])
@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_tenants_are_served_in_turn_however_much_each_puts_in(
    q: Engine, clock: Clock, how: str, batch_size: int
) -> None:
    numbers = {"busy": 20, "some": 5, "quiet": 1}
    messages = [(tenant, n) for tenant, number in numbers.items() for n in range(number)]
    if how == "one by one":
        for tenant, n in messages:
            q.send("q", [tenant, n], tenant=tenant)
    elif how == "batch":
        for tenant, number in numbers.items():
            q.send_many("q", [[tenant, n] for n in range(number)], tenant=tenant)
    elif how == "mixed batch":
        q.send_many("q", [[*m] for m in messages], tenants=[tenant for tenant, _ in messages])
    else:
        due = q.now() + timedelta(seconds=10)
        for tenant, number in numbers.items():
            q.send_many("q", [[tenant, n] for n in range(number)], tenant=tenant, deliver_after=due)
        clock.advance(11)
        q.maintain()
    order = taken(q, batch_size=batch_size)
    assert len(order) == 26
    rounds = [sorted(t for t, _ in group) for _, group in groupby(order, key=lambda message: message[1])]
    assert rounds == [["busy", "quiet", "some"], *[["busy", "some"]] * 4, *[["busy"]] * 15]


def test_a_newcomer_does_not_wait_for_a_backlog(q: Engine) -> None:
    q.send_many("q", list(range(500)), tenant="busy")
    q.send("q", "hello", tenant="quiet")
    assert "hello" in [m.payload for m in q.take_many("q", 2)]


@pytest.mark.parametrize("raised", [False, True])
def test_a_newcomer_does_not_wait_for_a_backlog_half_done(q: Engine, raised: bool) -> None:
    q.send_many("q", list(range(500)), tenant="busy")
    for message in q.take_many("q", 250):
        q.ack(message)
    if raised:
        assert q.value("raise_floor", "q")
    q.send("q", "hello", tenant="quiet")
    assert "hello" in [m.payload for m in q.take_many("q", 3)]


def test_no_tenant_saves_up_turns_while_away(q: Engine) -> None:
    q.send_many("q", list(range(100)), tenant="steady")
    taken(q, 50, 50)
    q.value("raise_floor", "q")
    q.send_many("q", ["back"] * 50, tenant="back")
    first = [m.payload for m in q.take_many("q", 20)]
    assert 8 <= first.count("back") <= 12


def test_messages_of_no_tenant_share_as_one_tenant(q: Engine) -> None:
    q.send("q", "acme", tenant="acme")
    q.send_many("q", ["untenanted"] * 20)
    q.send_many("q", ["acme"] * 2, tenant="acme")
    assert sorted([m.payload for m in q.take_many("q", 6)]) == ["acme"] * 3 + ["untenanted"] * 3


@pytest.mark.parametrize("gap", [0, 100])
@pytest.mark.parametrize("priority", [0, 2])
def test_what_waited_before_the_first_tenant_came_is_first_then_tenants_share(
    q: Engine, gap: int, priority: int
) -> None:
    # The ids of a queue have gaps where other queues are in use.
    q.queue("other")
    for n in range(5):
        q.send("q", n, priority=priority)
        q.send_many("other", list(range(gap)))
    q.send_many("q", ["busy"] * 300, tenant="busy", priority=priority)
    q.send("q", "quiet", tenant="quiet", priority=priority)
    q.send_many("q", ["untenanted"] * 3, priority=priority)
    first = [m.payload for m in q.take_many("q", 12)]
    assert first[:5] == list(range(5))
    assert sorted(first[5:]) == ["busy"] * 3 + ["quiet"] + ["untenanted"] * 3


@pytest.mark.parametrize("gap", [0, 100])
def test_failing_messages_take_every_second_delivery_of_what_waited_before_the_first_tenant(
    q: Engine, gap: int
) -> None:
    q.value("alter_queue", "q", max_delivery_attempts=0)
    q.queue("other")
    q.send_many("q", ["fails"] * 5)
    failing = q.take_many("q", 5)
    for _ in range(20):
        q.send("q", "old")
        q.send_many("other", list(range(gap)))
    q.send("q", "new", tenant="acme")
    for message in failing:
        q.nack(message)
    order: list[str] = []
    for _ in range(40):
        message = q.take("q")
        order.append(message.payload)
        if message.payload == "fails":
            q.nack(message)
    assert order.count("old") >= 18


@pytest.mark.parametrize("gap", [0, 1000])
def test_those_of_no_tenant_are_not_put_off_by_tenants_that_always_have_more(q: Engine, gap: int) -> None:
    q.queue("other")
    q.send("q", "untenanted")
    q.send_many("other", list(range(gap)))
    q.send("q", "untenanted")
    q.send_many("q", ["busy"] * 50, tenant="busy")
    q.send("q", "untenanted")
    order: list[str] = []
    for _ in range(60):
        q.send("q", "busy", tenant="busy")
        order.append(q.take("q").payload)
        q.value("raise_floor", "q")
    assert order.count("untenanted") == 3


def test_priority_goes_before_fairness(q: Engine) -> None:
    q.send_many("q", ["busy"] * 20, tenant="busy", priority=1)
    q.send("q", "quiet", tenant="quiet", priority=2)
    assert taken(q) == ["busy"] * 20 + ["quiet"]


@pytest.mark.parametrize("raise_every", [0, 1, 7])
def test_within_a_tenant_the_oldest_comes_first_whatever_happens_between(q: Engine, raise_every: int) -> None:
    sent: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    got: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    n = 0
    for step in range(60):
        tenant = "aabac"[step % 5]
        for _ in range(step % 3):
            n += 1
            q.send("q", n, tenant=tenant)
            sent[tenant].append(n)
        if raise_every and step % raise_every == 0:
            q.value("raise_floor", "q")
        if step % 2:
            for message in q.take_many("q", 1 + step % 2):
                got[message.tenant].append(message.payload)
                q.ack(message)
    while messages := q.take_many("q", 10):
        for message in messages:
            got[message.tenant].append(message.payload)
    assert got == sent


def test_delayed_messages_come_in_by_the_time_they_are_due(q: Engine, clock: Clock) -> None:
    start = q.now()
    for seconds in (50, 10, 40, 20, 30):
        q.send("q", seconds, deliver_after=start + timedelta(seconds=seconds))
    clock.advance(60)
    q.maintain()
    assert taken(q) == [10, 20, 30, 40, 50]


def test_a_delayed_message_comes_in_as_a_new_one(q: Engine, clock: Clock) -> None:
    q.send("q", "delayed", deliver_after=q.now() + timedelta(seconds=10))
    q.send_many("q", ["early 1", "early 2"])
    clock.advance(11)
    q.maintain()
    q.send("q", "late")
    assert taken(q) == ["early 1", "early 2", "delayed", "late"]
