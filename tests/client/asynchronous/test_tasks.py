"""The calls that workers are made of: limits of an attempt, groups, schedules, the list of workers."""

# ruff: noqa: PT012 - it is a whole block that raises

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import AsyncClient, GroupProgress, InvalidArgument, ListedWorker, QueueNotFound
from tests.client.conftest import Clock
from tests.sql.engine import Engine, fingerprint

WORKER = "w"
FIRST = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECOND = FIRST + timedelta(hours=1)


async def claim(client: AsyncClient, payloads: list[Any]) -> list[int]:
    await client.send_many("q", payloads)
    return [message.id for message in await client.consume_batch("q", token=WORKER)]


async def test_a_declared_queue(client: AsyncClient) -> None:
    queue_id = await client.declare_queue("q", max_active=3, retain_completed=timedelta(minutes=1))
    assert await client.declare_queue("q") == queue_id
    assert await client.declare_queue("q", max_active=4, retain_completed=30) == queue_id
    (queue,) = await client.list_queues()
    assert (queue.max_delivery_attempts, queue.max_active, queue.retain_completed_seconds) == (0, 4, 60)


async def test_an_attempt_that_is_the_last(client: AsyncClient) -> None:
    await client.declare_queue("q")
    await client.send_many("q", [1, 2], headers={"task": "a"})
    first, second = await client.consume_batch("q")
    await client.nack(first, max_attempts=2)
    await client.nack(second, max_attempts=1, error="e")
    (letter,) = await client.list_dlq_messages("q")
    assert (letter.message_id, letter.reason, letter.last_error) == (second.id, "no_attempts_left", "e")
    assert await client.add_retries("q", 1, headers={"task": "b"}) == 0
    assert await client.add_retries("q", 1, headers={"task": "a"}) == 1
    claimed = await client.consume_batch("q")
    assert {message.id: message.internals.attempts_limit for message in claimed} == {
        first.id: None,
        second.id: 2,
    }


async def test_a_message_that_is_put_off(client: AsyncClient, clock18: Clock) -> None:
    await client.create_queue("q", max_delivery_attempts=1)
    await client.send_many("q", [1, 2])
    first, second = await client.consume_batch("q")
    await first.release(delay=timedelta(seconds=5))
    await client.release(second.receipt, delay=5)
    assert await client.consume_batch("q") == []
    clock18.advance(6)
    again = await client.consume_batch("q")
    assert [(message.id, message.attempt) for message in again] == [(first.id, 1), (second.id, 1)]


async def test_acked_tasks_and_their_group(client: AsyncClient, engine18: Engine) -> None:
    await client.declare_queue("q")
    await client.declare_queue("then")
    group = await client.create_group(2, "then", {"a": 1}, headers={"task": "then"}, with_results=True)
    ids = await claim(client, ["member", "member", "alone"])
    acked = await client.ack_tasks(
        "q", [*ids, 999], WORKER, results=[{"of": 1}, None, 3, 4], group_ids=[group, None, None, group],
        positions=[1, None, None, 0],
    )  # fmt: skip
    assert sorted(acked) == ids
    assert [engine18.message("q", i).result for i in ids] == [{"of": 1}, None, 3]
    (progress,) = await client.list_groups()
    assert progress == GroupProgress(group, 2, 1, progress.created_at, "then", {"task": "then"})
    assert await client.finish_groups([group]) == []
    (last,) = await claim(client, ["member"])
    assert await client.ack_tasks("q", [last], WORKER, group_ids=[group], positions=[0]) == [last]
    assert await client.finish_groups() == [group]
    callback = await client.consume_one("then")
    assert callback is not None
    assert callback.payload == {"a": 1, "results": [None, {"of": 1}]}
    assert callback.headers == {"task": "then"}
    assert await client.list_groups() == []


async def test_a_group_that_is_given_up(client: AsyncClient) -> None:
    await client.declare_queue("then")
    group = await client.create_group(1, "then", None)
    assert await client.delete_group(group) is True
    assert await client.delete_group(group) is False


