"""Each call, with its typed result compared to what the SQL API says."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import (
    HIGH,
    LOW,
    URGENT,
    AsyncClient,
    AsyncMessage,
    ErrorEntry,
    InvalidArgument,
    LeaseLost,
    MaintenanceResult,
    NotFound,
    QueueDiffers,
    QueueNotFound,
    Receipt,
    TopicNotFound,
    schema,
)
from tests.client.conftest import Clock
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


async def test_topics(client: AsyncClient, engine18: Engine) -> None:
    first = await client.create_topic("orders")
    assert await client.create_topic("orders") == first
    second = await client.create_topic("a \"quoted\" 'name' \\ with % and ünïcode 💧")
    await client.create_queue("billing", topic="orders")
    topics = await client.list_topics()
    rows = engine18.rows("list_topics")
    assert {topic.id for topic in topics} == {first, second}
    assert len(topics) == 2
    assert all(same(topic, row) for topic, row in zip(topics, rows, strict=True))
    assert [topic.queue_count for topic in topics if topic.name == "orders"] == [1]
    assert await client.delete_topic("orders") is None  # type: ignore[func-returns-value]
    assert [topic.id for topic in await client.list_topics()] == [second]
    assert await client.list_queues() == []
    with pytest.raises(TopicNotFound, match='"orders"'):
        await client.delete_topic("orders")


async def test_a_queue_has_the_defaults_of_the_schema(client: AsyncClient, engine18: Engine) -> None:
    queue_id = await client.create_queue("by client")
    engine18.queue("by sql")
    mine, other = await client.list_queues()
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


async def test_every_setting_of_a_queue(client: AsyncClient, engine18: Engine) -> None:
    await client.create_topic("orders")
    made = await client.create_queue("billing", topic="orders", **SETTINGS)
    assert await client.create_queue("billing", topic="orders", **SETTINGS) == made
    (queue,) = await client.list_queues()
    assert same(queue, engine18.settings("billing"))
    assert {name: getattr(queue, name) for name in stored(SETTINGS)} == stored(SETTINGS)
    assert queue.topic_name == "orders"
    with pytest.raises(QueueDiffers, match="max_delivery_attempts"):
        await client.create_queue("billing", topic="orders", **{**SETTINGS, "max_delivery_attempts": 8})


@pytest.mark.parametrize("name", SETTINGS)
async def test_each_setting_can_be_altered(client: AsyncClient, engine18: Engine, name: str) -> None:
    await client.create_queue("q")
    before = engine18.settings("q")
    needed: dict[str, Any] = {"max_active": 100} if name in ("min_active", "priority_shares") else {}
    await client.alter_queue("q", **needed, **{name: SETTINGS[name]})
    (queue,) = await client.list_queues()
    assert same(queue, engine18.settings("q"))
    ((column, value),) = stored({name: SETTINGS[name]}).items()
    assert getattr(queue, column) == value
    changed = {column, *needed}
    rest = {key: old for key, old in as_sql_says(before).items() if key not in changed}
    assert {key: getattr(queue, key) for key in rest} == rest


async def test_zero_takes_a_limit_away(client: AsyncClient) -> None:
    await client.create_queue("q", message_ttl=60, max_active=10, tenant_max_active=2)
    await client.alter_queue("q", message_ttl=timedelta(), max_active=0, tenant_max_active=0)
    (queue,) = await client.list_queues()
    assert (queue.message_ttl_seconds, queue.max_active, queue.tenant_max_active) == (None, None, None)


async def test_an_exclusive_queue_and_its_end(client: AsyncClient, clock18: Clock, engine18: Engine) -> None:
    await client.create_queue("session", exclusive=True, keep_alive=timedelta(minutes=1))
    (queue,) = await client.list_queues()
    assert queue.exclusive
    assert queue.keep_alive_until is not None
    assert timedelta(0) < queue.keep_alive_until - await client.clock() <= timedelta(minutes=1)
    until = await client.extend_queue_keep_alive("session", 600)
    assert same((await client.list_queues())[0], engine18.settings("session"))
    assert until == (await client.list_queues())[0].keep_alive_until
    assert timedelta(seconds=590) < until - await client.clock() <= timedelta(seconds=600)
    assert await client.cleanup_expired_exclusive_queues() == 0
    clock18.advance(601)
    assert await client.cleanup_expired_exclusive_queues() == 1
    assert await client.list_queues() == []


async def test_pause_resume_and_delete(client: AsyncClient, engine18: Engine) -> None:
    await client.create_queue("q")
    message_id = await client.send("q", 1)
    await client.pause_queue("q")
    (queue,) = await client.list_queues()
    assert queue.paused_at == engine18.settings("q").paused_at is not None
    assert await client.consume_one("q") is None
    await client.resume_queue("q")
    assert (await client.list_queues())[0].paused_at is None
    message = await client.consume_one("q")
    assert message is not None
    assert message.id == message_id
    await client.delete_queue("q")
    assert await client.list_queues() == []
    with pytest.raises(QueueNotFound, match='"q"'):
        await client.delete_queue("q")
    with pytest.raises(QueueNotFound):
        await message.ack()


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
async def test_of_an_unknown_name(
    client: AsyncClient, method: str, arguments: tuple[Any, ...], error: type[NotFound]
) -> None:
    with pytest.raises(error, match='"none"') as caught:
        await getattr(client, method)(*arguments)
    assert caught.value.sqlstate == error.sqlstate


# Publish and send


async def test_publish_reaches_each_queue_of_the_topic(client: AsyncClient, engine18: Engine) -> None:
    engine18.topic("orders", "billing", "audit")
    engine18.queue("other")
    message_id = await client.publish("orders", {"order": 1})
    assert engine18.states("billing") == engine18.states("audit") == {message_id: "ready"}
    assert engine18.states("other") == {}
    sent = await client.send("audit", "past the topic")
    assert engine18.states("audit") == {message_id: "ready", sent: "ready"}


async def test_every_option_of_a_message(client: AsyncClient, engine18: Engine) -> None:
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
        message_id = await function(target, {"a": 1}, **options)
        row = engine18.message("q", message_id)
        assert (row.priority, row.tenant, row.headers) == (URGENT, "acme", options["headers"])
        assert (row.state, row.dedup_key, row.payload) == ("scheduled", "k1", {"a": 1})
        assert row.expires_at - row.published_at == timedelta(hours=1)
        assert timedelta(seconds=595) < row.due_at - row.published_at < timedelta(seconds=605)
        assert await function(target, "another", **options) == message_id
        assert await client.cancel_message("q", message_id)


async def test_a_moment_is_kept_to_the_microsecond(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    for at in (
        datetime(2040, 2, 29, 23, 59, 59, 999999, UTC),
        datetime.fromisoformat("2100-07-01T12:00:00.000001+05:30"),
        datetime.fromisoformat("2999-12-31T00:00:00.123457-11:00"),
        datetime.max.replace(tzinfo=UTC),
    ):
        message_id = await client.send("q", 1, deliver_after=at)
        assert engine18.message("q", message_id).due_at == at
        details = await client.get_message("q", message_id)
        assert details is not None
        assert details.due_at == at
        (listed,) = await client.list_messages("q")
        assert listed.due_at == at
        await client.purge_queue("q")


async def test_a_delay_is_measured_by_the_clock_of_the_database(client: AsyncClient, clock18: Clock) -> None:
    await client.create_queue("q")
    clock18.advance(86400)
    message_id = await client.send("q", 1, delay=0.5)
    details = await client.get_message("q", message_id)
    assert details is not None
    assert details.due_at is not None
    assert timedelta(seconds=0.4) < details.due_at - details.published_at < timedelta(seconds=0.6)
    assert details.due_at > datetime.now(UTC) + timedelta(hours=23)


async def test_a_dedup_key_gives_the_id_of_the_first(client: AsyncClient, engine18: Engine) -> None:
    engine18.topic("t", "q")
    first = await client.publish("t", 1, dedup_key="k")
    assert await client.publish("t", 2, dedup_key="k") == first
    assert await client.send("q", 3, dedup_key="k") == first
    assert await client.send_many("q", [4, 5], dedup_key="k") == [first, first]
    message = await client.consume_one("q")
    assert message is not None
    await message.ack()
    assert await client.send("q", 6, dedup_key="k") != first


# Consume, settle, lease


async def test_a_message_tells_all_that_the_row_says(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q", visibility_timeout_seconds=90)
    message_id = await client.send("q", {"a": [1]}, priority=HIGH, tenant="acme", headers={"h": 1})
    (message,) = await client.consume_batch("q", token="me")  # noqa: S106 - no secret
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


async def test_a_message_without_anything(client: AsyncClient) -> None:
    await client.create_queue("q")
    await client.send("q", None)
    message = await client.consume_one("q")
    assert message is not None
    assert (message.payload, message.headers, message.tenant, message.priority) == (None, {}, None, 2)


async def test_claims_take_what_is_there(client: AsyncClient) -> None:
    await client.create_queue("q")
    assert await client.consume_batch("q") == []
    assert await client.consume_one("q") is None
    ids = await client.send_many("q", range(25))
    assert [message.id for message in await client.consume_batch("q")] == ids[:10]
    batch = await client.consume_batch("q", batch_size=100, visibility_timeout=timedelta(minutes=10))
    assert [message.id for message in batch] == ids[10:]
    assert len({message.token for message in batch}) == 1
    left = batch[0].leased_until - await client.clock()
    assert timedelta(seconds=590) < left <= timedelta(seconds=600)


async def test_urgent_ones_first(client: AsyncClient) -> None:
    await client.create_queue("q")
    for priority in (LOW, None, HIGH, URGENT):
        await client.send("q", priority, priority=priority)
    found = await client.consume_batch("q")
    assert [message.payload for message in found] == [URGENT, HIGH, None, LOW]


async def test_ack(client: AsyncClient, engine18: Engine) -> None:
    await client.create_queue("q")
    ids = await client.send_many("q", range(3))
    one, two, three = await client.consume_batch("q")
    await one.ack(result={"total": 1.5})
    await client.ack(two)
    await client.ack(three.receipt, result=[None])
    assert engine18.states("q") == dict.fromkeys(ids, "done")
    assert [engine18.message("q", i).result for i in ids] == [{"total": 1.5}, None, [None]]
    for message in (one, two, three):
        with pytest.raises(LeaseLost, match=f"message {message.id} of 'q'"):
            await message.ack()
    with pytest.raises(LeaseLost, match=f"message_id={one.id}"):
        await client.ack(one.receipt)


async def test_ack_many(client: AsyncClient, engine18: Engine) -> None:
    for queue in ("a", "b"):
        await client.create_queue(queue)
        await client.send_many(queue, range(5))
    first, second = await client.consume_batch("a"), await client.consume_batch("b")
    assert await client.ack_many([]) == []
    await first[0].ack()
    mixed: list[AsyncMessage[Any] | Receipt] = [first[0], *second[:2], first[1].receipt, first[2]]
    assert await client.ack_many(iter(mixed)) == [first[0].receipt]
    assert set(engine18.states("a").values()) == {"done", "active"}
    assert [engine18.state("a", message.id) for message in first] == ["done"] * 3 + ["active"] * 2
    assert [engine18.state("b", message.id) for message in second] == ["done"] * 2 + ["active"] * 3
    assert [message.is_lost for message in first] == [True, False, False, False, False]


async def test_ack_many_with_results(client: AsyncClient, engine18: Engine) -> None:
    for queue in ("a", "b"):
        await client.create_queue(queue)
        await client.send_many(queue, range(2))
    first, second = await client.consume_batch("a"), await client.consume_batch("b")
    mixed = [first[0], second[0], first[1], second[1]]
    assert await client.ack_many(mixed, results=["a0", None, {"a": 1}, 1e23]) == []
    results = [engine18.message(message.queue_name, message.id).result for message in mixed]
    assert results[:3] == ["a0", None, {"a": 1}]
    assert float(results[3]) == 1e23


async def test_ten_thousand_are_acked_in_a_moment(client: AsyncClient) -> None:
    await client.create_queue("q")
    await client.send_many("q", range(10_000))
    messages = []
    while found := await client.consume_batch("q", batch_size=1000):
        messages += found
    begun = await client.clock()
    assert await client.ack_many(messages) == []
    assert await client.clock() - begun < timedelta(seconds=3)
    lost = await client.ack_many(messages)
    assert lost == [message.receipt for message in messages]


async def test_nack(client: AsyncClient, engine18: Engine) -> None:
    await client.create_queue("q", retry_delays=[0, 100])
    message_id = await client.send("q", 1)

    async def take() -> Receipt:
        message = await client.consume_one("q")
        assert message is not None
        return message.receipt

    message = await client.consume_one("q")
    assert message is not None
    await message.nack(error="first \0 failure")
    assert engine18.state("q", message_id) == "ready"
    await client.nack(await take(), delay=timedelta(minutes=5), error="second \ud800")
    row = engine18.message("q", message_id)
    assert (row.state, row.last_error, row.delivery_attempts) == ("scheduled", "second ?", 2)
    assert [entry["error"] for entry in row.errors] == ["first \ufffd failure", "second ?"]
    assert row.due_at - await client.clock() > timedelta(seconds=290)
    with pytest.raises(LeaseLost):
        await message.nack()


async def test_nack_release_and_reject_many(client: AsyncClient, engine18: Engine) -> None:
    for queue in ("a", "b"):
        await client.create_queue(queue, max_delivery_attempts=5)
        await client.send_many(queue, range(6))
    first, second = await client.consume_batch("a"), await client.consume_batch("b")
    await first[0].ack()

    def mixed(start: int) -> list[AsyncMessage[Any] | Receipt]:
        return [first[0], first[start], second[start - 1], first[start + 1].receipt]

    for settle in (client.nack_many, client.release_many, client.reject_many):
        assert await settle([]) == []
    delayed = await client.nack_many(mixed(1), delay=60, error="failed \0", max_attempts=4)
    released = await client.release_many(iter(mixed(3)))
    rejected = await client.reject_many([first[0], first[5], second[5].receipt], error="no such customer")
    assert delayed == released == rejected == [first[0].receipt]
    states = ["done", "scheduled", "scheduled", "ready", "ready", "dead"]
    assert [engine18.state("a", message.id) for message in first] == states
    states = ["scheduled", "active", "ready", "active", "active", "dead"]
    assert [engine18.state("b", message.id) for message in second] == states
    row = engine18.message("a", first[1].id)
    assert (row.last_error, row.delivery_attempts) == ("failed \ufffd", 1)
    assert row.due_at - await client.clock() > timedelta(seconds=50)
    assert engine18.message("a", first[3].id).delivery_attempts == 0
    row = engine18.message("b", second[5].id)
    assert (row.reason, row.last_error) == ("failed", "no such customer")
    assert [message.is_lost for message in first] == [True] + [False] * 5


async def test_many_by_the_rules_of_the_queue(client: AsyncClient, engine18: Engine) -> None:
    """Without a delay retry_delays count; max_attempts counts in place of the queue's limit."""
    await client.create_queue("q", retry_delays=[0, 100])
    await client.send_many("q", range(3))
    claimed = await client.consume_batch("q")
    assert await client.nack_many(claimed[:2]) == []
    assert await client.nack_many([claimed[2]], max_attempts=1) == []
    assert [engine18.state("q", message.id) for message in claimed] == ["ready", "ready", "dead"]
    again = await client.consume_batch("q")
    twice: list[AsyncMessage[Any] | Receipt] = [again[0], again[0].receipt, again[1]]
    assert await client.nack_many(twice) == [again[0].receipt]
    assert {engine18.state("q", message.id) for message in again} == {"scheduled"}
    assert again[1].is_lost is False


