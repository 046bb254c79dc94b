"""No message ends up below the floor: each way that was thought of, with the interleaving forced.

A queue's floor is raised to its first living message, or to the last id. What enters must come in at or above
it, even where it began before the floor rose, or cannot see it. That is checked at the end of each spec.
"""

from collections.abc import Iterator

import pytest

from tests.conftest import Connect
from tests.isolation.invariants import broken, broken_floors
from tests.isolation.rewriting import (
    CLOSE_GATE,
    OPEN_GATE,
    forget_the_lock,
    pause_before,
    trust_the_floor_it_sees,
)
from tests.isolation.session import Claim, Isolation, Session, Spec, open_spec

SNAPSHOTS: list[Isolation] = ["repeatable read", "serializable"]
ISOLATIONS: list[Isolation] = ["read committed", *SNAPSHOTS]

# Ranks are given in another way as soon as a queue has tenants.
SNAPSHOTS_AND_TENANTS: list[tuple[Isolation, str | None]] = [
    ("repeatable read", None),
    ("serializable", "acme"),
]
ISOLATIONS_AND_TENANTS: list[tuple[Isolation, str | None]] = [
    ("read committed", None),
    ("read committed", "acme"),
    *SNAPSHOTS_AND_TENANTS,
]


@pytest.fixture
def own_spec(connect18: Connect) -> Iterator[Spec]:
    """Sessions on a database whose functions the test may change."""
    with open_spec(connect18) as opened:
        yield opened


def queues(spec: Spec, tenant: str | None = None) -> Session:
    """Two queues of a topic, in which messages, of a tenant or not, have come and gone."""
    setup = spec.session()
    setup.value("create_topic", "t")
    setup.value("create_queue", "q", "t", max_delivery_attempts=0, notify=False)
    setup.value("create_queue", "r", "t", max_delivery_attempts=0, notify=False)
    turn_over(setup, tenant)
    return setup


def turn_over(session: Session, tenant: str | None = None, n: int = 20) -> None:
    for queue in ("q", "r"):
        session.send(queue, n, tenant=tenant)
        held = session.claim(queue, n)
        assert len(session.ack(queue, *held)) == len(held)


def raise_floors(session: Session) -> list[bool]:
    return [session.value("raise_floor", "q"), session.value("raise_floor", "r")]


def delivered(session: Session, queue: str = "q") -> list[int]:
    """Everything that can be claimed, acked."""
    held = session.claim(queue, 1000)
    session.ack(queue, *held)
    return [c.id for c in held]


@pytest.mark.parametrize("raise_commits", [True, False])
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_publish_x_raise_floor(spec: Spec, isolation: Isolation, raise_commits: bool) -> None:
    a, b = queues(spec), spec.session()
    a.begin()
    assert a.value("raise_floor", "q") is True
    b.begin(isolation)
    publish = b.waits("publish_message", "t", "1")
    if raise_commits:
        a.commit()
    else:
        a.rollback()
    message = publish.value()
    b.commit()
    raise_floors(a)
    assert delivered(a, "q") == delivered(a, "r") == [message]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_open_publisher_x_raise_floor(spec: Spec, isolation: Isolation) -> None:
    """A publisher with an open transaction keeps its own queue's floor down, not another's."""
    a, b = queues(spec), spec.session()
    b.begin(isolation)
    (message,) = b.send("q")
    before = spec.floor("q")
    assert raise_floors(a) == [False, True]
    a.maintain()
    assert spec.floor("q") == before
    b.commit()
    assert raise_floors(a) == [True, False]
    assert delivered(a) == [message]


def test_open_publisher_rolls_back(spec: Spec) -> None:
    a, b = queues(spec), spec.session()
    b.begin()
    b.send("q")
    assert a.value("raise_floor", "q") is False
    b.rollback()
    assert a.value("raise_floor", "q") is True


def test_publisher_that_stopped_before_its_ids(spec: Spec) -> None:
    a, b = queues(spec), spec.session()
    b.begin()
    b.run("select penstock._lock_queue(id) from penstock.queues where name = 'q'")
    turn_over(a)
    assert raise_floors(a) == [False, True]
    (message,) = b.send("q")
    turn_over(a)
    assert raise_floors(a) == [False, True]
    b.commit()
    raise_floors(a)
    assert delivered(a) == [message]


