"""For each parameter of each method a value that is right and values that are wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from penstock import Receipt

HUGE = 10**400
NOT_JSON = object()


@dataclass(frozen=True, slots=True)
class Bad:
    """A wrong value, and how the error shows it; None: it tells by the path, or by its type."""

    value: Any
    shown: str | None


@dataclass(frozen=True, slots=True)
class Kind:
    """Parameters that take the same values."""

    valid: Any
    bad: tuple[Bad, ...]


def each(*values: Any) -> tuple[Bad, ...]:
    return tuple(Bad(value, repr(value)) for value in values)


def elements(*values: Any) -> tuple[Bad, ...]:
    """Sequences with one element, which the error shows."""
    return tuple(Bad([value], repr(value)) for value in values)


NAIVE = datetime(2030, 1, 1)

BAD_TEXT = (5, True, b"x", "a\0b", "half \ud800", ["x"])
BAD_INTEGERS = (True, 1.5, "1", math.nan, 2**31, -(2**31) - 1, HUGE)
BAD_BIGINTS = (True, 1.5, "1", math.nan, 2**63, HUGE)
BAD_DURATIONS = (
    *(True, "1", math.nan, math.inf, -1, -0.5, 2**31, HUGE, [1]),
    *(timedelta(seconds=-1), timedelta(microseconds=-1), timedelta.max),
)

TEXT = Kind("name", each(*BAD_TEXT))
INTEGER = Kind(1, each(*BAD_INTEGERS))
BIGINT = Kind(1, each(*BAD_BIGINTS))
NUMBER = Kind(1.5, each(True, "1", HUGE, math.nan, math.inf))
BOOLEAN = Kind(True, each(0, 1, "", "yes"))
DURATION = Kind(1, each(*BAD_DURATIONS))
DURATIONS = Kind([1], (*each(5, "12", b"12", {"a": 1}), *elements(*BAD_DURATIONS)))
INTEGERS = Kind([1], (*each(5, "12", b"12", {1}), *elements(*BAD_INTEGERS)))
BIGINTS = Kind([1], (*each(5, "12", {1}), *elements(*BAD_BIGINTS)))
TEXTS = Kind(["name"], (*each(5, "name", {"name"}), *elements(5, True, b"x", "a\0b", "\ud800")))
MOMENT = Kind(datetime(2030, 1, 1, tzinfo=UTC), each(NAIVE, "2030-01-01", 5, date(2030, 1, 1), True))
MOMENTS = Kind([datetime(2030, 1, 1, tzinfo=UTC)], (*each(5, "12", {NAIVE}), *elements(NAIVE, "x", 5, True)))
CALLBACK = Kind(lambda _number: None, each(5, "print"))
MESSAGE = Kind(Receipt("name", 1, "token"), each("x", 5, None, ("name", 1, "token")))
MESSAGES = Kind([Receipt("name", 1, "token")], (*each(5, "x", None), *elements("x", 5, None)))

BAD_JSON = (math.nan, -math.inf, "a\0b", "\ud800", NOT_JSON, {1: 2}, {"a": {2, 3}}, ["x", b"y"])
HEADERS = Kind(
    {"a": 1},
    (
        *each(5, "x", [1]),
        *(Bad(value, None) for value in ({"a": math.nan}, {1: 2}, {"a": "\0"}, {"\ud800": 1})),
    ),
)
RESULT = Kind(1, tuple(Bad(value, None) for value in (*BAD_JSON, b"x")))
RESULTS = Kind(
    [1], (*each(5, "x"), *(Bad([value], None) for value in BAD_JSON), Bad([1, 2], None), Bad([], None))
)
SOME_RESULTS = Kind([1], (*each(5, "x"), *(Bad([value], None) for value in BAD_JSON)))
PAYLOAD = Kind(1, tuple(Bad(value, None) for value in BAD_JSON))
PAYLOADS = Kind(
    [1],
    tuple(
        Bad(value, None)
        for value in (5, None, "ab", b"ab", bytearray(b"ab"), memoryview(b"ab"), {"a": 1}, NOT_JSON)
    ),
)

SETTINGS = {
    "max_delivery_attempts": INTEGER,
    "visibility_timeout": DURATION,
    "visibility_backoff": NUMBER,
    "retry_delays": DURATIONS,
    "message_ttl": DURATION,
    "retain_completed": DURATION,
    "retain_dead": DURATION,
    "max_payload_bytes": INTEGER,
    "max_active": INTEGER,
    "min_active": INTEGER,
    "priority_shares": INTEGERS,
    "tenant_max_active": INTEGER,
    "notify": BOOLEAN,
}
OPTIONS = {
    "delay": DURATION,
    "deliver_after": MOMENT,
    "priority": INTEGER,
    "tenant": TEXT,
    "headers": HEADERS,
    "ttl": DURATION,
    "dedup_key": TEXT,
}
MANY = {"payloads": PAYLOADS, **OPTIONS, "progress": CALLBACK, "atomic": BOOLEAN}
PAGES = {"page_size": INTEGER, "after": TEXT}
ONE = {"queue_name": TEXT, "message_id": BIGINT}

# The parameters of each method. `model` is not among them: it is whatever msgspec or pydantic know.
METHODS: dict[str, dict[str, Kind]] = {
    "create_topic": {"topic_name": TEXT},
    "delete_topic": {"topic_name": TEXT},
    "list_topics": {},
    "create_queue": {
        **{"queue_name": TEXT, "topic": TEXT, "exclusive": BOOLEAN, "keep_alive": DURATION},
        **SETTINGS,
    },
    "alter_queue": {"queue_name": TEXT, **SETTINGS},
    "pause_queue": {"queue_name": TEXT},
    "resume_queue": {"queue_name": TEXT},
    "extend_queue_keep_alive": {"queue_name": TEXT, "keep_alive": DURATION},
    "delete_queue": {"queue_name": TEXT},
    "list_queues": {},
    "grant_queue": {"role_name": TEXT, "queue_name": TEXT, "right": TEXT},
    "revoke_queue": {"role_name": TEXT, "queue_name": TEXT, "right": TEXT},
    "open_queue": {"queue_name": TEXT},
    "list_grants": {"queue_name": TEXT},
    "publish": {"topic_name": TEXT, "payload": PAYLOAD, **OPTIONS},
    "publish_many": {"topic_name": TEXT, **MANY},
    "send": {"queue_name": TEXT, "payload": PAYLOAD, **OPTIONS},
    "send_many": {"queue_name": TEXT, **MANY},
    "consume_batch": {
        **{"queue_name": TEXT, "batch_size": INTEGER, "visibility_timeout": DURATION, "token": TEXT},
    },
    "consume_tasks": {
        **{"queue_name": TEXT, "batch_size": INTEGER, "visibility_timeout": DURATION, "token": TEXT},
        **{"task_names": TEXTS, "task_limits": INTEGERS, "task_lanes": INTEGERS, "lane_limits": INTEGERS},
        **{"lost_most": INTEGER, "park_others": BOOLEAN},
    },
    "queues_with_work": {"queue_names": TEXTS},
    "park_messages": {"queue_name": TEXT, "message_ids": BIGINTS, "token": TEXT, "task_names": TEXTS},
    "consume_one": {"queue_name": TEXT, "visibility_timeout": DURATION, "token": TEXT},
    "ack": {"message": MESSAGE, "result": RESULT},
    "ack_many": {"messages": MESSAGES, "results": RESULTS},
    "nack": {"message": MESSAGE, "delay": DURATION, "max_attempts": INTEGER},
    "nack_many": {"messages": MESSAGES, "delay": DURATION, "max_attempts": INTEGER},
    "release": {"message": MESSAGE, "delay": DURATION},
    "release_many": {"messages": MESSAGES, "delay": DURATION},
    "reject": {"message": MESSAGE},
    "reject_many": {"messages": MESSAGES},
    "reject_unreadable": {"queue_name": TEXT, "batch_size": INTEGER},
    "extend": {"message": MESSAGE, "extension": DURATION},
    "extend_many": {"messages": MESSAGES, "extension": DURATION},
    "pulse": {"token": TEXT, "visibility_timeout": DURATION, "queue_names": TEXTS, "message_ids": BIGINTS},
    "list_dlq_messages": {"queue_name": TEXT, **PAGES, "newest_first": BOOLEAN, "error_key": TEXT},
    "list_dlq_groups": {"queue_name": TEXT, **PAGES},
    "requeue_dlq_messages": {"queue_name": TEXT, "message_ids": BIGINTS, "error_key": TEXT},
    "delete_dlq_messages": {"queue_name": TEXT, "message_ids": BIGINTS},
    "start_operation": {
        **{"action": TEXT, "queue_name": TEXT, "error_key": TEXT, "per_second": INTEGER},
        **{"with_canary": BOOLEAN, "who": TEXT},
    },
    "advance_operation": {"operation_id": BIGINT, "batch_size": INTEGER},
    "cancel_operation": {"operation_id": BIGINT},
    "get_operation": {"operation_id": BIGINT},
    "list_operations": {"unfinished": BOOLEAN, "page_size": INTEGER, "before_id": BIGINT},
    "list_tenants": {"queue_name": TEXT, **PAGES},
    "list_permits": {"queue_name": TEXT},
    "record_action": {
        **{"action": TEXT, "queue_name": TEXT, "details": RESULT, "outcome": TEXT, "who": TEXT},
    },
    "list_actions": {"queue_name": TEXT, "page_size": INTEGER, "before_id": BIGINT},
    "search_messages": {
        **{"message_id": BIGINT, "queue_name": TEXT, "state": TEXT, "tenant": TEXT, "dedup_key": TEXT},
        **{"task_name": TEXT, "payload_path": TEXTS, "payload_value": TEXT, "page_size": INTEGER},
        "deadline": DURATION,
    },
    "explain_delivery_data": ONE,
    "deliver_message_now": ONE,
    "deliver_messages_now": {"queue_name": TEXT, "message_ids": BIGINTS},
    "add_retries": {"queue_name": TEXT, "attempts": INTEGER, "headers": HEADERS},
    "purge_dlq": {"queue_name": TEXT, "error_key": TEXT},
    "requeue_dlq_page": {
        **{"queue_name": TEXT, "page_size": INTEGER, "after_id": BIGINT, "attempts": INTEGER},
        **{"headers": HEADERS},
    },
    "purge_dlq_page": {"queue_name": TEXT, "page_size": INTEGER, "after_id": BIGINT},
    "get_queue_statistics": {
        **{"queue_name": TEXT, "breakdown": TEXT, "top": INTEGER},
        "completed_since": MOMENT,
    },
    "queue_history": {"queue_name": TEXT, "since": MOMENT, "until": MOMENT, "step": DURATION},
    "overview_history": {"points": INTEGER, "step": DURATION},
    "list_messages": {"queue_name": TEXT, "state": TEXT, **PAGES},
    "get_message": {**ONE, "most_payload_bytes": INTEGER},
    "get_result": ONE,
    "explain_delivery": ONE,
    "cancel_message": ONE,
    "purge_queue": {"queue_name": TEXT},
    "purge_all_messages": {"after_queue_id": BIGINT},
    "cleanup_queue_messages": {"queue_name": TEXT},
    "cleanup_topic_messages": {"topic_name": TEXT},
    "cleanup_expired_exclusive_queues": {},
    "maintain": {"queue_names": TEXTS},
    "sample": {},
    "raise_floor": {"queue_name": TEXT},
    "clock": {},
    "channel": {"queue_name": TEXT},
    "schema_version": {},
    "declare_queue": {"queue_name": TEXT, "max_active": INTEGER, "retain_completed": DURATION},
    "queue_difference": {"queue_name": TEXT, "max_active": INTEGER, "retain_completed": DURATION},
    "ack_tasks": {
        **{"queue_name": TEXT, "message_ids": BIGINTS, "token": TEXT, "results": SOME_RESULTS},
        **{"group_ids": BIGINTS, "positions": INTEGERS},
    },
    "done_channel": {"queue_name": TEXT},
    "announce_done": {"queue_name": TEXT, "message_ids": BIGINTS},
    "create_group": {
        **{"total": INTEGER, "callback_queue": TEXT, "callback_payload": RESULT, "headers": HEADERS},
        **{"priority": INTEGER, "tenant": TEXT, "ttl": DURATION, "with_results": BOOLEAN},
        "keep": DURATION,
    },
    "finish_groups": {"group_ids": BIGINTS},
    "list_groups": {},
    "delete_group": {"group_id": BIGINT},
    "put_schedule": {
        **{"name": TEXT, "queue_name": TEXT, "payload": RESULT, "definition": RESULT, "next_at": MOMENT},
        **{"missed": TEXT, "headers": HEADERS, "priority": INTEGER, "tenant": TEXT, "ttl": DURATION},
    },
    "advance_schedule": {"name": TEXT, "expected": MOMENT, "next_at": MOMENT, "ticks": MOMENTS},
    "pause_schedule": {"name": TEXT},
    "resume_schedule": {"name": TEXT, "next_at": MOMENT},
    "run_schedule": {"name": TEXT},
    "delete_schedule": {"name": TEXT},
    "list_schedules": {},
    "register_worker": {
        **{"token": TEXT, "hostname": TEXT, "pid": INTEGER, "version": TEXT},
        **{"queues": TEXTS, "tasks": TEXTS, "concurrency": INTEGER},
    },
    "beat_worker": {"token": TEXT, "held": INTEGER, "running": RESULT, "stopping": BOOLEAN},
    "forget_worker": {"token": TEXT},
    "list_workers": {},
    "diagnose_server": {},
    "diagnose_holders": {},
    "diagnose_tables": {},
    "diagnose_statements": {},
    "diagnose_engine": {},
    "diagnose_queues": {},
    "diagnose_errors": {},
    "diagnose_parked": {},
    "diagnose_leases": {},
    "diagnose_priorities": {},
    "diagnose_groups": {},
}

CONSUME = {
    "queue_name": TEXT,
    "batch_size": INTEGER,
    "wait": DURATION,
    "visibility_timeout": DURATION,
    "auto_extend": BOOLEAN,
    "reraise": BOOLEAN,
}

CLIENT = {
    # Not shown: there may be a password in it.
    "dsn": Kind(None, (Bad(5, None), Bad(b"host=nowhere", None), Bad("no=such=thing", None))),
    "listen_dsn": Kind(None, (Bad(5, None), Bad(b"host=nowhere", None), Bad("no=such=thing", None))),
    "max_connections": Kind(1, each(True, 0, -1, 1.5, "1", math.nan)),
    "connection_timeout": DURATION,
    "call_timeout": Kind(1, (*DURATION.bad, *each(0))),
    "retry_for": DURATION,
    "maintain": BOOLEAN,
    "install": BOOLEAN,
}

# Text that is to be stored whatever is in it, and the model of a payload: there is no wrong one.
FREE = {"error", "model"}

# Of the parameters without a default: None is JSON null, or among the wrong values above.
NONE_IS_A_VALUE = {
    *("payload", "payloads", "message", "messages", "callback_payload", "definition", "running"),
}


def arguments(kinds: dict[str, Kind]) -> dict[str, Any]:
    """Right values for all parameters; those that exclude each other are left out."""
    return {name: kind.valid for name, kind in kinds.items() if name not in ("delay", "deliver_after")}


def parameters() -> Iterator[tuple[str, str]]:
    """Each parameter of each method."""
    for method, kinds in METHODS.items():
        for name in kinds:
            yield method, name