async def test_a_refused_argument_settles_none_of_many(client: AsyncClient, engine18: Engine) -> None:
    for queue in ("a", "b"):
        await client.create_queue(queue)
        await client.send(queue, 1)
    claimed = [*await client.consume_batch("a"), *await client.consume_batch("b")]
    with pytest.raises(InvalidArgument, match="delay"):
        await client.nack_many(claimed, delay=-1)
    with pytest.raises(InvalidArgument, match="result"):
        await client.ack_many(claimed, results=[1, float("nan")])
    assert [engine18.state(m.queue_name, m.id) for m in claimed] == ["active", "active"]


async def test_release_and_reject(client: AsyncClient, engine18: Engine) -> None:
    await client.create_queue("q")
    message_id = await client.send("q", 1)
    (message,) = await client.consume_batch("q")
    await message.release()
    row = engine18.message("q", message_id)
    assert (row.state, row.delivery_attempts) == ("ready", 0)
    (message,) = await client.consume_batch("q")
    assert message.attempt == 1
    await client.release(message.receipt)
    (message,) = await client.consume_batch("q")
    await message.reject("no such customer")
    row = engine18.message("q", message_id)
    assert (row.state, row.reason, row.last_error) == ("dead", "failed", "no such customer")
    for attempt in (message.reject, message.release):
        with pytest.raises(LeaseLost):
            await attempt()


