"""Caps: claims, settles, publishers and changes of settings that meet, each in an order forced by hand."""

from typing import Any

import pytest

from tests.isolation.invariants import broken
from tests.isolation.session import Claim, Session, Spec

WORKER = "w"


def queue(session: Session, **settings: Any) -> None:
    session.value("create_queue", "q", max_delivery_attempts=0, **settings)


# One line of permits, as many as max_active.
LINE: dict[str, Any] = {"min_active": 0, "priority_shares": [0, 0, 100, 0]}


def take_all(session: Session) -> list[Claim]:
    taken: list[Claim] = []
    while claimed := session.claim("q", 100):
        taken += claimed
    return taken


def number_active(spec: Spec) -> int:
    ((number,),) = spec.look("select count(*) from penstock.active")
    assert isinstance(number, int)
    return number


@pytest.mark.parametrize("commits", [True, False])
def test_claim_x_claim_for_the_last_permit(spec: Spec, commits: bool) -> None:
    a, b = spec.sessions(2)
    queue(a, max_active=1)
    ids = a.send("q", 3)
    a.begin()
    assert [c.id for c in a.claim("q")] == ids[:1]
    assert b.start("consume_messages_batch", "q").passes() == []
    a.run("commit" if commits else "rollback")
    assert [c.id for c in b.claim("q")] == ([] if commits else ids[:1])
    assert number_active(spec) == 1


def test_claim_x_claim_both_open(spec18: Spec) -> None:
    """A claim that was too late for a permit holds no messages once its transaction has ended."""
    a, b, c = spec18.sessions(3)
    queue(a, max_active=4, **LINE)
    ids = a.send("q", 8)
    a.begin()
    b.begin()
    assert [x.id for x in a.claim("q", 2)] == ids[:2]
    assert len(b.claim("q", 2)) == 2
    assert c.start("consume_messages_batch", "q").passes() == []
    a.rollback()
    assert len(c.claim("q")) == 2
    b.commit()
    assert c.claim("q") == []
    assert number_active(spec18) == 4


@pytest.mark.parametrize("ack_commits_first", [True, False])
@pytest.mark.parametrize("then", ["consume", "maintain"])
def test_ack_x_publish_of_one_that_waits(spec18: Spec, ack_commits_first: bool, then: str) -> None:
    """Neither sees the other: the next look lets it in."""
    a, b = spec18.sessions(2)
    queue(a, tenant_max_active=1)
    a.send("q", tenant="acme")
    (held,) = a.claim("q")
    a.begin()
    b.begin()
    a.ack("q", held)
    (sent,) = b.send("q", tenant="acme")
    for session in (a, b) if ack_commits_first else (b, a):
        session.commit()
    assert spec18.look("select id from penstock.waiting") == [(sent,)]
    if then == "maintain":
        assert ("admitted", "q", 1) in b.maintain()
    assert [c.id for c in b.claim("q")] == [sent]


def test_ack_x_publish_x_publish(spec18: Spec) -> None:
    """Nor is the waiting message overtaken by the next, which finds the tenant permit free."""
    a, b = spec18.sessions(2)
    queue(a, tenant_max_active=1)
    a.send("q", tenant="acme")
    (held,) = a.claim("q")
    a.begin()
    b.begin()
    a.ack("q", held)
    (first,) = b.send("q", tenant="acme")
    a.commit()
    b.commit()
    (second,) = a.send("q", tenant="acme")
    (taken,) = a.claim("q")
    assert taken.id == first
    a.ack("q", taken)
    assert [c.id for c in a.claim("q")] == [second]


def test_ack_x_ack_with_several_waiting(spec18: Spec) -> None:
    a, b = spec18.sessions(2)
    queue(a, tenant_max_active=2)
    ids = a.send("q", 5, tenant="acme")
    one, two = a.claim("q")
    a.begin()
    b.begin()
    a.ack("q", one)
    b.ack("q", two)
    a.commit()
    b.commit()
    assert sorted(c.id for c in a.claim("q")) == ids[2:4]


@pytest.mark.parametrize("first_commits", [True, False])
def test_publish_x_publish_of_a_new_tenant(spec18: Spec, first_commits: bool) -> None:
    a, b = spec18.sessions(2)
    queue(a, tenant_max_active=3)
    a.begin()
    first = a.send("q", 2, tenant="acme")
    second = [row[0] for row in b.start("send_messages", "q", "{1,2}", tenant="acme").passes()]
    a.run("commit" if first_commits else "rollback")
    expected = [*first, *second][:3] if first_commits else second
    assert sorted(c.id for c in b.claim("q")) == expected
    assert number_active(spec18) == len(expected)