@pytest.mark.parametrize(("isolation", "tenant"), ISOLATIONS_AND_TENANTS)
def test_publisher_that_stopped_after_its_ids(spec: Spec, isolation: Isolation, tenant: str | None) -> None:
    """It has drawn its ids and waits for a dedup key; floors and ids move on meanwhile."""
    a, b, c = queues(spec, tenant), spec.session(), spec.session()
    a.begin()
    a.value("send_message", "q", "1", dedup_key="k")
    b.begin(isolation)
    stopped = b.waits("publish_message", "t", "2", tenant=tenant, dedup_key="k")
    for _ in range(3):
        turn_over(c)
        assert raise_floors(c) == [False, False]
        c.maintain()
    a.rollback()
    message = stopped.value()
    turn_over(c)
    b.commit()
    raise_floors(c)
    assert delivered(c, "q") == delivered(c, "r") == [message]


def test_publisher_that_stopped_between_two_queues(spec: Spec) -> None:
    """Waiting for the lock of the second queue it holds the first one's; its ids are drawn after both."""
    a, b, c = queues(spec), spec.session(), spec.session()
    a.begin()
    assert a.value("raise_floor", "r") is True
    publish = b.waits("publish_message", "t", "1")
    c.send("q", 5)
    assert c.value("raise_floor", "q") is False
    a.commit()
    message = publish.value()
    assert raise_floors(c) == [True, True]
    assert message in delivered(c, "q")
    assert delivered(c, "r") == [message]


@pytest.mark.parametrize(("isolation", "tenant"), SNAPSHOTS_AND_TENANTS)
@pytest.mark.parametrize(
    "enters", ["send", "send with options", "publish", "nack", "release", "requeue", "add_retries"]
)
def test_snapshot_older_than_the_floor(
    spec: Spec, isolation: Isolation, enters: str, tenant: str | None
) -> None:
    a, b = queues(spec, tenant), spec.session()
    held, dead = held_and_dead(a)
    b.begin_with_snapshot(isolation)
    for _ in range(3):
        turn_over(a)
        assert raise_floors(a) == [True, True]
    expected = enter(b, enters, held, dead, tenant)
    turn_over_others(a)
    assert a.value("raise_floor", "q") is False
    b.commit()
    a.value("raise_floor", "q")
    assert delivered(a) == [expected]


def held_and_dead(session: Session) -> tuple[Claim, int]:
    """A message of queue q that is leased, and one that is dead."""
    session.run("update penstock.queues set max_delivery_attempts = 1 where name = 'q'")
    session.send("q", 2)
    held, failed = session.claim("q", vt_seconds=3600)
    session.value("nack_message", "q", failed.id, failed.token)
    session.run("update penstock.queues set max_delivery_attempts = 0 where name = 'q'")
    return held, failed.id


def turn_over_others(session: Session) -> None:
    """Ids are drawn by others while a transaction keeps queue q."""
    session.send("r", 20)
    delivered(session, "r")


def enter(session: Session, how: str, held: Claim, dead: int, tenant: str | None) -> int:
    match how:
        case "send":
            return session.send("q", tenant=tenant)[0]
        case "send with options":
            return session.send("q", tenants=["acme"])[0]
        case "publish":
            message: int = session.value("publish_message", "t", "1")
            return message
        case "nack":
            assert session.value("nack_message", "q", held.id, held.token, delay_seconds=0) is True
            return held.id
        case "release":
            assert session.value("release_message", "q", held.id, held.token) is True
            return held.id
        case "requeue":
            assert session.value("requeue_dlq_messages", "q") == 1
            return dead
        case _:
            assert session.value("add_retries", "q", 3) == 1
            return dead


@pytest.mark.parametrize(("isolation", "tenant"), ISOLATIONS_AND_TENANTS)
def test_savepoint_that_rolls_back(spec: Spec, isolation: Isolation, tenant: str | None) -> None:
    """Its lock goes with it: the floor rises meanwhile, and what the transaction sends next is above."""
    a, b = queues(spec, tenant), spec.session()
    b.begin_with_snapshot(isolation)
    for _ in range(3):
        b.run("savepoint s")
        b.send("q", 3, tenant=tenant)
        assert a.value("raise_floor", "q") is False
        b.run("rollback to s")
        turn_over(a)
        assert raise_floors(a) == [True, True]
    b.run("savepoint s")
    sent = b.send("q", 3, tenant=tenant)
    b.run("release s")
    assert a.value("raise_floor", "q") is False
    b.commit()
    raise_floors(a)
    assert delivered(a) == sent


