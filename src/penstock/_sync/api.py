# Written by tools/unasync.py from src/penstock/_async/api.py: change that, run `make generate`.

"""The calls, over whatever carries them: a client's own connections, or somebody's transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, overload

from penstock import calls, rows
from penstock.calls import Batch, Options
from penstock.concurrency import Many, chunks
from penstock.errors import InvalidArgument, LeaseLost, PayloadInvalid
from penstock.models import (
    Breakdown,
    DeadLetter,
    ListedMessage,
    MaintenanceResult,
    MessageDetails,
    NewMessage,
    QueueSettings,
    QueueStatistics,
    Receipt,
    State,
    Topic,
)
from penstock.payloads import Codec, Stored, codec_of, encode
from penstock.schema import SchemaVersion
from penstock.statements import Call
from penstock.values import Duration

from .message import Lease, Message

__all__ = ["Api"]

T = TypeVar("T")
Settleable = Message[Any] | Receipt
Progress = Callable[[int], None]

# Messages, and bytes of them, that go in one statement.
CHUNK = 1000
CHUNK_BYTES = 1_000_000
# What can be iterated over, but is one payload.
NO_ITERABLES = (str, bytes, bytearray, memoryview, Mapping)


class Api:
    """Every function of the schema as a method with the same verb."""

    def __init__(self, codec: Codec[Any] | None) -> None:
        self._codec = codec

    def _run(self, call: Call[T]) -> T:
        raise NotImplementedError

    def _run_many(
        self, many: Iterator[Call[list[int]]], progress: Progress | None, atomic: bool
    ) -> list[int]:
        raise NotImplementedError

    def in_transaction(self) -> bool:
        """Whether a transaction is open in which the calls take part."""
        raise NotImplementedError

    # Topics

    def create_topic(self, topic_name: str) -> int:
        """Create a topic; returns its id, that of the one that exists if it does."""
        return self._run(calls.create_topic(topic_name))

    def delete_topic(self, topic_name: str) -> None:
        """Delete a topic with its queues and all their messages."""
        self._run(calls.delete_topic(topic_name))

    def list_topics(self) -> list[Topic]:
        """All topics, by name."""
        return self._run(calls.list_topics())

    # Queues

    def create_queue(
        self,
        queue_name: str,
        *,
        topic: str | None = None,
        exclusive: bool = False,
        keep_alive: Duration | None = None,
        max_delivery_attempts: int | None = None,
        visibility_timeout: Duration | None = None,
        visibility_backoff: float | None = None,
        retry_delays: Sequence[Duration] | None = None,
        message_ttl: Duration | None = None,
        retain_completed: Duration | None = None,
        retain_dead: Duration | None = None,
        max_payload_bytes: int | None = None,
        max_active: int | None = None,
        min_active: int | None = None,
        priority_shares: Sequence[int] | None = None,
        tenant_max_active: int | None = None,
        notify: bool | None = None,
    ) -> int:
        """Create a queue, subscribed to a topic if one is given; returns its id.

        Called again with the same settings it returns the same id, with others it raises QueueDiffers. What
        is not given has the default of the schema: see "Settings of a queue" in the SQL reference.
        """
        return self._run(
            calls.create_queue(
                queue_name,
                topic=topic,
                exclusive=exclusive,
                keep_alive=keep_alive,
                max_delivery_attempts=max_delivery_attempts,
                visibility_timeout=visibility_timeout,
                visibility_backoff=visibility_backoff,
                retry_delays=retry_delays,
                message_ttl=message_ttl,
                retain_completed=retain_completed,
                retain_dead=retain_dead,
                max_payload_bytes=max_payload_bytes,
                max_active=max_active,
                min_active=min_active,
                priority_shares=priority_shares,
                tenant_max_active=tenant_max_active,
                notify=notify,
            )
        )

    def alter_queue(
        self,
        queue_name: str,
        *,
        max_delivery_attempts: int | None = None,
        visibility_timeout: Duration | None = None,
        visibility_backoff: float | None = None,
        retry_delays: Sequence[Duration] | None = None,
        message_ttl: Duration | None = None,
        retain_completed: Duration | None = None,
        retain_dead: Duration | None = None,
        max_payload_bytes: int | None = None,
        max_active: int | None = None,
        min_active: int | None = None,
        priority_shares: Sequence[int] | None = None,
        tenant_max_active: int | None = None,
        notify: bool | None = None,
    ) -> None:
        """Change settings of a queue; what is not given stays. 0 takes a limit away."""
        self._run(
            calls.alter_queue(
                queue_name,
                max_delivery_attempts=max_delivery_attempts,
                visibility_timeout=visibility_timeout,
                visibility_backoff=visibility_backoff,
                retry_delays=retry_delays,
                message_ttl=message_ttl,
                retain_completed=retain_completed,
                retain_dead=retain_dead,
                max_payload_bytes=max_payload_bytes,
                max_active=max_active,
                min_active=min_active,
                priority_shares=priority_shares,
                tenant_max_active=tenant_max_active,
                notify=notify,
            )
        )

    def pause_queue(self, queue_name: str) -> None:
        """Pause a queue: it takes messages, but delivers none."""
        self._run(calls.pause_queue(queue_name))

    def resume_queue(self, queue_name: str) -> None:
        """Let a paused queue deliver again."""
        self._run(calls.resume_queue(queue_name))

    def extend_queue_keep_alive(self, queue_name: str, keep_alive: Duration) -> datetime:
        """Keep an exclusive queue for so many seconds from now; returns until when."""
        return self._run(calls.extend_queue_keep_alive(queue_name, keep_alive))

    def delete_queue(self, queue_name: str) -> None:
        """Delete a queue and all its messages."""
        self._run(calls.delete_queue(queue_name))

    def list_queues(self) -> list[QueueSettings]:
        """All queues, by name, with every setting."""
        return self._run(calls.list_queues())

    # Publish and send

    def publish(
        self,
        topic_name: str,
        payload: Any,
        *,
        delay: Duration | None = None,
        deliver_after: datetime | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: Duration | None = None,
        dedup_key: str | None = None,
        model: Any = None,
    ) -> int:
        """Publish a message to a topic: each of its queues gets it. Returns its id.

        payload: what JSON can hold, or bytes, or an instance of a model. delay, deliver_after: not before.
        priority: penstock.URGENT to LOW. tenant: whose it is; tenants share a queue fairly. ttl: to the dead
        letters if not done by then. dedup_key: while a message with that key is unfinished in any of the
        queues, nothing is published and its id comes back. model: what the payload has to fit.
        """
        options = Options(delay, deliver_after, priority, tenant, headers, ttl, dedup_key)
        stored = self._stored(payload, model)
        return self._run(calls.publish_message(topic_name, stored, options))

    def publish_many(
        self,
        topic_name: str,
        payloads: Many,
        *,
        delay: Duration | None = None,
        deliver_after: datetime | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: Duration | None = None,
        dedup_key: str | None = None,
        model: Any = None,
        progress: Progress | None = None,
        atomic: bool = False,
    ) -> list[int]:
        """Publish any number of messages to a topic, from any iterable. Returns their ids in order.

        An option holds for all; a message with its own is a penstock.NewMessage. progress is called with the
        number handed over so far. A client commits every 20,000 messages, or once with atomic=True; an
        error has the ids of what was committed before in its `published`.
        """
        options = Options(delay, deliver_after, priority, tenant, headers, ttl, dedup_key)
        batches = self._batches(payloads, model)
        many = self._calls(batches, lambda batch: calls.publish_messages(topic_name, batch, options))
        return self._run_many(many, progress, atomic)

    def send(
        self,
        queue_name: str,
        payload: Any,
        *,
        delay: Duration | None = None,
        deliver_after: datetime | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: Duration | None = None,
        dedup_key: str | None = None,
        model: Any = None,
    ) -> int:
        """Send a message to one queue, past any topic. Returns its id. Options as in publish()."""
        options = Options(delay, deliver_after, priority, tenant, headers, ttl, dedup_key)
        stored = self._stored(payload, model)
        return self._run(calls.send_message(queue_name, stored, options))

    def send_many(
        self,
        queue_name: str,
        payloads: Many,
        *,
        delay: Duration | None = None,
        deliver_after: datetime | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: Duration | None = None,
        dedup_key: str | None = None,
        model: Any = None,
        progress: Progress | None = None,
        atomic: bool = False,
    ) -> list[int]:
        """Send any number of messages to one queue. Returns their ids in order. See publish_many()."""
        options = Options(delay, deliver_after, priority, tenant, headers, ttl, dedup_key)
        batches = self._batches(payloads, model)
        many = self._calls(batches, lambda batch: calls.send_messages(queue_name, batch, options))
        return self._run_many(many, progress, atomic)

    def _stored(self, payload: Any, model: Any) -> Stored:
        if isinstance(payload, NewMessage):
            raise PayloadInvalid("a NewMessage is for publish_many() and send_many(): give its payload")
        return encode(payload, self._codec_for(model))

    def _codec_for(self, model: Any) -> Codec[Any] | None:
        return self._codec if model is None else codec_of(model)

    def _batches(self, payloads: Many, model: Any) -> Iterator[Batch]:
        if isinstance(payloads, NO_ITERABLES) or not isinstance(payloads, Iterable | Iterable):
            raise InvalidArgument(
                f"payloads must be an iterable of payloads, not a {type(payloads).__name__}"
            )
        codec = self._codec_for(model)
        for items in chunks(payloads, CHUNK):
            for batch in calls.batches(items, codec, CHUNK_BYTES):
                yield batch

    def _calls(
        self, batches: Iterator[Batch], make: Callable[[Batch], Call[list[int]]]
    ) -> Iterator[Call[list[int]]]:
        for batch in batches:
            yield make(batch)

    # Consume

    @overload
    def consume_batch(
        self,
        queue_name: str,
        *,
        batch_size: int = 10,
        visibility_timeout: Duration | None = None,
        token: str | None = None,
        model: type[T] | Codec[T],
    ) -> list[Message[T]]: ...

    @overload
    def consume_batch(
        self,
        queue_name: str,
        *,
        batch_size: int = 10,
        visibility_timeout: Duration | None = None,
        token: str | None = None,
        model: None = None,
    ) -> list[Message[Any]]: ...

    def consume_batch(
        self,
        queue_name: str,
        *,
        batch_size: int = 10,
        visibility_timeout: Duration | None = None,
        token: str | None = None,
        model: Any = None,
    ) -> list[Message[Any]]:
        """Claim up to batch_size messages that are there now; none is no error."""
        codec, started = self._codec_for(model), time.monotonic()
        claim = calls.consume_messages_batch(queue_name, token, visibility_timeout, batch_size)
        return [self.message_of(claimed, codec, started) for claimed in self._run(claim)]

    def consume_one(
        self, queue_name: str, *, visibility_timeout: Duration | None = None, model: Any = None
    ) -> Message[Any] | None:
        """Claim the next message, if there is one now."""
        found = self.consume_batch(
            queue_name, batch_size=1, visibility_timeout=visibility_timeout, model=model
        )
        return found[0] if found else None

    def message_of(self, claimed: calls.Claimed, codec: Codec[Any] | None, started: float) -> Message[Any]:
        """The message for a row that was claimed by a call that began at that time."""
        deadline = started + claimed.lease_seconds
        lease = Lease(self, claimed.lease_seconds, deadline, claimed.leased_until)
        return Message(claimed, codec, lease)

    # Settle

    def ack(self, message: Settleable, *, result: object = None) -> None:
        """A message is done. result is kept with it. Raises LeaseLost where it is not held any more."""
        self._settle(message, calls.ack_message(_receipt(message), result))

    def ack_many(self, messages: Iterable[Settleable]) -> list[Receipt]:
        """Messages are done, in one call for each queue. Returns those whose lease was not held any more."""
        if not isinstance(messages, Iterable):
            raise InvalidArgument(f"messages must be messages or their receipts, not {messages!r}")
        by_queue: dict[tuple[str, int], dict[int, tuple[Receipt, Settleable]]] = {}
        for message in messages:
            receipt, number = _receipt(message), 0
            # What is there twice, perhaps with another token, goes in another call: the answer is an id.
            while receipt.message_id in (group := by_queue.setdefault((receipt.queue_name, number), {})):
                number += 1
            group[receipt.message_id] = (receipt, message)
        lost = []
        for (queue_name, _), group in by_queue.items():
            receipts = [receipt for receipt, _ in group.values()]
            found = self._run(calls.ack_messages(queue_name, receipts))
            held = set(found)
            for receipt, message in group.values():
                self._mark(message, settled=receipt.message_id in held)
                if receipt.message_id not in held:
                    lost.append(receipt)
        return lost

    def nack(self, message: Settleable, *, delay: Duration | None = None, error: str | None = None) -> None:
        """A message failed: deliver it again after the delay, or by the queue's retry_delays, or bury it."""
        self._settle(message, calls.nack_message(_receipt(message), delay, error))

    def release(self, message: Settleable) -> None:
        """Give a message back that was never begun: ready at once, the attempt is not counted."""
        self._settle(message, calls.release_message(_receipt(message)))

    def reject(self, message: Settleable, error: str | None = None) -> None:
        """A message failed for good: to the dead letters now."""
        self._settle(message, calls.reject_message(_receipt(message), error))

    def _settle(self, message: Settleable, call: Call[bool]) -> None:
        lease = message.lease if isinstance(message, Message) else None
        if lease is not None:
            lease.is_settling = True
        try:
            held = self._run(call)
        finally:
            if lease is not None:
                lease.is_settling = False
        if not held:
            self._mark(message, settled=False)
            raise LeaseLost(f"{call.function}: the lease on {message!r} is over, or it is settled already")
        self._mark(message, settled=True)

    def _mark(self, message: Settleable, *, settled: bool) -> None:
        if isinstance(message, Message):
            message.lease.is_settled = settled
            message.lease.is_lost = not settled
            message.lease.settled_by = self if settled and self.in_transaction() else None

    # Leases

    def extend(self, message: Settleable, extension: Duration) -> datetime:
        """Hold a message for so many seconds longer; returns until when. LeaseLost where it is not held."""
        receipt, started = _receipt(message), time.monotonic()
        found = self._run(calls.extend_message_vt(receipt, extension))
        if not found:
            self._mark(message, settled=False)
            raise LeaseLost(f"extend: the lease on {message!r} is over, or it is settled already")
        if isinstance(message, Message):
            message.lease.extended(found[0], started)
        until: datetime = rows.moment(found[0].leased_until)
        return until

    def pulse(
        self, token: str, visibility_timeout: Duration, queue_names: Sequence[str] | None = None
    ) -> int:
        """A heartbeat: all that a token holds is leased for so long from now. Returns how many."""
        return self._run(calls.pulse(token, visibility_timeout, queue_names))

    # Dead letters

    def list_dlq_messages(
        self, queue_name: str | None = None, *, page_size: int | None = None, after: str | None = None
    ) -> list[DeadLetter]:
        """Dead letters of a queue, or of all. For the next page give the cursor of the last one as after."""
        return self._run(calls.list_dlq_messages(queue_name, page_size, after))

    def requeue_dlq_messages(self, queue_name: str, message_ids: Sequence[int] | None = None) -> int:
        """Bring dead letters back, all or those given, with their attempts at 0. Returns how many."""
        return self._run(calls.requeue_dlq_messages(queue_name, message_ids))

    def add_retries(self, queue_name: str, attempts: int) -> int:
        """Bring back what had no attempts left or expired, with that many attempts more. Returns how many."""
        return self._run(calls.add_retries(queue_name, attempts))

    def purge_dlq(self, queue_name: str | None = None) -> int:
        """Delete the dead letters of a queue, or of all. Returns how many."""
        return self._run(calls.purge_dlq(queue_name))

    # Statistics and looking in

    def get_queue_statistics(
        self,
        queue_name: str | None = None,
        *,
        breakdown: Breakdown | None = None,
        top: int | None = None,
    ) -> list[QueueStatistics]:
        """How many messages are where, of a queue or each; by priority or tenant with a breakdown."""
        return self._run(calls.get_queue_statistics(queue_name, breakdown, top))

    def list_messages(
        self,
        queue_name: str,
        *,
        state: State | None = None,
        page_size: int | None = None,
        after: str | None = None,
    ) -> list[ListedMessage]:
        """Messages of a queue, 100 at a time. For the next page give the cursor of the last one as after."""
        return self._run(calls.list_messages(queue_name, state, page_size, after))

    def get_message(self, queue_name: str, message_id: int) -> MessageDetails | None:
        """All that is known of a message; None where it is unknown or not kept any more."""
        return self._run(calls.get_message(queue_name, message_id))

    def explain_delivery(self, queue_name: str, message_id: int) -> str:
        """Why a message is not running, in words."""
        return self._run(calls.explain_delivery(queue_name, message_id))

    # Cleanup

    def cancel_message(self, queue_name: str, message_id: int) -> bool:
        """Take a message out of a queue before it is delivered; False where it does not wait there."""
        return self._run(calls.cancel_message(queue_name, message_id))

    def purge_queue(self, queue_name: str) -> int:
        """Delete all unfinished messages of a queue. Returns how many."""
        return self._run(calls.purge_queue(queue_name))

    def purge_all_messages(self) -> None:
        """Delete all messages of all queues, whatever their state."""
        self._run(calls.purge_all_messages())

    def cleanup_queue_messages(self, queue_name: str) -> int:
        """Forget all completed messages of a queue. Returns how many."""
        return self._run(calls.cleanup_queue_messages(queue_name))

    def cleanup_topic_messages(self, topic_name: str) -> int:
        """Forget all completed messages of all queues of a topic. Returns how many."""
        return self._run(calls.cleanup_topic_messages(topic_name))

    def cleanup_expired_exclusive_queues(self) -> int:
        """Delete exclusive queues whose keep-alive has ended. Returns how many."""
        return self._run(calls.cleanup_expired_exclusive_queues())

    # Now and then, and the rest

    def maintain(self) -> list[MaintenanceResult]:
        """Do what is due now and then; a client that consumes does this by itself."""
        return self._run(calls.maintain())

    def raise_floor(self, queue_name: str) -> bool:
        """Raise the floor of a queue now; maintain() does this by itself."""
        return self._run(calls.raise_floor(queue_name))

    def clock(self) -> datetime:
        """The time, by the clock that all times of the queue are measured by."""
        return self._run(calls.clock())

    def channel(self, queue_name: str) -> str:
        """The NOTIFY channel of a queue."""
        return self._run(calls.channel(queue_name))

    def schema_version(self) -> SchemaVersion:
        """Which version of the schema is installed."""
        return self._run(calls.schema_version())


def _receipt(message: Settleable) -> Receipt:
    if isinstance(message, Message):
        return message.receipt
    if not isinstance(message, Receipt):
        raise InvalidArgument(f"message must be a message or its receipt, not {message!r}")
    return message
