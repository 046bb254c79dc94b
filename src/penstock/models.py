"""What calls take and return: frozen, typed, the same for every driver."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

from .payloads import Json
from .values import Duration

__all__ = [
    "Breakdown",
    "DeadLetter",
    "DeadLetterPage",
    "ErrorEntry",
    "GroupProgress",
    "HistoryPoint",
    "ListedMessage",
    "ListedSchedule",
    "ListedWorker",
    "MaintenanceResult",
    "MessageDetails",
    "MessageResult",
    "Missed",
    "NewMessage",
    "QueueGrant",
    "QueueOverview",
    "QueueSettings",
    "QueueStatistics",
    "Receipt",
    "Right",
    "State",
    "Topic",
    "UnreadableMessage",
]

State: TypeAlias = Literal["active", "ready", "waiting", "scheduled", "dead", "done"]
Breakdown: TypeAlias = Literal["priority", "tenant"]
Missed: TypeAlias = Literal["skip", "one", "all"]
Right: TypeAlias = Literal["publish", "consume", "view"]

# A time of a schedule is missed, and the schedule overdue, if no worker has acted for it within this time.
SCHEDULE_GRACE: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message for publish_many() or send_many() with options of its own, which are those of publish().

    An option that is None has the value given for all messages.
    """

    payload: Any
    _: KW_ONLY
    delay: Duration | None = None
    deliver_after: datetime | None = None
    priority: int | None = None
    tenant: str | None = None
    headers: dict[str, Any] | None = None
    ttl: Duration | None = None
    dedup_key: str | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """All that a caller needs to settle a message: its queue, its id and the token that holds it."""

    queue_name: str
    message_id: int
    token: str


@dataclass(frozen=True, slots=True)
class UnreadableMessage:
    """A message that became a dead letter because the server cannot send it to any client; and the reason."""

    message_id: int
    error: str


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, with the number of its queues."""

    id: int
    name: str
    created_at: datetime
    queue_count: int


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """A queue with its topic and every setting.

    topic_name: None if the queue has no topic. exclusive, keep_alive_until: an exclusive queue is deleted
    when its keep-alive has ended. paused_at: since when the queue delivers nothing; None if it delivers.

    restricted: whether only roles with a grant may use the queue; see grant_queue().

    The settings are those of create_queue(), with the effective defaults.
    """

    id: int
    name: str
    topic_name: str | None
    exclusive: bool
    keep_alive_until: datetime | None
    paused_at: datetime | None
    created_at: datetime
    max_delivery_attempts: int
    visibility_timeout_seconds: int
    visibility_backoff: float
    retry_delays: tuple[int, ...]
    message_ttl_seconds: int | None
    retain_completed_seconds: int
    retain_dead_seconds: int
    max_payload_bytes: int
    max_active: int | None
    min_active: int
    priority_shares: tuple[int, ...]
    tenant_max_active: int | None
    notify: bool
    restricted: bool


@dataclass(frozen=True, slots=True)
class QueueGrant:
    """A right that a role has in a restricted queue.

    role_exists: False if the role was dropped or renamed; the grant has no effect then.
    """

    queue_name: str
    role_name: str
    right: Right
    role_exists: bool


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """How many messages of a queue, or of one of its priorities or tenants, are in each state.

    pending_count: messages that are still to be delivered. delayed_count: pending ones that are not due yet.
    waiting_count: pending ones whose tenant is at tenant_max_active. processing_count: leased to a consumer.
    completed_count: done and still kept. total_count: pending, processing and completed. dead_count: dead
    letters. oldest_pending_seconds: how long ago the oldest pending one was published. priority, tenant: the
    part of a breakdown that is counted. is_estimate: whether counts are estimates (those beyond 10,000; those
    beyond 20 if more than 50 queues have more), or other tenants may have more.

    Counts that a breakdown does not have are None.
    """

    queue_name: str
    pending_count: int
    processing_count: int
    completed_count: int | None
    total_count: int | None
    delayed_count: int
    dead_count: int | None
    oldest_pending_seconds: float | None
    waiting_count: int
    priority: int | None
    tenant: str | None
    is_estimate: bool


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """What a queue did in a step of time, and its counts at the end of the step.

    at: the end of the step. ready_count to dead_count: messages in each state at that time; is_estimate:
    whether one of these counts is an estimate. peak_count: the most ready and waiting messages of the step.
    oldest_seconds: how long the oldest of the first in line has been ready. published_count: messages that
    came in, requeued dead letters among them. completed_count: messages that were acked. failed_count:
    deliveries that failed, were rejected or were lost. buried_count: messages that became dead letters.
    The rates are these per second. wait_, run_: how many seconds completed messages waited, from the time
    they were ready, and how long their last delivery took, within 10 %; None if none was completed.
    """

    at: datetime
    ready_count: int
    waiting_count: int
    delayed_count: int
    processing_count: int
    dead_count: int
    peak_count: int
    is_estimate: bool
    oldest_seconds: float | None
    published_count: int
    completed_count: int
    failed_count: int
    buried_count: int
    published_rate: float
    completed_rate: float
    failed_rate: float
    buried_rate: float
    wait_p50: float | None
    wait_p95: float | None
    wait_p99: float | None
    run_p50: float | None
    run_p95: float | None
    run_p99: float | None


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """The newest sample of a queue, and series for small charts.

    at: when the sample was taken; None if there is none yet. The counts are those of HistoryPoint, the rates
    are per second and of the last minute. The series have a value for each step, oldest first: messages that
    were ready at its end, and rates. series_until: the end of the last step.
    """

    queue_name: str
    at: datetime | None
    ready_count: int
    waiting_count: int
    delayed_count: int
    processing_count: int
    dead_count: int
    is_estimate: bool
    oldest_seconds: float | None
    published_rate: float
    completed_rate: float
    failed_rate: float
    buried_rate: float
    series_until: datetime | None
    ready_series: tuple[int, ...]
    published_series: tuple[float, ...]
    completed_series: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """One failed attempt."""

    attempt: int
    at: datetime
    error: str | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that failed for good: why, and its last ten errors.

    reason: "no_attempts_left", "expired", or "failed" if it was rejected. delivery_attempts: how often it was
    delivered. moved_at: when it became a dead letter. error_key: the kind of its last error, as in
    list_dlq_groups(). cursor: for the next page of list_dlq_messages().
    """

    queue_name: str
    message_id: int
    payload: Json
    delivery_attempts: int
    reason: str
    last_error: str | None
    errors: tuple[ErrorEntry, ...]
    moved_at: datetime
    priority: int
    tenant: str | None
    headers: dict[str, Any]
    published_at: datetime
    error_key: str
    cursor: str


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """A message in a list, with its state and the facts of that state.

    due_at: when a delayed message is delivered. leased_until, consumer: the lease of an active message;
    consumer is a fingerprint of its token. reason, moved_at: of a dead letter. completed_at: of a completed
    message. cursor: for the next page.
    """

    message_id: int
    state: State
    priority: int
    tenant: str | None
    delivery_attempts: int
    published_at: datetime
    due_at: datetime | None
    leased_until: datetime | None
    consumer: str | None
    reason: str | None
    moved_at: datetime | None
    completed_at: datetime | None
    cursor: str


