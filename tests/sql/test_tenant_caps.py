"""tenant_max_active: so many messages of one tenant are ready or active, the others wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from ..conftest import Connect
from ..isolation.invariants import broken
from .conftest import Clock
from .engine import Engine, Row
from .occupancy import acme, alter, at_level, free_tenant_permits, let_in, standing, take_all

Settle = Callable[[Engine, Row], None]


@pytest.fixture
def engine(engine18: Engine) -> Engine:
    """What differs from version to version is how rows are found: the tests of max_active see to that."""
    return engine18


@pytest.fixture
def clock(clock18: Clock) -> Clock:
    return clock18


@pytest.fixture
def connect(connect18: Connect) -> Connect:
    return connect18


@pytest.fixture(autouse=True)
def nothing_is_broken(engine: Engine) -> Iterator[None]:
    """At the end of each test permits and debts add up, and all other invariants hold."""
    yield
    assert broken(engine.connection) == []


# which messages are ready, and which wait


@pytest.mark.parametrize("cap", [1, 2, 5])
@pytest.mark.parametrize("how", ["one by one", "batch", "mixed batch"])
@pytest.mark.parametrize("tenant", ["acme", None])
def test_so_many_of_a_tenant_are_ready_and_the_others_wait(
    engine: Engine, cap: int, how: str, tenant: str | None
) -> None:
    engine.queue("q", tenant_max_active=cap)
    if how == "one by one":
        for n in range(8):
            engine.send("q", n, tenant=tenant)
    elif how == "batch":
        engine.send_many("q", list(range(8)), tenant=tenant)
    else:
        engine.send_many("q", list(range(8)), tenants=[tenant] * 8)
    let_in(engine)
    assert standing(engine) == {"ready": list(range(cap)), "waiting": list(range(cap, 8))}
    assert [m.payload for m in take_all(engine)] == list(range(cap))
    assert standing(engine) == {"active": list(range(cap)), "waiting": list(range(cap, 8))}


def test_each_tenant_has_its_own_tenant_permits_and_those_of_no_tenant_have_theirs(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=2)
    tenants = ["a", "b", None, "c", "b", "a", None, None, "a", "a", "b"]
    engine.send_many("q", list(range(11)), tenants=tenants)
    assert Counter(m.tenant for m in take_all(engine)) == {"a": 2, "b": 2, None: 2, "c": 1}
    assert engine.count("waiting") == 4
    assert free_tenant_permits(engine) == {"c": 1}


def test_tenants_whose_names_look_alike_are_not_one(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    tenants = ["a", "A", "a ", " a", "á", "a\n", "0", "null", "NULL", "%", "a" * 255]
    engine.send_many("q", tenants, tenants=tenants)
    assert [m.payload for m in take_all(engine)] == tenants


def test_ready_and_active_count_together(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=3)
    acme(engine, *range(6))
    let_in(engine)
    held = engine.take_many("q", 2)
    assert standing(engine) == {"active": [0, 1], "ready": [2], "waiting": [3, 4, 5]}
    engine.ack(held[0])
    assert standing(engine) == {"active": [1], "ready": [2, 3], "waiting": [4, 5]}


def test_the_caps_of_queue_and_tenant_hold_together(engine: Engine) -> None:
    engine.queue("q", max_active=3, tenant_max_active=2)
    engine.send_many("q", list(range(12)), tenants=["a", "b", "c"] * 4)
    held = take_all(engine)
    assert len(held) == 3
    for _ in range(12):
        assert max(Counter(m.tenant for m in held).values()) <= 2
        engine.ack(held.pop(0))
        held += take_all(engine)
        if len(held) < 3:
            break
    while held:
        engine.ack(held.pop())
        held += take_all(engine)
    assert standing(engine) == {}


def test_one_batch_with_many_tenants(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=2)
    tenants = [f"t{n % 40}" for n in range(200)]
    engine.send_many("q", list(range(200)), tenants=tenants)
    let_in(engine)
    assert (engine.count("ready"), engine.count("waiting")) == (80, 120)
    got: list[int] = []
    while held := engine.take_many("q", 17):
        got += [m.payload for m in held]
        ids, tokens = [m.message_id for m in held], [m.consumer_token for m in held]
        assert len(engine.values("ack_messages", "q", ids, tokens)) == len(held)
    assert sorted(got) == list(range(200))
    for tenant in range(40):
        of_tenant = [n for n in got if n % 40 == tenant]
        assert of_tenant == sorted(of_tenant)


# the order in which they come in


def test_the_most_urgent_come_in_first_then_the_oldest(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    acme(engine, "first")
    let_in(engine)
    for payload, priority in (("c", 2), ("d", 3), ("a", 0), ("c2", 2), ("b", 1), ("a2", 0)):
        acme(engine, payload, priority=priority)
    order = []
    while held := take_all(engine):
        order += [m.payload for m in held]
        engine.ack(held[0])
    assert order == ["first", "a", "a2", "b", "c", "c2", "d"]


def test_those_that_come_back_come_in_before_those_that_are_new(engine: Engine, clock: Clock) -> None:
    engine.queue("q", tenant_max_active=1)
    acme(engine, "retried", "taken", "new 1", "new 2")
    engine.nack(engine.take("q"), delay_seconds=10)
    held = engine.take("q")
    assert held.payload == "taken"
    clock.advance(11)
    engine.maintain()
    assert standing(engine) == {"active": ["taken"], "waiting": ["retried", "new 1", "new 2"]}
    acme(engine, "urgent", priority=1)
    order = []
    while True:
        engine.ack(held)
        if not (more := take_all(engine)):
            break
        (held,) = more
        order.append(held.payload)
    assert order == ["urgent", "retried", "new 1", "new 2"]


@pytest.mark.parametrize("batch_size", [1, 10])
def test_a_cap_of_one_is_an_ordered_group(engine: Engine, batch_size: int) -> None:
    """One after the other, strictly: the next is not delivered before the one before it is settled."""
    engine.queue("q", tenant_max_active=1, max_delivery_attempts=0)
    sent: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    done: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for n in range(40):
        tenant = "aabac"[n % 5]
        engine.send("q", n, tenant=tenant)
        sent[tenant].append(n)
    turn = 0
    while held := engine.take_many("q", batch_size):
        assert len({m.tenant for m in held}) == len(held)
        for message in held:
            turn += 1
            if turn % 5 == 0:
                engine.nack(message, delay_seconds=0)
            elif turn % 7 == 0:
                engine.release(message)
            else:
                engine.ack(message)
                done[message.tenant].append(message.payload)
            if turn % 3 == 0:
                engine.maintain()
            if turn < 60 and turn % 2:
                engine.send("q", 1000 + turn, tenant=message.tenant)
                sent[message.tenant].append(1000 + turn)
    assert done == sent


def test_one_that_is_published_does_not_overtake_one_that_waits(engine: Engine, connect: Connect) -> None:
    """A free tenant permit belongs to the message that waits, not to the next one published."""
    engine.queue("q", tenant_max_active=1)
    acme(engine, "before")
    engine.ack(engine.take("q"))
    strictly = at_level(connect, "repeatable read")
    acme(strictly, "first")
    assert standing(engine) == {"waiting": ["first"]}
    acme(engine, "second")
    assert engine.take("q").payload == "first"


# how a tenant permit is handed on


def ack(engine: Engine, message: Row) -> None:
    assert engine.ack(message)


def ack_batch_of_several_tokens(engine: Engine, message: Row) -> None:
    tokens = ["no_holder", message.consumer_token]
    assert engine.values("ack_messages", "q", [999, message.message_id], tokens) == [message.message_id]


def nack_with_delay(engine: Engine, message: Row) -> None:
    assert engine.nack(message, delay_seconds=60)


def nack_on_the_last_attempt(engine: Engine, message: Row) -> None:
    alter(engine, max_delivery_attempts=1)
    assert engine.nack(message)


def reject(engine: Engine, message: Row) -> None:
    assert engine.reject(message)


HANDING_ON: list[Settle] = [
    ack,
    ack_batch_of_several_tokens,
    nack_with_delay,
    nack_on_the_last_attempt,
    reject,
]


@pytest.mark.parametrize("retain", [0, 60])
@pytest.mark.parametrize("settle", HANDING_ON)
@pytest.mark.parametrize("tenant", ["acme", None])
def test_a_tenant_permit_is_handed_on_at_once(
    engine: Engine, settle: Settle, tenant: str | None, retain: int
) -> None:
    engine.queue("q", tenant_max_active=1, retain_completed_seconds=retain)
    engine.send_many("q", [1, 2, 3], tenant=tenant)
    settle(engine, engine.take("q"))
    found = standing(engine)
    assert (found["ready"], found["waiting"]) == ([2], [3])
    settle(engine, engine.take("q"))
    settle(engine, engine.take("q"))
    assert free_tenant_permits(engine) == {tenant: 1}


@pytest.mark.parametrize("settle", HANDING_ON)
def test_a_tenant_permit_is_not_handed_on_by_a_rollback(
    engine: Engine, connect: Connect, settle: Settle
) -> None:
    engine.queue("q", tenant_max_active=1)
    acme(engine, 1, 2)
    message = engine.take("q")
    other = Engine(connect())
    with engine.connection.transaction(force_rollback=True):
        settle(engine, message)
        assert standing(engine)["ready"] == [2]
        assert other.nothing_to_take("q")
    assert standing(engine) == {"active": [1], "waiting": [2]}
    assert other.nothing_to_take("q")


@pytest.mark.parametrize("settle", ["release", "nack"])
def test_one_that_is_ready_again_at_once_keeps_its_tenant_permit(engine: Engine, settle: str) -> None:
    engine.queue("q", tenant_max_active=1)
    acme(engine, 1, 2)
    message = engine.take("q")
    assert engine.release(message) if settle == "release" else engine.nack(message, delay_seconds=0)
    assert standing(engine) == {"ready": [1], "waiting": [2]}
    assert [m.payload for m in take_all(engine)] == [1]


@pytest.mark.parametrize("attempts", [1, 3], ids=["last attempt", "more attempts"])
@pytest.mark.parametrize("retry_delay", [0, 60])
@pytest.mark.parametrize("by", ["consume", "maintain"])
def test_a_lease_that_is_over_hands_its_tenant_permit_on(
    engine: Engine, clock: Clock, by: str, retry_delay: int, attempts: int
) -> None:
    engine.queue("q", tenant_max_active=2, max_delivery_attempts=attempts, retry_delays=[retry_delay])
    acme(engine, *range(6))
    assert len(take_all(engine, vt_seconds=10)) == 2
    assert engine.nothing_to_take("q")
    clock.advance(11)
    if by == "maintain":
        engine.maintain()
    expected = [0, 1] if attempts == 3 and retry_delay == 0 else [2, 3]
    assert [m.payload for m in take_all(engine)] == expected


@pytest.mark.parametrize("settle", [*HANDING_ON, None])
def test_a_stale_token_hands_nothing_on(engine: Engine, clock: Clock, settle: Settle | None) -> None:
    engine.queue("q", tenant_max_active=1)
    acme(engine, 1, 2)
    message = engine.take("q")
    if settle is None:
        assert engine.value("pulse", message.consumer_token, 60) == 1
        assert engine.value("extend_message_vt", "q", message.message_id, message.consumer_token, 5)
    else:
        stale = Row(**vars(message) | {"consumer_token": "no_holder"})
        with pytest.raises(AssertionError):
            settle(engine, stale)
    assert standing(engine) == {"active": [1], "waiting": [2]}


def test_a_tenant_permit_is_free_where_no_message_waits(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=3)
    acme(engine, 1)
    let_in(engine)
    assert free_tenant_permits(engine) == {"acme": 2}
    engine.ack(engine.take("q"))
    assert free_tenant_permits(engine) == {"acme": 3}
    acme(engine, *range(5))
    assert free_tenant_permits(engine) == {}


# what comes in by other ways


def test_delayed_messages_take_tenant_permits_when_they_are_due(engine: Engine, clock: Clock) -> None:
    engine.queue("q", tenant_max_active=2)
    due = engine.now() + timedelta(seconds=10)
    acme(engine, "d1", "d2", "d3", deliver_after=due)
    acme(engine, "now")
    let_in(engine)
    assert standing(engine) == {"ready": ["now"], "scheduled": ["d1", "d2", "d3"]}
    clock.advance(11)
    assert engine.maintain()["promoted"] == 3
    assert standing(engine) == {"ready": ["now", "d1"], "waiting": ["d2", "d3"]}
    order = []
    while held := take_all(engine):
        order += [m.payload for m in held]
        for message in held:
            engine.ack(message)
    assert order == ["now", "d1", "d2", "d3"]


def test_delayed_messages_that_are_due_are_found_by_consume(engine: Engine, clock: Clock) -> None:
    engine.queue("q", tenant_max_active=2)
    acme(engine, 1, 2, 3, deliver_after=engine.now() + timedelta(seconds=10))
    clock.advance(11)
    assert [m.payload for m in engine.take_many("q", 10)] == [1, 2]
    assert standing(engine) == {"active": [1, 2], "waiting": [3]}


def test_retries_take_tenant_permits_when_they_are_due(engine: Engine, clock: Clock) -> None:
    engine.queue("q", tenant_max_active=1, retry_delays=[10], max_delivery_attempts=0)
    acme(engine, 1, 2, 3)
    for _ in range(3):
        engine.nack(engine.take("q"))
    assert standing(engine) == {"scheduled": [1, 2, 3]}
    assert free_tenant_permits(engine) == {"acme": 1}
    clock.advance(11)
    engine.maintain()
    assert standing(engine) == {"ready": [1], "waiting": [2, 3]}
    assert [m.delivery_attempts for m in take_all(engine)] == [2]


@pytest.mark.parametrize("bring_back", [("requeue_dlq_messages",), ("add_retries", 2)])
def test_dead_letters_that_come_back_take_tenant_permits_or_wait(
    engine: Engine, bring_back: tuple[Any, ...]
) -> None:
    engine.queue("q", tenant_max_active=2, max_delivery_attempts=1)
    engine.send_many("q", list(range(8)), tenants=["a", "b"] * 4)
    while held := take_all(engine):
        for message in held:
            engine.nack(message)
    assert standing(engine) == {"dead": list(range(8))}
    assert engine.value(bring_back[0], "q", *bring_back[1:]) == 8
    found = standing(engine)
    assert (sorted(found["ready"]), sorted(found["waiting"])) == ([0, 1, 2, 3], [4, 5, 6, 7])
    order: dict[str, list[int]] = {"a": [], "b": []}
    while held := take_all(engine):
        for message in held:
            order[message.tenant].append(message.payload)
            engine.ack(message)
    assert order == {"a": [0, 2, 4, 6], "b": [1, 3, 5, 7]}


def test_dead_letters_wait_behind_what_waits(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1, max_delivery_attempts=1)
    acme(engine, "dead", "held", "waits")
    engine.reject(engine.take("q"))
    held = engine.take("q")
    engine.value("requeue_dlq_messages", "q")
    assert standing(engine) == {"active": ["held"], "waiting": ["waits", "dead"]}
    engine.ack(held)
    assert engine.take("q").payload == "waits"


def test_a_topic_fans_out_into_queues_with_and_without_a_cap(engine: Engine) -> None:
    engine.topic("t", "plain")
    engine.value("create_queue", "q", "t", tenant_max_active=1)
    engine.value("create_queue", "r", "t", tenant_max_active=3)
    large = "x" * 5000
    for n in range(4):
        engine.publish("t", [n, large], tenant="acme", dedup_key=f"k{n}")
    for queue, number in (("plain", 4), ("q", 1), ("r", 3)):
        assert [m.payload for m in take_all(engine, queue)] == [[n, large] for n in range(number)]
    assert engine.publish("t", "refused", dedup_key="k3") < engine.publish("t", "not refused")
    for queue in ("plain", "q", "r"):
        engine.value("purge_queue", queue)
    engine.maintain_all()
    assert (engine.count("payloads"), engine.held_keys()) == (0, 0)


# what happens to those that wait


@pytest.mark.parametrize("by", ["consume", "maintain"])
def test_the_time_to_live_of_what_waits(engine: Engine, clock: Clock, by: str) -> None:
    engine.queue("q", tenant_max_active=1)
    acme(engine, "held")
    acme(engine, "short 1", "short 2", ttl_seconds=10, dedup_keys=["a", None])
    acme(engine, "long")
    held = engine.take("q", vt_seconds=1000)
    clock.advance(11)
    if by == "maintain":
        engine.maintain_all()
        assert standing(engine) == {"active": ["held"], "waiting": ["long"], "dead": ["short 1", "short 2"]}
        assert engine.held_keys() == 0
    engine.ack(held)
    assert [m.payload for m in take_all(engine)] == ["long"]
    engine.maintain_all()
    assert standing(engine) == {"active": ["long"], "dead": ["short 1", "short 2"]}
    assert {letter.reason for letter in engine.rows("list_dlq_messages")} == {"expired"}


@pytest.mark.parametrize("by", ["consume", "maintain"])
def test_one_whose_time_to_live_is_over_hands_its_tenant_permit_on(
    engine: Engine, clock: Clock, by: str
) -> None:
    """A consume that finds nothing but what is over looks again, and gets the next."""
    engine.queue("q", tenant_max_active=1)
    acme(engine, "short", ttl_seconds=10)
    acme(engine, "next", "waits")
    clock.advance(11)
    if by == "maintain":
        assert engine.maintain_all()["expired"] == 1
    assert [m.payload for m in engine.take_many("q", 10)] == ["next"]
    engine.maintain_all()
    assert standing(engine) == {"active": ["next"], "waiting": ["waits"], "dead": ["short"]}


def test_one_that_waits_is_cancelled(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    large = "x" * 5000
    (one,) = acme(engine, 1)
    let_in(engine)
    (two,) = acme(engine, large, dedup_key="k")
    acme(engine, 3)
    assert engine.value("cancel_message", "q", two) is True
    assert engine.value("cancel_message", "q", two) is False
    assert standing(engine) == {"ready": [1], "waiting": [3]}
    assert engine.value("cancel_message", "q", one) is True
    assert standing(engine) == {"ready": [3]}
    engine.maintain_all()
    assert (engine.count("payloads"), engine.held_keys()) == (0, 0)


def test_one_that_is_ready_and_cancelled_hands_its_tenant_permit_on(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=2)
    ids = acme(engine, *range(5))
    let_in(engine)
    assert engine.value("cancel_message", "q", ids[1]) is True
    assert standing(engine) == {"ready": [0, 2], "waiting": [3, 4]}
    for message_id in ids:
        engine.value("cancel_message", "q", message_id)
    assert standing(engine) == {}
    assert free_tenant_permits(engine) == {"acme": 2}


def test_the_dedup_key_of_what_waits_is_held(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    acme(engine, 1)
    (waits,) = acme(engine, 2, dedup_key="k")
    assert acme(engine, 3, dedup_key="k") == [waits]
    assert engine.send("q", 4, dedup_key="k") == waits
    engine.ack(engine.take("q"))
    message = engine.take("q")
    assert message.message_id == waits
    assert engine.send("q", 5, dedup_key="k") == waits
    engine.ack(message)
    assert engine.send("q", 6, dedup_key="k") > waits


def test_a_key_that_is_refused_takes_no_tenant_permit(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=2)
    acme(engine, 1, dedup_key="k")
    let_in(engine)
    for _ in range(5):
        acme(engine, "refused", dedup_key="k")
    assert free_tenant_permits(engine) == {"acme": 1}
    acme(engine, 2, "refused", 3, dedup_keys=["l", "k", "m"])
    assert standing(engine) == {"ready": [1, 2], "waiting": [3]}


def test_what_waits_keeps_all_it_has(engine: Engine, clock: Clock) -> None:
    engine.queue("q", tenant_max_active=1)
    acme(engine, "first")
    let_in(engine)
    large = {"text": "x" * 5000}
    sent = engine.now()
    engine.send("q", large, tenant="acme", headers={"h": 1}, priority=1, ttl_seconds=600)
    engine.send_body("q", b"\x00raw", tenant="acme", priority=2, headers={"h": 2})
    clock.advance(60)
    engine.ack(engine.take("q"))
    message = engine.take("q")
    assert (message.payload, message.headers, message.priority, message.tenant) == (
        large,
        {"h": 1},
        1,
        "acme",
    )
    assert (message.delivery_attempts, abs(message.published_at - sent) < timedelta(seconds=5)) == (1, True)
    engine.ack(message)
    last = engine.take("q")
    assert (last.body, last.headers, last.payload) == (b"\x00raw", {"h": 2}, None)


def test_errors_and_attempts_of_what_waits_are_kept(engine: Engine, clock: Clock) -> None:
    engine.queue("q", tenant_max_active=1, retry_delays=[5], max_delivery_attempts=3)
    first, _ = acme(engine, 1, 2)
    engine.nack(engine.take("q"), error="one")
    held = engine.take("q")
    clock.advance(6)
    engine.maintain()
    assert standing(engine) == {"active": [2], "waiting": [1]}
    engine.ack(held)
    engine.nack(engine.take("q"), error="two")
    clock.advance(6)
    engine.nack(engine.take("q"), error="three")
    (letter,) = engine.rows("list_dlq_messages", "q")
    assert (letter.message_id, letter.delivery_attempts) == (first, 3)
    assert [error["error"] for error in letter.errors] == ["one", "two", "three"]


@pytest.mark.parametrize("purge", ["purge_queue", "purge_all_messages"])
def test_purge_takes_what_waits_and_gives_all_tenant_permits_back(engine: Engine, purge: str) -> None:
    engine.queue("q", tenant_max_active=2)
    large = "x" * 5000
    engine.send_many("q", [large] * 10, tenants=["a", "b"] * 5, dedup_keys=[str(n) for n in range(10)])
    engine.take("q")
    counted = engine.value(purge, *(["q"] if purge == "purge_queue" else []))
    assert counted == (10 if purge == "purge_queue" else None)  # null: all queues are purged
    assert standing(engine) == {}
    engine.maintain_all()
    assert (engine.count("payloads"), engine.held_keys()) == (0, 0)
    engine.send_many("q", list(range(10)), tenants=["a", "b"] * 5)
    assert len(take_all(engine)) == 4


def test_what_is_purged_cannot_be_settled(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    acme(engine, 1, 2)
    message = engine.take("q")
    engine.value("purge_queue", "q")
    acme(engine, 3, 4)
    let_in(engine)
    assert not engine.ack(message)
    assert standing(engine) == {"ready": [3], "waiting": [4]}
