"""Calls for tasks, groups of tasks, schedules and the registry of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock import rows
from penstock.errors import InvalidArgument
from penstock.message_options import encode_headers
from penstock.models import GroupProgress, ListedSchedule, ListedWorker, Missed
from penstock.payloads import encode_json
from penstock.sql_call import Call, Repeat, call
from penstock.values import NORMAL, Duration, moment, seconds
from penstock.wording import shown

from .parsing import given, instant, nothing, value, values

__all__ = [
    "ack_tasks",
    "advance_schedule",
    "announce_done",
    "beat_worker",
    "create_group",
    "delete_group",
    "delete_schedule",
    "done_channel",
    "finish_groups",
    "forget_worker",
    "list_groups",
    "list_schedules",
    "list_workers",
    "pause_schedule",
    "put_schedule",
    "register_worker",
    "resume_schedule",
    "run_schedule",
]

# Tasks


def ack_tasks(
    queue_name: str,
    message_ids: Sequence[int],
    token: str,
    *,
    results: Sequence[object] | None = None,
    group_ids: Sequence[int | None] | None = None,
    positions: Sequence[int | None] | None = None,
) -> Call[list[int]]:
    return call(
        "ack_tasks",
        values,
        "*",
        Repeat.DOUBTFUL,
        queue_name=queue_name,
        message_ids=message_ids,
        token=token,
        results=_results(results),
        group_ids=group_ids,
        positions=positions,
    )


def _results(results: Sequence[object] | None) -> list[str | None] | None:
    """Results as JSON; None if there is no result at all."""
    if results is None:
        return None
    if isinstance(results, str | bytes) or not isinstance(results, Sequence):
        raise InvalidArgument(f"results must be a sequence, not {shown(results)}")
    texts = [None if result is None else encode_json(result, "result") for result in results]
    return texts if not texts or any(text is not None for text in texts) else None


def done_channel(queue_name: str) -> Call[str]:
    return call("done_channel", value, queue_name=queue_name)


def announce_done(queue_name: str, message_ids: Sequence[int]) -> Call[None]:
    return call("announce_done", nothing, queue_name=queue_name, message_ids=message_ids)


# Groups


def create_group(
    total: int,
    callback_queue: str,
    callback_payload: object,
    *,
    headers: Mapping[str, Any] | None,
    priority: int | None,
    tenant: str | None,
    ttl: Duration | None,
    with_results: bool,
    keep: Duration | None = None,
) -> Call[int]:
    return call(
        "create_group",
        value,
        "*",
        Repeat.NEVER,
        total=total,
        callback_queue=callback_queue,
        callback_payload=encode_json(callback_payload, "callback_payload"),
        callback_headers=given(encode_headers(headers)),
        priority=priority,
        tenant=tenant,
        ttl_seconds=seconds("ttl", ttl),
        with_results=with_results,
        keep_seconds=seconds("keep", keep),
    )


def finish_groups(group_ids: Sequence[int] | None) -> Call[list[int]]:
    return call("finish_groups", values, group_ids=group_ids)


def list_groups() -> Call[list[GroupProgress]]:
    return call("list_groups", rows.GROUP_PROGRESS.read, rows.GROUP_PROGRESS.sql)


def delete_group(group_id: int) -> Call[bool]:
    return call("delete_group", value, "*", Repeat.DOUBTFUL, group_id=group_id)


# Schedules


def put_schedule(
    name: str,
    queue_name: str,
    payload: object,
    *,
    definition: object,
    missed: Missed,
    next_at: datetime,
    headers: Mapping[str, Any] | None,
    priority: int | None,
    tenant: str | None,
    ttl: Duration | None,
) -> Call[datetime]:
    return call(
        "put_schedule",
        instant,
        rows.epoch("put_schedule"),
        name=name,
        queue_name=queue_name,
        payload=encode_json(payload),
        headers=given(encode_headers(headers)),
        priority=NORMAL if priority is None else priority,
        tenant=given(tenant),
        ttl_seconds=given(seconds("ttl", ttl)),
        definition=encode_json(definition, "definition"),
        missed=missed,
        next_at=moment("next_at", next_at),
    )


def advance_schedule(
    name: str, expected: datetime, next_at: datetime, ticks: Sequence[datetime]
) -> Call[list[int]]:
    if isinstance(ticks, str | bytes) or not isinstance(ticks, Sequence):
        raise InvalidArgument(f"ticks must be a sequence of datetimes, not {ticks!r}")
    # Safe to repeat after a lost connection: the second call finds the schedule moved, and sends nothing.
    return call(
        "advance_schedule",
        values,
        name=name,
        expected=moment("expected", expected),
        next_at=moment("next_at", next_at),
        ticks=[moment("ticks", tick) for tick in ticks],
    )


def pause_schedule(name: str) -> Call[None]:
    return call("pause_schedule", nothing, name=name)


def resume_schedule(name: str, next_at: datetime | None) -> Call[None]:
    return call("resume_schedule", nothing, name=name, next_at=moment("next_at", next_at))


def run_schedule(name: str) -> Call[int]:
    return call("run_schedule", value, "*", Repeat.NEVER, name=name)


def delete_schedule(name: str) -> Call[bool]:
    return call("delete_schedule", value, "*", Repeat.DOUBTFUL, name=name)


def list_schedules() -> Call[list[ListedSchedule]]:
    return call("list_schedules", rows.LISTED_SCHEDULE.read, rows.LISTED_SCHEDULE.sql)


# Workers


def register_worker(
    token: str,
    *,
    hostname: str,
    pid: int,
    version: str,
    queues: Sequence[str],
    tasks: Sequence[str],
    concurrency: int,
) -> Call[None]:
    return call(
        "register_worker",
        nothing,
        token=token,
        hostname=hostname,
        pid=pid,
        version=version,
        queues=queues,
        tasks=tasks,
        concurrency=concurrency,
    )


def beat_worker(token: str, held: int, running: object, stopping: bool) -> Call[bool]:
    return call(
        "beat_worker",
        value,
        token=token,
        held=held,
        running=encode_json(running, "running"),
        stopping=stopping,
    )


def forget_worker(token: str) -> Call[bool]:
    return call("forget_worker", value, "*", Repeat.DOUBTFUL, token=token)


def list_workers() -> Call[list[ListedWorker]]:
    return call("list_workers", rows.LISTED_WORKER.read, rows.LISTED_WORKER.sql)
