"""Consumers: what they hand out, how they wait, and what they give back at the end."""

# ruff: noqa: PT012 - it is a whole block that raises

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from penstock import AsyncClient, AsyncConsumer, QueueNotFound
from tests.client.both import AsyncRunning, async_until
from tests.client.conftest import Activity, Clock
from tests.conftest import Connect
from tests.sql.engine import Engine, fingerprint

# A first look, and no notification within the time of a test: what a consumer finds, it was woken for.
QUICK_SECONDS = 0.1


async def collect(consumer: AsyncConsumer[Any], into: list[Any]) -> list[Any]:
    async for message in consumer:
        async with message:
            into.append(message.payload)
    return into


def attempts(engine: Engine, queue: str = "q") -> dict[str, int]:
    """How many messages are in each state with so many attempts, as 'state attempts'."""
    found: dict[str, int] = {}
    for row in engine.rows("list_messages", queue, page_size=1000):
        key = f"{row.state} {row.delivery_attempts}"
        found[key] = found.get(key, 0) + 1
    return found


# What is handed out


@pytest.mark.parametrize("batch_size", [1, 3, 10, 1000])
async def test_what_is_there_in_order(client: AsyncClient, engine18: Engine, batch_size: int) -> None:
    engine18.queue("q")
    await client.send_many("q", range(25))
    assert await collect(client.consume("q", batch_size=batch_size, wait=0), []) == [*range(25)]
    assert attempts(engine18) == {"done 1": 25}


async def test_nothing_there(client: AsyncClient) -> None:
    await client.create_queue("q")
    begun = time.monotonic()
    assert await collect(client.consume("q", wait=0), []) == []
    assert time.monotonic() - begun < 1