async def test_extend(client: AsyncClient, engine18: Engine) -> None:
    await client.create_queue("q")
    message_id = await client.send("q", 1)
    (message,) = await client.consume_batch("q")
    before = message.leased_until
    until = await message.extend(60)
    assert until == message.leased_until == engine18.message("q", message_id).vt
    assert until - before == timedelta(seconds=60)
    assert await client.extend(message.receipt, timedelta(seconds=1)) == until + timedelta(seconds=1)
    await message.ack()
    with pytest.raises(LeaseLost):
        await message.extend(60)


async def test_extend_many(client: AsyncClient, engine18: Engine) -> None:
    for queue in ("a", "b"):
        await client.create_queue(queue)
        await client.send_many(queue, range(3))
    messages = [*await client.consume_batch("a"), *await client.consume_batch("b")]
    messages += await client.consume_batch("a")
    before = [message.leased_until for message in messages]
    await messages[1].ack()
    mixed: list[AsyncMessage[Any] | Receipt] = [*messages[:5], messages[5].receipt]
    assert await client.extend_many(iter(mixed), timedelta(minutes=1)) == [messages[1].receipt]
    assert not messages[1].is_lost
    rows = [engine18.message(message.queue_name, message.id) for message in messages]
    later = [row.vt - old for row, old in zip(rows, before, strict=True) if row.vt is not None]
    assert later == [timedelta(minutes=1)] * 5
    assert messages[0].leased_until == rows[0].vt
    assert await client.extend_many([], 1) == []


