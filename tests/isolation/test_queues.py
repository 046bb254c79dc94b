"""Queues and topics that come and go while they are used."""

import pytest

from tests.isolation.session import Isolation, Session, Spec

NO_SUCH_QUEUE = "PN001"
NO_SUCH_TOPIC = "PN002"
WRONG_ISOLATION = "PN006"
SERIALIZATION_FAILURE = "40001"

LARGE = '{"text": "' + "x" * 5_000 + '"}'


def topic_with_queues(session: Session, *queues: str) -> None:
    session.value("create_topic", "t")
    for queue in queues:
        session.value("create_queue", queue, "t")


@pytest.mark.parametrize("first_commits", [True, False])
def test_create_queue_x_create_queue(spec: Spec, first_commits: bool) -> None:
    a, b = spec.sessions(2)
    a.begin()
    first = a.value("create_queue", "q")
    second = b.waits("create_queue", "q")
    if first_commits:
        a.commit()
        assert second.value() == first
    else:
        a.rollback()
        assert second.value() != first
    assert len(b.send("q")) == 1


def test_create_queue_x_create_queue_with_other_settings(spec: Spec) -> None:
    a, b = spec.sessions(2)
    a.begin()
    a.value("create_queue", "q")
    second = b.waits("create_queue", "q", max_delivery_attempts=7)
    a.commit()
    assert second.error() == "PN003"


def test_create_topic_x_create_topic(spec: Spec) -> None:
    a, b = spec.sessions(2)
    a.begin()
    first = a.value("create_topic", "t")
    second = b.waits("create_topic", "t")
    a.commit()
    assert second.value() == first


def test_create_queue_x_delete_topic(spec: Spec) -> None:
    a, b = spec.sessions(2)
    a.value("create_topic", "t")
    a.begin()
    a.rows("delete_topic", "t")
    create = b.waits("create_queue", "q", "t")
    a.commit()
    assert create.error() == NO_SUCH_TOPIC


def test_delete_topic_x_create_queue(spec: Spec) -> None:
    """The queue that joins first is deleted with its topic."""
    a, b = spec.sessions(2)
    a.value("create_topic", "t")
    a.begin()
    a.value("create_queue", "q", "t")
    delete = b.waits("delete_topic", "t")
    a.commit()
    delete.rows()
    assert spec.look("select name from penstock.list_queues()") == []


def test_publish_x_create_queue(spec: Spec) -> None:
    """A queue that is not committed yet gets nothing; neither waits for the other."""
    a, b = spec.sessions(2)
    topic_with_queues(a, "one")
    a.begin()
    a.value("create_queue", "two", "t")
    (row,) = b.start("publish_message", "t", "1").passes()
    a.commit()
    (late,) = b.rows("publish_message", "t", "2")
    assert list(spec.states("one")) == [row[0], late[0]]
    assert list(spec.states("two")) == [late[0]]


def test_create_queue_x_publish(spec: Spec) -> None:
    a, b = spec.sessions(2)
    topic_with_queues(a, "one")
    a.begin()
    message = a.value("publish_message", "t", "1")
    b.start("create_queue", "two", "t").passes()
    a.commit()
    assert spec.states("one") == {message: "ready"}
    assert spec.states("two") == {}


def test_send_x_delete_queue(spec: Spec) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.begin()
    a.rows("delete_queue", "q")
    send = b.waits("send_message", "q", LARGE, dedup_key="k")
    a.commit()
    assert send.error() == NO_SUCH_QUEUE


def test_delete_queue_x_send(spec: Spec) -> None:
    """A delete waits for what is being sent, and takes it along."""
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.begin()
    a.value("send_message", "q", LARGE, dedup_key="k")
    a.value("send_message", "q", "1", deliver_after="2100-01-01")
    delete = b.waits("delete_queue", "q")
    a.commit()
    delete.rows()


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_publish_x_delete_of_one_queue(spec: Spec, isolation: Isolation) -> None:
    """The others get the message; nothing of it is left where the queue is gone."""
    a, b = spec.sessions(2)
    topic_with_queues(a, "one", "two")
    a.begin()
    a.rows("delete_queue", "two")
    b.begin(isolation)
    publish = b.waits("publish_message", "t", LARGE, dedup_key="k")
    a.commit()
    if isolation == "read committed":
        message = publish.value()
        b.commit()
        assert spec.states("one") == {message: "ready"}
    else:
        assert publish.error() == SERIALIZATION_FAILURE
        b.rollback()
        assert spec.states("one") == {}


