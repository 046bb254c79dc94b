"""A plain send takes few steps: it ranks by its id, and reads its queue again only once it has the lock.

Whatever happens to the queue in between, no message gets lost, gets below the floor or escapes a cap.
"""

import pytest

from tests.isolation.session import Isolation, Session, Spec

ISOLATIONS: list[Isolation] = ["read committed", "repeatable read", "serializable"]

# Each way to send one message to queue q, which is the only queue of topic t.
SENDS = [("send_message", "q", "1"), ("send_messages", "q", "{1}"), ("publish_message", "t", "1")]

RANKS = "select id, rank from penstock.ready order by rank, id"
LAST_ID = "select last_value from penstock.message_ids"


def queue(spec: Spec, **settings: object) -> Session:
    session = spec.session()
    session.value("create_topic", "t")
    session.value("create_queue", "q", "t", max_delivery_attempts=0, **settings)
    return session


def order(session: Session) -> list[int]:
    """The ids in the order of delivery, one claim for each."""
    return [c.id for _ in range(100) for c in session.claim("q", 1)]


@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_plain_message_has_its_id_as_rank(
    spec: Spec, isolation: Isolation, send: tuple[str, str, str]
) -> None:
    a = queue(spec)
    ids = []
    for _ in range(3):
        a.run("select nextval('penstock.message_ids') from generate_series(1, 50)")
        a.begin(isolation)
        ids.append(a.value(*send))
        a.commit()
    assert spec.look(RANKS) == [(message, message) for message in ids]
    assert order(a) == ids


@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_delete_queue_x_send(spec: Spec, isolation: Isolation, send: tuple[str, str, str]) -> None:
    """The sender has read the queue's row, and waits for the lock while the queue is deleted."""
    a, b = queue(spec), spec.session()
    a.begin()
    a.rows("delete_queue", "q")
    b.begin(isolation)
    sending = b.waits(*send)
    a.commit()
    if send[0] == "publish_message" and isolation == "read committed":
        assert sending.value() is not None  # its topic has no queue now
    else:
        assert sending.error() in ("PN001", "40001")
    b.rollback()
    assert spec.look("select queue_id from penstock.ready") == []


@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_delete_and_create_queue_x_send(spec: Spec, isolation: Isolation, send: tuple[str, str, str]) -> None:
    """A queue with the same name is another queue."""
    a, b = queue(spec), spec.session()
    a.begin()
    a.rows("delete_queue", "q")
    a.value("create_queue", "q", "t")
    b.begin(isolation)
    sending = b.waits(*send)
    a.commit()
    sending.settle()
    b.commit()
    strays = "select id from penstock.ready where queue_id not in (select id from penstock.queues)"
    assert spec.look(strays) == []


@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("tenant", [None, "acme"])
def test_cap_x_send(spec: Spec, tenant: str | None, send: tuple[str, str, str]) -> None:
    """The queue gets a cap while the sender waits for the lock: the message is under the cap."""
    a, b = queue(spec), spec.session()
    if tenant is not None:
        a.send("q", tenant=tenant)
    a.begin()
    a.rows("alter_queue", "q", tenant_max_active=1)
    sending = b.waits(*send, tenant=tenant)
    a.commit()
    message = sending.value()
    assert message in [i for (i,) in spec.look("select id from penstock.waiting")]
    assert spec.look("select id from penstock.ready where not holds_tenant_permit") == []
    a.maintain()
    assert len(a.claim("q", 10)) == 1


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("send", SENDS)
def test_first_tenant_x_send(spec: Spec, isolation: Isolation, send: tuple[str, str, str]) -> None:
    """Senders that do not see the first tenant yet rank by id. What was there before is still the first."""
    a, b = queue(spec), spec.session()
    before = a.send("q", 3)
    a.begin()
    first = a.send("q", 2, tenant="acme")
    b.begin(isolation)
    b.start(*send).passes()
    a.commit()
    b.start(*send).passes()
    b.commit()
    a.send("q", tenant="umbrella")
    a.maintain()
    ((last_id,),) = spec.look(LAST_ID)
    assert all(rank <= last_id for _, rank in spec.look(RANKS))
    delivered = order(a)
    assert delivered[:3] == before
    assert len(delivered) == 8
    assert [i for i in delivered if i in first] == first


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize("send", SENDS)
def test_snapshot_from_before_the_first_tenant(
    spec: Spec, isolation: Isolation, send: tuple[str, str, str]
) -> None:
    """Tenants come and go, the floor rises: the sender sees nothing of it, and its id is above."""
    a, b = queue(spec), spec.session()
    b.begin_with_snapshot(isolation)
    for _ in range(3):
        a.send("q", 10, tenant="acme")
        a.ack("q", *a.claim("q", 10))
        a.value("raise_floor", "q")
    message = b.value(*send)
    b.commit()
    a.value("raise_floor", "q")
    assert order(a) == [message]


@pytest.mark.parametrize("send", SENDS)
def test_raise_floor_x_send(spec: Spec, send: tuple[str, str, str]) -> None:
    """The floor rises to the last id while the sender waits for the lock: it draws its id behind the lock."""
    a, b = queue(spec), spec.session()
    a.send("q", 5)
    a.ack("q", *a.claim("q", 5))
    a.begin()
    assert a.value("raise_floor", "q") is True
    sending = b.waits(*send)
    ((last_id,),) = a.run("select max(nextval('penstock.message_ids')) from generate_series(1, 50)")
    a.commit()
    message = sending.value()
    assert message > last_id
    a.value("raise_floor", "q")
    assert order(a) == [message]


@pytest.mark.parametrize("keep", [0, 60])
def test_ack_x_ack(spec: Spec, keep: int) -> None:
    a, b = queue(spec, retain_completed_seconds=keep), spec.session()
    (message,) = a.send("q")
    (held,) = a.claim("q")
    a.begin()
    assert a.value("ack_message", "q", message, held.token) is True
    second = b.waits("ack_message", "q", message, held.token)
    a.commit()
    assert second.value() is False
    assert spec.look("select count(*) from penstock.done") == [(int(keep > 0),)]


def test_claim_of_one_x_claim_of_one(spec: Spec) -> None:
    a, b = queue(spec), spec.session()
    first, second = a.send("q", 2)
    a.begin()
    assert [c.id for c in a.claim("q", 1)] == [first]
    assert [c.id for c in b.claim("q", 1)] == [second]
    a.rollback()
    assert [c.id for c in b.claim("q", 1)] == [first]
