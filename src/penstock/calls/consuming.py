"""Calls of a consumer: it claims, settles, and keeps its leases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from penstock import rows
from penstock.models import Receipt, UnreadableMessage
from penstock.payloads import Stored, encode_json
from penstock.sql_call import PAYLOAD_AS_TEXT, Call, Repeat, Row, call
from penstock.values import Duration, seconds

from .parsing import value, values

__all__ = [
    "Claimed",
    "Extended",
    "Held",
    "Parked",
    "ack_message",
    "ack_messages",
    "ack_messages_of",
    "batch_extend_message_vt",
    "claim_tasks",
    "consume_messages_batch",
    "consume_tasks",
    "extend_message_vt",
    "nack_message",
    "nack_messages",
    "park_messages",
    "pulse",
    "queues_with_work",
    "reject_message",
    "reject_messages",
    "reject_unreadable_messages",
    "release_message",
    "release_messages",
    "storable",
]


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
    # Deliveries in a row that ended because the lease ran out; whether the queue has max_active.
    lost_deliveries: int = 0
    queue_capped: bool = False


LEASE_SECONDS = rows.seconds("vt operator(pg_catalog.-) penstock.clock()")

CLAIMED = (
    f"message_id, queue_name, {PAYLOAD_AS_TEXT}, body, cast(headers as pg_catalog.text), "
    "consumer_token, "
    f"delivery_attempts, {rows.epoch_of_now('vt')}, {rows.epoch_of_now('published_at')}, "
    f"priority, tenant, {LEASE_SECONDS}, attempts_limit, lost_deliveries, queue_capped"
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


# Consume


def consume_messages_batch(
    queue_name: str, token: str | None, visibility_timeout: Duration | None, batch_size: int
) -> Call[list[Claimed]]:
    # Called again after a lost connection, it claims other messages: the first ones come back when their
    # leases end. Not retried with a token of the caller: pulse(token) would extend leases on messages that
    # the caller never received.
    return _consume("consume_messages_batch", queue_name, token, visibility_timeout, batch_size)


def consume_tasks(
    queue_name: str,
    task_names: Sequence[str],
    token: str | None,
    visibility_timeout: Duration | None,
    batch_size: int,
    **limits: Any,
) -> Call[list[Claimed]]:
    names = {"task_names": task_names, **limits}
    return _consume("consume_tasks", queue_name, token, visibility_timeout, batch_size, **names)


def _consume(
    function: str,
    queue_name: str,
    token: str | None,
    visibility_timeout: Duration | None,
    batch_size: int,
    **arguments: Any,
) -> Call[list[Claimed]]:
    claim = call(
        function,
        _claimed,
        CLAIMED,
        Repeat.SAFE if token is None else Repeat.NEVER,
        queue_name=queue_name,
        consumer_token=token,
        vt_seconds=seconds("visibility_timeout", visibility_timeout),
        batch_size=batch_size,
        **arguments,
    )
    return _with_remedy(claim, queue_name, batch_size)


def _with_remedy(claim: Call[list[Claimed]], queue_name: str, batch_size: int) -> Call[list[Claimed]]:
    remedy = partial(reject_unreadable_messages, queue_name, batch_size)
    return Call(claim.function, claim.text, claim.parameters, claim.parse, claim.repeat, remedy)


def reject_unreadable_messages(queue_name: str, batch_size: int) -> Call[list[UnreadableMessage]]:
    return call(
        "reject_unreadable_messages",
        rows.UNREADABLE_MESSAGE.read,
        rows.UNREADABLE_MESSAGE.sql,
        queue_name=queue_name,
        batch_size=batch_size,
    )


class Parked(NamedTuple):
    """Which parked messages a claim should return: of which tasks, how many of each task and of each lane.

    lost_most: how many messages that were lost with a worker. park_others: park messages of all other tasks.
    """

    task_names: list[str]
    task_limits: list[int]
    task_lanes: list[int]
    lane_limits: list[int]
    lost_most: int
    park_others: bool


TASK = (
    f"message_id, {PAYLOAD_AS_TEXT}, body, cast(headers as pg_catalog.text), "
    f"delivery_attempts, {rows.epoch_of_now('published_at')}, priority, tenant, attempts_limit, "
    "lost_deliveries, queue_capped"
)


def queues_with_work(queue_names: Sequence[str]) -> Call[list[str]]:
    return call("queues_with_work", values, queue_names=queue_names)


def claim_tasks(
    queue_name: str,
    token: str,
    lease: float,
    batch_size: int,
    *,
    parked: Parked | None = None,
) -> Call[list[Claimed]]:
    """consume_messages_batch() for a worker. Columns that the worker knows by itself are not sent back."""

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
                lost,
                capped,
            )
            for (
                message_id,
                stored,
                body,
                headers,
                attempt,
                published_at,
                priority,
                tenant,
                limit,
                lost,
                capped,
            ) in found
        ]

    claim = call(
        "consume_messages_batch" if parked is None else "consume_tasks",
        read,
        TASK,
        queue_name=queue_name,
        consumer_token=token,
        vt_seconds=seconds("lease", lease),
        batch_size=batch_size,
        **({} if parked is None else parked._asdict()),
    )
    return _with_remedy(claim, queue_name, batch_size)


# Settle


class Held(NamedTuple):
    """Messages of one queue, and the token that holds all of them, or one token for each."""

    message_ids: Sequence[int]
    token: str | Sequence[str]

    @classmethod
    def by(cls, receipts: Sequence[Receipt]) -> Held:
        return cls([receipt.message_id for receipt in receipts], [receipt.token for receipt in receipts])


def ack_message(receipt: Receipt, result: object = None) -> Call[bool]:
    return _settle("ack_message", receipt, result=None if result is None else encode_json(result, "result"))


def ack_messages(
    queue_name: str, receipts: Sequence[Receipt], results: Sequence[object] | None = None
) -> Call[list[int]]:
    texts = [None if result is None else encode_json(result, "result") for result in results or ()]
    return _settle_many("ack_messages", queue_name, Held.by(receipts), results=_unless_null(texts))


def ack_messages_of(queue_name: str, message_ids: Sequence[int], token: str) -> Call[list[int]]:
    """Of one token."""
    return _settle_many("ack_messages", queue_name, Held(message_ids, token))


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


def park_messages(
    queue_name: str, message_ids: Sequence[int], token: str, task_names: Sequence[str]
) -> Call[list[int]]:
    return call(
        "park_messages",
        values,
        "*",
        Repeat.DOUBTFUL,
        queue_name=queue_name,
        message_ids=message_ids,
        token=token,
        task_names=task_names,
    )


def nack_messages(
    queue_name: str,
    held: Held,
    delays: Sequence[Duration | None],
    errors: Sequence[str | None],
    max_attempts: Sequence[int | None],
) -> Call[list[int]]:
    """delays, errors, max_attempts: one for each message, or None where the queue's own setting counts."""
    return _settle_many(
        "nack_messages",
        queue_name,
        held,
        delays=_unless_null([seconds("delay", delay) for delay in delays]),
        errors=_unless_null([storable(error) for error in errors]),
        max_attempts=_unless_null(max_attempts),
    )


