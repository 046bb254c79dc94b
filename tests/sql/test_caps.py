"""max_active: exactly so many messages of a queue are active at the most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from ..conftest import Connect
from ..isolation.invariants import broken
from ..isolation.rewriting import rewrite
from .conftest import Clock
from .engine import Engine, Row
from .occupancy import active, alter, at_level, free_permits, take_all
from .test_caps_given_back import (
    ALL_URGENT,
    ack,
    ack_batch_of_several_tokens,
    nack,
    nack_with_delay,
    reject,
    release,
    urgent,
)


@pytest.fixture
def engine(engine18: Engine) -> Engine:
    """What differs from version to version is how rows are found: test_caps_given_back sees to that."""
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


strict = pytest.mark.parametrize("level", ["repeatable read", "serializable"])


# how many at once


@pytest.mark.parametrize("max_active", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("batch_size", [1, 100])
def test_no_more_are_active_than_max_active(engine: Engine, max_active: int, batch_size: int) -> None:
    engine.queue("q", max_active=max_active, **ALL_URGENT)
    urgent(engine, 60)
    taken: list[int] = []
    while messages := engine.take_many("q", batch_size):
        taken += [m.payload for m in messages]
    assert taken == list(range(max_active))
    assert active(engine) == {0: max_active}
    assert free_permits(engine) == {}


@pytest.mark.parametrize(
    ("max_active", "half"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (9, 4), (100, 50), (101, 50)]
)
def test_a_claim_takes_half_of_it_at_most(engine: Engine, max_active: int, half: int) -> None:
    engine.queue("q", max_active=max_active, **ALL_URGENT)
    urgent(engine, 120)
    assert len(engine.take_many("q", 1000)) == half


def test_a_claim_that_asks_for_less_than_half_gets_what_it_asks_for(engine: Engine) -> None:
    engine.queue("q", max_active=100, **ALL_URGENT)
    urgent(engine)
    assert len(engine.take_many("q", 3)) == 3
    assert free_permits(engine) == {0: 97}


def test_a_claim_takes_the_most_urgent_that_have_a_permit(engine: Engine) -> None:
    engine.queue("q", max_active=10)
    for priority in (3, 2, 1, 0):
        engine.send_many("q", [priority] * 5, priority=priority)
    claims = [[m.payload for m in engine.take_many("q", 100)] for _ in range(3)]
    assert claims == [[0, 0, 0, 0, 1], [1, 1, 2, 2, 3], []]


def test_the_share_of_an_empty_priority_is_not_lent(engine: Engine) -> None:
    engine.queue("q", max_active=10)
    for priority, permits in enumerate((4, 3, 2, 1)):
        engine.send_many("q", [priority] * 20, priority=priority)
        assert len(take_all(engine)) == permits
        assert engine.nothing_to_take("q")
        engine.value("purge_queue", "q")


def test_a_permit_that_comes_back_is_of_the_same_priority(engine: Engine) -> None:
    engine.queue("q", max_active=10)
    for priority in range(4):
        engine.send_many("q", [priority] * 20, priority=priority)
    held = take_all(engine)
    for message in held:
        engine.ack(message)
        assert [m.priority for m in take_all(engine)] == [message.priority]


def test_a_claim_that_finds_nothing_holds_nothing(engine: Engine) -> None:
    engine.queue("q", max_active=4)
    with engine.unchanged():
        assert engine.nothing_to_take("q")


# settings that change while messages are active


def test_a_cap_that_is_raised_holds_at_once(engine: Engine) -> None:
    engine.queue("q", max_active=2, **ALL_URGENT)
    urgent(engine)
    take_all(engine)
    alter(engine, max_active=6)
    assert free_permits(engine) == {0: 4}
    assert len(engine.take_many("q", 100)) == 3
    take_all(engine)
    assert active(engine) == {0: 6}


@pytest.mark.parametrize("settle", [ack, nack, nack_with_delay, release, reject, ack_batch_of_several_tokens])
def test_a_cap_that_is_lowered_delivers_nothing_until_enough_are_settled(
    engine: Engine, settle: Callable[[Engine, Row], None]
) -> None:
    engine.queue("q", max_active=6, **ALL_URGENT)
    urgent(engine)
    held = take_all(engine)
    alter(engine, max_active=2)
    assert active(engine) == {0: 6}
    for n, message in enumerate(held[:4], 1):
        assert engine.nothing_to_take("q")
        settle(engine, message)
        assert active(engine) == {0: 6 - n}
    assert engine.nothing_to_take("q")
    settle(engine, held[4])
    assert len(take_all(engine)) == 1
    assert active(engine) == {0: 2}


def test_a_cap_that_is_lowered_takes_free_permits_first(engine: Engine) -> None:
    engine.queue("q", max_active=6, **ALL_URGENT)
    urgent(engine)
    held = engine.take_many("q", 3)
    alter(engine, max_active=4)
    assert free_permits(engine) == {0: 1}
    alter(engine, max_active=1)
    assert free_permits(engine) == {0: -2}
    engine.values("ack_messages", "q", [m.message_id for m in held], [held[0].consumer_token] * 3)
    assert free_permits(engine) == {0: 1}


def test_a_cap_that_is_lowered_and_raised_again(engine: Engine) -> None:
    engine.queue("q", max_active=6, **ALL_URGENT)
    urgent(engine)
    held = take_all(engine)
    alter(engine, max_active=2)
    engine.ack(held[0])
    assert free_permits(engine) == {0: -3}
    alter(engine, max_active=4)
    assert free_permits(engine) == {0: -1}
    alter(engine, max_active=6)
    assert len(take_all(engine)) == 1
    alter(engine, max_active=8)
    assert len(take_all(engine)) == 2
    assert active(engine) == {0: 8}


@pytest.mark.parametrize("by", ["consume", "maintain"])
def test_leases_that_are_over_repay_debts(engine: Engine, clock: Clock, by: str) -> None:
    engine.queue("q", max_active=6, **ALL_URGENT)
    urgent(engine)
    take_all(engine, vt_seconds=10)
    alter(engine, max_active=2)
    clock.advance(11)
    if by == "maintain":
        engine.maintain()
    assert len(engine.take_many("q", 10)) == 1
    assert len(take_all(engine)) == 1
    assert active(engine) == {0: 2}


def test_purge_repays_debts(engine: Engine) -> None:
    engine.queue("q", max_active=6, **ALL_URGENT)
    urgent(engine)
    take_all(engine)
    alter(engine, max_active=2)
    engine.value("purge_queue", "q")
    assert free_permits(engine) == {0: 2}


@strict
@pytest.mark.parametrize("settle", [ack, nack_with_delay, reject])
def test_what_is_settled_under_an_old_snapshot_repays_debts_too(
    engine: Engine, connect: Connect, level: str, settle: Callable[[Engine, Row], None]
) -> None:
    engine.queue("q", max_active=6, **ALL_URGENT)
    urgent(engine)
    held = take_all(engine)
    alter(engine, max_active=2)
    strictly = at_level(connect, level)
    for message in held[:4]:
        settle(strictly, message)
        assert engine.nothing_to_take("q")
    settle(strictly, held[4])
    assert len(take_all(engine)) == 1
    assert active(engine) == {0: 2}


@pytest.mark.parametrize(("cap", "then"), [(10, 5), (5, 0), (3, 0), (1, 0)])
def test_what_is_active_when_a_queue_gets_a_cap_holds_permits(engine: Engine, cap: int, then: int) -> None:
    engine.queue("q")
    urgent(engine)
    held = engine.take_many("q", 5)
    alter(engine, max_active=cap, **ALL_URGENT)
    assert len(take_all(engine)) == then
    for message in held:
        engine.ack(message)
    take_all(engine)
    assert active(engine) == {0: cap}


def test_what_is_active_when_a_queue_gets_shares_holds_those_of_its_priority(engine: Engine) -> None:
    engine.queue("q")
    for priority in range(4):
        engine.send_many("q", [priority] * 10, priority=priority)
    held = engine.take_many("q", 13)
    assert active(engine) == {0: 10, 1: 3}
    alter(engine, max_active=10)
    assert free_permits(engine) == {0: -3}, "3 of priority 0 hold permits of priorities 2 and 3"
    assert take_all(engine) == [], "13 are active, more than in all"
    engine.values("ack_messages", "q", [m.message_id for m in held], [held[0].consumer_token] * 13)
    take_all(engine)
    assert active(engine) == {1: 3, 2: 2, 3: 1}


def test_a_cap_that_is_taken_away_and_set_again(engine: Engine) -> None:
    engine.queue("q", max_active=2, **ALL_URGENT)
    urgent(engine)
    first = take_all(engine)
    alter(engine, max_active=0)
    assert engine.settings("q").max_active is None
    assert engine.count("permits") == 0
    second = engine.take_many("q", 4)
    assert len(second) == 4
    engine.ack(first[0])
    assert engine.count("permits") == 0
    alter(engine, max_active=4)
    assert free_permits(engine) == {0: -1}
    assert engine.nothing_to_take("q")
    engine.ack(first[1])
    engine.ack(second[0])
    assert len(take_all(engine)) == 1
    assert active(engine) == {0: 4}


def test_debts_are_forgotten_when_the_cap_is_taken_away(engine: Engine) -> None:
    engine.queue("q", max_active=6, **ALL_URGENT)
    urgent(engine)
    take_all(engine)
    alter(engine, max_active=1)
    alter(engine, max_active=0)
    assert engine.count("permits") == 0
    assert len(engine.take_many("q", 8)) == 8


def test_from_pooled_to_shares_and_back(engine: Engine) -> None:
    engine.queue("q", max_active=3)
    for priority in (3, 2, 1, 0):
        engine.send_many("q", [priority] * 10, priority=priority)
    pooled = take_all(engine)
    assert [m.payload for m in pooled] == [0, 0, 0]
    alter(engine, max_active=10)
    shared = take_all(engine)
    assert [m.payload for m in shared] == [0, 1, 1, 1, 2, 2, 3]
    for message in pooled:
        engine.ack(message)
    more = take_all(engine)
    assert active(engine) == {0: 4, 1: 3, 2: 2, 3: 1}
    alter(engine, max_active=3)
    for message in (*shared, *more):
        assert sum(active(engine).values()) == 3 or engine.nothing_to_take("q")
        engine.ack(message)
        take_all(engine)
        assert sum(active(engine).values()) >= 3
    assert sum(active(engine).values()) == 3


@pytest.mark.parametrize("max_active", [2, 3])
def test_what_holds_shares_counts_when_too_few_are_left_to_divide(engine: Engine, max_active: int) -> None:
    """However the permits were divided when messages took theirs, no more are active than max_active."""
    engine.queue("q", max_active=10)
    for priority in range(4):
        engine.send_many("q", [priority] * 10, priority=priority)
    held = take_all(engine)
    alter(engine, max_active=max_active)
    for message in held:
        before = sum(active(engine).values())
        taken = take_all(engine)
        assert before + len(taken) <= max(before, max_active)
        engine.ack(message)
    take_all(engine)
    assert sum(active(engine).values()) == max_active


def test_a_pooled_cap_that_gets_shares_is_never_exceeded_in_all(engine: Engine) -> None:
    engine.queue("q", max_active=3)
    engine.send_many("q", ["normal"] * 20)
    held = take_all(engine)
    alter(engine, max_active=4)
    taken = take_all(engine)
    assert len(held) + len(taken) <= 4
    for message in held:
        engine.ack(message)
    take_all(engine)
    assert active(engine) == {2: 1}


def test_min_active_is_changed(engine: Engine) -> None:
    engine.queue("q", max_active=20, min_active=0)
    for priority in range(4):
        engine.send_many("q", [priority] * 20, priority=priority)
    held = take_all(engine)
    assert active(engine) == {0: 8, 1: 6, 2: 4, 3: 2}
    alter(engine, min_active=5)
    assert free_permits(engine) == {}
    for message in held[:9]:
        engine.ack(message)
        take_all(engine)
    assert active(engine) == {0: 5, 1: 5, 2: 5, 3: 5}


def test_priority_shares_are_changed(engine: Engine) -> None:
    engine.queue("q", max_active=10)
    for priority in range(4):
        engine.send_many("q", [priority] * 20, priority=priority)
    held = take_all(engine)
    alter(engine, priority_shares=[10, 20, 30, 40])
    assert free_permits(engine) == {}
    for message in held:
        engine.ack(message)
        take_all(engine)
    assert active(engine) == {0: 1, 1: 2, 2: 3, 3: 4}


@pytest.mark.parametrize(
    "settings",
    [{"min_active": 5}, {"priority_shares": [10, 20, 30, 40]}, {"max_active": 8}],
    ids=lambda settings: next(iter(settings)),
)
def test_no_more_are_active_in_all_than_max_active_while_shares_change(
    engine: Engine, settings: dict[str, Any]
) -> None:
    """Nor than were active when it was lowered: a priority that holds too many does not fill up again."""
    engine.queue("q", max_active=20, min_active=0)
    for priority in range(4):
        engine.send_many("q", [priority] * 40, priority=priority)
    held = take_all(engine)
    alter(engine, **settings)
    most = engine.settings("q").max_active
    bound = max(len(held), most)
    for message in held:
        taken = take_all(engine)
        debts = -sum(n for n in free_permits(engine).values() if n < 0)
        assert sum(active(engine).values()) <= most + debts <= bound
        assert all(m.priority not in free_permits(engine) for m in taken), "delivered in spite of a debt"
        bound = most + debts
        engine.ack(message)
    take_all(engine)
    assert sum(active(engine).values()) == most


def test_a_priority_within_its_share_is_served_while_another_is_over_its_own(engine: Engine) -> None:
    """In all, never more are active than when the cap was lowered."""
    engine.queue("q", max_active=20, min_active=0)
    for priority in (0, 1):
        engine.send_many("q", [priority] * 40, priority=priority)
    held = {0: engine.take_many("q", 8), 1: engine.take_many("q", 3)}
    assert active(engine) == {0: 8, 1: 3}
    alter(engine, max_active=10)
    assert free_permits(engine) == {0: -1}
    assert take_all(engine) == []
    engine.ack(held[1][0])
    assert [m.payload for m in take_all(engine)] == [1]
    assert active(engine) == {0: 8, 1: 3}
    for n, message in enumerate(held[0], 1):
        engine.ack(message)
        take_all(engine)
        assert sum(active(engine).values()) <= 11 - min(n, 4)
    assert active(engine) == {0: 4, 1: 3}


def test_settings_that_do_not_concern_caps_leave_permits_alone(engine: Engine) -> None:
    engine.queue("q", max_active=10)
    urgent(engine)
    take_all(engine)
    before = engine.snapshot()["permits"]
    alter(engine, visibility_timeout_seconds=5, notify=False)
    alter(engine, max_active=10, min_active=5, priority_shares=[40, 30, 20, 10])
    alter(engine, min_active=3)
    assert engine.snapshot()["permits"] == before


def test_an_alter_that_is_rolled_back_changes_no_permits(engine: Engine) -> None:
    engine.queue("q", max_active=4, **ALL_URGENT)
    urgent(engine)
    take_all(engine)
    for settings in ({"max_active": 9}, {"max_active": 1}, {"max_active": 0}, {"priority_shares": [25] * 4}):
        with engine.unchanged(), engine.connection.transaction(force_rollback=True):
            alter(engine, **settings)


# queues


def test_create_queue_again_with_the_same_caps_changes_nothing(engine: Engine) -> None:
    settings: dict[str, Any] = {"max_active": 10, "min_active": 2, "priority_shares": [25, 25, 25, 25]}
    engine.queue("q", **settings)
    urgent(engine)
    take_all(engine)
    with engine.unchanged():
        engine.queue("q", **settings)
    for other in ({"max_active": 11}, {"min_active": 3}, {"priority_shares": [40, 30, 20, 10]}):
        with engine.refused("PN003", next(iter(other))):
            engine.queue("q", **settings | other)


def test_max_active_0_is_no_cap(engine: Engine) -> None:
    engine.queue("q", max_active=0)
    urgent(engine)
    assert len(engine.take_many("q", 100)) == 20
    assert engine.count("permits") == 0
    engine.queue("q")


def test_delete_queue_leaves_nothing_behind(engine: Engine) -> None:
    engine.queue("q", max_active=4, tenant_max_active=2)
    engine.send_many("q", list(range(20)), tenants=["a", "b"] * 10)
    take_all(engine)
    alter(engine, max_active=1, tenant_max_active=1)
    engine.value("delete_queue", "q")
    for table in ("queues", "permits", "tenants", "waiting", "ready", "active", "floors"):
        assert engine.count(table) == 0, table
    engine.queue("q", max_active=4, **ALL_URGENT)
    urgent(engine)
    assert len(take_all(engine)) == 4


def test_an_exclusive_queue_that_ends_leaves_nothing_behind(engine: Engine, clock: Clock) -> None:
    engine.queue("q", exclusive=True, keep_alive_seconds=60, max_active=4, tenant_max_active=2)
    engine.send_many("q", list(range(20)), tenants=["a", "b"] * 10)
    take_all(engine)
    clock.advance(61)
    assert engine.maintain_all()["exclusive queue deleted"] == 1
    for table in ("queues", "permits", "tenants", "waiting", "ready", "active", "floors"):
        assert engine.count(table) == 0, table


def test_a_paused_queue_takes_permits_back_but_gives_none(engine: Engine) -> None:
    engine.queue("q", max_active=2)
    urgent(engine)
    held = take_all(engine)
    engine.value("pause_queue", "q")
    engine.ack(held[0])
    assert engine.nothing_to_take("q")
    assert free_permits(engine) == {0: 1}
    engine.value("resume_queue", "q")
    assert len(take_all(engine)) == 1


def test_a_topic_fans_out_into_queues_with_and_without_a_cap(engine: Engine) -> None:
    engine.topic("t", "plain")
    engine.value("create_queue", "q", "t", max_active=2)
    engine.value("create_queue", "r", "t", max_active=10)
    for n in range(6):
        engine.publish("t", n)
    assert [m.payload for m in take_all(engine)] == [0, 1]
    assert [m.payload for m in take_all(engine, "r")] == [0, 1]
    plain = take_all(engine, "plain")
    assert [m.payload for m in plain] == list(range(6))
    for message in plain:
        engine.ack(message)
    assert (active(engine), active(engine, "r")) == ({2: 2}, {2: 2})
    assert (free_permits(engine), free_permits(engine, "r")) == ({}, {0: 4, 1: 3, 3: 1})


def test_queues_do_not_share_permits(engine: Engine) -> None:
    for queue in ("q", "r"):
        engine.queue(queue, max_active=2)
        engine.send_many(queue, list(range(5)))
    held = take_all(engine)
    assert len(take_all(engine, "r")) == 2
    engine.ack(held[0])
    assert engine.nothing_to_take("r")


def test_permits_come_back_where_nothing_is_kept(engine: Engine) -> None:
    engine.queue("q", max_active=2, retain_completed_seconds=0)
    urgent(engine)
    for _ in range(10):
        held = take_all(engine)
        assert len(held) == 2
        engine.values("ack_messages", "q", [m.message_id for m in held], [m.consumer_token for m in held])
    assert engine.count("done") == 0
    assert free_permits(engine) == {0: 2}


@strict
def test_a_permit_that_an_old_snapshot_gives_back_is_not_below_the_floor(
    engine: Engine, connect: Connect, level: str
) -> None:
    engine.queue("q", max_active=2)
    urgent(engine, 50)
    strictly = at_level(connect, level)
    held = take_all(engine)
    with strictly.connection.transaction():
        strictly.query("select 1 from pg_class limit 1")
        for message in held[:1]:
            engine.ack(message)
            engine.ack(engine.take("q"))
        engine.value("raise_floor", "q")
        engine.maintain()
        strictly.ack(held[1])
    assert broken(engine.connection) == []
    assert len(take_all(engine)) == 2


# what has no cap


def test_a_queue_without_a_cap_has_no_permits(engine: Engine, clock: Clock) -> None:
    engine.topic("t", "q", max_delivery_attempts=2)
    engine.send_many("q", list(range(20)), tenants=["a", None] * 10, priorities=[0, 1, 2, 3] * 5)
    engine.publish("t", "later", deliver_after=engine.now() + timedelta(seconds=10))
    one, two, three, four, *_ = engine.take_many("q", 12, vt_seconds=10)
    engine.ack(one)
    engine.nack(two)
    engine.release(three)
    engine.reject(four)
    alter(engine, min_active=1, priority_shares=[25, 25, 25, 25])
    clock.advance(11)
    engine.maintain_all()
    engine.take_many("q", 5)
    engine.value("requeue_dlq_messages", "q")
    for table in ("permits", "tenants", "waiting"):
        assert engine.count(table) == 0, table
    assert engine.query(
        "select count(*) from penstock.active where permit is not null or holds_tenant_permit"
    ) == [(0,)]


def test_permits_do_not_grow_with_use(engine: Engine) -> None:
    engine.queue("q", max_active=10)
    for n in range(30):
        engine.send_many("q", list(range(10)), priorities=[0, 0, 1, 1, 1, 2, 2, 3, 3, 0])
        for message in take_all(engine):
            (engine.ack if n % 2 else engine.release)(message)
    assert engine.count("permits") == 10


def test_no_other_error_than_ours(engine: Engine) -> None:
    """An unknown queue is named, also where a cap would have to be looked up."""
    for function in ("ack_message", "nack_message", "release_message", "reject_message"):
        with pytest.raises(psycopg.Error) as caught:
            engine.value(function, "none", 1, "t")
        assert caught.value.sqlstate == "PN001"


def test_an_alter_that_finds_the_queue_busy_gives_up_and_says_why(
    engine: Engine, sql18: psycopg.Connection[Any], connect18: Connect
) -> None:
    engine.queue("q", max_active=5)
    rewrite(sql18, "_lock_caps", "'60 seconds'", "'0.1 seconds'")
    publisher = connect18(autocommit=False)
    publisher.execute("select penstock.send_message('q', '1')")
    with engine.refused("55P03", "cannot be changed", "published"):
        alter(engine, max_active=6)
    publisher.rollback()
    alter(engine, max_active=6)


@strict
def test_a_cap_is_not_changed_under_a_snapshot_that_cannot_see_the_holders(
    engine: Engine, connect: Connect, level: str
) -> None:
    engine.queue("q", max_active=5)
    other = at_level(connect, level)
    with other.refused("PN006", "changing a cap", level.upper()):
        alter(other, max_active=6)
    alter(other, notify=False)
    assert engine.settings("q").max_active == 5
