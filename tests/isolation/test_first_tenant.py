"""The first tenant of a queue: before it sessions rank by id, after it by tenant. Some do not see it yet.

Ids have gaps where other queues are in use. Whatever the sessions see, no message is put off for the length
of a gap, and no burst is served alone.
"""

from collections import Counter
from typing import Any

import pytest

from tests.isolation.session import Isolation, Session, Spec

ISOLATIONS: list[Isolation] = ["read committed", "repeatable read", "serializable"]

GAP = 50
"""As many ids go to other queues between two messages."""


@pytest.fixture
def sender(spec: Spec) -> Session:
    session = spec.session()
    session.value("create_queue", "q", max_delivery_attempts=0, retain_completed_seconds=0)
    return session


def draw(session: Session, number: int = GAP) -> None:
    session.run("select count(nextval('penstock.message_ids')) from generate_series(1, %s)", number)


def send_sparsely(session: Session, number: int, **options: Any) -> list[int]:
    ids = []
    for _ in range(number):
        ids += session.send("q", **options)
        draw(session)
    return ids


def serve(session: Session, number: int) -> list[int]:
    """Claims so many, one after the other, and acks them: their ids in this order."""
    served = []
    for _ in range(number):
        claims = session.claim("q", 1)
        session.ack("q", *claims)
        served += [claim.id for claim in claims]
    return served


def served_beside(session: Session, number: int, **options: Any) -> list[int]:
    """The same while a publisher has always more."""
    served = []
    for _ in range(number):
        session.send("q", 2, **options)
        served += serve(session, 1)
    return served


def send_late(spec: Spec, sender: Session, before: bool) -> Session:
    """A session that does not see the first tenant, and sends before it, or while it is open."""
    first, late = spec.sessions(2)
    if before:
        late.begin()
        late.send("q")
    first.begin()
    first.send("q", tenant="steady")
    if not before:
        late.begin()
        late.send("q")
    first.commit()
    sender.send("q", 300, tenant="steady")
    return late


def test_a_first_tenant_that_stays_open_does_not_let_others_into_the_gaps_of_a_backlog(
    spec: Spec, sender: Session
) -> None:
    first = spec.session()
    backlog = send_sparsely(sender, 60)
    first.begin()
    first.send("q", tenant="first")
    assert served_beside(sender, 60, tenant="second") == backlog
    first.commit()


@pytest.mark.parametrize("tenant", [None, "quiet"])
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_messages_sent_while_the_first_tenant_is_open_do_not_starve(
    spec: Spec, sender: Session, isolation: Isolation, tenant: str | None
) -> None:
    first, quiet = spec.session(), spec.session()
    first.begin()
    first.send("q", tenant="busy")
    sent = []
    for _ in range(20):
        quiet.begin(isolation)
        sent += send_sparsely(quiet, 1, tenant=tenant)
        quiet.commit()
    first.commit()
    sender.send("q", 20, tenant="busy")
    sender.value("raise_floor", "q")
    served = served_beside(sender, 60, tenant="busy")
    assert [message for message in served if message in sent] == sent


def test_a_publisher_that_saw_no_tenant_and_commits_late_is_served_with_the_others(
    spec: Spec, sender: Session
) -> None:
    """Its lock keeps the queue from being settled, until it is over."""
    first, late = spec.session(), spec.session()
    first.begin()
    first.send("q", tenant="busy")
    draw(sender, 1000)
    late.begin()
    sent = late.send("q", 10)
    first.commit()
    sender.send("q", 20, tenant="busy")
    assert spec.session().value("raise_floor", "q") is False
    late.commit()
    sender.value("raise_floor", "q")
    served = served_beside(sender, 30, tenant="busy")
    assert [message for message in served if message in sent] == sent
    assert spec.look("select tenants_settled from penstock.queues") == [(True,)]


def test_settling_a_queue_goes_on_where_it_is_too_much_at_once(spec: Spec, sender: Session) -> None:
    first = spec.session()
    first.begin()
    first.send("q", tenant="busy")
    sent = sender.send("q", 5000)
    first.commit()
    unsettled = "select count(*) from penstock.ready where not ranked_by_tenant"
    for left in (3000, 1000, 0):
        assert spec.look("select tenants_settled from penstock.queues") == [(False,)]
        sender.value("raise_floor", "q")
        assert spec.look(unsettled) == [(left,)]
    assert spec.look("select tenants_settled from penstock.queues") == [(True,)]
    in_order = "select id from penstock.ready where tenant = '' order by rank, id"
    assert [message for (message,) in spec.look(in_order)] == sent


def test_settling_a_queue_leaves_what_a_claim_has_locked_and_does_not_wait(
    spec: Spec, sender: Session
) -> None:
    first, consumer, owner = spec.sessions(3)
    first.begin()
    of_first = first.send("q", tenant="busy")
    sent = send_sparsely(sender, 3)
    consumer.begin()
    (claimed,) = (claim.id for claim in consumer.claim("q", 1))
    first.commit()
    owner.begin()
    owner.rows("alter_queue", "q", retain_dead_seconds=60)
    sender.start("raise_floor", "q").passes()
    assert spec.look("select tenants_settled from penstock.queues") == [(False,)]
    owner.commit()
    sender.start("raise_floor", "q").passes()
    assert spec.look("select tenants_settled from penstock.queues") == [(True,)]
    assert spec.look("select id from penstock.ready where not ranked_by_tenant") == [(claimed,)]
    consumer.rollback()
    assert sorted(serve(sender, 5)) == sorted([*sent, *of_first])


@pytest.mark.parametrize("mixed", [False, True], ids=["one tenant", "tenants"])
@pytest.mark.parametrize("before", [False, True], ids=["after the first tenant", "before the first tenant"])
def test_a_plain_message_that_commits_late_does_not_throw_tenants_back(
    spec: Spec, sender: Session, before: bool, mixed: bool
) -> None:
    late = send_late(spec, sender, before)
    serve(sender, 100)
    late.commit()
    burst = sender.send("q", 100, **({"tenants": ["burst"] * 100} if mixed else {"tenant": "burst"}))
    served = Counter(message in burst for message in serve(sender, 61))
    assert 28 <= served[True] <= 32


@pytest.mark.parametrize("before", [False, True], ids=["after the first tenant", "before the first tenant"])
def test_retries_are_not_thrown_back_by_a_plain_message_that_commits_late(
    spec: Spec, sender: Session, before: bool
) -> None:
    late = send_late(spec, sender, before)
    serve(sender, 30)
    failing = sender.claim("q", 60)
    late.commit()
    for claim in failing:
        sender.value("nack_message", "q", claim.id, claim.token)
    ((head,),) = spec.look("select min(rank) from penstock.ready where ranked_by_tenant and not redelivered")
    ((in_front,),) = spec.look("select count(*) from penstock.ready where redelivered and rank < %s", head)
    assert in_front <= 1  # beside the late message


def test_a_retry_under_a_snapshot_does_not_send_later_retries_to_the_end(spec: Spec, sender: Session) -> None:
    sender.send("q", 50)
    first, second, third = sender.claim("q", 3)
    sender.begin("repeatable read")
    sender.value("nack_message", "q", first.id, first.token)
    sender.commit()
    for claim in (second, third):
        sender.value("nack_message", "q", claim.id, claim.token)
    order = serve(sender, 50)
    assert order.index(second.id) <= 1
    assert order.index(third.id) <= 3
    assert order[-1] == first.id