async def test_pulse(client: AsyncClient, engine18: Engine) -> None:
    for queue in ("a", "b"):
        await client.create_queue(queue)
        await client.send(queue, 1)
    held = [(await client.consume_batch(queue, token="me"))[0] for queue in ("a", "b")]  # noqa: S106
    assert await client.pulse("me", 600) == 2
    assert await client.pulse("me", 1000, ["b"]) == 1
    assert await client.pulse("no_holder", 600) == 0
    now = await client.clock()
    left = [(engine18.message(m.queue_name, m.id).vt - now).total_seconds() for m in held]
    assert left == [pytest.approx(600, abs=5), pytest.approx(1000, abs=5)]


# Dead letters


async def test_dead_letters(client: AsyncClient, engine18: Engine) -> None:
    await client.create_queue("a", max_delivery_attempts=1)
    await client.create_queue("b")
    await client.send_many("a", [{"n": 1}, b"\x00\xff"], tenant="acme", headers={"h": 1}, priority=LOW)
    await client.send("b", 3)
    for message in await client.consume_batch("a"):
        await message.nack(error="broken")
    (rejected,) = await client.consume_batch("b")
    await rejected.reject()
    letters = await client.list_dlq_messages()
    rows = engine18.rows("list_dlq_messages")
    assert all(same(letter, row) for letter, row in zip(letters, rows, strict=True))
    found = {letter.message_id: (letter.reason, letter.payload) for letter in letters}
    assert sorted(found.values(), key=str) == [
        ("failed", 3),
        ("no_attempts_left", b"\x00\xff"),
        ("no_attempts_left", {"n": 1}),
    ]
    (first,) = await client.list_dlq_messages("a", page_size=1)
    (second,) = await client.list_dlq_messages("a", after=first.cursor)
    assert first.errors[0].error == "broken"
    assert first.errors[0].attempt == 1
    assert first.errors[0].at.tzinfo is UTC
    assert await client.requeue_dlq_messages("a", [first.message_id]) == 1
    assert await client.add_retries("a", 2) == 1
    assert set(engine18.states("a").values()) == {"ready"}
    assert engine18.message("a", second.message_id).delivery_attempts == 1
    assert await client.requeue_dlq_messages("a") == 0
    assert await client.purge_dlq("a") == 0
    assert await client.purge_dlq() == 1
    assert await client.list_dlq_messages() == []