def test_publish_x_publish_take_different_tenant_permits(spec18: Spec) -> None:
    a, b = spec18.sessions(2)
    queue(a, tenant_max_active=4)
    a.send("q", tenant="acme")
    a.ack("q", *a.claim("q"))
    a.begin()
    b.begin()
    a.send("q", 3, tenant="acme")
    b.send("q", 3, tenant="acme")
    b.commit()
    a.rollback()
    assert len(b.claim("q")) == 3
    assert spec18.look("select count(*) from penstock.waiting") == [(0,)]


@pytest.mark.parametrize("claim_commits", [True, False])
@pytest.mark.parametrize("cap", [1, 2, 6])
def test_claim_x_alter(spec18: Spec, claim_commits: bool, cap: int) -> None:
    """A cap that is lowered while permits are on their way holds, however the claim ends."""
    a, b = spec18.sessions(2)
    queue(a, max_active=4, **LINE)
    a.send("q", 20)
    a.begin()
    held = take_all(a)
    assert len(held) == 4
    alter = b.start("alter_queue", "q", max_active=cap)
    alter.settle()
    a.run("commit" if claim_commits else "rollback")
    alter.rows()
    take_all(b)
    assert number_active(spec18) == (max(cap, 4) if claim_commits else cap)
    if claim_commits:
        a.ack("q", *held)
        take_all(b)
    assert number_active(spec18) == cap


@pytest.mark.parametrize(
    ("settle", "alter_commits_first", "cap"),
    [
        ("ack_message", True, 1),
        ("ack_message", True, 6),
        ("ack_message", False, 1),
        ("ack_message", False, 3),
        ("nack_message", True, 1),
        ("release_message", True, 3),
        ("reject_message", False, 1),
    ],
)
def test_settle_x_alter(spec: Spec, settle: str, alter_commits_first: bool, cap: int) -> None:
    """Permits that are returned while the cap changes: the call that settles cannot see the debts to come."""
    a, b = spec.sessions(2)
    queue(a, max_active=4, **LINE)
    a.send("q", 20)
    held = take_all(a)
    a.begin()
    b.begin()
    for claim in held[:2]:
        assert a.value(settle, "q", claim.id, claim.token) is True
    alter = b.start("alter_queue", "q", max_active=cap)
    if alter.settle() and alter_commits_first:
        b.commit()
    a.commit()
    alter.rows()
    b.run("commit")
    take_all(b)
    assert number_active(spec) == max(cap, 2)


@pytest.mark.parametrize("commits", [True, False])
def test_settle_x_alter_the_other_way_round(spec18: Spec, commits: bool) -> None:
    """The cap is lowered first, and not yet for all to see."""
    a, b = spec18.sessions(2)
    queue(a, max_active=4, **LINE)
    a.send("q", 20)
    held = take_all(a)
    b.begin()
    b.value("alter_queue", "q", max_active=1)
    ack = a.start("ack_messages", "q", [c.id for c in held[:2]], [c.token for c in held[:2]])
    ack.settle()
    b.run("commit" if commits else "rollback")
    assert len(ack.rows()) == 2
    take_all(b)
    assert number_active(spec18) == (2 if commits else 4)


@pytest.mark.parametrize("cap", [2, 6])
def test_settle_while_alter_waits_for_a_claim(spec18: Spec, cap: int) -> None:
    """A permit that comes back in the middle of the change is counted once."""
    a, b, c = spec18.sessions(3)
    queue(a, max_active=4, **LINE)
    a.send("q", 20)
    held = a.claim("q", 2)
    c.begin()
    assert len(c.claim("q", 1)) == 1
    alter = b.start("alter_queue", "q", max_active=cap)
    alter.settle()
    ack = a.start("ack_message", "q", held[0].id, held[0].token)
    ack.settle()
    c.commit()
    alter.rows()
    assert ack.value() is True
    assert broken(spec18.watcher) == []
    take_all(b)
    assert number_active(spec18) == cap


@pytest.mark.parametrize("commits", [True, False])
def test_settle_x_settle_that_repays_a_debt(spec18: Spec, commits: bool) -> None:
    """No more are active than when the cap was lowered; a debt that was not repaid is repaid next."""
    a, b = spec18.sessions(2)
    queue(a, max_active=4)
    a.send("q", 3, priority=0)
    a.send("q", 3, priority=1)
    first, second = take_all(a)
    a.value("alter_queue", "q", max_active=1)
    a.begin()
    assert len(a.ack("q", first)) == 1
    assert b.start("ack_message", "q", second.id, second.token).passes() == [(True,)]
    assert broken(spec18.watcher) == []
    a.run("commit" if commits else "rollback")
    (taken,) = take_all(b)
    assert broken(spec18.watcher) == []
    assert number_active(spec18) == (1 if commits else 2)
    b.ack("q", taken)
    assert len(take_all(b)) == (1 if commits else 0)
    assert number_active(spec18) == 1