@pytest.mark.parametrize(("isolation", "tenant"), ISOLATIONS_AND_TENANTS)
def test_prepared_publisher(spec: Spec, isolation: Isolation, tenant: str | None) -> None:
    """A prepared transaction keeps its locks when its session has long gone on to something else."""
    a, b = queues(spec, tenant), spec.session()
    b.begin(isolation)
    message = b.value("publish_message", "t", "1", tenant=tenant)
    b.run(f"prepare transaction '{b.pid}'")
    for _ in range(3):
        turn_over(b)
        assert raise_floors(a) == [False, False]
        a.maintain()
    a.run(f"commit prepared '{b.pid}'")
    assert raise_floors(a) == [True, True]
    assert delivered(a, "q") == delivered(a, "r") == [message]


def test_prepared_publisher_rolls_back(spec: Spec) -> None:
    a, b = queues(spec), spec.session()
    b.begin()
    b.value("publish_message", "t", "1")
    b.run(f"prepare transaction '{b.pid}'")
    assert raise_floors(a) == [False, False]
    a.run(f"rollback prepared '{b.pid}'")
    assert raise_floors(a) == [True, True]
    assert delivered(a, "q") == delivered(a, "r") == []


@pytest.mark.parametrize("end", ["rollback", "rollback prepared"])
def test_rolled_back_claim_x_raise_floor(spec: Spec, end: str) -> None:
    """Rows that an open claim deletes hold the floor."""
    a, b = queues(spec), spec.session()
    ids = a.send("q", 4)
    b.begin()
    assert [c.id for c in b.claim("q", 2)] == ids[:2]
    if end == "rollback prepared":
        b.run(f"prepare transaction '{b.pid}'")
        end = f"rollback prepared '{b.pid}'"
    for _ in range(3):
        a.value("raise_floor", "q")
        a.maintain()
    b.run(end)
    assert delivered(a) == ids


def test_claim_x_raise_floor(spec: Spec) -> None:
    """A claim never waits for a floor being raised; the floor passes what was claimed only after commit."""
    a, b = queues(spec), spec.session()
    ids = a.send("q", 4)
    a.value("raise_floor", "q")
    first = spec.floor("q")
    b.begin()
    b.claim("q", 2)
    assert a.value("raise_floor", "q") is False
    assert spec.floor("q") == first
    b.commit()
    a.begin()
    assert a.value("raise_floor", "q") is True
    assert [row[0] for row in b.start("consume_messages_batch", "q").passes()] == ids[2:]
    a.commit()
    assert spec.floor("q")[2] > first[2]


def test_raise_floor_x_raise_floor(spec: Spec) -> None:
    a, b = queues(spec), spec.session()
    a.begin()
    assert a.value("raise_floor", "q") is True
    assert b.value("raise_floor", "q") is False
    a.commit()
    a.send("q")
    assert b.value("raise_floor", "q") in (True, False)
    assert len(delivered(b)) == 1


def test_raise_floor_x_delete_queue(spec: Spec) -> None:
    a, b = queues(spec), spec.session()
    a.begin()
    a.rows("delete_queue", "q")
    assert b.value("raise_floor", "q") is False
    a.commit()
    assert b.error("raise_floor", "q") == "PN001"


def test_raise_floor_and_publish_in_one_transaction(spec: Spec) -> None:
    a = queues(spec)
    a.begin()
    assert a.value("raise_floor", "q") is True
    ids = a.send("q", 2)
    assert a.value("raise_floor", "q") in (True, False)
    ids += a.send("q", 2)
    a.commit()
    a.value("raise_floor", "q")
    assert delivered(a) == ids


