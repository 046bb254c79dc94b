# Written by tools/unasync.py from tests/client/asynchronous/test_calls.py:
# change that, run `make generate`.

"""Each call, with its typed result compared to what the SQL API says."""

from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from penstock import (
    HIGH,
    LOW,
    URGENT,
    Client,
    ClientClosed,
    DatabaseUnavailable,
    ErrorEntry,
    InvalidArgument,
    LeaseLost,
    MaintenanceResult,
    Message,
    NotFound,
    QueueDiffers,
    QueueNotFound,
    Receipt,
    TopicNotFound,
    schema,
)
from tests.client.both import Running, until
from tests.client.conftest import Activity, Clock
from tests.sql.engine import Engine, Row, fingerprint

RENAMED = {"vt": "leased_until"}


def as_sql_says(row: Row) -> dict[str, Any]:
    """A row of the SQL API as the fields of its model: bytes are a payload too, arrays are tuples."""
    fields = {RENAMED.get(name, name): value for name, value in vars(row).items()}
    if "body" in fields:
        body = fields.pop("body")
        fields["payload"] = fields["payload"] if body is None else body
    for name, value in fields.items():
        if name == "errors":
            fields[name] = tuple(
                ErrorEntry(entry["attempt"], datetime.fromisoformat(entry["at"]), entry["error"])
                for entry in value or []
            )
        elif name == "headers":
            fields[name] = value or {}
        elif isinstance(value, list):
            fields[name] = tuple(value)
    return fields


def same(result: Any, row: Row) -> bool:
    assert dataclasses.asdict(result) | _entries(result) == as_sql_says(row)
    for value in dataclasses.asdict(result).values():
        assert not isinstance(value, datetime) or value.tzinfo is UTC
    return True


def _entries(result: Any) -> dict[str, Any]:
    return {"errors": result.errors} if hasattr(result, "errors") else {}


# Topics and queues


def test_topics(client: Client, engine18: Engine) -> None:
    first = client.create_topic("orders")
    assert client.create_topic("orders") == first
    second = client.create_topic("a \"quoted\" 'name' \\ with % and ünïcode 💧")
    client.create_queue("billing", topic="orders")
    topics = client.list_topics()
    rows = engine18.rows("list_topics")
    assert {topic.id for topic in topics} == {first, second}
    assert len(topics) == 2
    assert all(same(topic, row) for topic, row in zip(topics, rows, strict=True))
    assert [topic.queue_count for topic in topics if topic.name == "orders"] == [1]
    assert client.delete_topic("orders") is None  # type: ignore[func-returns-value]
    assert [topic.id for topic in client.list_topics()] == [second]
    assert client.list_queues() == []
    with pytest.raises(TopicNotFound, match='"orders"'):
        client.delete_topic("orders")


def test_a_queue_has_the_defaults_of_the_schema(client: Client, engine18: Engine) -> None:
    queue_id = client.create_queue("by client")
    engine18.queue("by sql")
    mine, other = client.list_queues()
    assert (mine.id, mine.name, mine.topic_name, mine.exclusive) == (queue_id, "by client", None, False)
    different = {"id", "name", "created_at"}
    fields = {field.name for field in dataclasses.fields(mine)} - different
    assert {name: getattr(mine, name) for name in fields} == {name: getattr(other, name) for name in fields}


SETTINGS: dict[str, Any] = {
    "max_delivery_attempts": 7,
    "visibility_timeout": 11,
    "visibility_backoff": 1.5,
    "retry_delays": (1, 10, 60),
    "message_ttl": 3600,
    "retain_completed": 0,
    "retain_dead": 86400,
    "max_payload_bytes": 1000,
    "max_active": 100,
    "min_active": 3,
    "priority_shares": (25, 25, 25, 25),
    "tenant_max_active": 2,
    "notify": False,
}
SECONDS = {"visibility_timeout", "message_ttl", "retain_completed", "retain_dead"}


def stored(settings: dict[str, Any]) -> dict[str, Any]:
    return {f"{name}_seconds" if name in SECONDS else name: value for name, value in settings.items()}