# Statistics and looking in


async def furnish(client: AsyncClient) -> dict[str, int]:
    """A message in each state."""
    await client.create_queue("q")
    ids = {}
    ids["done"] = await client.send("q", "done")
    await (await client.consume_batch("q"))[0].ack(result=1)
    ids["dead"] = await client.send("q", "dead")
    await (await client.consume_batch("q"))[0].reject("bad")
    ids["active"] = await client.send("q", "active", tenant="acme")
    await client.consume_batch("q", token="me")  # noqa: S106
    ids["scheduled"] = await client.send("q", "scheduled", delay=3600, ttl=7200)
    ids["ready"] = await client.send("q", b"ready", priority=HIGH, tenant="acme", dedup_key="k")
    return ids


async def test_history(client: AsyncClient, engine18: Engine, clock18: Clock) -> None:
    await client.create_queue("q")
    (nothing,) = await client.overview_history()
    assert (nothing.at, await client.queue_history("q")) == (None, [])
    assert await client.sample() <= 10
    await client.send_many("q", [1, 2, 3])
    (message,) = await client.consume_batch("q", batch_size=1)
    await client.ack(message)
    clock18.advance(10)
    engine18.value("sample")
    point = (await client.queue_history("q", since=engine18.now() - timedelta(minutes=1), step=10))[-1]
    assert (point.ready_count, point.published_count, point.completed_count) == (2, 3, 1)
    assert point.published_rate == 0.3
    assert point.run_p95 is not None
    (found,) = await client.overview_history(points=2, step=10)
    assert (found.queue_name, found.at, found.ready_series) == ("q", point.at, (0, 2))


