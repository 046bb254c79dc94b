# Written by tools/unasync.py from src/penstock/_async/enqueuing.py:
# change that, run `make generate`.

"""Sends tasks to their queues, and declares each queue before its first task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from penstock.concurrency import Many
from penstock.declarations import Declared, GroupStart, QueueNeeds
from penstock.errors import QueueNotFound
from penstock.models import NewMessage

from .api import Api
from .call_runner import Progress
from .client import Client

__all__ = ["Enqueuing"]

T_co = TypeVar("T_co", covariant=True)


class Step(Protocol[T_co]):
    """A call that is repeated after the queue was declared."""

    def __call__(self) -> T_co: ...


T = TypeVar("T")


class Enqueuing:
    """Sends the messages of tasks over a client, or in a transaction."""

    def __init__(self, api: Api, declared: Declared) -> None:
        self._api = api
        self._declared = declared
        self._is_own = isinstance(api, Client)

    def send(self, queue: QueueNeeds, payload: Any, options: Mapping[str, Any]) -> int:
        if queue not in self._declared:
            self.declare(queue)
        try:
            return self._api.send(queue.name, payload, **options)
        except QueueNotFound as exc:
            if not self._may_repeat((queue,), exc):
                raise
        self.declare(queue)
        return self._api.send(queue.name, payload, **options)

    def send_many(
        self,
        queue: QueueNeeds,
        payloads: Many | Callable[[], Many],
        options: Mapping[str, Any],
        *,
        progress: Progress | None,
        atomic: bool,
    ) -> list[int]:
        def step() -> list[int]:
            many = payloads() if callable(payloads) else payloads
            return self._api.send_many(queue.name, many, **options, progress=progress, atomic=atomic)

        # Repeat if the queue was deleted and the payloads can be iterated again.
        return self._declared_first([queue], step, again=callable(payloads))

    def send_group(self, group: GroupStart) -> tuple[int, list[int]]:
        """Send all members of a group and its callback, or nothing. Returns the ids of group and members."""
        api = self._api
        if not isinstance(api, Client):
            return self._declared_first(group.queues, lambda: self._start_group(api, group))

        def step() -> tuple[int, list[int]]:
            with api.transaction() as transaction:
                return self._start_group(transaction, group)

        return self._declared_first(group.queues, step)

    def _start_group(self, api: Api, group: GroupStart) -> tuple[int, list[int]]:
        callback = group.callback
        group_id = api.create_group(
            len(group.members),
            callback.queue.name,
            callback.message.payload,
            headers=callback.message.headers,
            priority=callback.message.priority,
            tenant=callback.message.tenant,
            ttl=callback.message.ttl,
            with_results=group.with_results,
        )
        ids = [0] * len(group.members)
        by_queue: dict[str, list[int]] = {}
        for position, member in enumerate(group.members):
            by_queue.setdefault(member.queue.name, []).append(position)
        for queue_name, positions in by_queue.items():
            messages = [_of_group(group.members[n].message, group_id, n) for n in positions]
            for position, message_id in zip(positions, api.send_many(queue_name, messages), strict=True):
                ids[position] = message_id
        return group_id, ids

    def _declared_first(self, queues: Sequence[QueueNeeds], step: Step[T], *, again: bool = True) -> T:
        for queue in queues:
            if queue not in self._declared:
                self.declare(queue)
        try:
            return step()
        except QueueNotFound as exc:
            if not self._may_repeat(queues, exc) or not again:
                raise
        for queue in queues:
            self.declare(queue)
        return step()

    def _may_repeat(self, queues: Sequence[QueueNeeds], exc: QueueNotFound) -> bool:
        """Forget the queues of a call that failed; whether to declare them and to call again."""
        for queue in queues:
            self._declared.forget(queue)
        # A caller's transaction has failed; the next one declares the queue.
        return self._is_own and not exc.published

    def declare(self, queue: QueueNeeds) -> None:
        """Declare a queue, once."""
        if queue not in self._declared:
            queue_id = self._api.declare_queue(
                queue.name, max_active=queue.max_active, retain_completed=queue.retain_completed
            )
            if queue.has_options and (difference := self._difference(queue)):
                self._declared.report_difference(queue, difference)
            self._declared.add(queue, queue_id, is_committed=self._is_own)

    def _difference(self, queue: QueueNeeds) -> str | None:
        return self._api.queue_difference(
            queue.name, max_active=queue.max_active, retain_completed=queue.retain_completed
        )


def _of_group(message: NewMessage, group_id: int, position: int) -> NewMessage:
    headers = {**(message.headers or {}), "group": group_id, "position": position}
    return NewMessage(
        message.payload,
        delay=message.delay,
        deliver_after=message.deliver_after,
        priority=message.priority,
        tenant=message.tenant,
        headers=headers,
        ttl=message.ttl,
        dedup_key=message.dedup_key,
    )