def test_every_setting_of_a_queue(client: Client, engine18: Engine) -> None:
    client.create_topic("orders")
    made = client.create_queue("billing", topic="orders", **SETTINGS)
    assert client.create_queue("billing", topic="orders", **SETTINGS) == made
    (queue,) = client.list_queues()
    assert same(queue, engine18.settings("billing"))
    assert {name: getattr(queue, name) for name in stored(SETTINGS)} == stored(SETTINGS)
    assert queue.topic_name == "orders"
    with pytest.raises(QueueDiffers, match="max_delivery_attempts"):
        client.create_queue("billing", topic="orders", **{**SETTINGS, "max_delivery_attempts": 8})


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_can_be_altered(client: Client, engine18: Engine, name: str) -> None:
    client.create_queue("q")
    before = engine18.settings("q")
    needed: dict[str, Any] = {"max_active": 100} if name in ("min_active", "priority_shares") else {}
    client.alter_queue("q", **needed, **{name: SETTINGS[name]})
    (queue,) = client.list_queues()
    assert same(queue, engine18.settings("q"))
    ((column, value),) = stored({name: SETTINGS[name]}).items()
    assert getattr(queue, column) == value
    changed = {column, *needed}
    rest = {key: old for key, old in as_sql_says(before).items() if key not in changed}
    assert {key: getattr(queue, key) for key in rest} == rest


def test_zero_takes_a_limit_away(client: Client) -> None:
    client.create_queue("q", message_ttl=60, max_active=10, tenant_max_active=2)
    client.alter_queue("q", message_ttl=timedelta(), max_active=0, tenant_max_active=0)
    (queue,) = client.list_queues()
    assert (queue.message_ttl_seconds, queue.max_active, queue.tenant_max_active) == (None, None, None)


def test_an_exclusive_queue_and_its_end(client: Client, clock18: Clock, engine18: Engine) -> None:
    client.create_queue("session", exclusive=True, keep_alive=timedelta(minutes=1))
    (queue,) = client.list_queues()
    assert queue.exclusive
    assert queue.keep_alive_until is not None
    assert timedelta(0) < queue.keep_alive_until - client.clock() <= timedelta(minutes=1)
    until = client.extend_queue_keep_alive("session", 600)
    assert same((client.list_queues())[0], engine18.settings("session"))
    assert until == (client.list_queues())[0].keep_alive_until
    assert timedelta(seconds=590) < until - client.clock() <= timedelta(seconds=600)
    assert client.cleanup_expired_exclusive_queues() == 0
    clock18.advance(601)
    assert client.cleanup_expired_exclusive_queues() == 1
    assert client.list_queues() == []


def test_pause_resume_and_delete(client: Client, engine18: Engine) -> None:
    client.create_queue("q")
    message_id = client.send("q", 1)
    client.pause_queue("q")
    (queue,) = client.list_queues()
    assert queue.paused_at == engine18.settings("q").paused_at is not None
    assert client.consume_one("q") is None
    client.resume_queue("q")
    assert (client.list_queues())[0].paused_at is None
    message = client.consume_one("q")
    assert message is not None
    assert message.id == message_id
    client.delete_queue("q")
    assert client.list_queues() == []
    with pytest.raises(QueueNotFound, match='"q"'):
        client.delete_queue("q")
    with pytest.raises(QueueNotFound):
        message.ack()


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        ("publish", ("none", 1), TopicNotFound),
        ("publish_many", ("none", [1]), TopicNotFound),
        ("send", ("none", 1), QueueNotFound),
        ("send_many", ("none", [1]), QueueNotFound),
        ("consume_batch", ("none",), QueueNotFound),
        ("consume_one", ("none",), QueueNotFound),
        ("alter_queue", ("none",), QueueNotFound),
        ("pause_queue", ("none",), QueueNotFound),
        ("resume_queue", ("none",), QueueNotFound),
        ("extend_queue_keep_alive", ("none", 1), QueueNotFound),
        ("list_messages", ("none",), QueueNotFound),
        ("list_dlq_messages", ("none",), QueueNotFound),
        ("get_queue_statistics", ("none",), QueueNotFound),
        ("get_message", ("none", 1), QueueNotFound),
        ("purge_queue", ("none",), QueueNotFound),
        ("purge_dlq", ("none",), QueueNotFound),
        ("cleanup_topic_messages", ("none",), TopicNotFound),
    ],
)
def test_of_an_unknown_name(
    client: Client, method: str, arguments: tuple[Any, ...], error: type[NotFound]
) -> None:
    with pytest.raises(error, match='"none"') as caught:
        getattr(client, method)(*arguments)
    assert caught.value.sqlstate == error.sqlstate