def release_messages(queue_name: str, held: Held, delays: Sequence[Duration | None] = ()) -> Call[list[int]]:
    """delays: one for each message."""
    return _settle_many(
        "release_messages",
        queue_name,
        held,
        delays=_unless_null([seconds("delay", delay) for delay in delays]),
    )


def reject_messages(queue_name: str, held: Held, errors: Sequence[str | None]) -> Call[list[int]]:
    """errors: one for each message."""
    return _settle_many(
        "reject_messages", queue_name, held, errors=_unless_null([storable(error) for error in errors])
    )


def reject_message(receipt: Receipt, error: str | None) -> Call[bool]:
    return _settle("reject_message", receipt, error=storable(error))


def _settle(function: str, receipt: Receipt, **arguments: Any) -> Call[bool]:
    return call(
        function,
        value,
        "*",
        Repeat.DOUBTFUL,
        queue_name=receipt.queue_name,
        message_id=receipt.message_id,
        token=receipt.token,
        **arguments,
    )


def _settle_many(function: str, queue_name: str, held: Held, **arguments: Any) -> Call[list[int]]:
    """The result: ids of the messages that the tokens held."""
    message_ids, token = held
    one = {"same_token": (token, str(len(message_ids)))} if isinstance(token, str) else {"tokens": token}
    return call(
        function,
        values,
        "*",
        Repeat.DOUBTFUL,
        queue_name=queue_name,
        message_ids=message_ids,
        **one,
        **arguments,
    )


def _unless_null(elements: Sequence[Any]) -> Sequence[Any] | None:
    """An array argument; None, which leaves the argument out, where every element is null."""
    return elements if any(element is not None for element in elements) else None


def storable(error: str | None) -> str | None:
    """The text of an error, with characters replaced that PostgreSQL cannot store."""
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
    *,
    within: float = math.inf,
) -> Call[list[Extended]]:
    """lock_timeout: fail where it would wait longer for a message that another session is settling.

    within: an answer that comes later is of no use.
    """
    holder: dict[str, Any] = {"token": token}
    if lock_timeout is not None:
        holder = {"patient_token": (token, str(round(lock_timeout * 1000)))}
    extend = call(
        "batch_extend_message_vt",
        _extended,
        f"message_id, {rows.epoch_of_now('vt')}, {LEASE_SECONDS}",
        queue_name=queue_name,
        message_ids=message_ids,
        **holder,
        extension_seconds=seconds("extension", extension),
    )
    return extend if within == math.inf else msgspec.structs.replace(extend, within=within)


def pulse(
    token: str,
    visibility_timeout: Duration,
    queue_names: Sequence[str] | None,
    message_ids: Sequence[int] | None = None,
) -> Call[int]:
    return call(
        "pulse",
        value,
        token=token,
        vt_seconds=seconds("visibility_timeout", visibility_timeout),
        queue_names=queue_names,
        message_ids=message_ids,
    )
