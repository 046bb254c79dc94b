"""Calls for people who operate queues: groups of dead letters, bulk operations, shares, search, the audit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from penstock import rows
from penstock.models import State
from penstock.operations import (
    AuditEntry,
    DeadLetterGroup,
    DeliveryExplanation,
    FoundMessage,
    Operation,
    OperationAction,
    PermitCount,
    SearchResult,
    StoredMessage,
    TenantShare,
)
from penstock.payloads import Json, encode_json, load_json
from penstock.sql_call import Call, Repeat, Row, call
from penstock.values import Duration, interval

from .parsing import value, values

__all__ = [
    "advance_operation",
    "cancel_operation",
    "delete_dlq_messages",
    "deliver_message_now",
    "deliver_messages_now",
    "explain_delivery_data",
    "get_operation",
    "get_stored_message",
    "list_actions",
    "list_dlq_groups",
    "list_operations",
    "list_permits",
    "list_tenants",
    "record_action",
    "search_messages",
    "start_operation",
]

# A batch waits for the lock of its queue, which alter_queue() holds for a minute at the most.
BATCH_SECONDS = 60.0
# In seconds.
LONGEST_SEARCH = 60


# Single messages


def deliver_message_now(queue_name: str, message_id: int) -> Call[bool]:
    return call(
        "deliver_message_now", value, "*", Repeat.DOUBTFUL, queue_name=queue_name, message_id=message_id
    ).taking(BATCH_SECONDS)


def deliver_messages_now(queue_name: str, message_ids: Sequence[int]) -> Call[list[int]]:
    return call(
        "deliver_messages_now", values, "*", Repeat.NEVER, queue_name=queue_name, message_ids=message_ids
    ).taking(BATCH_SECONDS)


def explain_delivery_data(queue_name: str, message_id: int) -> Call[DeliveryExplanation]:
    columns = rows.DELIVERY_EXPLANATION
    return call(
        "explain_delivery_data",
        lambda found: columns.read(found)[0],
        columns.sql,
        queue_name=queue_name,
        message_id=message_id,
    )


def get_stored_message(queue_name: str, message_id: int, most: int) -> Call[StoredMessage | None]:
    columns = rows.stored_message(most)

    def first(found: Sequence[Row]) -> StoredMessage | None:
        return columns.read(found)[0] if found else None

    return call(
        "get_message",
        first,
        columns.sql,
        queue_name=queue_name,
        message_id=message_id,
        most_payload_bytes=most,
    )


def search_messages(
    *,
    message_id: int | None,
    queue_name: str | None,
    state: State | None,
    tenant: str | None,
    dedup_key: str | None,
    task_name: str | None,
    payload_path: Sequence[str] | None,
    payload_value: str | None,
    page_size: int | None,
    deadline: Duration | None,
) -> Call[SearchResult]:
    return call(
        "search_messages",
        _search_result,
        "cast(matches as pg_catalog.text), examined_count, is_complete, stopped_at",
        message_id=message_id,
        queue_name=queue_name,
        state=state,
        tenant=tenant,
        dedup_key=dedup_key,
        task_name=task_name,
        payload_path=payload_path,
        payload_value=payload_value,
        page_size=page_size,
        deadline_ms=None
        if deadline is None
        else round(1000 * interval("deadline", deadline, LONGEST_SEARCH)),
    )


def _search_result(found: Sequence[Row]) -> SearchResult:
    matches, examined_count, is_complete, stopped_at = found[0]
    return SearchResult(tuple(map(_found, load_json(matches))), examined_count, is_complete, stopped_at)


def _found(match: dict[str, Json]) -> FoundMessage:
    published_at = datetime.fromisoformat(str(match.pop("published_at"))).astimezone(UTC)
    return FoundMessage(**match, published_at=published_at)


# Dead letters


def list_dlq_groups(
    queue_name: str | None, page_size: int | None, after: str | None
) -> Call[list[DeadLetterGroup]]:
    columns = rows.DEAD_LETTER_GROUP
    return call(
        "list_dlq_groups",
        columns.read,
        columns.sql,
        queue_name=queue_name,
        page_size=page_size,
        after=after,
    )


def delete_dlq_messages(queue_name: str, message_ids: Sequence[int]) -> Call[int]:
    return call(
        "delete_dlq_messages", value, "*", Repeat.NEVER, queue_name=queue_name, message_ids=message_ids
    )


# Operations


def start_operation(
    action: OperationAction,
    queue_name: str,
    *,
    error_key: str | None,
    per_second: int | None,
    with_canary: bool,
    who: str | None,
) -> Call[int]:
    return call(
        "start_operation",
        value,
        "*",
        Repeat.NEVER,
        action=action,
        queue_name=queue_name,
        error_key=error_key,
        per_second=per_second,
        with_canary=None if with_canary is False else with_canary,
        who=who,
    )


def advance_operation(operation_id: int, batch_size: int | None) -> Call[Operation | None]:
    return call(
        "advance_operation",
        _operation,
        rows.OPERATION.sql,
        Repeat.SAFE,
        operation_id=operation_id,
        batch_size=batch_size,
    ).taking(BATCH_SECONDS)


def cancel_operation(operation_id: int) -> Call[bool]:
    return call("cancel_operation", value, "*", Repeat.DOUBTFUL, operation_id=operation_id)


def get_operation(operation_id: int) -> Call[Operation | None]:
    return call("get_operation", _operation, rows.OPERATION.sql, operation_id=operation_id)


def list_operations(unfinished: bool, page_size: int | None, before_id: int | None) -> Call[list[Operation]]:
    return call(
        "list_operations",
        rows.OPERATION.read,
        rows.OPERATION.sql,
        unfinished=None if unfinished is False else unfinished,
        page_size=page_size,
        before_id=before_id,
    )


def _operation(found: Sequence[Row]) -> Operation | None:
    return rows.OPERATION.read(found)[0] if found else None


# Shares


def list_tenants(queue_name: str, page_size: int | None, after: str | None) -> Call[list[TenantShare]]:
    columns = rows.TENANT_SHARE
    return call(
        "list_tenants", columns.read, columns.sql, queue_name=queue_name, page_size=page_size, after=after
    )


def list_permits(queue_name: str) -> Call[list[PermitCount]]:
    return call("list_permits", rows.PERMIT_COUNT.read, rows.PERMIT_COUNT.sql, queue_name=queue_name)


# The audit


def record_action(
    action: str, queue_name: str | None, details: Json, outcome: str | None, who: str | None
) -> Call[int]:
    return call(
        "record_action",
        value,
        "*",
        Repeat.NEVER,
        action=action,
        queue_name=queue_name,
        details=None if details is None else encode_json(details, "details"),
        outcome=outcome,
        who=who,
    )


def list_actions(
    queue_name: str | None, page_size: int | None, before_id: int | None
) -> Call[list[AuditEntry]]:
    return call(
        "list_actions",
        rows.AUDIT_ENTRY.read,
        rows.AUDIT_ENTRY.sql,
        queue_name=queue_name,
        page_size=page_size,
        before_id=before_id,
    )