# Publish and send


def test_publish_reaches_each_queue_of_the_topic(client: Client, engine18: Engine) -> None:
    engine18.topic("orders", "billing", "audit")
    engine18.queue("other")
    message_id = client.publish("orders", {"order": 1})
    assert engine18.states("billing") == engine18.states("audit") == {message_id: "ready"}
    assert engine18.states("other") == {}
    sent = client.send("audit", "past the topic")
    assert engine18.states("audit") == {message_id: "ready", sent: "ready"}


def test_every_option_of_a_message(client: Client, engine18: Engine) -> None:
    engine18.topic("t", "q")
    options: dict[str, Any] = {
        "priority": URGENT,
        "tenant": "acme",
        "headers": {"trace": "ü", "n": [1, None]},
        "ttl": timedelta(hours=1),
        "dedup_key": "k1",
        "delay": 600,
    }
    for function, target in ((client.publish, "t"), (client.send, "q")):
        message_id = function(target, {"a": 1}, **options)
        row = engine18.message("q", message_id)
        assert (row.priority, row.tenant, row.headers) == (URGENT, "acme", options["headers"])
        assert (row.state, row.dedup_key, row.payload) == ("scheduled", "k1", {"a": 1})
        assert row.expires_at - row.published_at == timedelta(hours=1)
        assert timedelta(seconds=595) < row.due_at - row.published_at < timedelta(seconds=605)
        assert function(target, "another", **options) == message_id
        assert client.cancel_message("q", message_id)


def test_a_moment_is_kept_to_the_microsecond(client: Client, engine18: Engine) -> None:
    engine18.queue("q")
    for at in (
        datetime(2040, 2, 29, 23, 59, 59, 999999, UTC),
        datetime.fromisoformat("2100-07-01T12:00:00.000001+05:30"),
        datetime.fromisoformat("2999-12-31T00:00:00.123457-11:00"),
        datetime.max.replace(tzinfo=UTC),
    ):
        message_id = client.send("q", 1, deliver_after=at)
        assert engine18.message("q", message_id).due_at == at
        details = client.get_message("q", message_id)
        assert details is not None
        assert details.due_at == at
        (listed,) = client.list_messages("q")
        assert listed.due_at == at
        client.purge_queue("q")


def test_a_delay_is_measured_by_the_clock_of_the_database(client: Client, clock18: Clock) -> None:
    client.create_queue("q")
    clock18.advance(86400)
    message_id = client.send("q", 1, delay=0.5)
    details = client.get_message("q", message_id)
    assert details is not None
    assert details.due_at is not None
    assert timedelta(seconds=0.4) < details.due_at - details.published_at < timedelta(seconds=0.6)
    assert details.due_at > datetime.now(UTC) + timedelta(hours=23)


def test_a_dedup_key_gives_the_id_of_the_first(client: Client, engine18: Engine) -> None:
    engine18.topic("t", "q")
    first = client.publish("t", 1, dedup_key="k")
    assert client.publish("t", 2, dedup_key="k") == first
    assert client.send("q", 3, dedup_key="k") == first
    assert client.send_many("q", [4, 5], dedup_key="k") == [first, first]
    message = client.consume_one("q")
    assert message is not None
    message.ack()
    assert client.send("q", 6, dedup_key="k") != first


# Consume, settle, lease


