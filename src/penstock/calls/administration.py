"""Calls for topics and queues, dead letters, statistics, cleanup, and maintenance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock import rows
from penstock.errors import InvalidArgument
from penstock.message_options import encode_headers
from penstock.models import (
    Breakdown,
    DeadLetter,
    DeadLetterPage,
    HistoryPoint,
    ListedMessage,
    MaintenanceResult,
    MessageDetails,
    MessageResult,
    QueueGrant,
    QueueOverview,
    QueueSettings,
    QueueStatistics,
    Right,
    State,
    Topic,
)
from penstock.schema import SchemaVersion
from penstock.sql_call import Call, Repeat, Row, call
from penstock.sql_parameters import TYPES
from penstock.values import Duration, moment, seconds

from .parsing import instant, nothing, value

__all__ = [
    "add_retries",
    "alter_queue",
    "cancel_message",
    "channel",
    "cleanup_expired_exclusive_queues",
    "cleanup_queue_messages",
    "cleanup_topic_messages",
    "clock",
    "create_queue",
    "create_topic",
    "declare_queue",
    "delete_queue",
    "delete_topic",
    "explain_delivery",
    "extend_queue_keep_alive",
    "get_message",
    "get_queue_statistics",
    "get_result",
    "grant_queue",
    "list_dlq_messages",
    "list_grants",
    "list_messages",
    "list_queues",
    "list_topics",
    "maintain",
    "open_queue",
    "overview_history",
    "pause_queue",
    "purge_all_messages",
    "purge_dlq",
    "purge_dlq_page",
    "purge_queue",
    "queue_difference",
    "queue_history",
    "raise_floor",
    "requeue_dlq_messages",
    "requeue_dlq_page",
    "resume_queue",
    "revoke_queue",
    "sample",
    "schema_version",
]

# These calls wait for locks of a queue or topic, which alter_queue() holds for a minute at the most.
LOCK_SECONDS = 60.0
# These calls take time in proportion to the number of messages.
AS_LONG_AS_IT_TAKES = math.inf

# Topics


def create_topic(topic_name: str) -> Call[int]:
    return call("create_topic", value, topic_name=topic_name)


def delete_topic(topic_name: str) -> Call[None]:
    return call("delete_topic", nothing, "*", Repeat.NEVER, topic_name=topic_name).taking(AS_LONG_AS_IT_TAKES)


def list_topics() -> Call[list[Topic]]:
    return call("list_topics", rows.TOPIC.read, rows.TOPIC.sql)


# Queues


def create_queue(
    queue_name: str,
    *,
    topic: str | None,
    exclusive: bool,
    keep_alive: Duration | None,
    **settings: Any,
) -> Call[int]:
    if topic is not None and not isinstance(topic, str):
        raise InvalidArgument(f"topic must be a string, not {topic!r}")
    return call(
        "create_queue",
        value,
        queue_name=queue_name,
        topic_name=topic,
        exclusive=None if exclusive is False else exclusive,
        keep_alive_seconds=seconds("keep_alive", keep_alive),
        **_queue_settings(**settings),
    ).taking(LOCK_SECONDS)


def alter_queue(queue_name: str, **settings: Any) -> Call[None]:
    alter = call("alter_queue", nothing, queue_name=queue_name, **_queue_settings(**settings))
    return alter.taking(AS_LONG_AS_IT_TAKES)


def _queue_settings(*, retry_delays: Sequence[Duration] | None, **settings: Any) -> dict[str, Any]:
    """Settings as parameters. A setting of Python is a duration where the parameter ends with `_seconds`."""
    if retry_delays is not None and not isinstance(retry_delays, list | tuple):
        raise InvalidArgument(f"retry_delays must be a list of durations, not {retry_delays!r}")
    delays = None if retry_delays is None else [seconds("retry_delays", delay) for delay in retry_delays]
    parameters: dict[str, Any] = {"retry_delays": delays}
    for name, given in settings.items():
        if (parameter := f"{name}_seconds") in TYPES:
            parameters[parameter] = seconds(name, given)
        else:
            parameters[name] = given
    return parameters


def pause_queue(queue_name: str) -> Call[None]:
    return call("pause_queue", nothing, queue_name=queue_name)


def resume_queue(queue_name: str) -> Call[None]:
    return call("resume_queue", nothing, queue_name=queue_name)


def extend_queue_keep_alive(queue_name: str, keep_alive: Duration) -> Call[datetime]:
    return call(
        "extend_queue_keep_alive",
        instant,
        rows.epoch("extend_queue_keep_alive"),
        queue_name=queue_name,
        keep_alive_seconds=seconds("keep_alive", keep_alive),
    )


def delete_queue(queue_name: str) -> Call[None]:
    return call("delete_queue", nothing, "*", Repeat.NEVER, queue_name=queue_name).taking(AS_LONG_AS_IT_TAKES)


def list_queues() -> Call[list[QueueSettings]]:
    return call("list_queues", rows.QUEUE_SETTINGS.read, rows.QUEUE_SETTINGS.sql)


def declare_queue(queue_name: str, max_active: int | None, retain_completed: Duration | None) -> Call[int]:
    return call(
        "declare_queue",
        value,
        queue_name=queue_name,
        max_active=max_active,
        retain_completed_seconds=seconds("retain_completed", retain_completed),
    ).taking(LOCK_SECONDS)


def queue_difference(
    queue_name: str, max_active: int | None, retain_completed: Duration | None
) -> Call[str | None]:
    return call(
        "queue_difference",
        value,
        queue_name=queue_name,
        max_active=max_active,
        retain_completed_seconds=seconds("retain_completed", retain_completed),
    )


# Rights


def grant_queue(role_name: str, queue_name: str, right: Right) -> Call[bool]:
    return call(
        "grant_queue",
        value,
        "*",
        Repeat.DOUBTFUL,
        role_name=role_name,
        queue_name=queue_name,
        queue_right=right,
    )


def revoke_queue(role_name: str, queue_name: str, right: Right) -> Call[bool]:
    return call(
        "revoke_queue",
        value,
        "*",
        Repeat.DOUBTFUL,
        role_name=role_name,
        queue_name=queue_name,
        queue_right=right,
    )


def open_queue(queue_name: str) -> Call[bool]:
    return call("open_queue", value, "*", Repeat.DOUBTFUL, queue_name=queue_name)


def list_grants(queue_name: str | None = None) -> Call[list[QueueGrant]]:
    return call("list_grants", rows.QUEUE_GRANT.read, rows.QUEUE_GRANT.sql, queue_name=queue_name)


# Dead letters


def list_dlq_messages(
    queue_name: str | None,
    page_size: int | None,
    after: str | None,
    newest_first: bool,
    error_key: str | None,
) -> Call[list[DeadLetter]]:
    return call(
        "list_dlq_messages",
        rows.DEAD_LETTER.read,
        rows.DEAD_LETTER.sql,
        queue_name=queue_name,
        page_size=page_size,
        after=after,
        newest_first=None if newest_first is False else newest_first,
        error_key=error_key,
    )


def requeue_dlq_messages(
    queue_name: str, message_ids: Sequence[int] | None, error_key: str | None
) -> Call[int]:
    return call(
        "requeue_dlq_messages",
        value,
        "*",
        Repeat.NEVER,
        queue_name=queue_name,
        message_ids=message_ids,
        error_key=error_key,
    ).taking(AS_LONG_AS_IT_TAKES)


def requeue_dlq_page(
    queue_name: str,
    page_size: int,
    after_id: int,
    attempts: int | None = None,
    headers: Mapping[str, Any] | None = None,
) -> Call[DeadLetterPage]:
    return call(
        "requeue_dlq_page",
        _page,
        rows.DEAD_LETTER_PAGE.sql,
        Repeat.NEVER,
        queue_name=queue_name,
        page_size=page_size,
        after_id=after_id,
        attempts=attempts,
        headers=encode_headers(headers),
    ).taking(AS_LONG_AS_IT_TAKES)


def purge_dlq_page(queue_name: str, page_size: int, after_id: int) -> Call[DeadLetterPage]:
    return call(
        "purge_dlq_page",
        _page,
        rows.DEAD_LETTER_PAGE.sql,
        Repeat.NEVER,
        queue_name=queue_name,
        page_size=page_size,
        after_id=after_id,
    ).taking(AS_LONG_AS_IT_TAKES)


def _page(found: Sequence[Row]) -> DeadLetterPage:
    return rows.DEAD_LETTER_PAGE.read(found)[0]


def add_retries(queue_name: str, attempts: int, headers: Mapping[str, Any] | None = None) -> Call[int]:
    return call(
        "add_retries",
        value,
        "*",
        Repeat.NEVER,
        queue_name=queue_name,
        attempts=attempts,
        headers=encode_headers(headers),
    ).taking(AS_LONG_AS_IT_TAKES)


def purge_dlq(queue_name: str | None, error_key: str | None) -> Call[int]:
    return call("purge_dlq", value, "*", Repeat.NEVER, queue_name=queue_name, error_key=error_key).taking(
        AS_LONG_AS_IT_TAKES
    )


# Statistics and inspection


def get_queue_statistics(
    queue_name: str | None,
    breakdown: Breakdown | None,
    top: int | None,
    completed_since: datetime | None = None,
) -> Call[list[QueueStatistics]]:
    return call(
        "get_queue_statistics",
        rows.QUEUE_STATISTICS.read,
        rows.QUEUE_STATISTICS.sql,
        queue_name=queue_name,
        breakdown=breakdown,
        top=top,
        completed_since=moment("completed_since", completed_since),
    )


def queue_history(
    queue_name: str, since: datetime | None, until: datetime | None, step: Duration | None
) -> Call[list[HistoryPoint]]:
    return call(
        "queue_history",
        rows.HISTORY_POINT.read,
        rows.HISTORY_POINT.sql,
        queue_name=queue_name,
        since=moment("since", since),
        until=moment("until", until),
        step_seconds=seconds("step", step),
    )


def overview_history(points: int | None, step: Duration | None) -> Call[list[QueueOverview]]:
    return call(
        "overview_history",
        rows.QUEUE_OVERVIEW.read,
        rows.QUEUE_OVERVIEW.sql,
        points=points,
        step_seconds=seconds("step", step),
    )


def list_messages(
    queue_name: str, state: State | None, page_size: int | None, after: str | None
) -> Call[list[ListedMessage]]:
    return call(
        "list_messages",
        rows.LISTED_MESSAGE.read,
        rows.LISTED_MESSAGE.sql,
        queue_name=queue_name,
        state=state,
        page_size=page_size,
        after=after,
    )


def get_message(
    queue_name: str, message_id: int, *, most_payload_bytes: int | None
) -> Call[MessageDetails | None]:
    def first(found: Sequence[Row]) -> MessageDetails | None:
        return rows.MESSAGE_DETAILS.read(found)[0] if found else None

    return call(
        "get_message",
        first,
        rows.MESSAGE_DETAILS.sql,
        queue_name=queue_name,
        message_id=message_id,
        most_payload_bytes=most_payload_bytes,
    )


def get_result(queue_name: str, message_id: int) -> Call[MessageResult | None]:
    def first(found: Sequence[Row]) -> MessageResult | None:
        return rows.MESSAGE_RESULT.read(found)[0] if found else None

    return call("get_result", first, rows.MESSAGE_RESULT.sql, queue_name=queue_name, message_id=message_id)


def explain_delivery(queue_name: str, message_id: int) -> Call[str]:
    return call("explain_delivery", value, queue_name=queue_name, message_id=message_id)


# Cleanup


def cancel_message(queue_name: str, message_id: int) -> Call[bool]:
    return call("cancel_message", value, "*", Repeat.DOUBTFUL, queue_name=queue_name, message_id=message_id)


def purge_queue(queue_name: str) -> Call[int]:
    return call("purge_queue", value, "*", Repeat.NEVER, queue_name=queue_name).taking(AS_LONG_AS_IT_TAKES)


def purge_all_messages(after_queue_id: int) -> Call[int | None]:
    purge = call("purge_all_messages", value, "*", Repeat.NEVER, after_queue_id=after_queue_id)
    return purge.taking(AS_LONG_AS_IT_TAKES)


def cleanup_queue_messages(queue_name: str) -> Call[int]:
    return call("cleanup_queue_messages", value, "*", Repeat.NEVER, queue_name=queue_name).taking(
        AS_LONG_AS_IT_TAKES
    )


def cleanup_topic_messages(topic_name: str) -> Call[int]:
    return call("cleanup_topic_messages", value, "*", Repeat.NEVER, topic_name=topic_name).taking(
        AS_LONG_AS_IT_TAKES
    )


def cleanup_expired_exclusive_queues() -> Call[int]:
    return call("cleanup_expired_exclusive_queues", value, "*", Repeat.NEVER).taking(AS_LONG_AS_IT_TAKES)


# Maintenance and others


def maintain(queue_names: Sequence[str] | None = None) -> Call[list[MaintenanceResult]]:
    result = rows.MAINTENANCE_RESULT
    return call("maintain", result.read, result.sql, queue_names=queue_names)


def sample() -> Call[float]:
    return call("sample", value)


def raise_floor(queue_name: str) -> Call[bool]:
    return call("raise_floor", value, queue_name=queue_name)


def clock() -> Call[datetime]:
    return call("clock", instant, rows.epoch("clock"))


def channel(queue_name: str) -> Call[str]:
    return call("channel", value, queue_name=queue_name)


def schema_version() -> Call[SchemaVersion]:
    def read(found: Sequence[Row]) -> SchemaVersion:
        package_version, migration, digest, installed_at = found[0]
        return SchemaVersion(package_version, migration, digest, rows.moment(installed_at))

    columns = f"package_version, migration, digest, {rows.epoch('installed_at')}"
    return call("schema_version", read, columns)