async def test_statistics(client: AsyncClient, engine18: Engine, clock18: Clock) -> None:
    await furnish(client)
    await client.create_queue("empty")
    found = await client.get_queue_statistics()
    assert [one.queue_name for one in found] == ["empty", "q"]
    ages = {one.queue_name: one.oldest_pending_seconds for one in found}
    assert ages["empty"] is None
    assert ages["q"] is not None
    assert 0 <= ages["q"] < 60
    (one,) = await client.get_queue_statistics("q")
    row = vars(engine18.statistics("q")) | {"oldest_pending_seconds": one.oldest_pending_seconds}
    assert dataclasses.asdict(one) == row
    assert (one.pending_count, one.processing_count, one.completed_count) == (2, 1, 1)
    by_priority = await client.get_queue_statistics("q", breakdown="priority")
    assert [(part.priority, part.pending_count) for part in by_priority] == [(0, 0), (1, 1), (2, 1), (3, 0)]
    by_tenant = await client.get_queue_statistics("q", breakdown="tenant", top=1)
    assert len(by_tenant) == 1
    assert by_tenant[0].completed_count is None


async def test_lists_and_details(client: AsyncClient, engine18: Engine) -> None:
    ids = await furnish(client)
    listed = await client.list_messages("q")
    rows = engine18.rows("list_messages", "q")
    assert all(same(one, row) for one, row in zip(listed, rows, strict=True))
    assert {one.state: one.message_id for one in listed} == ids
    for state, message_id in ids.items():
        (one,) = await client.list_messages("q", state=state)  # type: ignore[arg-type]
        assert one.message_id == message_id
        details = await client.get_message("q", message_id)
        assert details is not None
        assert same(details, engine18.message("q", message_id))
        assert await client.explain_delivery("q", message_id) == engine18.explain("q", message_id)
    assert await client.get_message("q", 10**9) is None
    large = await client.send("q", {"text": "x" * 100})
    without = await client.get_message("q", large, most_payload_bytes=50)
    assert without is not None
    assert without.payload is None
    assert without.payload_bytes is not None
    assert without.payload_bytes > 100
    as_bytes = await client.send("q", b"0123456789")
    cut = await client.get_message("q", as_bytes, most_payload_bytes=4)
    assert cut is not None
    assert (cut.payload, cut.payload_bytes) == (b"0123", 10)
    for message_id in (large, as_bytes):
        assert await client.cancel_message("q", message_id)
    assert "unknown" in (await client.explain_delivery("q", 10**9)).lower()
    paged, after = [], None
    while page := await client.list_messages("q", page_size=2, after=after):
        paged += page
        after = page[-1].cursor
    assert paged == listed