def test_a_message_tells_all_that_the_row_says(client: Client, engine18: Engine) -> None:
    engine18.queue("q", visibility_timeout_seconds=90)
    message_id = client.send("q", {"a": [1]}, priority=HIGH, tenant="acme", headers={"h": 1})
    (message,) = client.consume_batch("q", token="me")  # noqa: S106 - no secret
    row = engine18.message("q", message_id)
    assert (message.id, message.queue_name, message.payload) == (message_id, "q", {"a": [1]})
    assert (message.priority, message.tenant, message.headers) == (HIGH, "acme", {"h": 1})
    assert (message.attempt, message.token) == (row.delivery_attempts, "me") == (1, "me")
    assert row.consumer == fingerprint("me")
    assert (message.published_at, message.leased_until) == (row.published_at, row.vt)
    assert message.receipt == Receipt("q", message_id, "me")
    assert not message.is_lost
    assert repr(message) == f"<message {message_id} of 'q', attempt 1>"
    assert timedelta(seconds=85) < row.vt - row.claimed_at <= timedelta(seconds=90)


def test_a_message_without_anything(client: Client) -> None:
    client.create_queue("q")
    client.send("q", None)
    message = client.consume_one("q")
    assert message is not None
    assert (message.payload, message.headers, message.tenant, message.priority) == (None, {}, None, 2)


def test_claims_take_what_is_there(client: Client) -> None:
    client.create_queue("q")
    assert client.consume_batch("q") == []
    assert client.consume_one("q") is None
    ids = client.send_many("q", range(25))
    assert [message.id for message in client.consume_batch("q")] == ids[:10]
    batch = client.consume_batch("q", batch_size=100, visibility_timeout=timedelta(minutes=10))
    assert [message.id for message in batch] == ids[10:]
    assert len({message.token for message in batch}) == 1
    left = batch[0].leased_until - client.clock()
    assert timedelta(seconds=590) < left <= timedelta(seconds=600)


def test_urgent_ones_first(client: Client) -> None:
    client.create_queue("q")
    for priority in (LOW, None, HIGH, URGENT):
        client.send("q", priority, priority=priority)
    found = client.consume_batch("q")
    assert [message.payload for message in found] == [URGENT, HIGH, None, LOW]


def test_ack(client: Client, engine18: Engine) -> None:
    client.create_queue("q")
    ids = client.send_many("q", range(3))
    one, two, three = client.consume_batch("q")
    one.ack(result={"total": 1.5})
    client.ack(two)
    client.ack(three.receipt, result=[None])
    assert engine18.states("q") == dict.fromkeys(ids, "done")
    assert [engine18.message("q", i).result for i in ids] == [{"total": 1.5}, None, [None]]
    for message in (one, two, three):
        with pytest.raises(LeaseLost, match=f"message {message.id} of 'q'"):
            message.ack()
    with pytest.raises(LeaseLost, match=f"message_id={one.id}"):
        client.ack(one.receipt)


def test_ack_many(client: Client, engine18: Engine) -> None:
    for queue in ("a", "b"):
        client.create_queue(queue)
        client.send_many(queue, range(5))
    first, second = client.consume_batch("a"), client.consume_batch("b")
    assert client.ack_many([]) == []
    first[0].ack()
    mixed: list[Message[Any] | Receipt] = [first[0], *second[:2], first[1].receipt, first[2]]
    assert client.ack_many(iter(mixed)) == [first[0].receipt]
    assert set(engine18.states("a").values()) == {"done", "active"}
    assert [engine18.state("a", message.id) for message in first] == ["done"] * 3 + ["active"] * 2
    assert [engine18.state("b", message.id) for message in second] == ["done"] * 2 + ["active"] * 3
    assert [message.is_lost for message in first] == [True, False, False, False, False]


