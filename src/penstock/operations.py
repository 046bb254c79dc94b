"""What the calls of `calls/operating.py` return: groups of dead letters, operations, shares, the audit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from .models import ErrorEntry, State
from .payloads import Json

__all__ = [
    "AuditEntry",
    "DeadLetterGroup",
    "DeliveryExplanation",
    "FoundMessage",
    "Operation",
    "OperationAction",
    "OperationState",
    "PermitCount",
    "SearchResult",
    "StoredMessage",
    "TenantShare",
]

OperationAction: TypeAlias = Literal["redrive", "delete"]
OperationState: TypeAlias = Literal["planned", "canary", "running", "done", "cancelled", "stopped"]


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """The dead letters of a queue that have the same kind of error.

    error_key: the line that names the error, with values replaced; "(expired)" and the like for letters
    without an error. dead_count: how many. first_at, last_at: when the first and the last of them died.
    is_estimate: dead_count and first_at are estimates, beyond 1,000 letters. sample_ids: the newest five.
    cursor: for the next page.
    """

    queue_name: str
    error_key: str
    dead_count: int
    is_estimate: bool
    first_at: datetime
    last_at: datetime
    sample_ids: tuple[int, ...]
    cursor: str


@dataclass(frozen=True, slots=True)
class DeliveryExplanation:
    """Why a message is not running.

    state: None if the message is unknown. cause: "next", "behind", "paused", "max_active", "no_permits",
    "tenant_max_active", "admission", "delayed", "retry", "parked", "due", "expired", "leased", "lease_over",
    "failed", "no_attempts_left", "done" or "unknown". cap, cap_value: the setting that holds it back. quota:
    the permits of its priority or tenant; taken: how many of them are in use. ahead: how many messages are
    before it, at least so many if ahead_is_limit. since, until: of the cause. remedies: the methods that
    help. explanation: the same in words.
    """

    state: State | None
    cause: str
    paused_at: datetime | None
    cap: str | None
    cap_value: int | None
    quota: int | None
    taken: int | None
    ahead: int | None
    ahead_is_limit: bool | None
    since: datetime | None
    until: datetime | None
    consumer: str | None
    task_name: str | None
    attempt: int | None
    error: str | None
    remedies: tuple[str, ...]
    explanation: str


@dataclass(frozen=True, slots=True)
class TenantShare:
    """The messages of a tenant, and how the queue served it in the last ten minutes.

    tenant: None for messages without one. is_estimate: whether counts of the list are estimates.
    served_count: completed messages, and served_share their part of all, 0 to 1; None if the queue keeps no
    completed messages. wait_p95_seconds: 95 percent of them waited no longer. queue_wait_median_seconds: half
    of all messages of the queue waited no longer. cursor: for the next page.
    """

    tenant: str | None
    ready_count: int
    waiting_count: int
    active_count: int
    is_estimate: bool
    served_count: int | None
    served_share: float | None
    wait_p95_seconds: float | None
    queue_wait_median_seconds: float | None
    tenant_max_active: int | None
    cursor: str


@dataclass(frozen=True, slots=True)
class PermitCount:
    """Permits of a priority that have the same status, and if they are held, the same consumer.

    priority: None if all priorities share the permits. status: "held", "free", "deferred" or "debt".
    consumer, hostname, pid: of held ones; the last two if the consumer is a known worker. since: when the
    message that is held longest was claimed. message_ids: the ten held longest.
    """

    priority: int | None
    status: Literal["held", "free", "deferred", "debt"]
    permit_count: int
    consumer: str | None
    hostname: str | None
    pid: int | None
    since: datetime | None
    message_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """A bulk action on dead letters, and its progress.

    error_key: only letters of this group; None for all of the queue. per_second: the greatest rate. who: the
    person for whom it was started; role_name: the role of the database that started it. total_count: the
    letters that there were. done_count: those that were redriven or deleted. failed_count: messages that died
    since it began. done_per_second: the rate so far. note: why it stopped.
    """

    id: int
    action: OperationAction
    state: OperationState
    queue_name: str
    error_key: str | None
    per_second: int | None
    with_canary: bool
    who: str | None
    role_name: str
    total_count: int
    total_is_estimate: bool
    done_count: int
    failed_count: int
    canary_id: int | None
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    advanced_at: datetime | None
    finished_at: datetime | None
    done_per_second: float | None
    note: str | None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An action, and what came of it.

    who: the person for whom the program acted; role_name: the role of the database that did it.
    """

    id: int
    at: datetime
    who: str | None
    role_name: str
    action: str
    queue_name: str | None
    details: Json
    outcome: str


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message that a search found."""

    queue_name: str
    message_id: int
    state: State
    priority: int
    tenant: str | None
    delivery_attempts: int
    published_at: datetime


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found, and how far it looked.

    examined_count: how many messages it compared. is_complete: whether it looked everywhere. stopped_at:
    where it ended otherwise, because it found enough or its time was over.
    """

    matches: tuple[FoundMessage, ...]
    examined_count: int
    is_complete: bool
    stopped_at: str | None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as it is stored: JSON is text, with every digit. Otherwise as MessageDetails.

    payload_text: None if the message is bytes, or larger than was asked for. payload_size: of the JSON text
    or of the bytes; of JSON that was left out perhaps as it is stored. body: the first bytes, as many as were
    asked for.
    """

    message_id: int
    queue_name: str
    state: State
    priority: int
    tenant: str | None
    delivery_attempts: int
    published_at: datetime
    expires_at: datetime | None
    due_at: datetime | None
    leased_until: datetime | None
    claimed_at: datetime | None
    consumer: str | None
    dedup_key: str | None
    reason: str | None
    error_key: str | None
    errors: tuple[ErrorEntry, ...]
    moved_at: datetime | None
    completed_at: datetime | None
    headers_text: str | None
    result_text: str | None
    result_size: int | None
    payload_text: str | None
    payload_size: int | None
    body: bytes | None
