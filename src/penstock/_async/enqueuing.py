"""Sends tasks to their queues, and declares each queue before its first task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from penstock.concurrency import AsyncMany
from penstock.declarations import Declared, GroupStart, QueueNeeds
from penstock.errors import QueueNotFound
from penstock.models import NewMessage

from .api import AsyncApi
from .call_runner import Progress
from .client import AsyncClient

__all__ = ["AsyncEnqueuing"]

T_co = TypeVar("T_co", covariant=True)


class AsyncStep(Protocol[T_co]):
    """A call that is repeated after the queue was declared."""

    def __call__(self) -> Coroutine[Any, Any, T_co]: ...


T = TypeVar("T")


class AsyncEnqueuing:
    """Sends the messages of tasks over a client, or in a transaction."""

    def __init__(self, api: AsyncApi, declared: Declared) -> None:
        self._api = api
        self._declared = declared
        self._is_own = isinstance(api, AsyncClient)

    async def send(self, queue: QueueNeeds, payload: Any, options: Mapping[str, Any]) -> int:
        if queue not in self._declared:
            await self.declare(queue)
        try:
            return await self._api.send(queue.name, payload, **options)
        except QueueNotFound as exc:
            if not self._may_repeat((queue,), exc):
                raise
        await self.declare(queue)
        return await self._api.send(queue.name, payload, **options)

    async def send_many(
        self,
        queue: QueueNeeds,
        payloads: AsyncMany | Callable[[], AsyncMany],
        options: Mapping[str, Any],
        *,
        progress: Progress | None,
        atomic: bool,
    ) -> list[int]:
        async def step() -> list[int]:
            many = payloads() if callable(payloads) else payloads
            return await self._api.send_many(queue.name, many, **options, progress=progress, atomic=atomic)

        # Repeat if the queue was deleted and the payloads can be iterated again.
        return await self._declared_first([queue], step, again=callable(payloads))

    async def send_group(self, group: GroupStart) -> tuple[int, list[int]]:
        """Send all members of a group and its callback, or nothing. Returns the ids of group and members."""
        api = self._api
        if not isinstance(api, AsyncClient):
            return await self._declared_first(group.queues, lambda: self._start_group(api, group))

        async def step() -> tuple[int, list[int]]:
            async with api.transaction() as transaction:
                return await self._start_group(transaction, group)

        return await self._declared_first(group.queues, step)

    async def _start_group(self, api: AsyncApi, group: GroupStart) -> tuple[int, list[int]]:
        callback = group.callback
        group_id = await api.create_group(
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
            for position, message_id in zip(
                positions, await api.send_many(queue_name, messages), strict=True
            ):
                ids[position] = message_id
        return group_id, ids

    async def _declared_first(
        self, queues: Sequence[QueueNeeds], step: AsyncStep[T], *, again: bool = True
    ) -> T:
        for queue in queues:
            if queue not in self._declared:
                await self.declare(queue)
        try:
            return await step()
        except QueueNotFound as exc:
            if not self._may_repeat(queues, exc) or not again:
                raise
        for queue in queues:
            await self.declare(queue)
        return await step()

    def _may_repeat(self, queues: Sequence[QueueNeeds], exc: QueueNotFound) -> bool:
        """Forget the queues of a call that failed; whether to declare them and to call again."""
        for queue in queues:
            self._declared.forget(queue)
        # A caller's transaction has failed; the next one declares the queue.
        return self._is_own and not exc.published

    async def declare(self, queue: QueueNeeds) -> None:
        """Declare a queue, once."""
        if queue not in self._declared:
            queue_id = await self._api.declare_queue(
                queue.name, max_active=queue.max_active, retain_completed=queue.retain_completed
            )
            if queue.has_options and (difference := await self._difference(queue)):
                self._declared.report_difference(queue, difference)
            self._declared.add(queue, queue_id, is_committed=self._is_own)

    async def _difference(self, queue: QueueNeeds) -> str | None:
        return await self._api.queue_difference(
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