@dataclass(frozen=True, slots=True)
class MessageDetails:
    """All facts about a message, in any state.

    expires_at: when its time to live is over. due_at: when a delayed message is delivered. leased_until,
    claimed_at, consumer: the lease of an active message; consumer is a fingerprint of its token. last_error,
    errors: of its failed attempts, the last ten. reason, moved_at: of a dead letter; error_key: the kind of
    its last error, as in list_dlq_groups(). completed_at, result: of a completed message. payload_bytes: the
    size of the payload, if get_message() was called with most_payload_bytes.
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
    last_error: str | None
    error_key: str | None
    errors: tuple[ErrorEntry, ...]
    moved_at: datetime | None
    completed_at: datetime | None
    result: Json
    headers: dict[str, Any]
    payload: Json
    payload_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MessageResult:
    """The outcome of a message: its state, and its result or its errors.

    last_error, errors: of its failed attempts, the last ten. reason, moved_at: of a dead letter.
    completed_at, result: of a completed message.
    """

    message_id: int
    queue_name: str
    state: State
    delivery_attempts: int
    reason: str | None
    last_error: str | None
    errors: tuple[ErrorEntry, ...]
    moved_at: datetime | None
    completed_at: datetime | None
    result: Json


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """How many dead letters a page had. last_id: the after_id of the next page, None after the last one."""

    affected: int
    last_id: int | None


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What maintain() did: an action, the queue, and the number of rows."""

    action: str
    queue_name: str | None
    affected: int

    @property
    def is_unfinished(self) -> bool:
        """Whether work is left: the caller should call maintain() again at once."""
        return self.action == "unfinished"


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group whose callback has not been sent, and how many of its members are done."""

    id: int
    total: int
    done_count: int
    created_at: datetime
    callback_queue: str
    callback_headers: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ListedSchedule:
    """A message that is sent again and again.

    definition: how its times are computed. missed: what a worker does about times that passed while no worker
    ran. next_at: when it is due next. last_tick: the last time that a message was sent for. paused_at: since
    when it sends nothing; None if it is not paused.
    """

    name: str
    queue_name: str
    payload: Json
    headers: dict[str, Any]
    priority: int
    tenant: str | None
    ttl_seconds: int | None
    definition: Json
    missed: Missed
    next_at: datetime
    last_tick: datetime | None
    paused_at: datetime | None
    created_at: datetime

    def is_overdue(self, now: datetime) -> bool:
        """Whether a time has passed that no worker has acted for. now: by the database's clock."""
        return self.paused_at is None and self.next_at < now - SCHEDULE_GRACE


@dataclass(frozen=True, slots=True)
class ListedWorker:
    """A process that runs tasks, as of its last report.

    consumer: a fingerprint of the token of its leases, as messages show it. concurrency: how many tasks it
    runs at once. seen_at: the time of its last report; is_alive: whether that is less than 30 seconds ago.
    stopping: whether it claims no more. held: how many messages it has claimed. running: its report of the
    running tasks.
    """

    consumer: str
    hostname: str
    pid: int
    version: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    started_at: datetime
    seen_at: datetime
    is_alive: bool
    stopping: bool
    held: int
    running: Json