def test_settle_of_tenant_permits_x_settle_that_repays(spec18: Spec) -> None:
    """A tenant's debt that another session was about to repay, and then did not."""
    a, b = spec18.sessions(2)
    queue(a, tenant_max_active=4)
    a.send("q", 9, tenant="t")
    held = take_all(a)
    a.value("alter_queue", "q", tenant_max_active=2)
    assert len(a.ack("q", held[0])) == 1
    a.begin()
    assert len(a.ack("q", held[1])) == 1
    assert b.start("ack_message", "q", held[2].id, held[2].token).passes() == [(True,)]
    a.rollback()
    (taken,) = take_all(b)
    assert broken(spec18.watcher) == []
    assert number_active(spec18) == 3
    b.ack("q", taken)
    assert take_all(b) == []
    assert number_active(spec18) == 2


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_settle_under_a_snapshot_x_alter_that_reassigns_the_permit(spec18: Spec, level: str) -> None:
    """A stale snapshot does not know whose permit the message holds: it gets a serialization failure."""
    a, b = spec18.sessions(2)
    queue(a, max_active=4, min_active=0, priority_shares=[25, 25, 25, 25])
    a.send("q", priority=0)
    a.send("q", priority=1)
    first, second = take_all(a)
    a.run(f"begin isolation level {level}")
    a.run("select 1 from penstock.queues")
    b.value("alter_queue", "q", priority_shares=[0, 50, 25, 25])
    assert a.ack("q", second) == [second.id]
    assert a.start("ack_message", "q", first.id, first.token).error() == "40001"
    a.rollback()
    assert len(a.ack("q", first, second)) == 2
    assert broken(spec18.watcher) == []


def test_alter_x_alter(spec18: Spec) -> None:
    a, b = spec18.sessions(2)
    queue(a, max_active=4, **LINE)
    a.send("q", 20)
    take_all(a)
    a.begin()
    a.value("alter_queue", "q", max_active=6)
    other = b.waits("alter_queue", "q", max_active=2)
    a.commit()
    other.rows()
    assert take_all(a) == []


@pytest.mark.parametrize("claim_commits", [True, False])
def test_claim_x_alter_that_takes_the_cap_away(spec18: Spec, claim_commits: bool) -> None:
    a, b = spec18.sessions(2)
    queue(a, max_active=4, **LINE)
    a.send("q", 20)
    a.begin()
    held = a.claim("q", 2)
    alter = b.start("alter_queue", "q", max_active=0)
    alter.settle()
    a.run("commit" if claim_commits else "rollback")
    alter.rows()
    assert spec18.look("select count(*) from penstock.permits") == [(0,)]
    a.ack("q", *held)
    assert spec18.look("select count(*) from penstock.permits") == [(0,)]
    b.value("alter_queue", "q", max_active=3)
    assert len(take_all(b)) == 3


def test_claim_x_alter_that_sets_a_cap(spec18: Spec) -> None:
    """A claim under way is not counted, as it was made without a cap; after it is settled all is exact."""
    a, b = spec18.sessions(2)
    queue(a)
    a.send("q", 20)
    a.begin()
    held = a.claim("q", 5)
    alter = b.start("alter_queue", "q", max_active=2, **LINE)
    alter.settle()
    a.commit()
    alter.rows()
    a.ack("q", *held)
    take_all(b)
    assert number_active(spec18) == 2


@pytest.mark.parametrize("claim_commits", [True, False])
def test_claim_x_alter_that_sets_a_cap_for_tenants(spec18: Spec, claim_commits: bool) -> None:
    a, b = spec18.sessions(2)
    queue(a)
    a.send("q", 6, tenant="acme")
    a.begin()
    held = a.claim("q", 3)
    alter = b.start("alter_queue", "q", tenant_max_active=2)
    alter.settle()
    a.run("commit" if claim_commits else "rollback")
    alter.rows()
    assert len(take_all(b)) == (0 if claim_commits else 2)
    if claim_commits:
        a.ack("q", *held)
        assert len(take_all(b)) == 2


