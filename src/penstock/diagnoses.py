"""What the diagnose functions return: facts, without a judgement."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

__all__ = [
    "EngineDiagnosis",
    "ErrorDiagnosis",
    "GroupDiagnosis",
    "Holder",
    "LeaseDiagnosis",
    "ParkedDiagnosis",
    "PriorityDiagnosis",
    "QueueDiagnosis",
    "ServerDiagnosis",
    "StatementDiagnosis",
    "TableDiagnosis",
]


@dataclass(frozen=True, slots=True)
class ServerDiagnosis:
    """Facts about the server.

    version: 180001 for 18.1. sees_all_sessions: whether the caller may see what other sessions do.
    reserved_connections: how many of max_connections are for superusers. database_limit, role_limit: None
    for no limit. client_names, client_counts: the programs with the most connections. notify_usage: how full
    the NOTIFY queue is, 0 to 1. oldest_age: of the transactions that oldest_database still has to freeze.
    archive_failed_at: None if the archiver has succeeded since.
    """

    now: datetime
    started_at: datetime
    version: int
    database_name: str
    role_name: str
    pid: int
    is_standby: bool
    is_read_only: bool
    sees_all_sessions: bool
    autovacuum: bool
    track_counts: bool
    max_connections: int
    reserved_connections: int
    used_connections: int
    database_limit: int | None
    database_connections: int
    role_limit: int | None
    role_connections: int
    client_names: tuple[str, ...]
    client_counts: tuple[int, ...]
    notify_usage: float
    oldest_database: str
    oldest_age: int
    oldest_multixact_age: int
    archive_failed_at: datetime | None
    max_locks_per_transaction: int


@dataclass(frozen=True, slots=True)
class Holder:
    """A session, standby, prepared transaction or replication slot that may hold back vacuum or floors.

    kind: "session", "standby", "prepared transaction" or "replication slot". own: the caller's own session.
    name: of a prepared transaction or a slot. held_age: the age, in transactions, of the oldest rows that it
    may still need. holds_vacuum: whether vacuum must keep these rows in the tables of this database.
    catalog_age: the same for the catalog only. advisory_keys: locks of the engine, by queue id; 0: of the
    installer, -1: of maintain(). exclusive_keys: the keys that it holds exclusively. blocked_count,
    blocked_since: how many sessions wait for one of these locks, and since when; None if no session waits.
    locked_tables: tables and indexes of the engine that it blocks for writers. wal_status, retained_bytes: of
    a slot.

    Facts that the caller may not see are None.
    """

    kind: str
    own: bool
    pid: int | None
    name: str | None
    database_name: str | None
    user_name: str | None
    application_name: str | None
    client_address: str | None
    state: str | None
    transaction_started_at: datetime | None
    state_changed_at: datetime | None
    query: str | None
    held_age: int | None
    holds_vacuum: bool
    catalog_age: int | None
    advisory_keys: tuple[int, ...]
    exclusive_keys: tuple[int, ...]
    blocked_count: int | None
    blocked_since: datetime | None
    locked_tables: tuple[str, ...]
    is_active: bool
    wal_status: str | None
    retained_bytes: int | None


@dataclass(frozen=True, slots=True)
class TableDiagnosis:
    """Facts about a table of the engine.

    size_bytes: with indexes, as of its last vacuum. vacuum_threshold: how many dead rows start autovacuum.
    autovacuum: whether it is enabled. frozen_age: of its oldest transactions.
    """

    table_name: str
    size_bytes: int
    live_rows: int
    dead_rows: int
    vacuum_threshold: int
    autovacuum: bool
    vacuumed_at: datetime | None
    analyzed_at: datetime | None
    frozen_age: int


@dataclass(frozen=True, slots=True)
class StatementDiagnosis:
    """How long calls of a function took, from pg_stat_statements; calls is None if that has no figures."""

    function_name: str
    calls: int | None
    mean_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True)
class EngineDiagnosis:
    """Facts about the engine.

    maintained_at: when maintain() last did the chores that are due once a minute (its calls in between are
    not recorded); None: never. installed_at: when this version was installed. clock_offset_seconds: by how
    much penstock.clock() is ahead of the server's clock. clock_body: its source. days_ahead: for how many
    days partitions of the history exist. sequence_name, sequence_used: the most used sequence, and its used
    share, 0 to 1. largest_topic: the topic with the most queues; None if no topic has a queue.
    """

    maintained_at: datetime | None
    installed_at: datetime
    clock_offset_seconds: float
    clock_body: str
    queue_count: int
    days_ahead: int | None
    sequence_name: str | None
    sequence_used: float | None
    largest_topic: str | None
    largest_topic_queue_count: int | None


@dataclass(frozen=True, slots=True)
class QueueDiagnosis:
    """Facts about a queue. Counts stop at 1000.

    ready_count: messages that can be claimed, up to 1000 of each priority. waiting_since: when the oldest of
    them was published. without_permit_count: messages that wait for a permit of their tenant.
    neglected_count, neglected_since: tenants that have a waiting message and a free permit. overdue_count,
    overdue_since: messages that are due and not promoted yet. expired_count, expired_since: expired leases
    that were not taken back yet. active_count: running leases. last_claimed_at, last_settled_at: the latest
    signs of a consumer. dead_last_hour, dead_day_before: dead letters of the last hour, and of the 24 hours
    before (up to 24000). floor_behind: by how many ranks the floor could rise. probe_ms, probe_blocks: the
    cost to find the first message of each priority, as a claim does.

    is_probed: False if there was no time for the probe; the other fields are None then.
    """

    queue_id: int
    queue_name: str
    paused_at: datetime | None
    ready_count: int | None
    waiting_since: datetime | None
    without_permit_count: int | None
    neglected_count: int | None
    neglected_since: datetime | None
    overdue_count: int | None
    overdue_since: datetime | None
    expired_count: int | None
    expired_since: datetime | None
    active_count: int | None
    last_claimed_at: datetime | None
    last_settled_at: datetime | None
    dead_last_hour: int | None
    dead_day_before: int | None
    floor_behind: int | None
    probe_ms: float | None
    probe_blocks: int | None
    is_probed: bool


@dataclass(frozen=True, slots=True)
class ErrorDiagnosis:
    """Causes of dead letters of the last hour: the first line of the newest, and the number of messages."""

    queue_name: str
    reason: str
    error: str | None
    dead_count: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class ParkedDiagnosis:
    """Messages of a task that workers claimed, could not run, and parked for others.

    parked_count: up to 1000. lost_count: how many of them were lost with a worker before. parked_since: when
    the oldest of them was published. next_due_at: when the next one becomes ready without a worker's claim.
    """

    queue_name: str
    task_name: str
    parked_count: int
    lost_count: int
    parked_since: datetime
    next_due_at: datetime


@dataclass(frozen=True, slots=True)
class LeaseDiagnosis:
    """Messages that a live worker has held for a minute or longer and does not run.

    consumer: the worker, as in list_workers(). idle_since: when the first of these messages was claimed.
    """

    consumer: str
    queue_name: str
    idle_count: int
    idle_since: datetime


@dataclass(frozen=True, slots=True)
class PriorityDiagnosis:
    """A priority that has no permit under max_active, and its waiting messages: up to 1000 count."""

    queue_name: str
    priority: int
    ready_count: int
    waiting_since: datetime
    max_active: int
    min_active: int
    priority_shares: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupDiagnosis:
    """A group whose callback has not been sent.

    done_count: how many of its members are done, up to 10000. last_done_at: when the last known member was
    done. dead_count, dead_queue, dead_since: members that are dead letters, their queue, and since when.
    """

    group_id: int
    total: int
    done_count: int
    created_at: datetime
    last_done_at: datetime | None
    callback_queue: str
    has_callback_queue: bool
    dead_count: int
    dead_queue: str | None
    dead_since: datetime | None
