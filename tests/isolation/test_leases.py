"""Holders of a message: claims, leases that run out, and what the holders do meanwhile."""

import pytest

from tests.isolation.session import Claim, Session, Spec

WORKER = "w"


@pytest.fixture
def held(spec: Spec) -> Claim:
    """A message of queue q whose lease of 30 seconds has begun."""
    spec.movable_clock()
    setup = spec.session()
    setup.value("create_queue", "q", max_delivery_attempts=0)
    setup.send("q")
    return setup.claim("q")[0]


def late(spec: Spec) -> Session:
    """A session for which the lease has run out."""
    session = spec.session()
    session.move_clock("1 minute")
    return session


def test_claim_x_claim(spec: Spec) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    ids = a.send("q", 4)
    a.begin()
    b.begin()
    assert [c.id for c in a.claim("q", 2)] == ids[:2]
    assert [c.id for c in b.claim("q", 10)] == ids[2:]
    a.rollback()
    assert [c.id for c in b.claim("q", 10)] == ids[:2]
    b.commit()
    assert a.claim("q") == []


def test_claim_x_expiry(spec: Spec, held: Claim) -> None:
    a, b = late(spec), late(spec)
    a.begin()
    b.begin()
    assert [(c.id, c.attempt) for c in a.claim("q")] == [(held.id, 2)]
    assert b.start("consume_messages_batch", "q").passes() == []
    a.commit()
    assert b.claim("q") == []
    b.commit()
    assert spec.states("q") == {held.id: "active"}


def test_claim_x_expiry_that_rolls_back(spec: Spec, held: Claim) -> None:
    a, b = late(spec), late(spec)
    a.begin()
    a.claim("q")
    a.rollback()
    assert [(c.id, c.attempt) for c in b.claim("q")] == [(held.id, 2)]


def test_maintain_x_claim_of_an_expired_lease(spec: Spec, held: Claim) -> None:
    a, b = late(spec), late(spec)
    a.begin()
    assert ("leases taken back", "q", 1) in a.maintain()
    assert b.start("consume_messages_batch", "q").passes() == []
    a.commit()
    assert [c.id for c in b.claim("q")] == [held.id]


def test_ack_before_expiry(spec: Spec, held: Claim) -> None:
    holder, sweeper = spec.session(), late(spec)
    holder.begin()
    assert holder.ack("q", held) == [held.id]
    assert sweeper.start("consume_messages_batch", "q").passes() == []
    assert ("leases taken back", "q", 1) not in sweeper.maintain()
    holder.commit()
    assert spec.states("q") == {held.id: "done"}


def test_ack_before_expiry_rolls_back(spec: Spec, held: Claim) -> None:
    holder, sweeper = spec.session(), late(spec)
    holder.begin()
    holder.ack("q", held)
    assert sweeper.claim("q") == []
    holder.rollback()
    sweeper.move_clock("5 minutes")
    assert [c.id for c in sweeper.claim("q")] == [held.id]


def test_ack_after_expiry(spec: Spec, held: Claim) -> None:
    holder, sweeper = spec.session(), late(spec)
    sweeper.begin()
    (taken,) = sweeper.claim("q")
    late_ack = holder.waits("ack_message", "q", held.id, held.token)
    sweeper.commit()
    assert late_ack.value() is False
    assert sweeper.ack("q", taken) == [held.id]


def test_ack_after_expiry_that_rolls_back(spec: Spec, held: Claim) -> None:
    holder, sweeper = spec.session(), late(spec)
    sweeper.begin()
    sweeper.claim("q")
    ack = holder.waits("ack_message", "q", held.id, held.token)
    sweeper.rollback()
    assert ack.value() is True
    assert spec.states("q") == {held.id: "done"}


@pytest.mark.parametrize("settle", ["nack_message", "release_message", "reject_message"])
def test_settle_after_expiry(spec: Spec, held: Claim, settle: str) -> None:
    holder, sweeper = spec.session(), late(spec)
    sweeper.begin()
    sweeper.claim("q")
    step = holder.waits(settle, "q", held.id, held.token)
    sweeper.commit()
    assert step.value() is False
    assert spec.states("q") == {held.id: "active"}


def test_extend_before_expiry(spec: Spec, held: Claim) -> None:
    holder, sweeper = spec.session(), late(spec)
    holder.begin()
    assert holder.value("extend_message_vt", "q", held.id, held.token, 3600) is not None
    assert sweeper.start("consume_messages_batch", "q").passes() == []
    holder.commit()
    assert sweeper.claim("q") == []
    assert holder.ack("q", held) == [held.id]


def test_extend_after_expiry(spec: Spec, held: Claim) -> None:
    holder, sweeper = spec.session(), late(spec)
    sweeper.begin()
    sweeper.claim("q")
    extend = holder.waits("extend_message_vt", "q", held.id, held.token, 3600)
    sweeper.commit()
    assert extend.value() is None