def test_publish_x_delete_of_one_queue_leaves_no_payload(spec: Spec) -> None:
    a, b = spec.sessions(2)
    topic_with_queues(a, "one", "two")
    a.begin()
    a.rows("delete_queue", "two")
    publish = b.waits("publish_message", "t", LARGE)
    a.commit()
    publish.value()
    assert b.ack("one", *b.claim("one")) == [publish.value()]
    b.maintain()
    assert spec.look("select id from penstock.payloads") == []


def test_publish_x_delete_topic(spec: Spec) -> None:
    a, b = spec.sessions(2)
    topic_with_queues(a, "one", "two")
    a.begin()
    a.rows("delete_topic", "t")
    publish = b.waits("publish_message", "t", LARGE, dedup_key="k")
    a.commit()
    assert publish.error() in (None, NO_SUCH_TOPIC)


def test_delete_topic_x_publish(spec: Spec) -> None:
    a, b = spec.sessions(2)
    topic_with_queues(a, "one", "two")
    a.begin()
    a.value("publish_message", "t", LARGE, dedup_key="k")
    delete = b.waits("delete_topic", "t")
    a.commit()
    delete.rows()
    assert spec.look("select name from penstock.list_topics()") == []
    b.maintain()
    assert spec.look("select id from penstock.payloads") == []


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize("delete", [("delete_queue", "q"), ("delete_topic", "t")])
def test_delete_with_an_old_snapshot(spec: Spec, isolation: Isolation, delete: tuple[str, str]) -> None:
    """It cannot see what came in since: it says so, or takes it along, but leaves none behind."""
    a, b = spec.sessions(2)
    topic_with_queues(a, "q")
    a.begin_with_snapshot(isolation)
    b.send("q", 2)
    b.value("send_message", "q", LARGE, dedup_key="k")
    b.value("raise_floor", "q")
    error = a.error(*delete)
    assert error in (None, WRONG_ISOLATION, SERIALIZATION_FAILURE)
    a.run("rollback" if error else "commit")


@pytest.mark.parametrize("settle", ["nack_message", "release_message"])
def test_settle_x_delete_queue(spec: Spec, settle: str) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.send("q")
    (held,) = a.claim("q")
    a.begin()
    a.rows("delete_queue", "q")
    step = b.waits(settle, "q", held.id, held.token)
    a.commit()
    assert step.error() == NO_SUCH_QUEUE


@pytest.mark.parametrize("settle", ["ack_message", "nack_message", "release_message", "reject_message"])
def test_delete_queue_x_settle(spec: Spec, settle: str) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.send("q", dedup_key="k")
    (held,) = a.claim("q")
    a.begin()
    assert a.value(settle, "q", held.id, held.token) is True
    delete = b.waits("delete_queue", "q")
    a.commit()
    delete.rows()


@pytest.mark.parametrize("settle", ["ack_message", "reject_message"])
def test_ack_x_delete_queue(spec: Spec, settle: str) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.send("q")
    (held,) = a.claim("q")
    a.begin()
    a.rows("delete_queue", "q")
    step = b.waits(settle, "q", held.id, held.token)
    a.commit()
    assert step.value() is False


def test_consume_x_delete_queue(spec: Spec) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.send("q", 2)
    a.begin()
    a.rows("delete_queue", "q")
    assert b.start("consume_messages_batch", "q").passes() == []
    a.commit()
    assert b.error("consume_messages_batch", "q") == NO_SUCH_QUEUE


@pytest.mark.parametrize("claim_commits", [True, False])
def test_delete_queue_x_consume(spec: Spec, claim_commits: bool) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.send("q", 3)
    a.begin()
    a.claim("q", 2)
    delete = b.waits("delete_queue", "q")
    if claim_commits:
        a.commit()
    else:
        a.rollback()
    delete.rows()


@pytest.mark.parametrize("bring_back", [("requeue_dlq_messages", "q"), ("add_retries", "q", 1)])
def test_requeue_x_delete_queue(spec: Spec, bring_back: tuple[str | int, ...]) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q", max_delivery_attempts=1)
    a.send("q")
    (held,) = a.claim("q")
    a.value("nack_message", "q", held.id, held.token)
    a.begin()
    a.rows("delete_queue", "q")
    function, *arguments = bring_back
    step = b.waits(str(function), *arguments)
    a.commit()
    assert step.error() in (None, NO_SUCH_QUEUE)


def test_delete_queue_x_delete_queue(spec: Spec) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.send("q")
    a.begin()
    a.rows("delete_queue", "q")
    second = b.waits("delete_queue", "q")
    a.commit()
    assert second.error() in (None, NO_SUCH_QUEUE)


def test_alter_queue_x_alter_queue(spec: Spec) -> None:
    """Both changes stay."""
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.begin()
    a.rows("alter_queue", "q", max_delivery_attempts=7)
    second = b.waits("alter_queue", "q", visibility_timeout_seconds=77)
    a.commit()
    second.rows()
    settings = "select max_delivery_attempts, visibility_timeout_seconds from penstock.list_queues()"
    assert spec.look(settings) == [(7, 77)]


