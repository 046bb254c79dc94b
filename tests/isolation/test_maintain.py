"""Maintenance, from however many processes, beside all other sessions."""

from datetime import timedelta
from typing import Any

import pytest

from tests.isolation.session import Session, Spec

LARGE = '{"text": "' + "x" * 5_000 + '"}'


def late(spec: Spec) -> Session:
    session = spec.session()
    session.move_clock("1 minute")
    return session


def delayed_message(spec: Spec, **options: Any) -> int:
    """A message of queue q that is due in half a minute."""
    spec.movable_clock()
    setup = spec.session()
    setup.value("create_queue", "q")
    (due,) = setup.run("select penstock.clock() + interval '30 seconds'")[0]
    (message,) = setup.send("q", deliver_after=due, **options)
    return message


def test_maintain_x_maintain(spec: Spec) -> None:
    """The second has nothing to do, and does not wait for the first."""
    message = delayed_message(spec)
    a, b = late(spec), late(spec)
    a.begin()
    assert ("promoted", "q", 1) in a.maintain()
    assert b.maintain() == []
    a.commit()
    b.maintain()
    assert spec.states("q") == {message: "ready"}


def test_maintain_x_maintain_that_rolls_back(spec: Spec) -> None:
    message = delayed_message(spec)
    a, b = late(spec), late(spec)
    a.begin()
    a.maintain()
    a.rollback()
    assert ("promoted", "q", 1) in b.maintain()
    assert spec.states("q") == {message: "ready"}


@pytest.mark.parametrize("promote_commits", [True, False])
def test_cancel_x_promote(spec: Spec, promote_commits: bool) -> None:
    message = delayed_message(spec, dedup_key="k")
    a, b = late(spec), spec.session()
    a.begin()
    a.maintain()
    cancel = b.waits("cancel_message", "q", message)
    if promote_commits:
        a.commit()
    else:
        a.rollback()
    assert cancel.value() is True
    assert spec.states("q") == {}


def test_promote_x_cancel(spec: Spec) -> None:
    message = delayed_message(spec)
    a, b = spec.session(), late(spec)
    a.begin()
    assert a.value("cancel_message", "q", message) is True
    assert b.start("consume_messages_batch", "q").passes() == []
    assert ("promoted", "q", 1) not in b.maintain()
    a.rollback()
    # What was locked when it was looked for is found when everything is looked through again.
    b.move_clock("5 minutes")
    assert [c.id for c in b.claim("q")] == [message]


def test_promote_x_promote(spec: Spec) -> None:
    """Two consumers find the same message due: one of them gets it."""
    message = delayed_message(spec)
    a, b = late(spec), late(spec)
    a.begin()
    assert [c.id for c in a.claim("q")] == [message]
    assert b.start("consume_messages_batch", "q").passes() == []
    a.commit()
    assert b.claim("q") == []


def test_promote_x_delete_queue(spec: Spec) -> None:
    delayed_message(spec)
    a, b = late(spec), spec.session()
    a.begin()
    a.maintain()
    delete = b.waits("delete_queue", "q")
    a.commit()
    delete.rows()


def test_delete_queue_x_promote(spec: Spec) -> None:
    delayed_message(spec)
    a, b = spec.session(), late(spec)
    a.begin()
    a.rows("delete_queue", "q")
    assert b.start("consume_messages_batch", "q").passes() == []
    b.maintain()
    a.commit()


def test_time_to_live_x_claim(spec: Spec) -> None:
    """A message that is being claimed in time is not buried."""
    spec.movable_clock()
    a, b = spec.session(), late(spec)
    a.value("create_queue", "q")
    (message,) = a.send("q", ttl_seconds=30, dedup_key="k")
    a.begin()
    assert [c.id for c in a.claim("q")] == [message]
    b.maintain()
    assert b.start("consume_messages_batch", "q").passes() == []
    a.commit()
    assert spec.states("q") == {message: "active"}


def test_claim_x_time_to_live(spec: Spec) -> None:
    spec.movable_clock()
    a, b = late(spec), spec.session()
    b.value("create_queue", "q")
    (message,) = b.send("q", ttl_seconds=30, dedup_key="k")
    a.begin()
    assert ("expired", "q", 1) in a.maintain()
    assert b.start("consume_messages_batch", "q").passes() == []
    a.commit()
    assert spec.states("q") == {message: "dead"}


