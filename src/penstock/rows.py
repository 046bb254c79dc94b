"""How rows become models: for each model its columns, written so that every driver returns the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from .models import (
    DeadLetter,
    ErrorEntry,
    GroupProgress,
    ListedMessage,
    ListedSchedule,
    ListedWorker,
    MaintenanceResult,
    MessageDetails,
    QueueSettings,
    QueueStatistics,
    Topic,
)
from .payloads import Json, load_json
from .statements import Row

__all__ = [
    "DEAD_LETTER",
    "GROUP_PROGRESS",
    "LISTED_MESSAGE",
    "LISTED_SCHEDULE",
    "LISTED_WORKER",
    "MAINTENANCE_RESULT",
    "MESSAGE_DETAILS",
    "QUEUE_SETTINGS",
    "QUEUE_STATISTICS",
    "TOPIC",
    "epoch",
    "epoch_of_now",
    "moment",
    "seconds",
]

T = TypeVar("T")


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INFINITY = 2**63 - 1


def seconds(interval: str) -> str:
    """A duration in seconds."""
    return f"pg_catalog.date_part('epoch', {interval})"


def epoch(column: str) -> str:
    """A moment that is finite, as microseconds since 1970."""
    return f"cast(extract(epoch from {column}) * 1000000 as bigint)"


def epoch_of_now(column: str) -> str:
    """As epoch(), of a moment in this century: quicker, and as exact."""
    return f"cast(pg_catalog.date_part('epoch', {column}) * 1000000 as bigint)"


def moment(microseconds: int | None) -> Any:
    """The moment so long after 1970; None stays None, as a column allows."""
    if microseconds is None:
        return None
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        # PostgreSQL knows infinity and the year 20000; Python's end of time is near enough.
        return datetime.max.replace(tzinfo=UTC)


def _same(value: Any) -> Any:
    return value


def _loaded(text: str | None) -> Json:
    try:
        return None if text is None else load_json(text)
    except (ValueError, RecursionError):
        return text  # of thousands of digits or levels, put there by SQL: one such should not spoil a list


def _object(text: str | None) -> dict[str, Any]:
    return load_json(text) if text is not None else {}


def _stored(text: str | None, body: Any) -> Json:
    return bytes(body) if body is not None else _loaded(text)


def _errors(text: str | None) -> tuple[ErrorEntry, ...]:
    entries = load_json(text) if text is not None else []
    return tuple(
        ErrorEntry(entry["attempt"], datetime.fromisoformat(entry["at"]).astimezone(UTC), entry["error"])
        for entry in entries
    )


@dataclass(frozen=True, slots=True)
class Column:
    """What to select for a field, and how to read it."""

    sql: tuple[str, ...]
    read: Callable[..., Any] = _same


@dataclass(frozen=True, slots=True)
class Columns(Generic[T]):
    """The columns of a model."""

    model: Callable[..., T]
    columns: tuple[Column, ...]

    @property
    def sql(self) -> str:
        return ", ".join(part for column in self.columns for part in column.sql)

    def read(self, rows: Sequence[Row]) -> list[T]:
        return [self._read_one(row) for row in rows]

    def _read_one(self, row: Row) -> T:
        values, start = [], 0
        for column in self.columns:
            end = start + len(column.sql)
            values.append(column.read(*row[start:end]))
            start = end
        return self.model(*values)


def _time(name: str) -> Column:
    return Column((f"case {name} when 'infinity' then {INFINITY} else {epoch(name)} end",), moment)


def _plain(*names: str) -> tuple[Column, ...]:
    return tuple(Column((name,)) for name in names)


def _array(name: str) -> Column:
    return Column((name,), tuple)


def _json(name: str, read: Callable[..., Any] = _loaded) -> Column:
    return Column((f"cast({name} as text)",), read)


_PAYLOAD = Column(("cast(payload as text)", "body"), _stored)

TOPIC = Columns(Topic, (*_plain("id", "name"), _time("created_at"), *_plain("queue_count")))

QUEUE_SETTINGS = Columns(
    QueueSettings,
    (
        *_plain("id", "name", "topic_name", "exclusive"),
        *map(_time, ("keep_alive_until", "paused_at", "created_at")),
        *_plain("max_delivery_attempts", "visibility_timeout_seconds", "visibility_backoff"),
        _array("retry_delays"),
        *_plain("message_ttl_seconds", "retain_completed_seconds", "retain_dead_seconds"),
        *_plain("max_payload_bytes", "max_active", "min_active"),
        _array("priority_shares"),
        *_plain("tenant_max_active", "notify"),
    ),
)

QUEUE_STATISTICS = Columns(
    QueueStatistics,
    _plain(
        "queue_name",
        "pending_count",
        "processing_count",
        "completed_count",
        "total_count",
        "delayed_count",
        "dead_count",
        "oldest_pending_seconds",
        "waiting_count",
        "priority",
        "tenant",
    ),
)

DEAD_LETTER = Columns(
    DeadLetter,
    (
        *_plain("queue_name", "message_id"),
        _PAYLOAD,
        *_plain("delivery_attempts", "reason", "last_error"),
        _json("errors", _errors),
        _time("moved_at"),
        *_plain("priority", "tenant"),
        _json("headers", _object),
        _time("published_at"),
        *_plain("cursor"),
    ),
)

LISTED_MESSAGE = Columns(
    ListedMessage,
    (
        *_plain("message_id", "state", "priority", "tenant", "delivery_attempts"),
        *map(_time, ("published_at", "due_at", "vt")),
        *_plain("consumer_token", "reason"),
        *map(_time, ("moved_at", "completed_at")),
        *_plain("cursor"),
    ),
)

MESSAGE_DETAILS = Columns(
    MessageDetails,
    (
        *_plain("message_id", "queue_name", "state", "priority", "tenant", "delivery_attempts"),
        *map(_time, ("published_at", "expires_at", "due_at", "vt", "claimed_at")),
        *_plain("consumer_token", "dedup_key", "reason", "last_error"),
        _json("errors", _errors),
        *map(_time, ("moved_at", "completed_at")),
        _json("result"),
        _json("headers", _object),
        _PAYLOAD,
    ),
)

MAINTENANCE_RESULT = Columns(MaintenanceResult, _plain("action", "queue_name", "affected"))

GROUP_PROGRESS = Columns(
    GroupProgress,
    (
        *_plain("id", "total", "done_count"),
        _time("created_at"),
        *_plain("callback_queue"),
        _json("callback_headers", _object),
    ),
)

LISTED_SCHEDULE = Columns(
    ListedSchedule,
    (
        *_plain("name", "queue_name"),
        _json("payload"),
        _json("headers", _object),
        *_plain("priority", "tenant", "ttl_seconds"),
        _json("definition"),
        *_plain("missed"),
        *map(_time, ("next_at", "last_tick", "paused_at", "created_at")),
    ),
)

LISTED_WORKER = Columns(
    ListedWorker,
    (
        *_plain("token", "hostname", "pid", "version"),
        _array("queues"),
        _array("tasks"),
        *_plain("concurrency"),
        *map(_time, ("started_at", "seen_at")),
        *_plain("is_alive", "stopping", "held"),
        _json("running"),
    ),
)