async def test_a_group_in_a_transaction(client: AsyncClient) -> None:
    await client.declare_queue("q")
    with pytest.raises(ZeroDivisionError):
        async with client.transaction() as tx:
            await tx.create_group(1, "q", None)
            raise ZeroDivisionError
    assert await client.list_groups() == []
    with pytest.raises(QueueNotFound):
        await client.create_group(1, "nope", None)


async def test_word_of_what_is_done(client: AsyncClient, engine18: Engine) -> None:
    await client.declare_queue("q")
    assert await client.done_channel("q") == "done:q"
    engine18.connection.execute('listen "done:q"')
    await client.announce_done("q", [3, 4])
    (word,) = engine18.connection.notifies(timeout=10, stop_after=1)
    assert word.payload == "3,4"


async def test_schedules(client: AsyncClient) -> None:
    await client.declare_queue("q")
    at = await client.put_schedule("hourly", "q", {"n": 1}, definition={"every": 3600}, next_at=FIRST)
    assert (at, at.tzinfo) == (FIRST, UTC)
    same = await client.put_schedule("hourly", "q", {"n": 2}, definition={"every": 3600}, next_at=SECOND)
    assert same == FIRST
    (sent,) = await client.advance_schedule("hourly", FIRST, SECOND, [FIRST])
    assert await client.advance_schedule("hourly", FIRST, SECOND, [FIRST]) == []
    await client.pause_schedule("hourly")
    (listed,) = await client.list_schedules()
    assert (listed.name, listed.payload, listed.definition) == ("hourly", {"n": 2}, {"every": 3600})
    assert (listed.missed, listed.headers, listed.priority, listed.tenant) == ("skip", {}, 2, None)
    assert (listed.next_at, listed.last_tick, listed.paused_at is not None) == (SECOND, FIRST, True)
    await client.resume_schedule("hourly", FIRST)
    (listed,) = await client.list_schedules()
    assert (listed.next_at, listed.paused_at) == (FIRST, None)
    await client.resume_schedule("hourly")
    run = await client.run_schedule("hourly")
    first, second = await client.consume_batch("q")
    assert (first.id, second.id, first.payload) == (sent, run, {"n": 2})
    assert first.headers == {"tick": "2030-01-01T12:00:00+00:00"}
    assert await client.delete_schedule("hourly") is True
    assert await client.delete_schedule("hourly") is False
    with pytest.raises(InvalidArgument, match='"hourly" does not exist'):
        await client.run_schedule("hourly")


async def test_all_that_a_schedule_can_say(client: AsyncClient, engine18: Engine) -> None:
    await client.declare_queue("q")
    riga = datetime.fromisoformat("2030-01-01T14:00:00+02:00")
    await client.put_schedule(
        "daily", "q", [1], definition="0 0 * * *", next_at=riga, missed="all", headers={"h": 1}, priority=0,
        tenant="acme", ttl=timedelta(minutes=1),
    )  # fmt: skip
    (listed,) = await client.list_schedules()
    assert (listed.next_at, listed.next_at.tzinfo) == (FIRST, UTC)
    assert (listed.payload, listed.definition, listed.missed) == ([1], "0 0 * * *", "all")
    assert (listed.headers, listed.priority, listed.tenant, listed.ttl_seconds) == ({"h": 1}, 0, "acme", 60)


async def test_workers(client: AsyncClient, clock18: Clock) -> None:
    await client.register_worker(
        WORKER, hostname="host", pid=7, version="1.0", queues=["a", "ü"], tasks=[], concurrency=4
    )
    assert await client.beat_worker(WORKER, held=2, running=[{"task": "t"}], stopping=False) is True
    (worker,) = await client.list_workers()
    assert worker == ListedWorker(
        fingerprint(WORKER), "host", 7, "1.0", ("a", "ü"), (), 4, worker.started_at, worker.seen_at, True,
        False, 2, [{"task": "t"}],
    )  # fmt: skip
    assert worker.started_at.tzinfo is worker.seen_at.tzinfo is UTC
    clock18.advance(31)
    assert [worker.is_alive for worker in await client.list_workers()] == [False]
    assert await client.forget_worker(WORKER) is True
    assert await client.beat_worker(WORKER, held=0, running=None, stopping=True) is False
    assert await client.list_workers() == []