def test_ack_many_with_results(client: Client, engine18: Engine) -> None:
    for queue in ("a", "b"):
        client.create_queue(queue)
        client.send_many(queue, range(2))
    first, second = client.consume_batch("a"), client.consume_batch("b")
    mixed = [first[0], second[0], first[1], second[1]]
    assert client.ack_many(mixed, results=["a0", None, {"a": 1}, 1e23]) == []
    results = [engine18.message(message.queue_name, message.id).result for message in mixed]
    assert results[:3] == ["a0", None, {"a": 1}]
    assert float(results[3]) == 1e23


def test_ten_thousand_are_acked_in_a_moment(client: Client) -> None:
    client.create_queue("q")
    client.send_many("q", range(10_000))
    messages = []
    while found := client.consume_batch("q", batch_size=1000):
        messages += found
    begun = client.clock()
    assert client.ack_many(messages) == []
    assert client.clock() - begun < timedelta(seconds=3)
    lost = client.ack_many(messages)
    assert lost == [message.receipt for message in messages]


def test_nack(client: Client, engine18: Engine) -> None:
    client.create_queue("q", retry_delays=[0, 100])
    message_id = client.send("q", 1)

    def take() -> Receipt:
        message = client.consume_one("q")
        assert message is not None
        return message.receipt

    message = client.consume_one("q")
    assert message is not None
    message.nack(error="first \0 failure")
    assert engine18.state("q", message_id) == "ready"
    client.nack(take(), delay=timedelta(minutes=5), error="second \ud800")
    row = engine18.message("q", message_id)
    assert (row.state, row.last_error, row.delivery_attempts) == ("scheduled", "second ?", 2)
    assert [entry["error"] for entry in row.errors] == ["first \ufffd failure", "second ?"]
    assert row.due_at - client.clock() > timedelta(seconds=290)
    with pytest.raises(LeaseLost):
        message.nack()


def test_nack_release_and_reject_many(client: Client, engine18: Engine) -> None:
    for queue in ("a", "b"):
        client.create_queue(queue, max_delivery_attempts=5)
        client.send_many(queue, range(6))
    first, second = client.consume_batch("a"), client.consume_batch("b")
    first[0].ack()

    def mixed(start: int) -> list[Message[Any] | Receipt]:
        return [first[0], first[start], second[start - 1], first[start + 1].receipt]

    for settle in (client.nack_many, client.release_many, client.reject_many):
        assert settle([]) == []
    delayed = client.nack_many(mixed(1), delay=60, error="failed \0", max_attempts=4)
    released = client.release_many(iter(mixed(3)))
    rejected = client.reject_many([first[0], first[5], second[5].receipt], error="no such customer")
    assert delayed == released == rejected == [first[0].receipt]
    states = ["done", "scheduled", "scheduled", "ready", "ready", "dead"]
    assert [engine18.state("a", message.id) for message in first] == states
    states = ["scheduled", "active", "ready", "active", "active", "dead"]
    assert [engine18.state("b", message.id) for message in second] == states
    row = engine18.message("a", first[1].id)
    assert (row.last_error, row.delivery_attempts) == ("failed \ufffd", 1)
    assert row.due_at - client.clock() > timedelta(seconds=50)
    assert engine18.message("a", first[3].id).delivery_attempts == 0
    row = engine18.message("b", second[5].id)
    assert (row.reason, row.last_error) == ("failed", "no such customer")
    assert [message.is_lost for message in first] == [True] + [False] * 5


def test_many_by_the_rules_of_the_queue(client: Client, engine18: Engine) -> None:
    """Without a delay retry_delays count; max_attempts counts in place of the queue's limit."""
    client.create_queue("q", retry_delays=[0, 100])
    client.send_many("q", range(3))
    claimed = client.consume_batch("q")
    assert client.nack_many(claimed[:2]) == []
    assert client.nack_many([claimed[2]], max_attempts=1) == []
    assert [engine18.state("q", message.id) for message in claimed] == ["ready", "ready", "dead"]
    again = client.consume_batch("q")
    twice: list[Message[Any] | Receipt] = [again[0], again[0].receipt, again[1]]
    assert client.nack_many(twice) == [again[0].receipt]
    assert {engine18.state("q", message.id) for message in again} == {"scheduled"}
    assert again[1].is_lost is False


