"""How rows become models: the columns of each model, written so that every driver returns the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from .diagnoses import (
    EngineDiagnosis,
    ErrorDiagnosis,
    GroupDiagnosis,
    Holder,
    LeaseDiagnosis,
    ParkedDiagnosis,
    PriorityDiagnosis,
    QueueDiagnosis,
    ServerDiagnosis,
    StatementDiagnosis,
    TableDiagnosis,
)
from .models import (
    DeadLetter,
    DeadLetterPage,
    ErrorEntry,
    GroupProgress,
    HistoryPoint,
    ListedMessage,
    ListedSchedule,
    ListedWorker,
    MaintenanceResult,
    MessageDetails,
    MessageResult,
    QueueGrant,
    QueueOverview,
    QueueSettings,
    QueueStatistics,
    Topic,
    UnreadableMessage,
)
from .operations import (
    AuditEntry,
    DeadLetterGroup,
    DeliveryExplanation,
    Operation,
    PermitCount,
    StoredMessage,
    TenantShare,
)
from .payloads import UNREADABLE, Json, load_json
from .sql_call import PAYLOAD_AS_TEXT, Row

__all__ = [
    "AUDIT_ENTRY",
    "DEAD_LETTER",
    "DEAD_LETTER_GROUP",
    "DEAD_LETTER_PAGE",
    "DELIVERY_EXPLANATION",
    "ENGINE_DIAGNOSIS",
    "ERROR_DIAGNOSIS",
    "GROUP_PROGRESS",
    "HISTORY_POINT",
    "HOLDER",
    "LISTED_MESSAGE",
    "LISTED_SCHEDULE",
    "LISTED_WORKER",
    "MAINTENANCE_RESULT",
    "MESSAGE_DETAILS",
    "MESSAGE_RESULT",
    "OPERATION",
    "PARKED_DIAGNOSIS",
    "PERMIT_COUNT",
    "QUEUE_DIAGNOSIS",
    "QUEUE_GRANT",
    "QUEUE_OVERVIEW",
    "QUEUE_SETTINGS",
    "QUEUE_STATISTICS",
    "SERVER_DIAGNOSIS",
    "STATEMENT_DIAGNOSIS",
    "TABLE_DIAGNOSIS",
    "TENANT_SHARE",
    "TOPIC",
    "UNREADABLE_MESSAGE",
    "epoch",
    "epoch_of_now",
    "moment",
    "seconds",
    "stored_message",
]

T = TypeVar("T")


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INFINITY = 2**63 - 1


def seconds(interval: str) -> str:
    """A duration in seconds."""
    return f"pg_catalog.date_part('epoch', {interval})"


def epoch(column: str) -> str:
    """A finite timestamp, as microseconds since 1970."""
    return f"cast(extract(epoch from {column}) operator(pg_catalog.*) 1000000 as bigint)"


def epoch_of_now(column: str) -> str:
    """As epoch(), for timestamps of this century: faster, and as exact."""
    return f"cast(pg_catalog.date_part('epoch', {column}) operator(pg_catalog.*) 1000000 as bigint)"


def moment(microseconds: int | None) -> Any:
    """The time so many microseconds after 1970; None stays None, for nullable columns."""
    if microseconds is None:
        return None
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        # PostgreSQL has infinity, the year 20000 and years before Christ: use the limits of datetime.
        return (datetime.max if microseconds > 0 else datetime.min).replace(tzinfo=UTC)


def _same(value: Any) -> Any:
    return value


def _loaded(text: str | None) -> Json:
    try:
        return None if text is None else load_json(text)
    except (ValueError, RecursionError):
        return text  # SQL may store thousands of digits or levels: one such value must not break a list


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = load_json(text) if text is not None else {}
    except (ValueError, RecursionError) as exc:
        return {UNREADABLE: f"Python cannot read it: {exc}"}
    return found if isinstance(found, dict) else {}


def _stored(text: str | None, body: Any) -> Json:
    return bytes(body) if body is not None else _loaded(text)


def _maybe_bytes(body: Any) -> bytes | None:
    return None if body is None else bytes(body)


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
    # The limits of Python's datetime. PostgreSQL has infinity, and its microseconds may not fit 64 bits.
    is_late = f"{name} operator(pg_catalog.>=) pg_catalog.timestamptz '10000-01-01 00:00:00+00'"
    is_early = f"{name} operator(pg_catalog.<) pg_catalog.timestamptz '0001-01-01 00:00:00+00'"
    found = f"when {is_late} then {INFINITY} when {is_early} then -{INFINITY} else {epoch(name)}"
    return Column((f"case {found} end",), moment)


def _plain(*names: str) -> tuple[Column, ...]:
    return tuple(Column((name,)) for name in names)


def _array(name: str) -> Column:
    return Column((name,), tuple)


def _maybe_array(name: str) -> Column:
    return Column((name,), lambda found: tuple(found or ()))


def _json(name: str, read: Callable[..., Any] = _loaded) -> Column:
    return Column((f"cast({name} as pg_catalog.text)",), read)


def _columns_of(model: type[T]) -> Columns[T]:
    """The columns of a model whose fields are numbers, texts, booleans, times and tuples."""

    def column(name: str, annotation: str) -> Column:
        if annotation.startswith("datetime"):
            return _time(name)
        return _maybe_array(name) if annotation.startswith("tuple[") else Column((name,))

    found = fields(model)  # type: ignore[arg-type] # a model is a dataclass
    return Columns(model, tuple(column(field.name, str(field.type)) for field in found))


_PAYLOAD = Column((PAYLOAD_AS_TEXT, "body"), _stored)

TOPIC = Columns(Topic, (*_plain("id", "name"), _time("created_at"), *_plain("queue_count")))

UNREADABLE_MESSAGE = Columns(UnreadableMessage, _plain("message_id", "error"))

QUEUE_SETTINGS = _columns_of(QueueSettings)

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
        "is_estimate",
    ),
)

HISTORY_POINT = _columns_of(HistoryPoint)

QUEUE_OVERVIEW = _columns_of(QueueOverview)

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
        *_plain("error_key", "cursor"),
    ),
)

LISTED_MESSAGE = Columns(
    ListedMessage,
    (
        *_plain("message_id", "state", "priority", "tenant", "delivery_attempts"),
        *map(_time, ("published_at", "due_at", "vt")),
        *_plain("consumer", "reason"),
        *map(_time, ("moved_at", "completed_at")),
        *_plain("cursor"),
    ),
)

MESSAGE_DETAILS = Columns(
    MessageDetails,
    (
        *_plain("message_id", "queue_name", "state", "priority", "tenant", "delivery_attempts"),
        *map(_time, ("published_at", "expires_at", "due_at", "vt", "claimed_at")),
        *_plain("consumer", "dedup_key", "reason", "last_error", "error_key"),
        _json("errors", _errors),
        *map(_time, ("moved_at", "completed_at")),
        _json("result"),
        _json("headers", _object),
        _PAYLOAD,
        *_plain("payload_bytes"),
    ),
)


def stored_message(most: int) -> Columns[StoredMessage]:
    """The columns of StoredMessage. Results and headers of more bytes are left out."""

    # In brackets: the adapter of psycopg takes away PAYLOAD_AS_TEXT, but here the cast is needed.
    def as_text(name: str) -> str:
        return f"cast(({name}) as pg_catalog.text)"

    def short(name: str) -> Column:
        text = as_text(name)
        fits = f"pg_catalog.octet_length({text}) operator(pg_catalog.<=) {most}"
        return Column((f"case when {fits} then {text} end",))

    return Columns(
        StoredMessage,
        (
            *_plain("message_id", "queue_name", "state", "priority", "tenant", "delivery_attempts"),
            *map(_time, ("published_at", "expires_at", "due_at", "vt", "claimed_at")),
            *_plain("consumer", "dedup_key", "reason", "error_key"),
            _json("errors", _errors),
            *map(_time, ("moved_at", "completed_at")),
            short("headers"),
            short("result"),
            Column((f"pg_catalog.octet_length({as_text('result')})",)),
            Column((as_text("payload"),)),
            *_plain("payload_bytes"),
            Column(("body",), lambda body: None if body is None else bytes(body)),
        ),
    )


MESSAGE_RESULT = Columns(
    MessageResult,
    (
        *_plain("message_id", "queue_name", "state", "delivery_attempts", "reason", "last_error"),
        _json("errors", _errors),
        *map(_time, ("moved_at", "completed_at")),
        _json("result"),
    ),
)

QUEUE_GRANT = Columns(QueueGrant, _plain("queue_name", "role_name", "queue_right", "role_exists"))

DEAD_LETTER_PAGE = Columns(DeadLetterPage, _plain("affected", "last_id"))

DEAD_LETTER_GROUP = _columns_of(DeadLetterGroup)

DELIVERY_EXPLANATION = _columns_of(DeliveryExplanation)

OPERATION = _columns_of(Operation)

TENANT_SHARE = _columns_of(TenantShare)

PERMIT_COUNT = _columns_of(PermitCount)

AUDIT_ENTRY = Columns(
    AuditEntry,
    (
        *_plain("id"),
        _time("at"),
        *_plain("who", "role_name", "action", "queue_name"),
        _json("details"),
        *_plain("outcome"),
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
        *_plain("consumer", "hostname", "pid", "version"),
        _array("queues"),
        _array("tasks"),
        *_plain("concurrency"),
        *map(_time, ("started_at", "seen_at")),
        *_plain("is_alive", "stopping", "held"),
        _json("running"),
    ),
)

SERVER_DIAGNOSIS = Columns(
    ServerDiagnosis,
    (
        *map(_time, ("now", "started_at")),
        *_plain("version", "database_name", "role_name", "pid", "is_standby", "is_read_only"),
        *_plain("sees_all_sessions", "autovacuum", "track_counts"),
        *_plain("max_connections", "reserved_connections", "used_connections"),
        *_plain("database_limit", "database_connections", "role_limit", "role_connections"),
        _array("client_names"),
        _array("client_counts"),
        *_plain("notify_usage", "oldest_database", "oldest_age", "oldest_multixact_age"),
        _time("archive_failed_at"),
        *_plain("max_locks_per_transaction"),
    ),
)

HOLDER = Columns(
    Holder,
    (
        *_plain("kind", "own", "pid", "name", "database_name", "user_name", "application_name"),
        *_plain("client_address", "state"),
        *map(_time, ("transaction_started_at", "state_changed_at")),
        *_plain("query", "held_age", "holds_vacuum", "catalog_age"),
        _maybe_array("advisory_keys"),
        _maybe_array("exclusive_keys"),
        *_plain("blocked_count"),
        _time("blocked_since"),
        _maybe_array("locked_tables"),
        *_plain("is_active", "wal_status", "retained_bytes"),
    ),
)

TABLE_DIAGNOSIS = Columns(
    TableDiagnosis,
    (
        *_plain("table_name", "size_bytes", "live_rows", "dead_rows", "vacuum_threshold", "autovacuum"),
        *map(_time, ("vacuumed_at", "analyzed_at")),
        *_plain("frozen_age"),
    ),
)

STATEMENT_DIAGNOSIS = Columns(StatementDiagnosis, _plain("function_name", "calls", "mean_ms", "max_ms"))

ENGINE_DIAGNOSIS = Columns(
    EngineDiagnosis,
    (
        *map(_time, ("maintained_at", "installed_at")),
        *_plain("clock_offset_seconds", "clock_body", "queue_count", "days_ahead"),
        *_plain("sequence_name", "sequence_used", "largest_topic", "largest_topic_queue_count"),
    ),
)

QUEUE_DIAGNOSIS = Columns(
    QueueDiagnosis,
    (
        *_plain("queue_id", "queue_name"),
        _time("paused_at"),
        *_plain("ready_count"),
        _time("waiting_since"),
        *_plain("without_permit_count", "neglected_count"),
        _time("neglected_since"),
        *_plain("overdue_count"),
        _time("overdue_since"),
        *_plain("expired_count"),
        _time("expired_since"),
        *_plain("active_count"),
        *map(_time, ("last_claimed_at", "last_settled_at")),
        *_plain("dead_last_hour", "dead_day_before", "floor_behind"),
        *_plain("probe_ms", "probe_blocks", "is_probed"),
    ),
)

PARKED_DIAGNOSIS = Columns(
    ParkedDiagnosis,
    (
        *_plain("queue_name", "task_name", "parked_count", "lost_count"),
        *map(_time, ("parked_since", "next_due_at")),
    ),
)

ERROR_DIAGNOSIS = Columns(
    ErrorDiagnosis, (*_plain("queue_name", "reason", "error", "dead_count"), _time("last_at"))
)

LEASE_DIAGNOSIS = Columns(
    LeaseDiagnosis, (*_plain("consumer", "queue_name", "idle_count"), _time("idle_since"))
)

PRIORITY_DIAGNOSIS = Columns(
    PriorityDiagnosis,
    (
        *_plain("queue_name", "priority", "ready_count"),
        _time("waiting_since"),
        *_plain("max_active", "min_active"),
        _array("priority_shares"),
    ),
)

GROUP_DIAGNOSIS = Columns(
    GroupDiagnosis,
    (
        *_plain("group_id", "total", "done_count"),
        *map(_time, ("created_at", "last_done_at")),
        *_plain("callback_queue", "has_callback_queue", "dead_count", "dead_queue"),
        _time("dead_since"),
    ),
)
