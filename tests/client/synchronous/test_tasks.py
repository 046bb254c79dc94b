# Written by tools/unasync.py from tests/client/asynchronous/test_tasks.py:
# change that, run `make generate`.

"""The calls that workers are made of: limits of an attempt, groups, schedules, the list of workers."""

# ruff: noqa: PT012 - it is a whole block that raises

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Client, GroupProgress, InvalidArgument, ListedWorker, QueueNotFound
from tests.client.conftest import Clock
from tests.sql.engine import Engine, fingerprint

WORKER = "w"
FIRST = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECOND = FIRST + timedelta(hours=1)


def claim(client: Client, payloads: list[Any]) -> list[int]:
    client.send_many("q", payloads)
    return [message.id for message in client.consume_batch("q", token=WORKER)]


def test_a_declared_queue(client: Client) -> None:
    queue_id = client.declare_queue("q", max_active=3, retain_completed=timedelta(minutes=1))
    assert client.declare_queue("q") == queue_id
    assert client.declare_queue("q", max_active=4, retain_completed=30) == queue_id
    (queue,) = client.list_queues()
    assert (queue.max_delivery_attempts, queue.max_active, queue.retain_completed_seconds) == (0, 4, 60)


def test_an_attempt_that_is_the_last(client: Client) -> None:
    client.declare_queue("q")
    client.send_many("q", [1, 2], headers={"task": "a"})
    first, second = client.consume_batch("q")
    client.nack(first, max_attempts=2)
    client.nack(second, max_attempts=1, error="e")
    (letter,) = client.list_dlq_messages("q")
    assert (letter.message_id, letter.reason, letter.last_error) == (second.id, "no_attempts_left", "e")
    assert client.add_retries("q", 1, headers={"task": "b"}) == 0
    assert client.add_retries("q", 1, headers={"task": "a"}) == 1
    claimed = client.consume_batch("q")
    assert {message.id: message.internals.attempts_limit for message in claimed} == {
        first.id: None,
        second.id: 2,
    }


def test_a_message_that_is_put_off(client: Client, clock18: Clock) -> None:
    client.create_queue("q", max_delivery_attempts=1)
    client.send_many("q", [1, 2])
    first, second = client.consume_batch("q")
    first.release(delay=timedelta(seconds=5))
    client.release(second.receipt, delay=5)
    assert client.consume_batch("q") == []
    clock18.advance(6)
    again = client.consume_batch("q")
    assert [(message.id, message.attempt) for message in again] == [(first.id, 1), (second.id, 1)]


def test_acked_tasks_and_their_group(client: Client, engine18: Engine) -> None:
    client.declare_queue("q")
    client.declare_queue("then")
    group = client.create_group(2, "then", {"a": 1}, headers={"task": "then"}, with_results=True)
    ids = claim(client, ["member", "member", "alone"])
    acked = client.ack_tasks(
        "q", [*ids, 999], WORKER, results=[{"of": 1}, None, 3, 4], group_ids=[group, None, None, group],
        positions=[1, None, None, 0],
    )  # fmt: skip
    assert sorted(acked) == ids
    assert [engine18.message("q", i).result for i in ids] == [{"of": 1}, None, 3]
    (progress,) = client.list_groups()
    assert progress == GroupProgress(group, 2, 1, progress.created_at, "then", {"task": "then"})
    assert client.finish_groups([group]) == []
    (last,) = claim(client, ["member"])
    assert client.ack_tasks("q", [last], WORKER, group_ids=[group], positions=[0]) == [last]
    assert client.finish_groups() == [group]
    callback = client.consume_one("then")
    assert callback is not None
    assert callback.payload == {"a": 1, "results": [None, {"of": 1}]}
    assert callback.headers == {"task": "then"}
    assert client.list_groups() == []


def test_a_group_that_is_given_up(client: Client) -> None:
    client.declare_queue("then")
    group = client.create_group(1, "then", None)
    assert client.delete_group(group) is True
    assert client.delete_group(group) is False


