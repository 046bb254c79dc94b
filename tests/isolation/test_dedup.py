"""One unfinished message a key, whichever session comes first."""

from collections.abc import Iterator

import pytest

from tests.isolation.rewriting import anchoring
from tests.isolation.session import Isolation, Session, Spec

SERIALIZATION_FAILURE = "40001"
CONSUMER = "me"


@pytest.fixture(params=["plain", "anchored", "used before"])
def setup(request: pytest.FixtureRequest, spec: Spec) -> Iterator[Session]:
    """Keys are plain, or are anchored by the first message that takes them, or were anchored and are free."""
    session = spec.session()
    session.value("create_topic", "t")
    session.value("create_queue", "one", "t", max_delivery_attempts=1)
    session.value("create_queue", "two", "t", max_delivery_attempts=1)
    with anchoring(spec.watcher, always=request.param != "plain"):
        if request.param == "used before":
            for key in "abckxyz":
                message = session.value("publish_message", "t", "1", dedup_key=key)
                for queue in ("one", "two"):
                    assert session.value("cancel_message", queue, message)
        yield session


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
    """The snapshot cannot see the holder of the key: the caller has to try again."""
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


# A message that is over holds its key no longer.

OVER = ("lease", "ready", "scheduled")


@pytest.fixture(params=OVER)
def over(request: pytest.FixtureRequest, spec: Spec, setup: Session) -> int:
    """A message of queue one with the key k that is over at the time of LATE."""
    spec.movable_clock()
    ttl = None if request.param == "lease" else 60
    due = "2999-01-01" if request.param == "scheduled" else None
    message: int = setup.value("send_message", "one", "1", dedup_key="k", ttl_seconds=ttl, deliver_after=due)
    if request.param == "lease":
        setup.claim("one", consumer_token=CONSUMER)
    return message


def late(spec: Spec, n: int) -> list[Session]:
    sessions = spec.sessions(n)
    for session in sessions:
        session.move_clock("10 minutes")
    return sessions


@pytest.mark.parametrize("first_commits", [True, False])
def test_two_publishers_x_what_is_over(spec: Spec, over: int, first_commits: bool) -> None:
    """The second waits for the first; where that rolls back, it ends the message itself."""
    a, b = late(spec, 2)
    a.begin()
    first = a.value("send_message", "one", "2", dedup_key="k")
    assert first != over
    second = b.waits("send_message", "one", "3", dedup_key="k")
    if first_commits:
        a.commit()
        assert second.value() == first
    else:
        a.rollback()
        assert second.value() not in (first, over)
    assert spec.states("one") == {over: "dead", second.value(): "ready"}


@pytest.mark.parametrize("commits", [True, False])
def test_what_another_session_has_locked_refuses_as_before(spec: Spec, over: int, commits: bool) -> None:
    """A publisher does not wait for the row of the message that holds the key."""
    a, b = late(spec, 2)
    a.begin()
    locked = [t for t in ("active", "ready", "scheduled") if a.run(f"select 1 from penstock.{t} for update")]
    assert len(locked) == 1
    assert b.value("send_message", "one", "2", dedup_key="k") == over
    a.commit() if commits else a.rollback()
    assert b.value("send_message", "one", "2", dedup_key="k") != over


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_an_old_snapshot_x_what_is_over(spec: Spec, over: int, isolation: Isolation) -> None:
    """It refuses as before; where another session ended the message meanwhile, the caller tries again."""
    a, b = late(spec, 2)
    b.begin_with_snapshot(isolation)
    assert b.value("send_message", "one", "2", dedup_key="k") == over
    b.commit()
    b.begin_with_snapshot(isolation)
    second = a.value("send_message", "one", "3", dedup_key="k")
    assert second != over
    assert b.error("send_message", "one", "2", dedup_key="k") == SERIALIZATION_FAILURE
    b.rollback()
    b.begin_with_snapshot(isolation)
    assert b.value("send_message", "one", "2", dedup_key="k") == second
    b.commit()