def test_a_refused_argument_settles_none_of_many(client: Client, engine18: Engine) -> None:
    for queue in ("a", "b"):
        client.create_queue(queue)
        client.send(queue, 1)
    claimed = [*client.consume_batch("a"), *client.consume_batch("b")]
    with pytest.raises(InvalidArgument, match="delay"):
        client.nack_many(claimed, delay=-1)
    with pytest.raises(InvalidArgument, match="result"):
        client.ack_many(claimed, results=[1, float("nan")])
    assert [engine18.state(m.queue_name, m.id) for m in claimed] == ["active", "active"]


def test_release_and_reject(client: Client, engine18: Engine) -> None:
    client.create_queue("q")
    message_id = client.send("q", 1)
    (message,) = client.consume_batch("q")
    message.release()
    row = engine18.message("q", message_id)
    assert (row.state, row.delivery_attempts) == ("ready", 0)
    (message,) = client.consume_batch("q")
    assert message.attempt == 1
    client.release(message.receipt)
    (message,) = client.consume_batch("q")
    message.reject("no such customer")
    row = engine18.message("q", message_id)
    assert (row.state, row.reason, row.last_error) == ("dead", "failed", "no such customer")
    for attempt in (message.reject, message.release):
        with pytest.raises(LeaseLost):
            attempt()


def test_extend(client: Client, engine18: Engine) -> None:
    client.create_queue("q")
    message_id = client.send("q", 1)
    (message,) = client.consume_batch("q")
    before = message.leased_until
    until = message.extend(60)
    assert until == message.leased_until == engine18.message("q", message_id).vt
    assert until - before == timedelta(seconds=60)
    assert client.extend(message.receipt, timedelta(seconds=1)) == until + timedelta(seconds=1)
    message.ack()
    with pytest.raises(LeaseLost):
        message.extend(60)


def test_extend_many(client: Client, engine18: Engine) -> None:
    for queue in ("a", "b"):
        client.create_queue(queue)
        client.send_many(queue, range(3))
    messages = [*client.consume_batch("a"), *client.consume_batch("b")]
    messages += client.consume_batch("a")
    before = [message.leased_until for message in messages]
    messages[1].ack()
    mixed: list[Message[Any] | Receipt] = [*messages[:5], messages[5].receipt]
    assert client.extend_many(iter(mixed), timedelta(minutes=1)) == [messages[1].receipt]
    assert not messages[1].is_lost
    rows = [engine18.message(message.queue_name, message.id) for message in messages]
    later = [row.vt - old for row, old in zip(rows, before, strict=True) if row.vt is not None]
    assert later == [timedelta(minutes=1)] * 5
    assert messages[0].leased_until == rows[0].vt
    assert client.extend_many([], 1) == []


def test_pulse(client: Client, engine18: Engine) -> None:
    for queue in ("a", "b"):
        client.create_queue(queue)
        client.send(queue, 1)
    held = [(client.consume_batch(queue, token="me"))[0] for queue in ("a", "b")]  # noqa: S106
    assert client.pulse("me", 600) == 2
    assert client.pulse("me", 1000, ["b"]) == 1
    assert client.pulse("nobody", 600) == 0
    now = client.clock()
    left = [(engine18.message(m.queue_name, m.id).vt - now).total_seconds() for m in held]
    assert left == [pytest.approx(600, abs=5), pytest.approx(1000, abs=5)]


# Dead letters


