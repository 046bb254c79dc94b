"""One unfinished message a key, whoever comes first."""

import pytest

from tests.isolation.session import Isolation, Session, Spec

SERIALIZATION_FAILURE = "40001"


@pytest.fixture
def setup(spec: Spec) -> Session:
    session = spec.session()
    session.value("create_topic", "t")
    session.value("create_queue", "one", "t", max_delivery_attempts=1)
    session.value("create_queue", "two", "t", max_delivery_attempts=1)
    return session


@pytest.mark.parametrize("first_commits", [True, False])
def test_dedup_x_dedup(spec: Spec, setup: Session, first_commits: bool) -> None:
    a, b = spec.sessions(2)
    a.begin()
    first = a.value("send_message", "one", "1", dedup_key="k")
    second = b.waits("send_message", "one", "2", dedup_key="k")
    if first_commits:
        a.commit()
        assert second.value() == first
    else:
        a.rollback()
        assert second.value() != first
    assert spec.states("one") == {second.value(): "ready"}


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_dedup_x_dedup_with_a_snapshot(spec: Spec, setup: Session, isolation: Isolation) -> None:
    """It cannot see who holds the key: the caller has to try again."""
    a, b = spec.sessions(2)
    a.begin()
    first = a.value("send_message", "one", "1", dedup_key="k")
    b.begin_with_snapshot(isolation)
    second = b.waits("send_message", "one", "2", dedup_key="k")
    a.commit()
    assert second.error() == SERIALIZATION_FAILURE
    b.rollback()
    b.begin_with_snapshot(isolation)
    assert b.value("send_message", "one", "2", dedup_key="k") == first
    b.commit()


def test_topic_x_one_of_its_queues(spec: Spec, setup: Session) -> None:
    """A key that is held in one queue refuses the message in all, and leaves no key in the others."""
    a, b = spec.sessions(2)
    a.begin()
    first = a.value("send_message", "two", "1", dedup_key="k")
    second = b.waits("publish_message", "t", "2", dedup_key="k")
    a.commit()
    assert second.value() == first
    assert spec.states("one") == {}
    assert spec.states("two") == {first: "ready"}
    assert b.value("send_message", "one", "3", dedup_key="k") != first


def test_batches_with_keys_in_opposite_orders(spec: Spec, setup: Session) -> None:
    """Keys are taken in one order whatever that of the batch: the second waits, and there is no deadlock."""
    a, b = spec.sessions(2)
    a.begin()
    ids = [row[0] for row in a.rows("send_messages", "one", "{1,2,3}", dedup_keys=["x", "y", "z"])]
    second = b.waits("send_messages", "one", "{1,2,3}", dedup_keys=["z", "y", "x"])
    a.commit()
    assert [row[0] for row in second.rows()] == ids[::-1]


@pytest.mark.parametrize("ack_commits", [True, False])
def test_dedup_x_ack(spec: Spec, setup: Session, ack_commits: bool) -> None:
    """A key is free when its message is finished, which is at commit."""
    a, b = spec.sessions(2)
    first = a.value("send_message", "one", "1", dedup_key="k")
    held = a.claim("one")
    a.begin()
    a.ack("one", *held)
    second = b.waits("send_message", "one", "2", dedup_key="k")
    if ack_commits:
        a.commit()
    else:
        a.rollback()
    assert (second.value() != first) is ack_commits


def test_requeue_x_dedup(spec: Spec, setup: Session) -> None:
    """A dead letter whose key was taken meanwhile comes back without it."""
    a, b = spec.sessions(2)
    first = a.value("send_message", "one", "1", dedup_key="k")
    (held,) = a.claim("one")
    a.value("nack_message", "one", held.id, held.token)
    a.begin()
    second = a.value("send_message", "one", "2", dedup_key="k")
    requeue = b.waits("requeue_dlq_messages", "one")
    a.commit()
    assert requeue.value() == 1
    assert spec.states("one") == {first: "ready", second: "ready"}


def test_dedup_x_requeue(spec: Spec, setup: Session) -> None:
    a, b = spec.sessions(2)
    first = a.value("send_message", "one", "1", dedup_key="k")
    (held,) = a.claim("one")
    a.value("nack_message", "one", held.id, held.token)
    a.begin()
    assert a.value("requeue_dlq_messages", "one") == 1
    second = b.waits("send_message", "one", "2", dedup_key="k")
    a.commit()
    assert second.value() == first
