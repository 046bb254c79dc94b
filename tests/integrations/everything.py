"""Every method of the API, called in an order in which each has something to tell."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

import psycopg

from penstock import AsyncMessage, AsyncTransaction, Message, NewMessage
from penstock._async.api import AsyncApi

__all__ = ["METHODS", "NOW", "Step", "call_everything", "start_ids", "stop_clock", "typed"]

# The clock stands still, at a moment that a careless way through text or floats would not keep.
NOW = datetime(2030, 12, 31, 22, 58, 59, 987653, tzinfo=UTC)

WORKER, BILLER, UNDERTAKER, NO_HOLDER = "worker", "biller", "undertaker", "no_holder"

# What is awaited of a transaction, be it inherited or not.
METHODS = {
    name for name, _ in inspect.getmembers(AsyncTransaction, inspect.iscoroutinefunction) if name[0] != "_"
}

# A name of a method, and its result as typed() writes it.
Step = tuple[str, object]


def stop_clock(connection: psycopg.Connection[Any]) -> None:
    """Let the clock of the database stand still, so that the same calls have the same results."""
    now = f"timestamptz '{NOW.isoformat()}'"
    connection.execute(
        f"create or replace function penstock.clock() returns timestamptz language sql as $$ select {now} $$"
    )
    for table in ("topics", "queues"):
        connection.execute(f"alter table penstock.{table} alter created_at set default {now}")
    # The partitions of those days, which take a while to make.
    connection.execute("select from penstock.maintain()")


def start_ids(connection: psycopg.Connection[Any]) -> None:
    """Let ids begin where they did the last time: a rollback does not take them back."""
    connection.execute(
        "select setval(c.oid, 1000) from pg_class c "
        "where c.relkind = 'S' and c.relnamespace = 'penstock'::regnamespace"
    )


def typed(value: object) -> object:
    """A value with its type and those of all that is in it; moments have to be in UTC."""
    kind = type(value).__name__
    match value:
        case datetime():
            assert value.tzinfo is UTC
            return value
        case AsyncMessage() | Message():
            return {name: typed(getattr(value, name)) for name in _MESSAGE}
        case dict():
            return kind, {key: typed(item) for key, item in value.items()}
        case list() | tuple():
            return kind, [typed(item) for item in value]
        case _ if dataclasses.is_dataclass(value):
            return kind, {
                field.name: typed(getattr(value, field.name)) for field in dataclasses.fields(value)
            }
    if hasattr(value, "target"):
        return typed(value.target)
    assert isinstance(value, str | int | float | bytes | None)
    return kind, value


def kinds_of(value: object) -> object:
    """What kind of rows they are; each field has to be of its type."""
    rows = value if isinstance(value, list) else [value]
    for row in rows:
        for name, hint in get_type_hints(type(row)).items():
            allowed = get_args(hint) if isinstance(hint, UnionType) else (hint,)
            assert type(getattr(row, name)) in {get_origin(kind) or kind for kind in allowed}, (name, row)
    return {type(row).__name__ for row in rows}


_MESSAGE = [name for name, value in vars(AsyncMessage).items() if isinstance(value, property)]
_MESSAGE.remove("is_lost")


_MOMENT = re.compile(r"\d+[-.]\d+[-.]\d+ \d\d:\d\d:\d\d ?[-+]\d+")


class _Recorder:
    """Calls, and writes down what comes back."""

    def __init__(self, api: AsyncApi) -> None:
        self.steps = list[Step]()
        self._api = api

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*arguments: Any, **options: Any) -> Any:
            result = await getattr(self._api, name)(*arguments, **options)
            # It is for people: it tells the time in the zone and style of their session.
            told = _MOMENT.sub("then", result) if name == "explain_delivery" else result
            if name == "explain_delivery_data":
                told = dataclasses.replace(result, explanation=_MOMENT.sub("then", result.explanation))
            # They tell of sessions and of moments, which are others every time.
            kinds = kinds_of(result) if name.startswith("diagnose_") else typed(told)
            self.steps.append((name, kinds))
            return result

        return call


async def call_everything(api: AsyncApi) -> list[Step]:
    """Call every method; what each returned."""
    recorder = _Recorder(api)
    api = cast("AsyncApi", recorder)
    await _define(api)
    ids = await _publish(api)
    await _settle(api)
    await _look(api, ids)
    await _diagnose(api)
    await _operate(api, ids)
    await _dead_letters(api)
    await _tasks(api)
    await _schedules(api)
    await _workers(api)
    await _clean_up(api)
    return recorder.steps


async def _define(api: AsyncApi) -> None:
    await api.create_topic("orders")
    await api.create_topic("orders")
    await api.create_queue("mail", topic="orders")
    await api.create_queue(
        "bills",
        topic="orders",
        max_delivery_attempts=2,
        visibility_timeout=timedelta(minutes=5),
        visibility_backoff=1.5,
        retry_delays=[1, 2.5, timedelta(hours=1)],
        message_ttl=1000000,
        retain_completed=3600,
        retain_dead=7200,
        max_payload_bytes=1000,
        max_active=50,
        min_active=2,
        priority_shares=[70, 10, 10, 10],
        tenant_max_active=2,
        notify=False,
    )
    await api.create_queue("temporary", exclusive=True, keep_alive=600)
    await api.alter_queue("mail", visibility_timeout=90, retry_delays=[0, 60], max_delivery_attempts=2)
    await api.extend_queue_keep_alive("temporary", timedelta(hours=1.5))
    await api.pause_queue("temporary")
    await api.list_topics()
    await api.list_queues()
    await api.resume_queue("temporary")
    await api.list_queues()
    await api.grant_queue("penstock_viewer", "temporary", "view")
    await api.grant_queue("penstock_viewer", "temporary", "view")
    await api.list_grants()
    await api.revoke_queue("penstock_viewer", "temporary", "view")
    await api.revoke_queue("penstock_viewer", "temporary", "view")
    await api.list_grants("temporary")
    await api.open_queue("temporary")
    await api.clock()
    await api.channel("mail")
    await api.channel("q" * 100)
    await api.schema_version()


async def _publish(api: AsyncApi) -> list[int]:
    later = NOW + timedelta(days=1, microseconds=1)
    return [
        await api.publish("orders", {"a": [1, 2.5, None, True, "ü"]}, headers={"h": {"x": [1]}}),
        await api.publish("orders", b"\x00\xff", priority=0, tenant="acme", dedup_key="key", ttl=5000),
        await api.publish("orders", None, deliver_after=later),
        await api.send("mail", "x" * 100000),
        await api.send("mail", [1e100, 2**65, -0.5], delay=0.000001),
        *await api.publish_many("orders", [1, 2, 3, 4], tenant="noisy", priority=3),
        *await api.send_many(
            "mail", ["a", b"b", NewMessage({"c": 1}, priority=0, headers={"n": 1}, delay=9)]
        ),
        *await api.send_many("mail", []),
    ]


async def _settle(api: AsyncApi) -> None:
    claimed = await api.consume_batch("mail", batch_size=7, visibility_timeout=100.5, token=WORKER)
    await api.ack(claimed[0], result={"r": [1, None]})
    await api.ack_many([*claimed[1:3], dataclasses.replace(claimed[3].receipt, token=NO_HOLDER)])
    await api.nack(claimed[3], delay=60, error="failed: 100% ☃")
    await api.reject(claimed[4], "rejected")
    assert await api.reject_unreadable("mail", batch_size=5) == []
    await api.release(claimed[5])
    not_held = dataclasses.replace(claimed[6].receipt, token=NO_HOLDER)
    await api.send_many("mail", ["one", "two", "three", "four"], priority=0)
    others = await api.consume_batch("mail", batch_size=3, visibility_timeout=100, token=WORKER)
    await api.nack_many([*others[:1], not_held], delay=timedelta(minutes=2), error="failed: 100% ☃")
    await api.release_many([*others[1:2], not_held], delay=60)
    await api.reject_many([*others[2:], not_held], error="rejected: %s")
    await api.extend(claimed[6], 1000)
    await api.extend_many([claimed[6], claimed[0].receipt], timedelta(seconds=9.5))
    await api.pulse(WORKER, timedelta(hours=1))
    bill = await api.consume_batch("bills", batch_size=1, token=BILLER, model=bytes)
    await api.nack(bill[0])
    await api.consume_batch("bills", token=BILLER, batch_size=2)
    await api.consume_one("temporary")


async def _look(api: AsyncApi, ids: list[int]) -> None:
    for queue in ("mail", "bills"):
        await api.list_messages(queue)
        for message_id in [*ids, 10**15]:
            await api.get_message(queue, message_id)
            await api.get_result(queue, message_id)
            await api.explain_delivery(queue, message_id)
        await api.get_queue_statistics(queue, breakdown="priority")
        await api.get_queue_statistics(queue, breakdown="tenant", top=3)
    page = await api.list_messages("mail", state="ready", page_size=1)
    await api.list_messages("mail", state="ready", page_size=2, after=page[0].cursor)
    await api.get_queue_statistics()
    await api.get_queue_statistics("mail", completed_since=await api.clock())


async def _operate(api: AsyncApi, ids: list[int]) -> None:
    for queue in ("mail", "bills"):
        for message_id in [*ids, 10**15]:
            await api.explain_delivery_data(queue, message_id)
            await api.get_stored_message(queue, message_id, most_bytes=1000)
        await api.list_tenants(queue)
        await api.list_permits(queue)
    await api.search_messages(message_id=ids[0], deadline=60)
    await api.search_messages(payload_path=["a", "0"], payload_value="1", deadline=timedelta(minutes=1))
    await api.deliver_message_now("mail", ids[4])
    await api.deliver_messages_now("mail", [ids[2], ids[3]])
    await api.list_dlq_groups()
    await api.record_action("looked", queue_name="mail", details={"n": [1, 2.5, None]}, who="ada")
    await api.list_actions()
    operation = await api.start_operation("redrive", "mail", error_key="rejected", per_second=5, who="ada")
    await api.get_operation(operation)
    await api.list_operations(unfinished=True)
    await api.advance_operation(operation, batch_size=1)
    await api.cancel_operation(operation)
    await api.advance_operation(operation)
    await api.list_operations()
    letters = await api.list_dlq_messages("mail")
    await api.delete_dlq_messages("mail", [each.message_id for each in letters])
    await api.sample()
    await api.queue_history("mail", since=await api.clock() - timedelta(minutes=1), step=10)
    await api.overview_history(points=2)


async def _diagnose(api: AsyncApi) -> None:
    await api.diagnose_server()
    await api.diagnose_holders()
    await api.diagnose_tables()
    await api.diagnose_statements()
    await api.diagnose_engine()
    await api.diagnose_queues()
    await api.diagnose_errors()
    await api.diagnose_parked()
    await api.diagnose_leases()
    await api.diagnose_priorities()
    await api.diagnose_groups()


async def _dead_letters(api: AsyncApi) -> None:
    await api.send("temporary", b"dead")
    await api.send("temporary", {"dead": 1}, tenant="t", headers={"h": 1})
    for message in await api.consume_batch("temporary", token=UNDERTAKER):
        await api.reject(message, "hopeless")
    page = await api.list_dlq_messages("temporary", page_size=1)
    await api.list_dlq_messages("temporary", after=page[0].cursor)
    await api.list_dlq_messages()
    page = await api.list_dlq_messages(page_size=1, newest_first=True)
    await api.list_dlq_messages("temporary", after=page[0].cursor, newest_first=True)
    await api.requeue_dlq_messages("temporary", [page[0].message_id])
    await api.requeue_dlq_messages("temporary")
    again = await api.consume_batch("temporary", token=UNDERTAKER)
    await api.alter_queue("temporary", max_delivery_attempts=1)
    await api.nack(again[0])
    await api.add_retries("temporary", 2)
    await api.reject(again[1])
    await api.purge_dlq("temporary")
    await api.requeue_dlq_page("temporary", page_size=1, attempts=2, headers={"h": 1})
    await api.purge_dlq_page("temporary", page_size=5, after_id=1)
    await api.purge_dlq()


async def _tasks(api: AsyncApi) -> None:
    await api.declare_queue("tasks")
    await api.declare_queue("tasks", max_active=20, retain_completed=timedelta(days=2))
    await api.queue_difference("tasks", max_active=20)
    await api.queue_difference("tasks", max_active=3, retain_completed=timedelta(days=3))
    await api.done_channel("tasks")
    group = await api.create_group(
        2, "tasks", {"then": 1}, headers={"task": "then"}, priority=1, tenant="t", ttl=60, with_results=True
    )
    ids = await api.send_many("tasks", [1, 2, 3], headers={"task": "first"})
    claimed = await api.consume_batch("tasks", token=WORKER)
    await api.ack_tasks("tasks", ids[:1], WORKER, results=[None], group_ids=[group], positions=[1])
    await api.list_groups()
    await api.finish_groups([group])
    await api.ack_tasks(
        "tasks", ids[1:2], WORKER, results=[{"r": [1, None]}], group_ids=[group], positions=[0]
    )
    await api.queues_with_work(["tasks", "temporary"])
    await api.park_messages("tasks", ids, WORKER, ["first"] * len(ids))
    await api.consume_tasks(
        "tasks", ["first"], batch_size=1, token=WORKER, task_limits=[1], task_lanes=[1], lane_limits=[1]
    )
    await api.ack_tasks("tasks", ids, WORKER)
    await api.finish_groups()
    await api.consume_one("tasks", token=WORKER)
    await api.announce_done("tasks", ids)
    await api.delete_group(group)
    await api.send("tasks", "unlucky")
    message = await api.consume_one("tasks", token=WORKER)
    await api.release(message or claimed[0], delay=5)
    await api.get_message("tasks", ids[1])


async def _schedules(api: AsyncApi) -> None:
    later = NOW + timedelta(days=1, microseconds=1)
    await api.put_schedule("hourly", "tasks", {"n": 1}, definition={"every": 3600}, next_at=NOW)
    await api.put_schedule(
        "daily",
        "tasks",
        None,
        definition="@daily",
        next_at=later,
        missed="all",
        headers={"h": [1]},
        priority=0,
        tenant="t",
        ttl=timedelta(hours=1),
    )
    await api.put_schedule("hourly", "tasks", {"n": 2}, definition={"every": 3600}, next_at=later)
    await api.advance_schedule("hourly", NOW, later, [NOW - timedelta(microseconds=1), NOW])
    await api.advance_schedule("hourly", NOW, later, [NOW])
    await api.pause_schedule("daily")
    await api.list_schedules()
    await api.resume_schedule("daily")
    await api.resume_schedule("daily", NOW)
    await api.run_schedule("daily")
    await api.delete_schedule("daily")
    await api.delete_schedule("daily")
    await api.list_schedules()


async def _workers(api: AsyncApi) -> None:
    await api.register_worker(
        WORKER, hostname="host", pid=7, version="1", queues=["q", "ü"], tasks=[], concurrency=3
    )
    await api.beat_worker(WORKER, held=2, running=[{"task": "t"}], stopping=False)
    await api.list_workers()
    await api.beat_worker(WORKER, held=0, running={}, stopping=True)
    await api.list_workers()
    await api.forget_worker(WORKER)
    await api.beat_worker(WORKER, held=0, running=None, stopping=True)
    await api.list_workers()


async def _clean_up(api: AsyncApi) -> None:
    delayed = await api.send("temporary", 1, delay=10)
    await api.cancel_message("temporary", delayed)
    await api.cancel_message("temporary", delayed)
    # maintain() raises as many as it finds the time for: so one is left to it.
    for queue in ("mail", "temporary", "tasks"):
        await api.raise_floor(queue)
    await api.maintain()
    await api.cleanup_queue_messages("mail")
    await api.cleanup_topic_messages("orders")
    await api.cleanup_expired_exclusive_queues()
    await api.purge_queue("bills")
    await api.purge_all_messages()
    await api.get_queue_statistics()
    await api.delete_queue("bills")
    await api.delete_queue("tasks")
    await api.delete_topic("orders")
    await api.list_queues()
    await api.list_topics()
