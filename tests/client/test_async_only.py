"""What only the asynchronous client has: cancellation, asynchronous input, a loop that must not sleep on."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import penstock
from penstock import AsyncClient, AsyncConsumer, AsyncMessage, DatabaseUnavailable, LeaseLost, NewMessage
from tests.sql.engine import Engine, fingerprint

from .both import async_until
from .conftest import Activity, Clock

PATIENCE_SECONDS = 10


@pytest.fixture
async def client(database18: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(database18) as client:
        yield client


async def finished(task: asyncio.Task[Any]) -> Any:
    """What a task returned, or raised: a cancellation too."""
    done, _ = await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
    assert done, "it goes on"
    return task.exception() if not task.cancelled() else asyncio.CancelledError()


# Asynchronous input


async def test_an_asynchronous_generator_as_input(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")

    async def payloads() -> AsyncIterator[Any]:
        for number in range(2500):
            if number % 500 == 0:
                await asyncio.sleep(0)
            yield number if number % 2 else NewMessage(number, priority=0)

    told: list[int] = []
    ids = await client.send_many("q", payloads(), progress=told.append)
    assert (len(set(ids)), told) == (2500, [1000, 2000, 2500])
    assert [engine18.message("q", ids[n]).payload for n in (0, 1, 2499)] == [0, 1, 2499]
    async with client.transaction() as transaction:
        assert len(await transaction.send_many("q", payloads())) == 2500


async def test_an_asynchronous_generator_that_fails(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")

    async def payloads() -> AsyncIterator[Any]:
        for number in range(1500):
            yield number
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await client.send_many("q", payloads())
    assert engine18.states("q") == {}


async def test_the_loop_has_its_turns_during_a_long_publish(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    longest, running = 0.0, True

    async def tick() -> None:
        nonlocal longest
        while running:
            # What this thread computed in between, however busy the machine is with others.
            begun = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - begun)

    ticking = asyncio.create_task(tick())
    await client.send_many("q", ({"n": number, "text": "x" * 100} for number in range(30_000)))
    running = False
    await ticking
    assert longest < 0.5


# Opening


async def test_connect_async_both_ways(database18: str) -> None:
    async with penstock.connect_async(database18, max_connections=2) as client:
        assert await client.list_queues() == []
    client = await penstock.connect_async(database18)
    assert await client.list_queues() == []
    await client.close()
    nowhere = "host=127.0.0.1 port=1 connect_timeout=1"
    with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1"):
        await penstock.connect_async(nowhere, retry_for=0)
    with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1"):
        async with penstock.connect_async(nowhere, retry_for=0):
            pass


async def test_many_calls_at_once(client: AsyncClient, engine18: Engine, activity18: Activity) -> None:
    engine18.queue("q")
    ids = await asyncio.gather(*(client.send("q", number) for number in range(200)))
    assert len(set(ids)) == 200
    assert activity18.count() <= 10


# Cancellation


async def test_a_cancelled_block_releases(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    message_id = await client.send("q", 1)
    inside = asyncio.Event()

    async def work() -> None:
        async for message in client.consume("q"):
            async with message:
                inside.set()
                await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    assert isinstance(await finished(task), asyncio.CancelledError)
    row = engine18.message("q", message_id)
    assert (row.state, row.delivery_attempts) == ("ready", 0)


async def test_a_timeout_around_the_block_releases(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    message_id = await client.send("q", 1)
    (message,) = await client.consume_batch("q")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), message:
            await asyncio.sleep(60)
    assert engine18.message("q", message_id).delivery_attempts == 0


async def test_a_timeout_within_the_block_nacks(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    message_id = await client.send("q", 1)
    (message,) = await client.consume_batch("q")
    async with message, asyncio.timeout(0.05):
        await asyncio.sleep(60)
    row = engine18.message("q", message_id)
    assert (row.delivery_attempts, row.last_error) == (1, "TimeoutError")


async def test_a_cancelled_wait_leaves_nothing_behind(
    client: AsyncClient, engine18: Engine, activity18: Activity
) -> None:
    engine18.queue("q")

    async def wait() -> None:
        async for _ in client.consume("q"):
            pass

    tasks = [asyncio.create_task(wait()) for _ in range(5)]
    await async_until(lambda: activity18.listening() == 1)
    for task in tasks:
        task.cancel()
        assert isinstance(await finished(task), asyncio.CancelledError)
    message_id = await client.send("q", 1)
    assert [message.id async for message in client.consume("q", wait=0)] == [message_id]


async def test_calls_that_are_cancelled_leave_the_client_as_it_was(
    client: AsyncClient, engine18: Engine, activity18: Activity
) -> None:
    engine18.queue("q")
    tasks = [asyncio.create_task(client.send_many("q", range(3000))) for _ in range(4)]
    tasks += [asyncio.create_task(client.send_many("q", [1])) for _ in range(20)]
    await async_until(lambda: activity18.count() > 3)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=PATIENCE_SECONDS)
    assert all(task.done() for task in tasks)
    assert len(await asyncio.gather(*(client.send("q", 1) for _ in range(50)))) == 50
    # What was cancelled on the way is closed; the server may take a moment to notice.
    await async_until(lambda: activity18.count("state like 'idle in transaction%'") == 0)
    await async_until(lambda: activity18.count() <= 10)
    await client.close()
    await async_until(lambda: activity18.count() == 0)


async def test_a_cancelled_transaction_is_rolled_back(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    inside = asyncio.Event()

    async def work() -> None:
        async with client.transaction() as transaction:
            await transaction.send("q", 1)
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    assert isinstance(await finished(task), asyncio.CancelledError)
    assert engine18.states("q") == {}
    assert await client.send("q", 1) > 0


# A lease that is lost


class Worker:
    """Holds messages of q in blocks that do not end by themselves."""

    def __init__(self, consumer: AsyncConsumer[Any], rounds: int = 1) -> None:
        self.inside = asyncio.Event()
        self.outcomes: list[str] = []
        self.messages: list[AsyncMessage[Any]] = []
        self._consumer = consumer
        self._rounds = rounds
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async for message in self._consumer:
            self.messages.append(message)
            async with message:
                self.inside.set()
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    self.outcomes.append("cancelled")
                    raise
            self.outcomes.append("next")
            if len(self.messages) == self._rounds:
                return


async def test_a_purge_cancels_the_block_and_not_the_task(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    await client.send("q", 1)
    worker = Worker(client.consume("q", visibility_timeout=1, auto_extend=True), rounds=2)
    await worker.inside.wait()
    begun = time.monotonic()
    await client.purge_queue("q")
    await async_until(lambda: worker.outcomes == ["cancelled", "next"])
    assert time.monotonic() - begun < 1.5
    assert worker.messages[0].is_lost
    # The same task takes the next one.
    await client.send("q", 2)
    await async_until(lambda: len(worker.messages) == 2)
    worker.task.cancel()
    assert isinstance(await finished(worker.task), asyncio.CancelledError)
    assert worker.task.cancelling() == 1


async def test_another_consumer_has_it(client: AsyncClient, engine18: Engine, clock18: Clock) -> None:
    engine18.queue("q")
    message_id = await client.send("q", 1)
    worker = Worker(client.consume("q", visibility_timeout=2, auto_extend=True, reraise=True))
    await worker.inside.wait()
    clock18.advance(3)
    other = engine18.take("q")
    error = await finished(worker.task)
    assert isinstance(error, LeaseLost)
    assert f"message {message_id} of 'q'" in str(error)
    assert worker.outcomes == ["cancelled"]
    row = engine18.message("q", message_id)
    told = [entry["error"] for entry in row.errors]
    assert (row.state, row.consumer) == ("active", fingerprint(other.consumer_token))
    assert told == ["the lease ran out"]


async def test_a_cancellation_from_outside_is_not_taken_for_a_lost_lease(
    client: AsyncClient, engine18: Engine
) -> None:
    engine18.queue("q")
    await client.send("q", 1)
    worker = Worker(client.consume("q", visibility_timeout=1, auto_extend=True))
    await worker.inside.wait()
    await client.purge_queue("q")
    await async_until(lambda: worker.messages[0].is_lost)
    worker.task.cancel()
    error = await finished(worker.task)
    # Whichever came first: either the block was over already, or both came at once.
    assert isinstance(error, asyncio.CancelledError) or worker.outcomes == ["cancelled", "next"]


async def test_without_auto_extend_no_caller_is_cancelled(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    await client.send("q", 1)
    worker = Worker(client.consume("q", visibility_timeout=1))
    await worker.inside.wait()
    await client.purge_queue("q")
    await async_until(lambda: worker.messages[0].is_lost)
    assert worker.outcomes == []
    worker.task.cancel()
    await finished(worker.task)


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_settled_in_the_block_and_still_at_work(
    client: AsyncClient, engine18: Engine, in_transaction: bool
) -> None:
    """Acked and then slow: there is no lease to lose any more."""
    engine18.queue("q")
    message_id = await client.send("q", 1)
    ended = False
    async for message in client.consume("q", visibility_timeout=1, auto_extend=True, wait=0):
        over = time.monotonic() + 1.5
        async with message:
            if in_transaction:
                async with client.transaction() as transaction:
                    await transaction.ack(message)
                    await async_until(lambda over=over: time.monotonic() > over)  # type: ignore[misc]
            else:
                await message.ack()
                await async_until(lambda over=over: time.monotonic() > over)  # type: ignore[misc]
            ended = True
        assert not message.is_lost
    assert ended
    assert engine18.state("q", message_id) == "done"


async def test_a_loop_that_stood_still_loses_the_lease(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    message_id = await client.send("q", 1)
    other = None
    async for message in client.consume("q", visibility_timeout=1, auto_extend=True, wait=0):
        async with message:
            # The client could not extend any lease meanwhile.
            deadline = time.monotonic() + PATIENCE_SECONDS
            while other is None and time.monotonic() < deadline:
                other = next(iter(engine18.rows("consume_message", "q")), None)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(5)
            raise asyncio.CancelledError
        assert message.is_lost
    assert other is not None
    assert engine18.message("q", message_id).consumer == fingerprint(other.consumer_token)
    assert asyncio.current_task() is not None


# Stopping


@pytest.fixture
async def waiting(
    client: AsyncClient, engine18: Engine, activity18: Activity
) -> AsyncIterator[tuple[AsyncConsumer[Any], asyncio.Task[list[int]]]]:
    """A consumer that found nothing for a while: the next look is far off."""
    engine18.queue("q")
    consumer = client.consume("q")

    async def consume() -> list[int]:
        return [message.id async for message in consumer]

    task = asyncio.create_task(consume())
    await async_until(lambda: activity18.listening() == 1)
    await async_until(lambda: activity18.idle_for(0.5))
    yield consumer, task
    task.cancel()
    await asyncio.wait({task})


Waiting = tuple[AsyncConsumer[Any], "asyncio.Task[list[int]]"]


async def test_stop_from_another_thread(waiting: Waiting) -> None:
    consumer, task = waiting
    begun = time.monotonic()
    threading.Thread(target=consumer.stop).start()
    assert await asyncio.wait_for(task, PATIENCE_SECONDS) == []
    assert time.monotonic() - begun < 0.1


async def test_stop_from_a_signal_handler(waiting: Waiting) -> None:
    consumer, task = waiting
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())
    try:
        begun = time.monotonic()
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1)).start()
        assert await asyncio.wait_for(task, PATIENCE_SECONDS) == []
        assert time.monotonic() - begun < 0.1
    finally:
        signal.signal(signal.SIGUSR1, before)


async def test_no_task_is_left_behind(database18: str, engine18: Engine) -> None:
    engine18.queue("q")
    before = asyncio.all_tasks()
    async with AsyncClient(database18) as client:
        await client.send("q", 1)
        async for message in client.consume("q", wait=0.1, auto_extend=True):
            async with message:
                pass
    await async_until(lambda: asyncio.all_tasks() == before)
