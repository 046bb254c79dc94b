# Written by tools/unasync.py from src/penstock/_async/consuming.py:
# change that, run `make generate`.

"""Claim messages, hold them for longer, and settle them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple, TypeVar, overload

from penstock import calls, rows
from penstock.errors import InvalidArgument, LeaseLost, NotReplicated
from penstock.models import Receipt, UnreadableMessage
from penstock.payloads import Codec
from penstock.sql_call import Call
from penstock.values import Duration
from penstock.wording import shown

from .call_runner import CallRunner
from .message import Lease, Message

__all__ = ["Consuming", "Settleable"]

T = TypeVar("T")
Settleable = Message[Any] | Receipt


class Consuming(CallRunner):
    """Leases: how they begin, and how they end."""

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
        model: Any = None,
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
        """Claim up to batch_size messages that are there now; none is no error.

        With a token of your own a connection that is lost meanwhile is a ConnectionLost: go on with another
        one, as a pulse() would keep what this one may have claimed.
        """
        codec = self._codec_for(model)
        claim = calls.consume_messages_batch(queue_name, token, visibility_timeout, batch_size)
        timed = self._run_timed(claim)
        return [self._message_of(claimed, codec, timed.sent_at) for claimed in timed.result]

    def queues_with_work(self, queue_names: Sequence[str]) -> list[str]:
        """Which of these queues a claim may return messages from, in one statement for all of them.

        Among them are queues that do not exist, or that this role may not consume from: the claim says why.
        """
        return self._run(calls.queues_with_work(queue_names))

    def consume_tasks(
        self,
        queue_name: str,
        task_names: Sequence[str],
        *,
        batch_size: int = 10,
        visibility_timeout: Duration | None = None,
        token: str | None = None,
        model: Any = None,
        task_limits: Sequence[int] | None = None,
        task_lanes: Sequence[int] | None = None,
        lane_limits: Sequence[int] | None = None,
        lost_most: int = 0,
        park_others: bool = False,
    ) -> list[Message[Any]]:
        """consume_batch() for a worker that can run these tasks: messages parked for them come back first.

        task_limits: at most so many of each. task_lanes: a number from 1 on for each; tasks with the same
        number share lane_limits[number]. lost_most: how many of those come back that were lost with a worker.
        Messages of other tasks may come, too; park_others: they are parked instead.
        """
        codec = self._codec_for(model)
        claim = calls.consume_tasks(
            queue_name,
            task_names,
            token,
            visibility_timeout,
            batch_size,
            task_limits=task_limits,
            task_lanes=task_lanes,
            lane_limits=lane_limits,
            lost_most=lost_most,
            park_others=park_others,
        )
        timed = self._run_timed(claim)
        return [self._message_of(claimed, codec, timed.sent_at) for claimed in timed.result]

    @overload
    def consume_one(
        self,
        queue_name: str,
        *,
        visibility_timeout: Duration | None = None,
        token: str | None = None,
        model: type[T] | Codec[T],
    ) -> Message[T] | None: ...

    @overload
    def consume_one(
        self,
        queue_name: str,
        *,
        visibility_timeout: Duration | None = None,
        token: str | None = None,
        model: Any = None,
    ) -> Message[Any] | None: ...

    def consume_one(
        self,
        queue_name: str,
        *,
        visibility_timeout: Duration | None = None,
        token: str | None = None,
        model: Any = None,
    ) -> Message[Any] | None:
        """Claim the next message, if there is one now; to wait for one: consume(batch_size=1, wait=...)."""
        found = self.consume_batch(
            queue_name, batch_size=1, visibility_timeout=visibility_timeout, token=token, model=model
        )
        return found[0] if found else None

    def reject_unreadable(self, queue_name: str, *, batch_size: int = 10) -> list[UnreadableMessage]:
        """Move messages that the server cannot send to any client to the dead letters; returns them.

        A client does so by itself where a claim fails for such a message. Looks at the next batch_size
        messages of each priority.
        """
        return self._run(calls.reject_unreadable_messages(queue_name, batch_size))

    def _message_of(self, claimed: calls.Claimed, codec: Codec[Any] | None, sent_at: float) -> Message[Any]:
        """The message for a row that was claimed by a call that was sent at that time."""
        deadline = sent_at + claimed.lease_seconds
        lease = Lease(self, claimed.lease_seconds, deadline, claimed.leased_until)
        return Message(claimed, codec, lease)

    # Settle

    def ack(self, message: Settleable, *, result: object = None) -> None:
        """A message is done. result is kept with it. Raises LeaseLost where it is not held any more."""
        self._settle(message, calls.ack_message(_receipt(message), result))

    def ack_many(
        self, messages: Iterable[Settleable], *, results: Sequence[object] | None = None
    ) -> list[Receipt]:
        """Messages are done, in one call for each queue. Returns those whose lease was not held any more.

        results: one for each message, or None; kept with it.
        """
        return self._settle_many(
            _groups(messages, results),
            lambda queue_name, group: calls.ack_messages(
                queue_name, [one.receipt for one in group], [one.result for one in group]
            ),
        )

    def nack(
        self,
        message: Settleable,
        *,
        delay: Duration | None = None,
        error: str | None = None,
        max_attempts: int | None = None,
    ) -> None:
        """A message failed: deliver it again after the delay, or by the queue's retry_delays, or bury it.

        max_attempts: which attempt is the last, instead of what the queue says.
        """
        self._settle(message, calls.nack_message(_receipt(message), delay, error, max_attempts))

    def nack_many(
        self,
        messages: Iterable[Settleable],
        *,
        delay: Duration | None = None,
        error: str | None = None,
        max_attempts: int | None = None,
    ) -> list[Receipt]:
        """Messages failed, in one call for each queue. Returns those whose lease was not held any more.

        delay, error, max_attempts: as for nack(), for each of the messages.
        """
        return self._settle_many(
            _groups(messages),
            lambda queue_name, group: calls.nack_messages(
                queue_name,
                _held(group),
                [delay] * len(group),
                [error] * len(group),
                [max_attempts] * len(group),
            ),
        )

    def release(self, message: Settleable, *, delay: Duration | None = None) -> None:
        """Give a message back without counting the attempt: ready at once, or after the delay."""
        self._settle(message, calls.release_message(_receipt(message), delay))

    def release_many(self, messages: Iterable[Settleable], *, delay: Duration | None = None) -> list[Receipt]:
        """Give messages back without counting the attempt, in one call for each queue.

        Returns those whose lease was not held any more. delay: as for release().
        """
        return self._settle_many(
            _groups(messages),
            lambda queue_name, group: calls.release_messages(queue_name, _held(group), [delay] * len(group)),
        )

    def reject(self, message: Settleable, error: str | None = None) -> None:
        """A message failed for good: to the dead letters now."""
        self._settle(message, calls.reject_message(_receipt(message), error))

    def reject_many(self, messages: Iterable[Settleable], *, error: str | None = None) -> list[Receipt]:
        """Messages failed for good: to the dead letters now, in one call for each queue.

        Returns those whose lease was not held any more. error: as for reject().
        """
        return self._settle_many(
            _groups(messages),
            lambda queue_name, group: calls.reject_messages(queue_name, _held(group), [error] * len(group)),
        )

    def _settle_many(
        self,
        groups: list[tuple[str, list[_Settling]]],
        call_for: Callable[[str, list[_Settling]], Call[list[int]]],
    ) -> list[Receipt]:
        """Settle messages, in one call for each group. Returns those whose lease was not held any more."""
        lost: list[Receipt] = []
        # All calls are made first: an argument that is refused must not leave half of the messages settled.
        for group, call in [(group, call_for(queue_name, group)) for queue_name, group in groups]:
            with _settling(one.message for one in group):
                try:
                    found = self._run(call)
                except NotReplicated:
                    for one in group:
                        self._mark(one.message, settled=True)
                    raise
                held = set(found)
                for one in group:
                    self._mark(one.message, settled=one.receipt.message_id in held)
            lost += [one.receipt for one in group if one.receipt.message_id not in held]
        return lost

    def _settle(self, message: Settleable, call: Call[bool]) -> None:
        lease = message._lease if isinstance(message, Message) else None
        if lease is not None:
            lease.is_settling = True  # as in _settling()
        try:
            held = self._run(call)
            self._mark(message, settled=held)
        except NotReplicated:
            self._mark(message, settled=True)
            raise
        finally:
            if lease is not None:
                lease.is_settling = False
        if not held:
            raise LeaseLost(f"{call.function}: the lease on {message!r} is over, or it is settled already")

    def _lose(self, message: Settleable) -> None:
        if isinstance(message, Message):
            message._lease.lose()

    def _mark(self, message: Settleable, *, settled: bool) -> None:
        if isinstance(message, Message):
            lease = message._lease
            lease.is_settled = settled
            lease.is_lost = not settled
            lease.settled_by = self if settled and self._in_transaction() else None

    # Leases

    def extend(self, message: Settleable, extension: Duration) -> datetime:
        """Hold a message for so many seconds longer; returns until when. LeaseLost where it is not held."""
        timed = self._run_timed(calls.extend_message_vt(_receipt(message), extension))
        found = timed.result
        if not found:
            self._lose(message)
            raise LeaseLost(f"extend: the lease on {message!r} is over, or it is settled already")
        if isinstance(message, Message):
            message._lease.extended(found[0], timed.sent_at)
        until: datetime = rows.moment(found[0].leased_until)
        return until

    def extend_many(self, messages: Iterable[Settleable], extension: Duration) -> list[Receipt]:
        """Hold messages for so many seconds longer. Returns those whose lease was not held any more."""
        lost = []
        for queue_name, group in _groups(messages):
            for token in dict.fromkeys(one.receipt.token for one in group):
                some = [one for one in group if one.receipt.token == token]
                ids = [one.receipt.message_id for one in some]
                extend = calls.batch_extend_message_vt(queue_name, ids, token, extension)
                timed = self._run_timed(extend)
                held = {extended.message_id: extended for extended in timed.result}
                for one in some:
                    extended = held.get(one.receipt.message_id)
                    if extended is None:
                        self._lose(one.message)
                        lost.append(one.receipt)
                    elif isinstance(one.message, Message):
                        one.message._lease.extended(extended, timed.sent_at)
        return lost

    def pulse(
        self,
        token: str,
        visibility_timeout: Duration,
        queue_names: Sequence[str] | None = None,
        *,
        message_ids: Sequence[int] | None = None,
    ) -> int:
        """A heartbeat: all that a token holds is leased for so long from now. Returns how many.

        message_ids: only these messages; queue_names has the queue of each. Without, the call reads all
        leases of the queues.
        """
        return self._run(calls.pulse(token, visibility_timeout, queue_names, message_ids))


@contextmanager
def _settling(messages: Iterable[Settleable]) -> Iterator[None]:
    """While this block runs, a lease that is not held any more is not lost: this call ends it."""
    leases = [message._lease for message in messages if isinstance(message, Message)]
    for lease in leases:
        lease.is_settling = True
    try:
        yield
    finally:
        for lease in leases:
            lease.is_settling = False


class _Settling(NamedTuple):
    receipt: Receipt
    message: Settleable
    result: object


def _groups(
    messages: Iterable[Settleable], results: Sequence[object] | None = None
) -> list[tuple[str, list[_Settling]]]:
    """Messages by queue. The second receipt of a message goes into another group: calls answer with ids."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
        raise InvalidArgument(f"messages must be messages or their receipts, not {shown(messages)}")
    messages = list(messages)
    if results is not None and (isinstance(results, str | bytes) or not isinstance(results, Sequence)):
        raise InvalidArgument(f"results must be a sequence, not {shown(results)}")
    if results is not None and len(results) != len(messages):
        raise InvalidArgument(f"results must be one for each of {len(messages)} messages, not {len(results)}")
    groups: dict[tuple[str, int], dict[int, _Settling]] = {}
    for message, result in zip(messages, results or [None] * len(messages), strict=True):
        receipt, number = _receipt(message), 0
        while receipt.message_id in (group := groups.setdefault((receipt.queue_name, number), {})):
            number += 1
        group[receipt.message_id] = _Settling(receipt, message, result)
    return [(queue_name, list(group.values())) for (queue_name, _), group in groups.items()]


def _held(group: list[_Settling]) -> calls.Held:
    return calls.Held.by([one.receipt for one in group])


def _receipt(message: Settleable) -> Receipt:
    if isinstance(message, Message):
        return message.receipt
    if not isinstance(message, Receipt) or message.token is None:
        raise InvalidArgument(f"message must be a message or its receipt, not {shown(message)}")
    return message
