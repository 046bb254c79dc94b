"""A long backlog gets its first cap for tenants: only the end of that needs the exclusive lock."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.conftest import Connect
from tests.isolation.invariants import broken
from tests.isolation.rewriting import CLOSE_GATE, OPEN_GATE, pause_before
from tests.isolation.session import Session, Spec, open_spec

LONG = 6000
TENANTS = 20


@pytest.fixture
def own_spec(connect18: Connect) -> Iterator[Spec]:
    """Sessions on a database whose functions the test may change."""
    with open_spec(connect18) as opened:
        yield opened
        assert broken(opened.watcher) == []


def backlog(session: Session, number: int = LONG) -> None:
    session.value("create_queue", "q", max_delivery_attempts=0)
    session.run(
        "select count(*) from penstock.send_messages('q', array_fill('1'::jsonb, array[%s::int]),"
        " tenants => array(select 't' || n %% 20 from generate_series(1, %s) n))",
        number,
        number,
    )


def altering_in_between(spec: Spec, gatekeeper: Session) -> None:
    """A session that gives a queue its first cap stops when it has moved the backlog."""
    pause_before(
        spec.watcher, "_lock_caps", "penstock._try_to_lock_caps(queue_id, true, interval '2 seconds')"
    )
    gatekeeper.run(CLOSE_GATE, 0)


def claimed(session: Session) -> Counter[str]:
    """All that can be claimed now, one call after the other: how many of each tenant."""
    while session.claim("q", 1000):
        pass
    rows = session.run("select tenant, count(*) from penstock.active group by tenant")
    return Counter(dict(rows))


def test_publishers_and_consumers_go_on_meanwhile(own_spec: Spec) -> None:
    gatekeeper, alterer, a, b = own_spec.sessions(4)
    backlog(a)
    (held, open_claim) = a.claim("q", 2)
    b.begin()
    b.send("q", tenant="open")
    altering_in_between(own_spec, gatekeeper)
    altering = alterer.waits("alter_queue", "q", tenant_max_active=3)
    for tenant in ("new", "t1", None):
        assert len(a.start("send_messages", "q", "{1}", tenant=tenant).passes()) == 1
    assert [c.id for c in a.claim("q", 1)]  # what was sent meanwhile
    assert a.start("nack_message", "q", held.id, held.token).passes() == [(True,)]
    assert a.start("ack_message", "q", open_claim.id, open_claim.token).passes() == [(True,)]
    b.commit()
    gatekeeper.run(OPEN_GATE, 0)
    altering.rows()
    assert own_spec.look("select count(*) from penstock.ready") == [(0,)]
    a.maintain()
    counted = claimed(a)
    assert [counted.pop(tenant) for tenant in ("new", "open", "")] == [1, 1, 1]
    assert set(counted.values()) == {3}


def test_the_oldest_of_each_tenant_stays_first(own_spec: Spec) -> None:
    gatekeeper, alterer, a = own_spec.sessions(3)
    backlog(a)
    altering_in_between(own_spec, gatekeeper)
    altering = alterer.waits("alter_queue", "q", tenant_max_active=1)
    a.send("q", 5, tenant="t1")
    gatekeeper.run(OPEN_GATE, 0)
    altering.rows()
    lines = (
        "select array_agg(id order by rank) = array_agg(id order by id) from penstock.waiting group by tenant"
    )
    assert own_spec.look(lines) == [(True,)] * TENANTS


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_publisher_that_waits_for_a_message_on_its_way(own_spec: Spec, ends: str) -> None:
    """It has the queue's lock, shared, and cancels one of the messages: neither waits for ever."""
    gatekeeper, alterer, a = own_spec.sessions(3)
    backlog(a)
    ((message,),) = own_spec.look("select max(id) from penstock.ready")
    altering_in_between(own_spec, gatekeeper)
    altering = alterer.waits("alter_queue", "q", tenant_max_active=3)
    a.run("set deadlock_timeout = '1min'")
    a.begin()
    a.send("q", tenant="open")
    cancelling = a.waits("cancel_message", "q", message)
    gatekeeper.run(OPEN_GATE, 0)
    assert cancelling.value() is True
    a.run(ends)
    altering.rows()
    a.maintain()
    counted = claimed(a)
    assert counted["t1"] == 3
    assert counted["open"] == (1 if ends == "commit" else 0)


def test_two_sessions_that_give_the_first_cap(own_spec: Spec) -> None:
    gatekeeper, first, second = own_spec.sessions(3)
    backlog(first)
    altering_in_between(own_spec, gatekeeper)
    altering = first.waits("alter_queue", "q", tenant_max_active=1)
    other = second.waits("alter_queue", "q", tenant_max_active=2)
    gatekeeper.run(OPEN_GATE, 0)
    altering.rows()
    other.rows()
    assert own_spec.look("select tenant_max_active from penstock.queues") == [(2,)]
    first.maintain()
    assert set(claimed(first).values()) == {2}


def test_a_send_takes_a_small_part_of_the_time(spec18: Spec) -> None:
    sender, alterer = spec18.sessions(2)
    backlog(sender, 60_000)
    began_at = time.monotonic()
    altering = alterer.start("alter_queue", "q", tenant_max_active=3)
    took: list[float] = []
    while not (took and altering.settle()):
        sent_at = time.monotonic()
        sender.send("q", tenant="new")
        took.append(time.monotonic() - sent_at)
        if spec18.look("select tenant_max_active from penstock.queues") == [(3,)]:
            break
    altering.rows()
    all_of_it = time.monotonic() - began_at
    assert max(took) < all_of_it / 3