def test_dead_letters(client: Client, engine18: Engine) -> None:
    client.create_queue("a", max_delivery_attempts=1)
    client.create_queue("b")
    client.send_many("a", [{"n": 1}, b"\x00\xff"], tenant="acme", headers={"h": 1}, priority=LOW)
    client.send("b", 3)
    for message in client.consume_batch("a"):
        message.nack(error="broken")
    (rejected,) = client.consume_batch("b")
    rejected.reject()
    letters = client.list_dlq_messages()
    rows = engine18.rows("list_dlq_messages")
    assert all(same(letter, row) for letter, row in zip(letters, rows, strict=True))
    found = {letter.message_id: (letter.reason, letter.payload) for letter in letters}
    assert sorted(found.values(), key=str) == [
        ("failed", 3),
        ("no_attempts_left", b"\x00\xff"),
        ("no_attempts_left", {"n": 1}),
    ]
    (first,) = client.list_dlq_messages("a", page_size=1)
    (second,) = client.list_dlq_messages("a", after=first.cursor)
    assert first.errors[0].error == "broken"
    assert first.errors[0].attempt == 1
    assert first.errors[0].at.tzinfo is UTC
    assert client.requeue_dlq_messages("a", [first.message_id]) == 1
    assert client.add_retries("a", 2) == 1
    assert set(engine18.states("a").values()) == {"ready"}
    assert engine18.message("a", second.message_id).delivery_attempts == 1
    assert client.requeue_dlq_messages("a") == 0
    assert client.purge_dlq("a") == 0
    assert client.purge_dlq() == 1
    assert client.list_dlq_messages() == []


# Statistics and looking in


def furnish(client: Client) -> dict[str, int]:
    """A message in each state."""
    client.create_queue("q")
    ids = {}
    ids["done"] = client.send("q", "done")
    (client.consume_batch("q"))[0].ack(result=1)
    ids["dead"] = client.send("q", "dead")
    (client.consume_batch("q"))[0].reject("bad")
    ids["active"] = client.send("q", "active", tenant="acme")
    client.consume_batch("q", token="me")  # noqa: S106
    ids["scheduled"] = client.send("q", "scheduled", delay=3600, ttl=7200)
    ids["ready"] = client.send("q", b"ready", priority=HIGH, tenant="acme", dedup_key="k")
    return ids


def test_statistics(client: Client, engine18: Engine, clock18: Clock) -> None:
    furnish(client)
    client.create_queue("empty")
    found = client.get_queue_statistics()
    assert [one.queue_name for one in found] == ["empty", "q"]
    ages = {one.queue_name: one.oldest_pending_seconds for one in found}
    assert ages["empty"] is None
    assert ages["q"] is not None
    assert 0 <= ages["q"] < 60
    (one,) = client.get_queue_statistics("q")
    row = vars(engine18.statistics("q")) | {"oldest_pending_seconds": one.oldest_pending_seconds}
    assert dataclasses.asdict(one) == row
    assert (one.pending_count, one.processing_count, one.completed_count) == (2, 1, 1)
    by_priority = client.get_queue_statistics("q", breakdown="priority")
    assert [(part.priority, part.pending_count) for part in by_priority] == [(0, 0), (1, 1), (2, 1), (3, 0)]
    by_tenant = client.get_queue_statistics("q", breakdown="tenant", top=1)
    assert len(by_tenant) == 1
    assert by_tenant[0].completed_count is None


def test_lists_and_details(client: Client, engine18: Engine) -> None:
    ids = furnish(client)
    listed = client.list_messages("q")
    rows = engine18.rows("list_messages", "q")
    assert all(same(one, row) for one, row in zip(listed, rows, strict=True))
    assert {one.state: one.message_id for one in listed} == ids
    for state, message_id in ids.items():
        (one,) = client.list_messages("q", state=state)  # type: ignore[arg-type]
        assert one.message_id == message_id
        details = client.get_message("q", message_id)
        assert details is not None
        assert same(details, engine18.message("q", message_id))
        assert client.explain_delivery("q", message_id) == engine18.explain("q", message_id)
    assert client.get_message("q", 10**9) is None
    assert "unknown" in (client.explain_delivery("q", 10**9)).lower()
    paged, after = [], None
    while page := client.list_messages("q", page_size=2, after=after):
        paged += page
        after = page[-1].cursor
    assert paged == listed


# Cleanup