# Cleanup


async def test_cancel_and_purge(client: AsyncClient, engine18: Engine) -> None:
    ids = await furnish(client)
    assert await client.cancel_message("q", ids["scheduled"]) is True
    assert await client.cancel_message("q", ids["active"]) is False
    assert await client.cancel_message("q", ids["scheduled"]) is False
    assert await client.purge_queue("q") == 2
    assert set(engine18.states("q").values()) == {"done", "dead"}
    assert await client.cleanup_queue_messages("q") == 1
    assert set(engine18.states("q").values()) == {"dead"}
    await client.create_topic("t")
    await client.create_queue("r", topic="t")
    await client.publish("t", 1)
    await (await client.consume_batch("r"))[0].ack()
    assert await client.cleanup_topic_messages("t") == 1
    await client.publish("t", 1)
    await client.purge_all_messages()
    assert engine18.states("q") == engine18.states("r") == {}
    assert len(await client.list_queues()) == 2


# Now and then, and the rest


async def test_maintain(client: AsyncClient, clock18: Clock) -> None:
    await client.create_queue("q", max_delivery_attempts=1)
    await client.send("q", 1)
    await client.consume_batch("q", visibility_timeout=1)
    await client.send("q", 2, delay=5)
    clock18.advance(10)
    did = await client.maintain()
    assert all(type(one) is MaintenanceResult for one in did)
    assert {one.queue_name for one in did if one.queue_name} == {"q"}
    assert all(isinstance(one.action, str) and one.affected > 0 for one in did)
    (statistics,) = await client.get_queue_statistics("q")
    assert (statistics.processing_count, statistics.dead_count, statistics.delayed_count) == (0, 1, 0)


async def test_the_rest(client: AsyncClient, engine18: Engine) -> None:
    await client.create_queue("q")
    assert await client.raise_floor("q") is False
    assert await client.channel("q") == engine18.value("channel", "q") == "queue:q"
    before = engine18.now()
    assert before <= await client.clock() <= engine18.now()
    version = await client.schema_version()
    assert version == schema.installed_version(engine18.connection)
    assert vars(engine18.row("schema_version")) == {
        field.name: getattr(version, field.name) for field in dataclasses.fields(version)
    }
