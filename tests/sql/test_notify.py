"""Waking consumers: NOTIFY on the channel of the queue, as seldom as will do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql as composed
from psycopg.types.json import Jsonb

from penstock import calls

from ..conftest import Connect
from .conftest import Clock
from .engine import Engine

Heard = list[tuple[str, str]]

END = "the end of what a test does"


class Ear:
    """An idle session that watches queues, on a connection of its own."""

    def __init__(self, connection: psycopg.Connection[Any], engine: Engine) -> None:
        self.connection = connection
        self._engine = engine
        self._queues: dict[str, str] = {}
        self.connection.execute("set lock_timeout = '10s'")
        self._listen(END)

    def listen(self, *queues: str) -> None:
        for queue in queues:
            keys = self.keys(queue)
            self._queues[keys.channel] = queue
            # The session of a test before may not have come to its end.
            self.connection.execute("select pg_advisory_lock(%s)", (keys.watching,))
            self._listen(keys.channel)
            self.be_idle(queue)

    def keys(self, queue: str) -> calls.WatchKeys:
        call = calls.watch_keys(queue)
        return call.parse(self.connection.execute(call.text, call.parameters).fetchall())

    def be_idle(self, queue: str) -> None:
        self.connection.execute("select pg_advisory_lock(%s)", (self.keys(queue).idle,))

    def poll(self, queue: str) -> None:
        assert self.connection.execute(calls.start_polling(self.keys(queue))).fetchone() == (True,)

    def heard(self) -> Heard:
        """What came since the last time. Notifications keep the order of commits, so an end can be set."""
        self._engine.connection.execute("select pg_notify(%s, '')", (END,))
        came: Heard = []
        for notification in self.connection.notifies(timeout=30):
            if notification.channel == END:
                return came
            came.append((self._queues[notification.channel], notification.payload))
        raise AssertionError("the end was never heard")

    def _listen(self, channel: str) -> None:
        self.connection.execute(composed.SQL("listen {}").format(composed.Identifier(channel)))


@pytest.fixture
def ear(engine: Engine, connect: Connect) -> Ear:
    ear = Ear(connect(), engine)
    ear.listen("q", "a", "b")
    return ear


def test_a_message_wakes_its_queue_with_its_id(engine: Engine, ear: Ear) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    assert ear.heard() == [("q", str(message_id))]


def test_a_published_message_wakes_each_queue_of_its_topic(engine: Engine, ear: Ear) -> None:
    engine.topic("t", "a", "b")
    engine.queue("q")
    message_id = engine.publish("t")
    assert sorted(ear.heard()) == [("a", str(message_id)), ("b", str(message_id))]


@pytest.mark.parametrize("options", [{}, {"priorities": [0, 1, 2]}], ids=["alike", "different"])
def test_a_batch_wakes_each_queue_once(engine: Engine, ear: Ear, options: dict[str, Any]) -> None:
    engine.topic("t", "a", "b")
    payloads = [Jsonb(n) for n in range(3)]
    ids = engine.values("publish_messages", "t", payloads, **options)
    heard = ear.heard()
    assert sorted(queue for queue, _ in heard) == ["a", "b"]
    assert {int(message_id) for _, message_id in heard} <= set(ids)


def test_no_session_is_woken_before_the_commit_nor_after_a_rollback(
    engine: Engine, ear: Ear, connect: Connect
) -> None:
    engine.queue("q")
    other = Engine(connect())
    with other.connection.transaction(force_rollback=True):
        other.send("q")
        assert ear.heard() == []
    assert ear.heard() == []


def test_no_session_is_notified_while_the_watching_one_polls(engine: Engine, ear: Ear) -> None:
    engine.queue("q")
    ear.poll("q")
    for way in (engine.send, lambda queue: engine.send_many(queue, [1, 2], priorities=[0, 1])):
        way("q")
    nack(engine)
    assert ear.heard() == []
    ear.be_idle("q")
    engine.send("q")
    assert len(ear.heard()) == 1


def test_a_send_without_an_idle_session_leaves_nothing_behind(engine: Engine, connect: Connect) -> None:
    """Neither a lock nor a notification: a transaction that notified could not be prepared."""
    engine.queue("q")
    with engine.connection.transaction():
        engine.send("q")
        held = "select count(*) from pg_locks where pid = pg_backend_pid() and objsubid = 1"
        assert engine.connection.execute(held).fetchone() == (0,)
    assert engine.connection.execute("select pg_notification_queue_usage()").fetchone() == (0,)


def test_senders_do_not_take_each_other_for_an_idle_session(engine: Engine, connect: Connect) -> None:
    """One that was stopped between its two statements about the lock has it shared."""
    engine.queue("q")
    stopped, listening = connect(), connect()
    call = calls.watch_keys("q")
    keys = call.parse(stopped.execute(call.text, call.parameters).fetchall())
    assert stopped.execute("select pg_try_advisory_lock_shared(%s)", (keys.idle,)).fetchone() == (True,)
    listening.execute(calls.listen(keys.channel))
    engine.send("q")
    assert list(listening.notifies(timeout=0.3)) == []
    # A session that wants to be idle does not wait for that one.
    assert listening.execute("select pg_try_advisory_lock(%s)", (keys.idle,)).fetchone() == (False,)


def test_an_idle_session_that_dies_is_not_notified(engine: Engine, ear: Ear, connect: Connect) -> None:
    engine.queue("q")
    keys = ear.keys("q")
    ear.connection.close()
    listening = connect()
    listening.execute(calls.listen(keys.channel))
    # The session ends a moment after its connection.
    listening.execute("select pg_advisory_lock(%s)", (keys.idle,))
    listening.execute("select pg_advisory_unlock(%s)", (keys.idle,))
    engine.send("q")
    assert list(listening.notifies(timeout=0.3)) == []


@pytest.mark.parametrize("options", [{}, {"dedup_key": "k"}, {"tenant": "acme"}])
def test_every_send_wakes_an_idle_session_also_behind_a_backlog(
    engine: Engine, ear: Ear, clock: Clock, options: dict[str, Any]
) -> None:
    engine.queue("q")
    engine.send_many("q", list(range(1000)))
    assert len(ear.heard()) == 1
    clock.advance(1)
    message_id = engine.send("q", **options)
    assert ear.heard() == [("q", str(message_id))]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_publishers_of_each_isolation_level_wake(engine: Engine, ear: Ear, isolation: str) -> None:
    engine.queue("q")
    with engine.connection.transaction():
        engine.connection.execute(f"set transaction isolation level {isolation}")
        engine.connection.execute("select count(*) from penstock.list_queues()")
        message_id = engine.send("q")
    assert ear.heard() == [("q", str(message_id))]


def test_a_paused_queue_wakes_no_session_until_it_is_resumed(engine: Engine, ear: Ear) -> None:
    engine.queue("q")
    engine.value("pause_queue", "q")
    engine.send("q")
    engine.send_many("q", [1, 2], priorities=[0, 1])
    assert ear.heard() == []
    engine.value("resume_queue", "q")
    assert ear.heard() == [("q", "0")]


def test_a_freed_permit_wakes(engine: Engine, ear: Ear) -> None:
    engine.queue("q", max_active=1, priority_shares=[0, 0, 0, 0])
    engine.send_many("q", [1, 2])
    message = engine.take("q")
    assert engine.take_many("q", 1) == []
    ear.heard()
    engine.ack(message)
    assert ear.heard() == [("q", "0")]


def test_a_freed_permit_wakes_no_session_if_nothing_is_ready(engine: Engine, ear: Ear) -> None:
    engine.queue("q", max_active=1)
    engine.send("q")
    message = engine.take("q")
    ear.heard()
    engine.ack(message)
    assert ear.heard() == []


@pytest.mark.parametrize("cap", ["max_active", "tenant_max_active"])
def test_a_higher_cap_wakes(engine: Engine, ear: Ear, cap: str) -> None:
    engine.queue("q", **{cap: 1})
    engine.send_many("q", [1, 2], tenant="t")
    engine.take("q")
    ear.heard()
    engine.value("alter_queue", "q", **{cap: 2})
    assert ear.heard() == [("q", "0")]


def test_a_delayed_message_wakes_when_it_is_due(engine: Engine, ear: Ear, clock: Clock) -> None:
    engine.queue("q")
    engine.send("q", deliver_after=engine.now() + timedelta(seconds=5))
    assert ear.heard() == []
    clock.advance(6)
    engine.maintain()
    assert [queue for queue, _ in ear.heard()] == ["q"]


def nack(engine: Engine) -> None:
    engine.nack(engine.take("q"))


def release(engine: Engine) -> None:
    engine.release(engine.take("q"))


def requeue(engine: Engine) -> None:
    engine.reject(engine.take("q"))
    engine.value("requeue_dlq_messages", "q")


def add_retries(engine: Engine) -> None:
    engine.value("alter_queue", "q", max_delivery_attempts=1)
    engine.nack(engine.take("q"))
    engine.value("add_retries", "q", 1)


def lease_runs_out(engine: Engine) -> None:
    engine.take("q", vt_seconds=0)
    engine.maintain()


def resume(engine: Engine) -> None:
    engine.value("pause_queue", "q")
    engine.value("resume_queue", "q")


COMES_BACK = [nack, release, requeue, add_retries, lease_runs_out, resume]


@pytest.mark.parametrize("way", COMES_BACK, ids=lambda way: way.__name__)
def test_a_message_that_comes_back_wakes(engine: Engine, ear: Ear, way: Callable[[Engine], None]) -> None:
    engine.queue("q")
    engine.send("q")
    ear.heard()
    way(engine)
    assert [queue for queue, _ in ear.heard()] == ["q"]


@pytest.mark.parametrize("way", COMES_BACK, ids=lambda way: way.__name__)
@pytest.mark.parametrize("off", ["created", "altered"])
def test_a_queue_without_notify_is_silent(
    engine: Engine, ear: Ear, clock: Clock, way: Callable[[Engine], None], off: str
) -> None:
    engine.queue("q", notify=off == "altered")
    engine.value("alter_queue", "q", notify=False)
    engine.send("q")
    engine.send_many("q", [1, 2], priorities=[0, 1])
    engine.send("q", deliver_after=engine.now() + timedelta(seconds=5))
    clock.advance(6)
    engine.maintain()
    way(engine)
    assert ear.heard() == []


@pytest.mark.parametrize("call", ["nack later", "ack", "reject", "cancel", "extend"])
def test_what_makes_nothing_ready_wakes_no_session(engine: Engine, ear: Ear, call: str) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    message = None if call == "cancel" else engine.take("q")
    ear.heard()
    if message is None:
        engine.value("cancel_message", "q", message_id)
    elif call == "nack later":
        engine.nack(message, delay_seconds=60)
    elif call == "ack":
        engine.ack(message)
    elif call == "reject":
        engine.reject(message)
    else:
        engine.value("extend_message_vt", "q", message_id, message.consumer_token, 5)
    assert ear.heard() == []


@pytest.mark.parametrize(
    ("name", "channel"),
    [
        ("q", "queue:q"),
        ("Größe 🚰", "queue:Größe 🚰"),
        ("x" * 57, "queue:" + "x" * 57),
    ],
)
def test_the_channel_of_a_queue_bears_its_name(engine: Engine, name: str, channel: str) -> None:
    assert engine.value("channel", name) == channel


LONG = ["x" * 58, "x" * 59, "x" * 255, "ü" * 29, "😀" * 255, "😀" * 254 + "🚰"]


@pytest.mark.parametrize("name", LONG, ids=range(len(LONG)))
def test_a_long_name_is_hashed_and_heard(engine: Engine, ear: Ear, name: str) -> None:
    channel = engine.value("channel", name)
    assert len(channel.encode()) <= 63
    assert channel.startswith("queue:")
    engine.queue(name)
    ear.listen(name)
    message_id = engine.send(name)
    assert ear.heard() == [(name, str(message_id))]


def test_long_names_that_begin_alike_have_channels_of_their_own(engine: Engine) -> None:
    assert len({engine.value("channel", name) for name in LONG}) == len(LONG)


@pytest.mark.parametrize("name", ["it's", 'say "hi"', "two\nlines", "semi;colon", "  ", "😀"])
def test_a_hostile_name_is_heard(engine: Engine, ear: Ear, name: str) -> None:
    engine.queue(name)
    ear.listen(name)
    message_id = engine.send(name)
    assert ear.heard() == [(name, str(message_id))]