@pytest.mark.parametrize(("isolation", "tenant"), SNAPSHOTS_AND_TENANTS)
@pytest.mark.parametrize("late", ["send", "requeue"])
def test_ranks_never_exceed_the_ids(spec: Spec, isolation: Isolation, late: str, tenant: str | None) -> None:
    """Ids that were drawn early leave no room above the rank that another took from a later id.

    Else the floor follows such a rank beyond the ids, and the next fresh id that serves as a rank is below.
    """
    a, b, c = queues(spec, tenant), spec.session(), spec.session()
    a.run("update penstock.queues set max_delivery_attempts = 1 where name = 'q'")
    a.send("q", 20, tenant=tenant, dedup_keys=[f"dead {i}" for i in range(20)])
    for held in a.claim("q", 20):
        a.value("nack_message", "q", held.id, held.token)
    a.run("update penstock.queues set max_delivery_attempts = 0 where name = 'q'")

    a.begin()
    a.value("send_message", "q", "1", dedup_key="dead 0")
    if late == "send":
        keys = ["dead 0", "b", "c", "d", "e"]
        stopped = b.waits("send_messages", "q", "{1,2,3,4,5}", tenant=tenant, dedup_keys=keys)
    else:
        stopped = b.waits("requeue_dlq_messages", "q")
    c.begin(isolation)
    c.send("q", tenant=tenant)
    c.commit()
    a.rollback()
    stopped.rows()
    assert broken_floors_of(spec) == []

    waiting = sum(state in ("ready", "waiting") for state in spec.states("q").values())
    assert len(c.claim("q", waiting - 1)) == waiting - 1
    c.value("raise_floor", "q")
    c.begin(isolation)
    (message,) = c.send("q", tenant=tenant)
    c.commit()
    assert message in delivered(c)


def broken_floors_of(spec: Spec) -> list[str]:
    return broken_floors(spec.watcher)


def test_floor_never_sinks(own_spec: Spec) -> None:
    """A sweep writes to the ledger of floors too: it must not write down a floor older than the newest."""
    own_spec.movable_clock()
    pause_before(
        own_spec.watcher,
        "_sweep",
        "penstock._sweep_from(now, newest, interval '0')",
    )
    a, b = queues(own_spec), own_spec.session()
    # Maintenance leaves this floor to us: whether it finds one low depends on how long it took to look.
    a.run("alter function penstock._examine rename to _examine_all")
    a.run(
        "create function penstock._examine(queue_ids int[], now timestamptz)"
        " returns table (queue_id int, tick bigint, has_ended boolean, is_due boolean, is_low boolean,"
        " sweep_took interval, floor_took interval) language sql as $$"
        " select e.queue_id, e.tick, e.has_ended, e.is_due, false, e.sweep_took, interval '0'"
        " from penstock._examine_all(queue_ids, now) e $$"
    )
    (due,) = a.run("select penstock.clock() + interval '30 seconds'")[0]
    a.maintain()
    turn_over(a)
    a.send("q", deliver_after=due)
    b.move_clock("40 seconds")
    a.run(CLOSE_GATE, 0)
    maintain = b.waits("maintain")
    assert a.value("raise_floor", "q") is True
    raised = own_spec.floor("q")
    a.run(OPEN_GATE, 0)
    assert ("promoted", "q", 1) in maintain.rows()
    assert own_spec.floor("q") >= raised
    assert broken(own_spec.watcher) == []


@pytest.mark.parametrize("isolation", SNAPSHOTS)
def test_the_checker_sees_a_publisher_that_trusts_an_old_floor(own_spec: Spec, isolation: Isolation) -> None:
    trust_the_floor_it_sees(own_spec.watcher)
    a, b = queues(own_spec, "acme"), own_spec.session()
    b.begin_with_snapshot(isolation)
    raise_floors(a)
    b.send("q", tenant="acme")
    b.commit()
    assert len(broken_floors_of(own_spec)) == 1
    assert delivered(a) == []


def test_the_checker_sees_a_floor_that_was_raised_without_the_lock(own_spec: Spec) -> None:
    forget_the_lock(own_spec.watcher)
    a, b = queues(own_spec), own_spec.session()
    b.begin()
    b.send("q")
    turn_over(a)
    assert a.value("raise_floor", "q") is True
    b.commit()
    assert len(broken_floors_of(own_spec)) == 1
    assert delivered(a) == []