def test_cancel_and_purge(client: Client, engine18: Engine) -> None:
    ids = furnish(client)
    assert client.cancel_message("q", ids["scheduled"]) is True
    assert client.cancel_message("q", ids["active"]) is False
    assert client.cancel_message("q", ids["scheduled"]) is False
    assert client.purge_queue("q") == 2
    assert set(engine18.states("q").values()) == {"done", "dead"}
    assert client.cleanup_queue_messages("q") == 1
    assert set(engine18.states("q").values()) == {"dead"}
    client.create_topic("t")
    client.create_queue("r", topic="t")
    client.publish("t", 1)
    (client.consume_batch("r"))[0].ack()
    assert client.cleanup_topic_messages("t") == 1
    client.publish("t", 1)
    client.purge_all_messages()
    assert engine18.states("q") == engine18.states("r") == {}
    assert len(client.list_queues()) == 2


# Now and then, and the rest


def test_maintain(client: Client, clock18: Clock) -> None:
    client.create_queue("q", max_delivery_attempts=1)
    client.send("q", 1)
    client.consume_batch("q", visibility_timeout=1)
    client.send("q", 2, delay=5)
    clock18.advance(10)
    did = client.maintain()
    assert all(type(one) is MaintenanceResult for one in did)
    assert {one.queue_name for one in did if one.queue_name} == {"q"}
    assert all(isinstance(one.action, str) and one.affected > 0 for one in did)
    (statistics,) = client.get_queue_statistics("q")
    assert (statistics.processing_count, statistics.dead_count, statistics.delayed_count) == (0, 1, 0)


def test_the_rest(client: Client, engine18: Engine) -> None:
    client.create_queue("q")
    assert client.raise_floor("q") is False
    assert client.channel("q") == engine18.value("channel", "q") == "queue:q"
    before = engine18.now()
    assert before <= client.clock() <= engine18.now()
    version = client.schema_version()
    assert version == schema.installed_version(engine18.connection)
    assert vars(engine18.row("schema_version")) == {
        field.name: getattr(version, field.name) for field in dataclasses.fields(version)
    }


# The client itself


def test_a_closed_client_says_so(database18: str) -> None:
    client = Client(database18)
    client.create_queue("q")
    client.close()
    client.close()
    for attempt in (client.open, client.list_queues):
        with pytest.raises(ClientClosed):
            attempt()
    with pytest.raises(ClientClosed), client.transaction():
        pass
    begun = time.monotonic()
    with pytest.raises(ClientClosed):
        for _ in client.consume("q", wait=10):
            pass
    assert time.monotonic() - begun < 5, "there is nothing to wait for"


def test_it_connects_at_the_first_call(database18: str) -> None:
    client = Client(database18)
    assert client.list_queues() == []
    client.close()


def test_no_connection_is_left(database18: str, activity18: Activity) -> None:
    # By a name of their own: connections that another test gave up may still be on their way.
    dsn = make_conninfo(database18, application_name="counted")
    with Client(dsn) as client:
        client.list_queues()
        assert activity18.count(name="counted") == 1
        with Client(dsn) as another:
            another.list_queues()
            assert activity18.count(name="counted") == 2
        until(lambda: activity18.count(name="counted") == 1)
    until(lambda: activity18.count(name="counted") == 0)


def test_so_many_connections_and_no_more(database18: str) -> None:
    with Client(database18, max_connections=1, connection_timeout=0.1) as client:
        with client.transaction() as transaction:
            assert transaction.list_queues() == []
            with pytest.raises(DatabaseUnavailable, match="all 1 connections") as caught:
                client.list_queues()
        assert "max_connections" in (caught.value.hint or "")
        assert client.list_queues() == []


def test_who_waits_gets_the_connection_that_comes_back(database18: str) -> None:
    with Client(database18, max_connections=1) as client:
        with client.transaction() as transaction:
            waiting = Running(client.list_queues)
            transaction.create_queue("q")
            assert not waiting.is_done()
        assert [queue.name for queue in waiting.result()] == ["q"]


def test_a_client_tells_where_it_leads_without_the_password() -> None:
    client = Client("postgresql://me:secret@example.org/db")
    assert "example.org" in repr(client)
    assert "secret" not in repr(client)
