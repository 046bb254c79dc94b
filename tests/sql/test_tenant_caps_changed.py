"""tenant_max_active that is changed, isolation levels that cannot see the first in line, upkeep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from ..conftest import Connect
from ..isolation.invariants import broken
from .engine import Engine
from .occupancy import acme, alter, at_level, free_tenant_permits, let_in, standing, take_all


@pytest.fixture
def engine(engine18: Engine) -> Engine:
    """What differs from version to version is how rows are found: the tests of max_active see to that."""
    return engine18


@pytest.fixture
def connect(connect18: Connect) -> Connect:
    return connect18


@pytest.fixture(autouse=True)
def nothing_is_broken(engine: Engine) -> Iterator[None]:
    """At the end of each test permits and debts add up, and all other invariants hold."""
    yield
    assert broken(engine.connection) == []


strict = pytest.mark.parametrize("level", ["repeatable read", "serializable"])


# the cap is changed


def test_a_cap_that_is_raised_lets_more_in(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    engine.send_many("q", list(range(10)), tenants=["a", "b"] * 5)
    alter(engine, tenant_max_active=3)
    taken = take_all(engine)
    assert sorted(m.payload for m in taken) == list(range(6))
    assert Counter(m.tenant for m in taken) == {"a": 3, "b": 3}


def test_a_lowered_cap_admits_no_message_until_enough_are_settled(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=4)
    acme(engine, *range(10))
    held = take_all(engine)
    alter(engine, tenant_max_active=2)
    engine.maintain()
    acme(engine, "more")
    assert engine.nothing_to_take("q")
    for message in held[:2]:
        engine.ack(message)
        assert engine.nothing_to_take("q")
    engine.ack(held[2])
    assert [m.payload for m in take_all(engine)] == [4]
    assert engine.query("select count(*) from penstock.active") == [(2,)]


def test_a_cap_that_is_lowered_leaves_what_is_ready(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=4)
    acme(engine, *range(8))
    let_in(engine)
    alter(engine, tenant_max_active=2)
    held = engine.take_many("q", 4)
    assert [m.payload for m in held] == [0, 1, 2, 3]
    for message in held[:2]:
        engine.ack(message)
        assert "ready" not in standing(engine)
    for message in held[2:]:
        engine.ack(message)
    assert standing(engine) == {"ready": [4, 5], "waiting": [6, 7]}


def test_a_cap_that_is_lowered_and_raised_again(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=4)
    acme(engine, *range(12))
    held = take_all(engine)
    alter(engine, tenant_max_active=2)
    engine.ack(held.pop(0))
    alter(engine, tenant_max_active=5)
    held += take_all(engine)
    assert len(held) == 5
    alter(engine, tenant_max_active=3)
    alter(engine, tenant_max_active=6)
    held += take_all(engine)
    assert len(held) == 6
    for message in held:
        engine.ack(message)
    assert len(take_all(engine)) == 5


@strict
def test_tenant_permits_that_an_old_snapshot_gives_back_repay_debts(
    engine: Engine, connect: Connect, level: str
) -> None:
    engine.queue("q", tenant_max_active=4)
    acme(engine, *range(10))
    held = take_all(engine)
    alter(engine, tenant_max_active=2)
    engine.ack(held.pop())
    strictly = at_level(connect, level)
    for message in held[:1]:
        strictly.ack(message)
    engine.maintain()
    assert engine.nothing_to_take("q")
    strictly.ack(held[1])
    engine.maintain()
    assert len(take_all(engine)) == 1


@pytest.mark.parametrize(("cap", "then"), [(5, 3), (2, 0), (1, 0)])
def test_a_queue_gets_a_cap_with_messages_in_it(engine: Engine, cap: int, then: int) -> None:
    engine.queue("q")
    acme(engine, *range(20))
    engine.send_many("q", ["untenanted"] * 3)
    held = [m for m in engine.take_many("q", 4) if m.tenant]
    assert [m.payload for m in held] == [0, 1]
    alter(engine, tenant_max_active=cap)
    more = [m.payload for m in take_all(engine) if m.tenant]
    assert more == list(range(2, 2 + then))
    for message in held:
        engine.ack(message)
    seated = "select count(*) from penstock.active where tenant = 'acme'"
    take_all(engine)
    assert engine.query(seated) == [(cap,)]


def test_a_queue_that_gets_a_cap_keeps_the_order(engine: Engine) -> None:
    engine.queue("q")
    for n in range(6):
        acme(engine, n)
    engine.nack(engine.take("q"), delay_seconds=0)
    alter(engine, tenant_max_active=1)
    let_in(engine)
    assert standing(engine) == {"ready": [0], "waiting": [1, 2, 3, 4, 5]}


@pytest.mark.parametrize("by", ["consume", "maintain"])
def test_what_waits_comes_in_when_the_cap_is_taken_away(engine: Engine, by: str) -> None:
    engine.queue("q", tenant_max_active=1)
    engine.send_many("q", list(range(10)), tenants=["a", "b"] * 5)
    held = take_all(engine)
    alter(engine, tenant_max_active=0)
    assert engine.settings("q").tenant_max_active is None
    if by == "maintain":
        assert engine.maintain()["admitted"] == 8
    taken = engine.take_many("q", 100)
    assert [m.payload for m in taken if m.tenant == "a"] == [2, 4, 6, 8]
    assert [m.payload for m in taken if m.tenant == "b"] == [3, 5, 7, 9]
    for message in (*held, *taken):
        assert engine.ack(message)
    for table in ("permits", "tenants", "waiting"):
        assert engine.count(table) == 0, table


def test_a_cap_that_is_taken_away_and_set_again(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    acme(engine, *range(10))
    first = take_all(engine)
    alter(engine, tenant_max_active=0)
    second = engine.take_many("q", 3)
    alter(engine, tenant_max_active=2)
    assert engine.nothing_to_take("q")
    assert free_tenant_permits(engine)["acme"] == -2
    for message in (*first, *second[:2]):
        engine.ack(message)
    assert [m.payload for m in take_all(engine)] == [4]


def test_an_alter_that_is_rolled_back_changes_nothing(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=2)
    engine.send_many("q", list(range(10)), tenants=["a", "b"] * 5)
    engine.take("q")
    for cap in (0, 1, 5):
        with engine.unchanged(), engine.connection.transaction(force_rollback=True):
            alter(engine, tenant_max_active=cap)
            take_all(engine)


def test_create_queue_again_with_the_same_cap_changes_nothing(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=2)
    acme(engine, *range(5))
    with engine.unchanged():
        engine.queue("q", tenant_max_active=2)
    with engine.refused("PN003", "tenant_max_active"):
        engine.queue("q", tenant_max_active=3)


@pytest.mark.parametrize("value", [-1, 1_000_001])
def test_a_cap_out_of_range_is_refused(engine: Engine, value: int) -> None:
    engine.queue("q")
    with engine.refused("PN004", "tenant_max_active", str(value)):
        alter(engine, tenant_max_active=value)


# old snapshots


@strict
@pytest.mark.parametrize("cap", [None, 2])
def test_what_is_published_under_an_old_snapshot_waits_and_is_admitted(
    engine: Engine, connect: Connect, level: str, cap: int | None
) -> None:
    engine.queue("q", tenant_max_active=cap)
    acme(engine, "known")
    engine.ack(engine.take("q"))
    strictly = at_level(connect, level)
    acme(strictly, 1, 2, 3)
    strictly.send("q", "untenanted")
    assert sorted(map(str, standing(engine)["waiting"])) == ["1", "2", "3", "untenanted"]
    assert engine.maintain()["admitted"] == (4 if cap is None else 3)
    got = []
    while held := take_all(engine):
        got += [m.payload for m in held if m.tenant]
        for message in held:
            engine.ack(message)
    assert got == [1, 2, 3]


@strict
def test_what_is_published_under_an_old_snapshot_is_found_by_the_next_consume(
    engine: Engine, connect: Connect, level: str
) -> None:
    engine.queue("q", tenant_max_active=2)
    strictly = at_level(connect, level)
    strictly.send_many("q", list(range(6)), tenants=["a", "b", None] * 2)
    assert sorted(m.payload for m in engine.take_many("q", 10)) == list(range(6))


@strict
@pytest.mark.parametrize("settle", ["ack", "nack", "nack with delay", "release", "reject"])
def test_tenant_permits_come_back_from_every_isolation_level(
    engine: Engine, connect: Connect, level: str, settle: str
) -> None:
    engine.queue("q", tenant_max_active=1, max_delivery_attempts=0)
    acme(engine, 1, 2)
    message = engine.take("q")
    strictly = at_level(connect, level)
    match settle:
        case "nack":
            assert strictly.nack(message, delay_seconds=0)
        case "nack with delay":
            assert strictly.nack(message, delay_seconds=60)
        case _:
            assert getattr(strictly, settle)(message)
    expected = 1 if settle in ("nack", "release") else 2
    assert engine.take("q").payload == expected
    assert engine.nothing_to_take("q")


@strict
def test_cancel_from_every_isolation_level(engine: Engine, connect: Connect, level: str) -> None:
    engine.queue("q", tenant_max_active=1)
    one, two, _ = acme(engine, 1, 2, 3)
    strictly = at_level(connect, level)
    assert strictly.value("cancel_message", "q", two) is True
    assert strictly.value("cancel_message", "q", one) is True
    assert engine.take("q").payload == 3


# upkeep


def test_maintain_has_nothing_to_do_where_every_message_must_wait(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    engine.send_many("q", list(range(10)), tenants=["a", "b"] * 5)
    let_in(engine)
    assert "admitted" not in engine.maintain_all()
    assert (engine.count("ready"), engine.count("waiting")) == (2, 8)


def test_tenants_that_are_long_gone_are_forgotten(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=2)
    tenants = [f"t{n}" for n in range(50)]
    engine.send_many("q", tenants, tenants=tenants)
    for message in take_all(engine):
        if message.tenant != "t7":
            engine.ack(message)
    engine.query("select setval('penstock.message_ids', 100000)")
    engine.value("raise_floor", "q")
    assert engine.query("select tenant, permits from penstock.tenants") == [("t7", 2)]
    assert free_tenant_permits(engine) == {"t7": 1}
    engine.send_many("q", tenants * 3, tenants=tenants * 3)
    assert Counter(m.tenant for m in take_all(engine)) == Counter(tenants * 2) - Counter(["t7"])


def test_tenant_permits_are_found_after_the_floor_was_raised(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=2)
    for _ in range(10):
        acme(engine, *range(4))
        for message in take_all(engine):
            engine.ack(message)
        engine.value("raise_floor", "q")
        engine.maintain()
        for message in take_all(engine):
            engine.ack(message)
    assert standing(engine) == {}
    assert free_tenant_permits(engine)["acme"] == 2


def test_get_message_and_list_messages_know_what_waits(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    one, two = acme(engine, 1, 2)
    let_in(engine)
    assert (engine.state("q", one), engine.state("q", two)) == ("ready", "waiting")
    assert engine.states("q") == {one: "ready", two: "waiting"}