@pytest.mark.parametrize("publisher_commits", [True, False])
def test_publish_x_alter_of_the_tenants_cap(spec18: Spec, publisher_commits: bool) -> None:
    """Permits of a tenant that a publisher is about to take when the cap is lowered."""
    a, b = spec18.sessions(2)
    queue(a, tenant_max_active=4)
    a.send("q", tenant="acme")
    a.ack("q", *a.claim("q"))
    a.begin()
    a.send("q", 4, tenant="acme")
    alter = b.start("alter_queue", "q", tenant_max_active=1)
    if alter.settle():
        b.send("q", 3, tenant="acme")
    a.run("commit" if publisher_commits else "rollback")
    alter.rows()
    b.send("q", tenant="acme")
    b.maintain()
    take_all(b)
    assert number_active(spec18) == (4 if publisher_commits else 1)


@pytest.mark.parametrize("permit", ["permit", "tenant permit"])
def test_floor_x_open_ack(spec18: Spec, permit: str) -> None:
    """What comes back is never below the floor, however the two meet."""
    a, b = spec18.sessions(2)
    queue(a, **({"max_active": 2} if permit == "permit" else {"tenant_max_active": 2}))
    a.send("q", 9, tenant="acme")
    one, two = take_all(a)
    a.begin()
    a.ack("q", one)
    assert b.value("raise_floor", "q") is False
    a.commit()
    b.begin()
    assert b.value("raise_floor", "q") is True
    late = a.waits("ack_message", "q", two.id, two.token)
    b.commit()
    assert late.value() is True
    assert broken(spec18.watcher) == []
    assert len(take_all(a)) == 2


def test_floor_x_open_claim(spec18: Spec) -> None:
    """Permits that an open claim has taken hold the floor: they come back where they were."""
    a, b = spec18.sessions(2)
    queue(a, max_active=3)
    a.send("q", 9)
    a.begin()
    assert len(take_all(a)) == 3
    b.value("raise_floor", "q")
    a.rollback()
    assert broken(spec18.watcher) == []
    assert len(take_all(b)) == 3


@pytest.mark.parametrize(
    "caps", [{"max_active": 10, **LINE}, {"tenant_max_active": 10}], ids=["max", "tenant"]
)
@pytest.mark.parametrize("last_token", [WORKER, "v"], ids=["one token", "several tokens"])
@pytest.mark.parametrize("takes_all", ["purge_queue", "delete_queue"])
def test_ack_x_call_that_takes_all(spec: Spec, takes_all: str, last_token: str, caps: dict[str, Any]) -> None:
    """A settling session takes the queue's lock before it locks a message: no deadlock."""
    holder, a, b = spec.sessions(3)
    for session in (a, b):
        session.run("set deadlock_timeout = '2ms'")
    queue(holder, **caps)
    holder.send("q", 4)
    ids = [c.id for c in holder.claim("q", consumer_token=WORKER)]
    holder.begin()
    holder.run("select 1 from penstock.active where id = %s for update", ids[2])
    ack = a.waits("ack_messages", "q", ids, [WORKER, WORKER, WORKER, last_token])
    taken = b.waits(takes_all, "q")
    holder.rollback()
    assert [ack.error(), taken.error()] == [None, None]


def test_alter_x_delete_topic(spec18: Spec) -> None:
    """alter_queue releases its locks between two tries: the topic may be removed meanwhile."""
    holder, a, b = spec18.sessions(3)
    for session in (a, b):
        session.run("set deadlock_timeout = '2ms'")
    holder.value("create_topic", "t")
    holder.value("create_queue", "q", "t")
    holder.begin()
    holder.run("select 1 from penstock.queues where name = 'q' for no key update")
    alter = a.waits("alter_queue", "q", max_active=8)
    deleted = b.waits("delete_topic", "t")
    holder.rollback()
    assert deleted.error() is None
    assert alter.error() in (None, "PN001")


@pytest.fixture
def expired(spec18: Spec) -> tuple[Session, Session]:
    """Two sessions for which the lease of the only permit has run out."""
    spec18.movable_clock()
    setup = spec18.session()
    queue(setup, max_active=1)
    setup.send("q", 3)
    setup.claim("q")
    late = spec18.sessions(2)
    for session in late:
        session.move_clock("1 minute")
    return late[0], late[1]


@pytest.mark.parametrize("commits", [True, False])
def test_claim_x_expiry_of_the_last_permit(
    spec18: Spec, expired: tuple[Session, Session], commits: bool
) -> None:
    a, b = expired
    a.begin()
    assert len(a.claim("q")) == 1
    assert b.start("consume_messages_batch", "q").passes() == []
    a.run("commit" if commits else "rollback")
    assert len(b.claim("q")) == (0 if commits else 1)
    assert number_active(spec18) == 1
