"""Every function of the schema as a typed call. A Python method that does the same carries the same verb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from . import rows
from .diagnoses import (
    EngineDiagnosis,
    ErrorDiagnosis,
    Holder,
    QueueDiagnosis,
    ServerDiagnosis,
    StatementDiagnosis,
    TableDiagnosis,
)
from .errors import InvalidArgument
from .models import (
    Breakdown,
    DeadLetter,
    GroupProgress,
    ListedMessage,
    ListedSchedule,
    ListedWorker,
    MaintenanceResult,
    MessageDetails,
    Missed,
    QueueSettings,
    QueueStatistics,
    Receipt,
    State,
    Topic,
)
from .outgoing import Batch, Options, encode_headers
from .payloads import Stored, encode_json
from .schema import SchemaVersion
from .statements import NULL, Call, Repeat, Row, call, call_each
from .values import NORMAL, Duration, moment, seconds


class Claimed(NamedTuple):
    """A message as it was claimed, its payload still as stored."""

    message_id: int
    queue_name: str
    stored: Stored
    headers: str | None
    token: str
    attempt: int
    leased_until: int
    published_at: int
    priority: int
    tenant: str | None
    lease_seconds: float
    attempts_limit: int | None


LEASE_SECONDS = rows.seconds("vt - penstock.clock()")

CLAIMED = (
    "message_id, queue_name, cast(payload as text), body, cast(headers as text), consumer_token, "
    f"delivery_attempts, {rows.epoch_of_now('vt')}, {rows.epoch_of_now('published_at')}, "
    f"priority, tenant, {LEASE_SECONDS}, attempts_limit"
)


def _claimed(found: Sequence[Row]) -> list[Claimed]:
    return [Claimed(row[0], row[1], row[2] if row[3] is None else bytes(row[3]), *row[4:]) for row in found]


class Extended(NamedTuple):
    """A lease that was extended: until when, and how many seconds that is from now."""

    message_id: int
    leased_until: int
    lease_seconds: float


def _extended(found: Sequence[Row]) -> list[Extended]:
    return [Extended(*row) for row in found]


def _value(found: Sequence[Row]) -> Any:
    return found[0][0]


def _values(found: Sequence[Row]) -> list[Any]:
    return [row[0] for row in found]


def _nothing(_found: Sequence[Row]) -> None:
    return None


def _moment(found: Sequence[Row]) -> datetime:
    at: datetime = rows.moment(found[0][0])
    return at


# Topics


def create_topic(topic_name: str) -> Call[int]:
    return call("create_topic", _value, topic_name=topic_name)


def delete_topic(topic_name: str) -> Call[None]:
    return call("delete_topic", _nothing, "*", Repeat.NEVER, topic_name=topic_name)


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
        _value,
        queue_name=queue_name,
        topic_name=topic,
        exclusive=None if exclusive is False else exclusive,
        keep_alive_seconds=seconds("keep_alive", keep_alive),
        **_queue_settings(**settings),
    )


def alter_queue(queue_name: str, **settings: Any) -> Call[None]:
    return call("alter_queue", _nothing, queue_name=queue_name, **_queue_settings(**settings))


def _queue_settings(
    *,
    visibility_timeout: Duration | None,
    retry_delays: Sequence[Duration] | None,
    message_ttl: Duration | None,
    retain_completed: Duration | None,
    retain_dead: Duration | None,
    **others: Any,
) -> dict[str, Any]:
    if retry_delays is not None and not isinstance(retry_delays, list | tuple):
        raise InvalidArgument(f"retry_delays must be a list of durations, not {retry_delays!r}")
    delays = None if retry_delays is None else [seconds("retry_delays", delay) for delay in retry_delays]
    return {
        "visibility_timeout_seconds": seconds("visibility_timeout", visibility_timeout),
        "retry_delays": delays,
        "message_ttl_seconds": seconds("message_ttl", message_ttl),
        "retain_completed_seconds": seconds("retain_completed", retain_completed),
        "retain_dead_seconds": seconds("retain_dead", retain_dead),
        **others,
    }


def pause_queue(queue_name: str) -> Call[None]:
    return call("pause_queue", _nothing, queue_name=queue_name)


def resume_queue(queue_name: str) -> Call[None]:
    return call("resume_queue", _nothing, queue_name=queue_name)


def extend_queue_keep_alive(queue_name: str, keep_alive: Duration) -> Call[datetime]:
    return call(
        "extend_queue_keep_alive",
        _moment,
        rows.epoch("extend_queue_keep_alive"),
        queue_name=queue_name,
        keep_alive_seconds=seconds("keep_alive", keep_alive),
    )


def delete_queue(queue_name: str) -> Call[None]:
    return call("delete_queue", _nothing, "*", Repeat.NEVER, queue_name=queue_name)


def list_queues() -> Call[list[QueueSettings]]:
    return call("list_queues", rows.QUEUE_SETTINGS.read, rows.QUEUE_SETTINGS.sql)


def declare_queue(queue_name: str, max_active: int | None, retain_completed: Duration | None) -> Call[int]:
    return call(
        "declare_queue",
        _value,
        queue_name=queue_name,
        max_active=max_active,
        retain_completed_seconds=seconds("retain_completed", retain_completed),
    )


# Publish and send


def publish_message(topic_name: str, stored: Stored, options: Options) -> Call[int]:
    return _one("publish_message", stored, options, topic_name=topic_name)


def send_message(queue_name: str, stored: Stored, options: Options) -> Call[int]:
    return _one("send_message", stored, options, queue_name=queue_name)


def _one(function: str, stored: Stored, options: Options, **target: str) -> Call[int]:
    is_json = isinstance(stored, str)
    return call(
        function,
        _value,
        "*",
        Repeat.NEVER if options.dedup_key is None else Repeat.SAFE,
        **target,
        payload=stored if is_json else NULL,
        body=None if is_json else stored,
        **options.arguments(),
    )


def publish_messages(topic_name: str, batch: Batch, options: Options) -> Call[list[int]]:
    return _many("publish_messages", batch, options, topic_name=topic_name)


def send_messages(queue_name: str, batch: Batch, options: Options) -> Call[list[int]]:
    return _many("send_messages", batch, options, queue_name=queue_name)


def _many(function: str, batch: Batch, options: Options, **target: str) -> Call[list[int]]:
    keyed = options.dedup_key is not None or all(own and own.dedup_key for own in batch.own)
    return call(
        function,
        _values,
        "*",
        Repeat.SAFE if keyed else Repeat.NEVER,
        **target,
        **batch.arguments(),
        **options.arguments(),
    )


# Consume


def consume_messages_batch(
    queue_name: str, token: str | None, visibility_timeout: Duration | None, batch_size: int
) -> Call[list[Claimed]]:
    # Called again after a lost connection it claims others: those that were claimed before come back.
    return call(
        "consume_messages_batch",
        _claimed,
        CLAIMED,
        queue_name=queue_name,
        consumer_token=token,
        vt_seconds=seconds("visibility_timeout", visibility_timeout),
        batch_size=batch_size,
    )


TASK = (
    "message_id, cast(payload as text), body, cast(headers as text), delivery_attempts, "
    f"{rows.epoch_of_now('published_at')}, priority, tenant, attempts_limit"
)


def claim_tasks(queue_name: str, token: str, lease: float, batch_size: int) -> Call[list[Claimed]]:
    """consume_messages_batch() for a worker, which keeps leases itself: what it knows does not come back."""

    def read(found: Sequence[Row]) -> list[Claimed]:
        return [
            Claimed(
                message_id,
                queue_name,
                stored if body is None else bytes(body),
                headers,
                token,
                attempt,
                0,
                published_at,
                priority,
                tenant,
                lease,
                limit,
            )
            for message_id, stored, body, headers, attempt, published_at, priority, tenant, limit in found
        ]

    return call(
        "consume_messages_batch",
        read,
        TASK,
        queue_name=queue_name,
        consumer_token=token,
        vt_seconds=seconds("lease", lease),
        batch_size=batch_size,
    )


# Settle


def ack_message(receipt: Receipt, result: object = None) -> Call[bool]:
    return _settle("ack_message", receipt, result=None if result is None else encode_json(result, "result"))


def ack_messages(
    queue_name: str, receipts: Sequence[Receipt], results: Sequence[object] | None = None
) -> Call[list[int]]:
    texts = [None if result is None else encode_json(result, "result") for result in results or ()]
    return call(
        "ack_messages",
        _values,
        "*",
        Repeat.DOUBTFUL,
        queue_name=queue_name,
        message_ids=[receipt.message_id for receipt in receipts],
        tokens=[receipt.token for receipt in receipts],
        results=texts if any(text is not None for text in texts) else None,
    )


def ack_messages_of(queue_name: str, message_ids: Sequence[int], token: str) -> Call[list[int]]:
    """Of one token."""
    return call(
        "ack_messages",
        _values,
        "*",
        Repeat.DOUBTFUL,
        queue_name=queue_name,
        message_ids=message_ids,
        same_token=(token, str(len(message_ids))),
    )


def nack_message(
    receipt: Receipt, delay: Duration | None, error: str | None, max_attempts: int | None = None
) -> Call[bool]:
    return _settle(
        "nack_message",
        receipt,
        delay_seconds=seconds("delay", delay),
        error=storable(error),
        max_attempts=max_attempts,
    )


def release_message(receipt: Receipt, delay: Duration | None = None) -> Call[bool]:
    return _settle("release_message", receipt, delay_seconds=seconds("delay", delay))


def release_messages(queue_name: str, message_ids: Sequence[int], token: str) -> Call[list[bool]]:
    return call_each("release_message", _values, Repeat.SAFE, message_ids, queue_name=queue_name, token=token)


def reject_message(receipt: Receipt, error: str | None) -> Call[bool]:
    return _settle("reject_message", receipt, error=storable(error))


def _settle(function: str, receipt: Receipt, **arguments: Any) -> Call[bool]:
    return call(
        function,
        _value,
        "*",
        Repeat.DOUBTFUL,
        queue_name=receipt.queue_name,
        message_id=receipt.message_id,
        token=receipt.token,
        **arguments,
    )


def storable(error: str | None) -> str | None:
    """The text of an error, whatever is in it: better told with a replaced character than not at all."""
    if error is None:
        return None
    return str(error).replace("\0", "\ufffd").encode("utf-8", "replace").decode()


# Leases


def extend_message_vt(receipt: Receipt, extension: Duration) -> Call[list[Extended]]:
    return batch_extend_message_vt(receipt.queue_name, [receipt.message_id], receipt.token, extension)


def batch_extend_message_vt(
    queue_name: str,
    message_ids: Sequence[int],
    token: str,
    extension: Duration,
    lock_timeout: float | None = None,
) -> Call[list[Extended]]:
    """lock_timeout: fail where it would wait longer for a message that somebody is settling."""
    holder: dict[str, Any] = {"token": token}
    if lock_timeout is not None:
        holder = {"patient_token": (token, str(round(lock_timeout * 1000)))}
    return call(
        "batch_extend_message_vt",
        _extended,
        f"message_id, {rows.epoch_of_now('vt')}, {LEASE_SECONDS}",
        queue_name=queue_name,
        message_ids=message_ids,
        **holder,
        extension_seconds=seconds("extension", extension),
    )


def pulse(token: str, visibility_timeout: Duration, queue_names: Sequence[str] | None) -> Call[int]:
    return call(
        "pulse",
        _value,
        token=token,
        vt_seconds=seconds("visibility_timeout", visibility_timeout),
        queue_names=queue_names,
    )


# Dead letters


def list_dlq_messages(
    queue_name: str | None, page_size: int | None, after: str | None, newest_first: bool = False
) -> Call[list[DeadLetter]]:
    return call(
        "list_dlq_messages",
        rows.DEAD_LETTER.read,
        rows.DEAD_LETTER.sql,
        queue_name=queue_name,
        page_size=page_size,
        after=after,
        newest_first=None if newest_first is False else newest_first,
    )


def requeue_dlq_messages(queue_name: str, message_ids: Sequence[int] | None) -> Call[int]:
    return call(
        "requeue_dlq_messages", _value, "*", Repeat.NEVER, queue_name=queue_name, message_ids=message_ids
    )


def add_retries(queue_name: str, attempts: int, headers: Mapping[str, Any] | None = None) -> Call[int]:
    return call(
        "add_retries",
        _value,
        "*",
        Repeat.NEVER,
        queue_name=queue_name,
        attempts=attempts,
        headers=encode_headers(headers),
    )


def purge_dlq(queue_name: str | None) -> Call[int]:
    return call("purge_dlq", _value, "*", Repeat.NEVER, queue_name=queue_name)


# Statistics and looking in


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


def get_message(queue_name: str, message_id: int) -> Call[MessageDetails | None]:
    def first(found: Sequence[Row]) -> MessageDetails | None:
        return rows.MESSAGE_DETAILS.read(found)[0] if found else None

    return call("get_message", first, rows.MESSAGE_DETAILS.sql, queue_name=queue_name, message_id=message_id)


def explain_delivery(queue_name: str, message_id: int) -> Call[str]:
    return call("explain_delivery", _value, queue_name=queue_name, message_id=message_id)


# Cleanup


def cancel_message(queue_name: str, message_id: int) -> Call[bool]:
    return call("cancel_message", _value, "*", Repeat.DOUBTFUL, queue_name=queue_name, message_id=message_id)


def purge_queue(queue_name: str) -> Call[int]:
    return call("purge_queue", _value, "*", Repeat.NEVER, queue_name=queue_name)


def purge_all_messages() -> Call[None]:
    return call("purge_all_messages", _nothing, "*", Repeat.NEVER)


def cleanup_queue_messages(queue_name: str) -> Call[int]:
    return call("cleanup_queue_messages", _value, "*", Repeat.NEVER, queue_name=queue_name)


def cleanup_topic_messages(topic_name: str) -> Call[int]:
    return call("cleanup_topic_messages", _value, "*", Repeat.NEVER, topic_name=topic_name)


def cleanup_expired_exclusive_queues() -> Call[int]:
    return call("cleanup_expired_exclusive_queues", _value, "*", Repeat.NEVER)


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
        _values,
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
    """Results as JSON; none at all where there is none."""
    if results is None:
        return None
    if isinstance(results, str | bytes) or not isinstance(results, Sequence):
        raise InvalidArgument(f"results must be a sequence, not {results!r}")
    texts = [None if result is None else encode_json(result, "result") for result in results]
    return texts if not texts or any(text is not None for text in texts) else None


def done_channel(queue_name: str) -> Call[str]:
    return call("done_channel", _value, queue_name=queue_name)


def announce_done(queue_name: str, message_ids: Sequence[int]) -> Call[None]:
    return call("announce_done", _nothing, queue_name=queue_name, message_ids=message_ids)


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
) -> Call[int]:
    return call(
        "create_group",
        _value,
        "*",
        Repeat.NEVER,
        total=total,
        callback_queue=callback_queue,
        callback_payload=encode_json(callback_payload, "callback_payload"),
        callback_headers=_given(encode_headers(headers)),
        priority=priority,
        tenant=tenant,
        ttl_seconds=seconds("ttl", ttl),
        with_results=with_results,
    )


def finish_groups(group_ids: Sequence[int] | None) -> Call[list[int]]:
    return call("finish_groups", _values, group_ids=group_ids)


def list_groups() -> Call[list[GroupProgress]]:
    return call("list_groups", rows.GROUP_PROGRESS.read, rows.GROUP_PROGRESS.sql)


def delete_group(group_id: int) -> Call[bool]:
    return call("delete_group", _value, "*", Repeat.DOUBTFUL, group_id=group_id)


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
        _moment,
        rows.epoch("put_schedule"),
        name=name,
        queue_name=queue_name,
        payload=encode_json(payload),
        headers=_given(encode_headers(headers)),
        priority=NORMAL if priority is None else priority,
        tenant=_given(tenant),
        ttl_seconds=_given(seconds("ttl", ttl)),
        definition=encode_json(definition, "definition"),
        missed=missed,
        next_at=moment("next_at", next_at),
    )


def advance_schedule(
    name: str, expected: datetime, next_at: datetime, ticks: Sequence[datetime]
) -> Call[list[int]]:
    if isinstance(ticks, str | bytes) or not isinstance(ticks, Sequence):
        raise InvalidArgument(f"ticks must be a sequence of datetimes, not {ticks!r}")
    # Called again after a lost connection it finds that it was moved: nothing is sent twice.
    return call(
        "advance_schedule",
        _values,
        name=name,
        expected=moment("expected", expected),
        next_at=moment("next_at", next_at),
        ticks=[moment("ticks", tick) for tick in ticks],
    )


def pause_schedule(name: str) -> Call[None]:
    return call("pause_schedule", _nothing, name=name)


def resume_schedule(name: str, next_at: datetime | None) -> Call[None]:
    return call("resume_schedule", _nothing, name=name, next_at=moment("next_at", next_at))


def run_schedule(name: str) -> Call[int]:
    return call("run_schedule", _value, "*", Repeat.NEVER, name=name)


def delete_schedule(name: str) -> Call[bool]:
    return call("delete_schedule", _value, "*", Repeat.DOUBTFUL, name=name)


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
        _nothing,
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
        _value,
        token=token,
        held=held,
        running=encode_json(running, "running"),
        stopping=stopping,
    )


def forget_worker(token: str) -> Call[bool]:
    return call("forget_worker", _value, "*", Repeat.DOUBTFUL, token=token)


def list_workers() -> Call[list[ListedWorker]]:
    return call("list_workers", rows.LISTED_WORKER.read, rows.LISTED_WORKER.sql)


# Diagnosis


def diagnose_server() -> Call[ServerDiagnosis]:
    columns = rows.SERVER_DIAGNOSIS
    return call("diagnose_server", lambda found: columns.read(found)[0], columns.sql)


def diagnose_holders() -> Call[list[Holder]]:
    return call("diagnose_holders", rows.HOLDER.read, rows.HOLDER.sql)


def diagnose_tables() -> Call[list[TableDiagnosis]]:
    return call("diagnose_tables", rows.TABLE_DIAGNOSIS.read, rows.TABLE_DIAGNOSIS.sql)


def diagnose_statements() -> Call[list[StatementDiagnosis]]:
    return call("diagnose_statements", rows.STATEMENT_DIAGNOSIS.read, rows.STATEMENT_DIAGNOSIS.sql)


def diagnose_engine() -> Call[EngineDiagnosis]:
    columns = rows.ENGINE_DIAGNOSIS
    return call("diagnose_engine", lambda found: columns.read(found)[0], columns.sql)


def diagnose_queues() -> Call[list[QueueDiagnosis]]:
    return call("diagnose_queues", rows.QUEUE_DIAGNOSIS.read, rows.QUEUE_DIAGNOSIS.sql)


def diagnose_errors() -> Call[list[ErrorDiagnosis]]:
    return call("diagnose_errors", rows.ERROR_DIAGNOSIS.read, rows.ERROR_DIAGNOSIS.sql)


def _given(value: Any) -> Any:
    """For a parameter without a default: None is null there, not left out."""
    return NULL if value is None else value


# The session itself


class Session(NamedTuple):
    """What a client has to know of a connection."""

    pid: int
    isolation: str
    client_min_messages: str
    database: str


SET_READ_COMMITTED = "set default_transaction_isolation = 'read committed'"
SET_WARNINGS = "set client_min_messages = warning"
SET_ASYNCHRONOUS = "set synchronous_commit = off"
PROBE = "select 1"
# Writes a few bytes of WAL, and nothing else: what is left is the wait for the disk.
SMALLEST_COMMIT = "select pg_catalog.pg_logical_emit_message(true, 'penstock', '')"


def session() -> Call[Session]:
    text = (
        "select pg_catalog.pg_backend_pid(), pg_catalog.current_setting('default_transaction_isolation'), "
        "pg_catalog.current_setting('client_min_messages'), pg_catalog.current_database()"
    )
    return Call("session", text, (), lambda found: Session(*found[0]), Repeat.SAFE)


class Presence(NamedTuple):
    """What any server tells anybody, with a schema or without."""

    pid: int
    database: str
    role: str
    at: float


def presence() -> Call[Presence]:
    text = (
        "select pg_catalog.pg_backend_pid(), pg_catalog.current_database(), cast(current_user as text), "
        "pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())"
    )
    return Call("presence", text, (), lambda found: Presence(*found[0]), Repeat.SAFE)


def limit_transaction(statement_seconds: float, lock_seconds: float) -> Call[None]:
    """Let nothing in this transaction take longer, nor wait longer for a lock."""
    text = (
        "select pg_catalog.set_config('statement_timeout', %s, true), "
        "pg_catalog.set_config('lock_timeout', %s, true)"
    )
    limits = (str(round(statement_seconds * 1000)), str(round(lock_seconds * 1000)))
    return Call("limit_transaction", text, limits, _nothing, Repeat.SAFE)


def listen(channel_name: str) -> str:
    return f"listen {_quoted(channel_name)}"


def unlisten(channel_name: str) -> str:
    return f"unlisten {_quoted(channel_name)}"


def _quoted(name: str) -> str:
    """A name as it stands in a statement that takes no parameters."""
    return '"' + name.replace('"', '""') + '"'


# Now and then, and the rest


def maintain() -> Call[list[MaintenanceResult]]:
    return call("maintain", rows.MAINTENANCE_RESULT.read, rows.MAINTENANCE_RESULT.sql)


def raise_floor(queue_name: str) -> Call[bool]:
    return call("raise_floor", _value, queue_name=queue_name)


def clock() -> Call[datetime]:
    return call("clock", _moment, rows.epoch("clock"))


def channel(queue_name: str) -> Call[str]:
    return call("channel", _value, queue_name=queue_name)


def schema_version() -> Call[SchemaVersion]:
    def read(found: Sequence[Row]) -> SchemaVersion:
        package_version, migration, digest, installed_at = found[0]
        return SchemaVersion(package_version, migration, digest, rows.moment(installed_at))

    columns = f"package_version, migration, digest, {rows.epoch('installed_at')}"
    return call("schema_version", read, columns)