def test_ack_x_new_days(spec: Spec) -> None:
    """Days are added and dropped while no session acks: maintenance does not wait for an open ack."""
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.send("q", 2)
    one, two = a.claim("q")
    a.begin()
    a.ack("q", one)
    assert ("days added", None, 7) not in b.maintain()
    assert b.ack("q", two) == [two.id]
    a.commit()


def test_ack_x_ack_of_one_large_payload(spec: Spec) -> None:
    """Each sees the other's reference, so neither removes the payload: maintenance does."""
    a, b = spec.sessions(2)
    a.value("create_topic", "t")
    a.value("create_queue", "one", "t")
    a.value("create_queue", "two", "t")
    message = a.value("publish_message", "t", LARGE)
    of_one, of_two = a.claim("one"), a.claim("two")
    a.begin()
    b.begin()
    assert a.ack("one", *of_one) == [message]
    assert b.ack("two", *of_two) == [message]
    a.commit()
    b.commit()
    assert spec.look("select id from penstock.payloads") == [(message,)]
    a.maintain()
    assert spec.look("select id from penstock.payloads") == []
    assert spec.look("select * from penstock.payload_orphans") == []


def test_maintain_x_ack_of_a_large_payload(spec: Spec) -> None:
    """A payload that maintenance finds still in use goes with its last user."""
    a, b = spec.sessions(2)
    a.value("create_topic", "t")
    a.value("create_queue", "one", "t", retain_completed_seconds=0)
    a.value("create_queue", "two", "t", retain_completed_seconds=0)
    message = a.value("publish_message", "t", LARGE)
    a.ack("one", *a.claim("one"))
    of_two = a.claim("two")
    a.begin()
    a.ack("two", *of_two)
    assert ("payloads removed", None, 1) not in b.maintain()
    a.rollback()
    assert b.run("select payload is not null from penstock.get_message('two', %s)", message) == [(True,)]
    b.ack("two", *of_two)
    assert spec.look("select id from penstock.payloads") == []


def test_maintain_x_ack_that_let_go_before(spec: Spec) -> None:
    """The orphan of an ack that commits after maintenance looked is found the next time."""
    spec.movable_clock()
    a, b, m = spec.sessions(3)
    a.value("create_topic", "t")
    a.value("create_queue", "one", "t", retain_completed_seconds=0)
    a.value("create_queue", "two", "t", retain_completed_seconds=0)
    a.value("publish_message", "t", LARGE)
    of_one, of_two = a.claim("one", vt_seconds=3600), a.claim("two", vt_seconds=3600)
    a.begin()
    a.ack("one", *of_one)
    b.begin()
    b.ack("two", *of_two)
    a.commit()
    m.maintain()
    b.commit()
    m.move_clock("2 minutes")
    assert ("payloads removed", None, 1) in m.maintain()
    assert spec.look("select id from penstock.payloads") == []


def test_requeue_x_requeue(spec: Spec) -> None:
    """Each dead letter is brought back by one of them; neither waits."""
    a, b = spec.sessions(2)
    a.value("create_queue", "q", max_delivery_attempts=1)
    ids = a.send("q", 2)
    for held in a.claim("q"):
        a.value("nack_message", "q", held.id, held.token)
    a.begin()
    assert a.value("requeue_dlq_messages", "q", ids[:1]) == 1
    assert b.start("requeue_dlq_messages", "q").passes() == [(1,)]
    assert b.start("add_retries", "q", 1).passes() == [(0,)]
    a.rollback()
    assert spec.states("q") == {ids[0]: "dead", ids[1]: "ready"}
    assert b.value("requeue_dlq_messages", "q") == 1


def test_purge_dlq_x_requeue(spec: Spec) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q", max_delivery_attempts=1)
    (message,) = a.send("q")
    (held,) = a.claim("q")
    a.value("nack_message", "q", held.id, held.token)
    a.begin()
    assert a.value("requeue_dlq_messages", "q") == 1
    assert b.start("purge_dlq", "q").passes() == [(0,)]
    a.commit()
    assert spec.states("q") == {message: "ready"}


# what was locked while its time came