async def test_no_more_than_a_batch_is_claimed_ahead(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    await client.send_many("q", range(10))
    held = []
    async for message in client.consume("q", batch_size=4, wait=0):
        async with message:
            held.append(engine18.statistics("q").processing_count)
    assert held == [4, 3, 2, 1] * 2 + [2, 1]


async def test_it_ends_after_so_long_without_a_message(client: AsyncClient) -> None:
    await client.create_queue("q")
    await client.send("q", 1)
    begun = time.monotonic()
    assert await collect(client.consume("q", wait=timedelta(seconds=0.5)), []) == [1]
    assert 0.5 <= time.monotonic() - begun < 3


async def test_each_claim_has_a_token_of_its_own(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    ids = await client.send_many("q", range(6))
    tokens = []
    async for message in client.consume("q", batch_size=3, wait=0, visibility_timeout=77):
        row = engine18.message("q", message.id)
        assert fingerprint(message.token) == row.consumer
        if message.id in (ids[0], ids[3]):
            assert row.vt - row.claimed_at == timedelta(seconds=77)
            assert await client.pulse(message.token, 77) == 3
        tokens.append(message.token)
        await message.ack()
    assert tokens == [tokens[0]] * 3 + [tokens[3]] * 3
    assert tokens[0] != tokens[3]


async def test_it_can_be_iterated_again(client: AsyncClient) -> None:
    await client.create_queue("q")
    consumer = client.consume("q", wait=0)
    for _ in range(2):
        await client.send_many("q", [1, 2])
        assert await collect(consumer, []) == [1, 2]


async def test_urgent_ones_come_between_batches(client: AsyncClient) -> None:
    await client.create_queue("q")
    await client.send_many("q", range(4))
    order = []
    async for message in client.consume("q", batch_size=2, wait=0):
        async with message:
            order.append(message.payload)
            if message.payload == 0:
                await client.send("q", "urgent", priority=0)
    assert order == [0, 1, "urgent", 2, 3]


# Waiting


async def test_a_message_arrives_at_once(client: AsyncClient, engine18: Engine, activity18: Activity) -> None:
    """Polling is slow by then: the next look would be an eighth of a second later at the earliest."""
    engine18.queue("q")
    arrivals: list[float] = []
    consumer = client.consume("q")

    async def consume() -> None:
        async for message in consumer:
            async with message:
                arrivals.append(time.monotonic())

    running = AsyncRunning(consume)
    await async_until(lambda: activity18.listening() == 1)
    latencies = []
    for number in range(1, 3):
        await async_until(lambda: activity18.idle_for(0.5))
        begun = time.monotonic()
        engine18.send("q")
        await async_until(lambda number=number: len(arrivals) == number)  # type: ignore[misc]
        latencies.append(arrivals[-1] - begun)
    assert min(latencies) < QUICK_SECONDS, latencies
    consumer.stop()
    await running.result()
    assert attempts(engine18) == {"done 1": 2}


async def test_stop_ends_the_wait(client: AsyncClient, engine18: Engine, activity18: Activity) -> None:
    engine18.queue("q")
    consumer = client.consume("q", wait=None)
    running = AsyncRunning(lambda: collect(consumer, []))
    await async_until(lambda: activity18.listening() == 1)
    await async_until(lambda: activity18.idle_for(0.3))
    begun = time.monotonic()
    consumer.stop()
    assert await running.result() == []
    assert time.monotonic() - begun < QUICK_SECONDS


async def test_stop_ends_after_the_message_in_hand(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    await client.send_many("q", range(10))
    consumer, seen = client.consume("q", wait=None), []
    async for message in consumer:
        async with message:
            seen.append(message.payload)
            if len(seen) == 3:
                consumer.stop()
    assert seen == [0, 1, 2]
    assert attempts(engine18) == {"done 1": 3, "ready 0": 7}


async def test_many_published_while_waiting(client: AsyncClient, database18: str, engine18: Engine) -> None:
    engine18.queue("q")
    consumer, seen = client.consume("q", batch_size=7), list[int]()
    running = AsyncRunning(lambda: collect(consumer, seen))
    async with AsyncClient(database18) as publisher:
        for number in range(60):
            await publisher.send("q", number)
        await async_until(lambda: len(seen) == 60)
    consumer.stop()
    assert await running.result() == [*range(60)]
    await async_until(lambda: attempts(engine18) == {"done 1": 60})


async def test_a_queue_without_notifications_is_polled(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q", notify=False)
    consumer, seen = client.consume("q"), list[int]()
    running = AsyncRunning(lambda: collect(consumer, seen))
    engine18.send("q", 5)
    await async_until(lambda: seen == [5])
    consumer.stop()
    await running.result()


async def test_delayed_ones_arrive(client: AsyncClient) -> None:
    await client.create_queue("q")
    begun = time.monotonic()
    await client.send("q", "later", delay=0.6)
    await client.send("q", "now")
    arrived = {}
    async for message in client.consume("q", wait=8):
        async with message:
            arrived[message.payload] = time.monotonic() - begun
        if len(arrived) == 2:
            break
    assert [*arrived] == ["now", "later"]
    assert 0.55 < arrived["later"] < 4


async def test_retries_come_after_their_delay(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q", retry_delays=[0, 1], max_delivery_attempts=3)
    await client.send("q", 1)
    times: list[float] = []
    numbers = []
    async for message in client.consume("q", wait=8):
        numbers.append(message.attempt)
        async with message:
            times.append(time.monotonic())
            if message.attempt < 3:
                raise ValueError(f"attempt {message.attempt}")
        if message.attempt == 3:
            break
    assert numbers == [1, 2, 3]
    assert times[1] - times[0] < 0.9
    assert times[2] - times[1] > 0.9
    assert attempts(engine18) == {"done 3": 1}


async def test_pause_and_resume(client: AsyncClient, engine18: Engine, activity18: Activity) -> None:
    engine18.queue("q")
    await client.pause_queue("q")
    consumer, seen = client.consume("q"), list[int]()
    running = AsyncRunning(lambda: collect(consumer, seen))
    await async_until(lambda: activity18.listening() == 1)
    engine18.send("q", 1)
    await async_until(lambda: activity18.idle_for(0.3))
    assert seen == []
    begun = time.monotonic()
    await client.resume_queue("q")
    await async_until(lambda: seen == [1])
    assert time.monotonic() - begun < 1
    consumer.stop()
    await running.result()


async def test_an_expired_lease_is_delivered_again(client: AsyncClient, clock18: Clock) -> None:
    await client.create_queue("q")
    message_id = await client.send("q", 1)
    (lost,) = await client.consume_batch("q")
    clock18.advance(31)
    async for message in client.consume("q", wait=8):
        assert (message.id, message.attempt) == (message_id, 2)
        assert message.token != lost.token
        break


# One listening connection


async def test_two_clients_and_many_consumers_listen_once_each(
    client: AsyncClient, database18: str, engine18: Engine, activity18: Activity
) -> None:
    queues = [f"q{number}" for number in range(5)]
    for queue in queues:
        engine18.queue(queue)
    consumers = [client.consume(queue) for queue in queues * 2]
    seen: list[str] = []
    running = [
        AsyncRunning(lambda consumer=consumer: collect(consumer, seen))  # type: ignore[misc]
        for consumer in consumers
    ]
    await async_until(lambda: activity18.listening() == 1)
    for queue in queues:
        engine18.send(queue, queue)
    await async_until(lambda: sorted(seen) == queues)
    await async_until(lambda: activity18.idle_for(0.3))
    assert activity18.listening() == 1
    assert activity18.count() <= 11
    async with AsyncClient(database18) as another:
        consumer = another.consume("q0")
        beside = AsyncRunning(lambda: collect(consumer, []))
        await async_until(lambda: activity18.listening() == 2)
        consumer.stop()
        await beside.result()
    await async_until(lambda: activity18.listening() == 1)
    engine18.send("q3", "again")
    await async_until(lambda: "again" in seen)
    for one in consumers:
        one.stop()
    for each in running:
        await each.result()


async def test_two_consumers_of_a_queue_share_the_work(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    consumers = [client.consume("q", batch_size=1) for _ in range(2)]
    seen: list[list[int]] = [[], []]
    running = [
        AsyncRunning(lambda number=number: collect(consumers[number], seen[number]))  # type: ignore[misc]
        for number in range(2)
    ]
    for number in range(40):
        await client.send("q", number)
    await async_until(lambda: len(seen[0]) + len(seen[1]) == 40)
    for consumer in consumers:
        consumer.stop()
    for each in running:
        await each.result()
    assert sorted(seen[0] + seen[1]) == [*range(40)]
    assert attempts(engine18) == {"done 1": 40}


# Names


async def test_of_an_unknown_queue(client: AsyncClient) -> None:
    for wait in (0, 5, None):
        with pytest.raises(QueueNotFound, match='"none"'):
            await collect(client.consume("none", wait=wait), [])


async def test_of_a_queue_that_is_deleted_meanwhile(
    client: AsyncClient, engine18: Engine, activity18: Activity
) -> None:
    engine18.queue("q")
    running = AsyncRunning(lambda: collect(client.consume("q"), []))
    await async_until(lambda: activity18.listening() == 1)
    await client.delete_queue("q")
    with pytest.raises(QueueNotFound, match='"q"'):
        await running.result()


async def test_of_a_queue_with_a_long_name(
    client: AsyncClient, engine18: Engine, activity18: Activity
) -> None:
    name = "ü\"'%" * 60
    engine18.queue(name)
    consumer, seen = client.consume(name), list[int]()
    running = AsyncRunning(lambda: collect(consumer, seen))
    await async_until(lambda: activity18.listening() == 1)
    engine18.send(name, 1)
    await async_until(lambda: seen == [1])
    consumer.stop()
    await running.result()


# What is given back


async def test_at_a_break(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    await client.send_many("q", range(10))
    async for message in client.consume("q"):
        async with message:
            pass
        break
    await async_until(lambda: attempts(engine18) == {"done 1": 1, "ready 0": 9})
    assert await collect(client.consume("q", wait=0), []) == [*range(1, 10)]


async def test_at_an_exception(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    await client.send_many("q", range(10))
    with pytest.raises(ZeroDivisionError):
        async for message in client.consume("q", reraise=True):
            async with message:
                raise ZeroDivisionError
    await async_until(lambda: attempts(engine18) == {"ready 1": 1, "ready 0": 9})


async def test_at_its_close(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    await client.send_many("q", range(10))
    async with client.consume("q") as consumer:
        async for message in consumer:
            await message.ack()
            break
    assert attempts(engine18) == {"done 1": 1, "ready 0": 9}
    await consumer.close()
    assert await collect(consumer, []) == []


async def test_at_the_close_of_the_client(client: AsyncClient, database18: str, engine18: Engine) -> None:
    engine18.queue("q")
    await client.send_many("q", range(20))
    async with AsyncClient(database18) as another:
        first, second = another.consume("q").__aiter__(), another.consume("q").__aiter__()
        await (await anext(first)).ack()
        await (await anext(second)).ack()
        assert attempts(engine18) == {"done 1": 2, "active 1": 18}
    assert attempts(engine18) == {"done 1": 2, "ready 0": 18}
    assert await anext(first, None) is None
    assert await anext(second, None) is None


async def test_at_the_close_of_the_client_while_it_waits(
    database18: str, engine18: Engine, activity18: Activity
) -> None:
    engine18.queue("q")
    async with AsyncClient(database18) as another:
        running = AsyncRunning(lambda: collect(another.consume("q"), []))
        await async_until(lambda: activity18.listening() == 1)
    assert await running.result() == []
    await async_until(lambda: activity18.count() == 0)


async def test_at_a_break_just_before_the_client_is_closed(
    client: AsyncClient, database18: str, engine18: Engine
) -> None:
    engine18.queue("q")
    await client.send_many("q", range(200))
    async with AsyncClient(database18) as another:
        async for message in another.consume("q", batch_size=200):
            await message.ack()
            break
        await another.clock()
    assert attempts(engine18) == {"done 1": 1, "ready 0": 199}


async def test_at_the_close_of_the_client_during_a_claim(
    client: AsyncClient, database18: str, engine18: Engine, activity18: Activity, connect18: Connect
) -> None:
    engine18.queue("q")
    await client.send_many("q", range(10))
    another = AsyncClient(database18)
    await another.open()
    with connect18().transaction() as transaction:
        transaction.connection.execute("lock table penstock.ready in access exclusive mode")
        consumer = another.consume("q")
        running = AsyncRunning(lambda: collect(consumer, []))
        await async_until(lambda: activity18.claiming() == 1)
        closing = AsyncRunning(another.close)
        await async_until(lambda: consumer._stopped)
    await closing.result()
    seen = await running.result()
    await async_until(lambda: attempts(engine18).get("ready 0", 0) == 10 - len(seen), patience=3)


async def test_what_others_took_is_not_given_back(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    await client.send_many("q", range(3))
    async for message in client.consume("q"):
        await client.purge_queue("q")
        assert message.payload == 0
        break
    assert engine18.states("q") == {}
    assert await client.send("q", 1) > 0


async def test_those_that_wait_for_their_turn_are_kept(client: AsyncClient, engine18: Engine) -> None:
    """The one in hand is not: it has no block that asks for it."""
    engine18.queue("q", max_delivery_attempts=1)
    await client.send_many("q", range(3))
    handed = []
    async for message in client.consume("q", visibility_timeout=1, wait=0):
        handed.append((message.payload, message.attempt))
        if message.payload == 0:
            over = message.leased_until + timedelta(seconds=0.5)
            await async_until(lambda over=over: engine18.now() > over)  # type: ignore[misc]
            assert engine18.nothing_to_take("q")
            assert message.is_lost
        else:
            await message.ack()
    assert handed == [(0, 1), (1, 1), (2, 1)]


async def test_those_whose_lease_is_lost_are_not_handed_out(
    client: AsyncClient, engine18: Engine, clock18: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    engine18.queue("q")
    await client.send_many("q", range(3))
    handed = []
    async for message in client.consume("q", visibility_timeout=1, wait=0):
        handed.append(message.payload)
        await message.ack()
        if message.payload == 0:
            clock18.advance(2)
            assert len(engine18.take_many("q", 10)) == 2
            await async_until(lambda: len(caplog.records) == 2)
    assert handed == [0]
    assert all("could not be kept" in record.getMessage() for record in caplog.records[:2])
    assert set(engine18.states("q").values()) == {"done", "active"}