def test_a_group_in_a_transaction(client: Client) -> None:
    client.declare_queue("q")
    with pytest.raises(ZeroDivisionError), client.transaction() as tx:
        tx.create_group(1, "q", None)
        raise ZeroDivisionError
    assert client.list_groups() == []
    with pytest.raises(QueueNotFound):
        client.create_group(1, "nope", None)


def test_word_of_what_is_done(client: Client, engine18: Engine) -> None:
    client.declare_queue("q")
    assert client.done_channel("q") == "done:q"
    engine18.connection.execute('listen "done:q"')
    client.announce_done("q", [3, 4])
    (word,) = engine18.connection.notifies(timeout=10, stop_after=1)
    assert word.payload == "3,4"


def test_schedules(client: Client) -> None:
    client.declare_queue("q")
    at = client.put_schedule("hourly", "q", {"n": 1}, definition={"every": 3600}, next_at=FIRST)
    assert (at, at.tzinfo) == (FIRST, UTC)
    same = client.put_schedule("hourly", "q", {"n": 2}, definition={"every": 3600}, next_at=SECOND)
    assert same == FIRST
    (sent,) = client.advance_schedule("hourly", FIRST, SECOND, [FIRST])
    assert client.advance_schedule("hourly", FIRST, SECOND, [FIRST]) == []
    client.pause_schedule("hourly")
    (listed,) = client.list_schedules()
    assert (listed.name, listed.payload, listed.definition) == ("hourly", {"n": 2}, {"every": 3600})
    assert (listed.missed, listed.headers, listed.priority, listed.tenant) == ("skip", {}, 2, None)
    assert (listed.next_at, listed.last_tick, listed.paused_at is not None) == (SECOND, FIRST, True)
    client.resume_schedule("hourly", FIRST)
    (listed,) = client.list_schedules()
    assert (listed.next_at, listed.paused_at) == (FIRST, None)
    client.resume_schedule("hourly")
    run = client.run_schedule("hourly")
    first, second = client.consume_batch("q")
    assert (first.id, second.id, first.payload) == (sent, run, {"n": 2})
    assert first.headers == {"tick": "2030-01-01T12:00:00+00:00"}
    assert client.delete_schedule("hourly") is True
    assert client.delete_schedule("hourly") is False
    with pytest.raises(InvalidArgument, match='"hourly" does not exist'):
        client.run_schedule("hourly")


def test_all_that_a_schedule_can_say(client: Client, engine18: Engine) -> None:
    client.declare_queue("q")
    riga = datetime.fromisoformat("2030-01-01T14:00:00+02:00")
    client.put_schedule(
        "daily", "q", [1], definition="0 0 * * *", next_at=riga, missed="all", headers={"h": 1}, priority=0,
        tenant="acme", ttl=timedelta(minutes=1),
    )  # fmt: skip
    (listed,) = client.list_schedules()
    assert (listed.next_at, listed.next_at.tzinfo) == (FIRST, UTC)
    assert (listed.payload, listed.definition, listed.missed) == ([1], "0 0 * * *", "all")
    assert (listed.headers, listed.priority, listed.tenant, listed.ttl_seconds) == ({"h": 1}, 0, "acme", 60)


def test_workers(client: Client, clock18: Clock) -> None:
    client.register_worker(
        WORKER, hostname="host", pid=7, version="1.0", queues=["a", "ü"], tasks=[], concurrency=4
    )
    assert client.beat_worker(WORKER, held=2, running=[{"task": "t"}], stopping=False) is True
    (worker,) = client.list_workers()
    assert worker == ListedWorker(
        fingerprint(WORKER), "host", 7, "1.0", ("a", "ü"), (), 4, worker.started_at, worker.seen_at, True,
        False, 2, [{"task": "t"}],
    )  # fmt: skip
    assert worker.started_at.tzinfo is worker.seen_at.tzinfo is UTC
    clock18.advance(31)
    assert [worker.is_alive for worker in client.list_workers()] == [False]
    assert client.forget_worker(WORKER) is True
    assert client.beat_worker(WORKER, held=0, running=None, stopping=True) is False
    assert client.list_workers() == []