@pytest.mark.parametrize("by", ["maintain", "consume"])
def test_a_lease_that_ran_out_while_its_row_was_locked_is_found_by_the_next_sweep(
    spec18: Spec, by: str
) -> None:
    """A settle is left open past the lease and rolls back. The sweeps meanwhile go on to later times."""
    a, b = spec18.sessions(2)
    spec18.movable_clock()
    a.value("create_queue", "q", max_delivery_attempts=0)
    (sent,) = a.send("q")
    (held,) = a.claim("q", vt_seconds=5)
    a.maintain()
    b.begin()
    b.ack("q", held)
    for offset in ("6 s", "8 s", "9 s"):
        a.move_clock(offset)
        # Other leases run out: the sweep moves on.
        (other,) = a.send("q")
        assert [c.id for c in a.claim("q", vt_seconds=0)] == [other]
        assert ("leases taken back", "q", 1) in a.maintain()
        (again,) = a.claim("q")
        a.ack("q", again)
    b.rollback()
    # Everything is looked through five seconds after the last time at the earliest: not yet.
    a.move_clock("10 s")
    if by == "maintain":
        assert ("leases taken back", "q", 1) in a.start("maintain").rows()
    assert [(c.id, c.attempt) for c in a.claim("q")] == [(sent, 2)]


def test_a_message_that_became_due_while_its_row_was_locked_is_found_by_the_next_sweep(spec18: Spec) -> None:
    a, b = spec18.sessions(2)
    spec18.movable_clock()
    a.value("create_queue", "q")
    ((now,),) = spec18.look("select clock_timestamp()")
    due = [a.send("q", deliver_after=now + timedelta(seconds=s))[0] for s in (5, 7, 8.5)]
    a.maintain()
    b.begin()
    assert b.value("cancel_message", "q", due[0]) is True
    for offset, message in (("7.5 s", due[1]), ("9 s", due[2])):
        a.move_clock(offset)
        a.maintain()
        assert [c.id for c in a.claim("q")] == [message]
    b.rollback()
    a.move_clock("10 s")
    assert ("promoted", "q", 1) in a.start("maintain").rows()
    assert [c.id for c in a.claim("q")] == [due[0]]


def test_what_was_passed_over_is_looked_at_also_beside_thousands_that_are_locked(spec18: Spec) -> None:
    a, b, c = spec18.sessions(3)
    spec18.movable_clock()
    a.value("create_queue", "q", max_delivery_attempts=0)
    (sent,) = a.send("q")
    (held,) = a.claim("q", vt_seconds=5)
    a.send("q", 1500)
    crowd = a.claim("q", 1500, vt_seconds=8)
    a.maintain()
    b.begin()
    b.ack("q", held)
    a.move_clock("6 s")
    a.maintain()
    c.begin()
    c.ack("q", *crowd)
    a.move_clock("9 s")
    a.maintain()
    b.rollback()
    assert ("leases taken back", "q", 1) in a.start("maintain").rows()
    assert [x.id for x in a.claim("q")] == [sent]
    c.rollback()


@pytest.mark.parametrize("kind", ["leases", "due"])
def test_slices_pass_over_what_is_locked_and_find_it_later(spec18: Spec, kind: str) -> None:
    """Each slice starts where the last one ended, but not behind a row that was locked."""
    a, b = spec18.sessions(2)
    spec18.movable_clock()
    a.value("create_queue", "q", max_delivery_attempts=0)
    ((now,),) = spec18.look("select clock_timestamp()")
    if kind == "leases":
        ids = a.send("q", 3_000)
        held = [claim for _ in range(10) for claim in a.claim("q", 300, vt_seconds=5)]
    else:
        ids = [
            message
            for n in range(10)
            for message in a.send("q", 300, deliver_after=now + timedelta(seconds=5, milliseconds=100 * n))
        ]
    a.maintain()
    b.begin()
    for n in (50, 700, 2_500):
        if kind == "leases":
            b.ack("q", held[n])
        else:
            assert b.value("cancel_message", "q", ids[n]) is True
    a.move_clock("8 s")
    for _ in range(100):
        if not any(action == "unfinished" for action, *_ in a.maintain()):
            break
    left = "select id from penstock.active union all select id from penstock.scheduled order by id"
    assert [message for (message,) in spec18.look(left)] == [ids[n] for n in (50, 700, 2_500)]
    b.rollback()
    a.maintain()
    assert spec18.look(left) == []