@pytest.mark.parametrize("over", ["lease"], indirect=True)
@pytest.mark.parametrize("publisher_commits", [True, False])
def test_what_is_over_x_ack(spec: Spec, over: int, publisher_commits: bool) -> None:
    """An ack that comes too late waits for the publisher, and then has no lease or has it still."""
    a, b = late(spec, 2)
    a.begin()
    second = a.value("send_message", "one", "2", dedup_key="k")
    ack = b.start("ack_message", "one", over, CONSUMER).waits()
    if publisher_commits:
        a.commit()
    else:
        a.rollback()
    assert ack.value() is not publisher_commits
    assert spec.states("one") == ({over: "dead", second: "ready"} if publisher_commits else {over: "done"})


@pytest.mark.parametrize("over", ["lease"], indirect=True)
@pytest.mark.parametrize("ack_commits", [True, False])
def test_ack_x_what_is_over(spec: Spec, over: int, ack_commits: bool) -> None:
    a, b = late(spec, 2)
    a.begin()
    assert a.value("ack_message", "one", over, CONSUMER)
    second = b.waits("send_message", "one", "2", dedup_key="k")
    if ack_commits:
        a.commit()
    else:
        a.rollback()
    assert second.value() != over
    assert spec.states("one") == {over: "done" if ack_commits else "dead", second.value(): "ready"}


def test_a_publisher_that_waits_for_a_key_has_ended_nothing(spec: Spec, setup: Session) -> None:
    """Else it would have locked a row that the session which it waits for wants: a deadlock."""
    spec.movable_clock()
    first, second = setup.send("one", 2, dedup_keys=["a", "b"])
    setup.claim("one", consumer_token=CONSUMER)
    consumer, publisher = late(spec, 2)
    consumer.begin()
    assert consumer.value("ack_message", "one", second, CONSUMER)
    publish = publisher.waits("send_messages", "one", "{1,2}", dedup_keys=["a", "b"])
    assert consumer.start("ack_message", "one", first, CONSUMER).passes() == [(True,)]
    consumer.commit()
    ids = [row[0] for row in publish.rows()]
    # The first was done while the publisher waited: it was not when the publisher looked.
    assert ids[0] == first
    assert ids[1] not in (first, second)


def test_two_batches_x_what_is_over(spec: Spec, setup: Session) -> None:
    """In a topic, with keys in opposite orders: one waits for the other, and takes what that left."""
    spec.movable_clock()
    old = [
        row[0]
        for row in setup.rows("publish_messages", "t", "{1,2,3}", dedup_keys=list("abc"), ttl_seconds=60)
    ]
    a, b = late(spec, 2)
    a.begin()
    ids = [row[0] for row in a.rows("publish_messages", "t", "{1,2}", dedup_keys=list("ba"))]
    second = b.waits("publish_messages", "t", "{1,2,3}", dedup_keys=list("cab"))
    a.commit()
    again = [row[0] for row in second.rows()]
    assert again[1:] == ids[::-1]
    assert not {*ids, *again} & {*old}
    for queue in ("one", "two"):
        assert spec.states(queue) == dict.fromkeys(old, "dead") | dict.fromkeys(again, "ready")


def test_requeue_x_what_is_over(spec: Spec, setup: Session) -> None:
    """Of two sessions that want the key of a message that is over, one gets it."""
    spec.movable_clock()
    dead = setup.value("send_message", "one", "1", dedup_key="k")
    (held,) = setup.claim("one")
    setup.value("nack_message", "one", held.id, held.token)
    over = setup.value("send_message", "one", "2", dedup_key="k", ttl_seconds=60)
    a, b = late(spec, 2)
    a.begin()
    second = a.value("send_message", "one", "3", dedup_key="k")
    requeue = b.waits("requeue_dlq_messages", "one", [dead])
    a.commit()
    assert requeue.value() == 1
    assert spec.states("one") == {dead: "ready", over: "dead", second: "ready"}
    assert b.value("send_message", "one", "4", dedup_key="k") == second