@pytest.mark.parametrize("by_name", [False, True])
def test_pulse_before_and_after_expiry(spec: Spec, held: Claim, by_name: bool) -> None:
    named = (["q"], [held.id]) if by_name else ()
    holder, sweeper = spec.session(), late(spec)
    sweeper.begin()
    sweeper.claim("q")
    assert holder.start("pulse", held.token, 3600, *named).passes() == [(0,)]
    sweeper.rollback()
    holder.begin()
    assert holder.value("pulse", held.token, 3600, *named) == 1
    assert sweeper.start("consume_messages_batch", "q").passes() == []
    holder.commit()
    assert sweeper.claim("q") == []


@pytest.mark.parametrize("by_name", [False, True])
def test_pulse_x_ack(spec: Spec, held: Claim, by_name: bool) -> None:
    named = (["q"], [held.id]) if by_name else ()
    a, b = spec.sessions(2)
    a.begin()
    a.ack("q", held)
    assert b.start("pulse", held.token, 60, *named).passes() == [(0,)]
    a.rollback()
    b.begin()
    assert b.value("pulse", held.token, 60, *named) == 1
    ack = a.waits("ack_message", "q", held.id, held.token)
    b.commit()
    assert ack.value() is True


@pytest.mark.parametrize("first_commits", [True, False])
@pytest.mark.parametrize("second", ["ack_message", "nack_message", "release_message", "reject_message"])
def test_ack_x_settle(spec: Spec, held: Claim, second: str, first_commits: bool) -> None:
    a, b = spec.sessions(2)
    a.begin()
    assert a.ack("q", held) == [held.id]
    step = b.waits(second, "q", held.id, held.token)
    if first_commits:
        a.commit()
    else:
        a.rollback()
    assert step.value() is not first_commits


def test_ack_x_ack_of_batches_that_overlap(spec: Spec) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.send("q", 4)
    one, two, three, four = a.claim("q", consumer_token=WORKER)
    a.begin()
    assert a.ack("q", two, one) == [one.id, two.id]
    both = b.waits("ack_messages", "q", [c.id for c in (four, three, two)], [WORKER] * 3)
    a.commit()
    assert sorted(both.rows()) == [(three.id,), (four.id,)]


def test_expiry_x_extend_in_one_batch(spec: Spec) -> None:
    """A sweep takes what ran out, and passes over what its holder is extending."""
    spec.movable_clock()
    a = spec.session()
    a.value("create_queue", "q")
    a.send("q", 2)
    one, two = a.claim("q")
    a.begin()
    a.value("extend_message_vt", "q", one.id, one.token, 3600)
    sweeper = late(spec)
    assert [c.id for c in sweeper.claim("q")] == [two.id]
    a.commit()
    assert spec.states("q") == {one.id: "active", two.id: "active"}
    assert a.ack("q", one, two) == [one.id]


@pytest.mark.parametrize("claim_commits", [True, False])
def test_purge_x_claim(spec: Spec, claim_commits: bool) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.send("q", 3)
    a.begin()
    claimed = a.claim("q", 2)
    purge = b.waits("purge_queue", "q")
    if claim_commits:
        a.commit()
    else:
        a.rollback()
    assert purge.value() == 3
    assert a.ack("q", *claimed) == []
    assert spec.states("q") == {}


def test_claim_x_purge(spec: Spec) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.send("q", 3)
    a.begin()
    assert a.value("purge_queue", "q") == 3
    assert b.start("consume_messages_batch", "q").passes() == []
    a.rollback()
    assert len(b.claim("q")) == 3


def test_purge_x_nack(spec: Spec, held: Claim) -> None:
    """A message that goes back to ready while a purge waits for it is purged as well."""
    a, b = spec.sessions(2)
    a.begin()
    assert a.value("nack_message", "q", held.id, held.token, delay_seconds=0) is True
    purge = b.waits("purge_queue", "q")
    a.commit()
    assert purge.value() == 1
    assert spec.states("q") == {}


@pytest.mark.parametrize("claim_commits", [True, False])
def test_cancel_x_claim(spec: Spec, claim_commits: bool) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    (message,) = a.send("q")
    a.begin()
    a.claim("q")
    cancel = b.waits("cancel_message", "q", message)
    if claim_commits:
        a.commit()
    else:
        a.rollback()
    assert cancel.value() is not claim_commits


def test_claim_x_cancel(spec: Spec) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    (message,) = a.send("q")
    a.begin()
    assert a.value("cancel_message", "q", message) is True
    assert b.start("consume_messages_batch", "q").passes() == []
    a.rollback()
    assert [c.id for c in b.claim("q")] == [message]