@pytest.mark.parametrize("change", [("pause_queue", "q"), ("alter_queue", "q", 7)])
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_publish_with_a_snapshot_older_than_a_setting(
    spec: Spec, isolation: Isolation, change: tuple[str | int, ...]
) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.begin_with_snapshot(isolation)
    function, *arguments = change
    b.rows(str(function), *arguments)
    (message,) = a.send("q")
    a.commit()
    assert spec.states("q") == {message: "ready"}


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_first_tenant_x_first_tenant(spec: Spec, isolation: Isolation) -> None:
    """A queue gives ranks by tenant from its first one on. A concurrent publisher does not wait."""
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    plain = a.send("q", 3)
    a.begin()
    first = a.send("q", 3, tenant="acme")
    b.begin(isolation)
    second = [row[0] for row in b.start("send_messages", "q", "{1,2,3}", tenant="umbrella").passes()]
    b.commit()
    a.commit()
    assert sorted(c.id for c in b.claim("q")) == [*plain, *first, *second]


@pytest.mark.parametrize("first_commits", [True, False])
def test_settings_x_first_tenant(spec: Spec, first_commits: bool) -> None:
    """The first message of a tenant is written down with the queue: settings wait for it, and both stay."""
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.begin()
    a.send("q", tenant="acme")
    alter = b.start("alter_queue", "q", max_delivery_attempts=7)
    alter.settle()
    a.run("commit" if first_commits else "rollback")
    alter.rows()
    b.send("q", 2, tenant="acme")
    assert spec.look("select max_delivery_attempts from penstock.list_queues()") == [(7,)]
    assert len(b.claim("q")) == 2 + first_commits


def test_first_tenant_x_settings(spec: Spec) -> None:
    a, b = spec.sessions(2)
    a.value("create_queue", "q")
    a.begin()
    a.rows("alter_queue", "q", max_delivery_attempts=7)
    b.start("send_messages", "q", "{1,2}", tenant="acme").passes()
    a.commit()
    assert len(b.claim("q")) == 2


def exclusive_queue(spec: Spec) -> None:
    """Queue q, kept alive for a minute."""
    spec.movable_clock()
    setup = spec.session()
    setup.value("create_queue", "q", exclusive=True, keep_alive_seconds=60)
    setup.send("q")


@pytest.mark.parametrize("cleanup", ["maintain", "cleanup_expired_exclusive_queues"])
def test_extend_keep_alive_x_cleanup(spec: Spec, cleanup: str) -> None:
    """A keep-alive that was extended in time, though committed late, is kept."""
    exclusive_queue(spec)
    a, b = spec.sessions(2)
    b.move_clock("2 minutes")
    a.begin()
    a.value("extend_queue_keep_alive", "q", 3600)
    step = b.start(cleanup)
    step.settle()
    a.commit()
    step.rows()
    assert list(spec.states("q").values()) == ["ready"]


def test_extend_keep_alive_x_delete_queue(spec: Spec) -> None:
    exclusive_queue(spec)
    a, b = spec.sessions(2)
    a.begin()
    a.rows("delete_queue", "q")
    extend = b.waits("extend_queue_keep_alive", "q", 60)
    a.commit()
    assert extend.error() == NO_SUCH_QUEUE


def test_extend_keep_alive_x_create_queue(spec: Spec) -> None:
    exclusive_queue(spec)
    a, b = spec.sessions(2)
    b.move_clock("2 minutes")
    a.begin()
    a.value("extend_queue_keep_alive", "q", 3600)
    step = b.start("create_queue", "q", exclusive=True)
    step.settle()
    a.commit()
    step.rows()
    assert list(spec.states("q").values()) == ["ready"]


def test_create_queue_x_create_queue_where_one_expired(spec: Spec) -> None:
    exclusive_queue(spec)
    a, b = spec.sessions(2)
    a.move_clock("2 minutes")
    b.move_clock("2 minutes")
    a.begin()
    first = a.value("create_queue", "q", exclusive=True)
    second = b.waits("create_queue", "q", exclusive=True)
    a.commit()
    assert second.value() == first
    assert spec.look("select id from penstock.queues") == [(first,)]


def test_maintain_x_open_claim_of_an_expired_queue(spec: Spec) -> None:
    """Maintenance leaves what is locked for the next time; a forgotten transaction does not stop it."""
    exclusive_queue(spec)
    a, b = spec.sessions(2)
    a.begin()
    a.claim("q")
    b.move_clock("2 minutes")
    b.maintain()
    a.commit()
    assert ("exclusive queue deleted", "q", 1) in b.maintain()
