"""The calls in a transaction of the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from penstock.concurrency import now
from penstock.errors import InvalidArgument, from_database, sqlstate_of
from penstock.integrations import AsyncExecutor
from penstock.models import Receipt
from penstock.payloads import Codec
from penstock.sql_call import Call
from penstock.values import Duration

from .api import AsyncApi
from .call_runner import UNREADABLE_STATES, Progress, Timed, unreadable
from .consuming import Settleable
from .message import AsyncMessage

__all__ = ["AsyncTransaction"]

T = TypeVar("T")
C = TypeVar("C")


class AsyncTransaction(AsyncApi, Generic[C]):
    """All calls, on a connection that the caller commits or rolls back."""

    def __init__(self, connection: C, executor: AsyncExecutor, codec: Codec[Any] | None) -> None:
        super().__init__(codec)
        self.connection = connection
        self._executor = executor
        # The connection is back with the client, which may have lent it again.
        self._is_over = False

    def in_transaction(self) -> bool:
        """Whether a transaction is open on the connection."""
        return self._in_transaction()

    def _in_transaction(self) -> bool:
        return not self._is_over and self._executor.in_transaction()

    # A message that takes part in this transaction knows it, so that an error in its block ends the
    # transaction, too.

    async def _settle(self, message: Settleable, call: Call[bool]) -> None:
        self._join_one(message)
        await super()._settle(message, call)

    def _mark(self, message: Settleable, *, settled: bool) -> None:
        self._join_one(message)
        super()._mark(message, settled=settled)

    async def ack_many(
        self, messages: Iterable[Settleable], *, results: Sequence[object] | None = None
    ) -> list[Receipt]:
        return await super().ack_many(self._join(messages), results=results)

    async def extend(self, message: Settleable, extension: Duration) -> datetime:
        self._join_one(message)
        return await super().extend(message, extension)

    async def extend_many(self, messages: Iterable[Settleable], extension: Duration) -> list[Receipt]:
        return await super().extend_many(self._join(messages), extension)

    def _join(self, messages: Iterable[Settleable]) -> Iterable[Settleable]:
        if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
            return messages  # refused with what else is wrong
        messages = list(messages)
        for message in messages:
            self._join_one(message)
        return messages

    def _join_one(self, message: Settleable) -> None:
        if isinstance(message, AsyncMessage):
            lease = message._lease
            claimed_by = lease.api
            was_claimed_here = (
                isinstance(claimed_by, AsyncTransaction) and claimed_by.connection is self.connection
            )
            lease.joined = None if was_claimed_here else self

    async def _run_timed(self, call: Call[T]) -> Timed[T]:
        if self._is_over:
            raise InvalidArgument(f"{call.function}: this transaction is over")
        sent_at = now()
        try:
            return Timed(sent_at, call.parse(await self._executor.fetch(call)))
        except Exception as exc:
            error = from_database(exc)
            if error is None and call.remedy is not None and sqlstate_of(exc).startswith(UNREADABLE_STATES):
                error = unreadable(call, exc)
            if error is not None:
                raise error from exc
            raise

    async def _run_many(
        self,
        many: AsyncIterator[Call[list[int]]],
        progress: Progress | None,
        atomic: bool,  # noqa: ARG002 - it is in a transaction anyway
    ) -> list[int]:
        ids: list[int] = []
        async for call in many:
            more = await self._run(call)
            ids += more
            if progress is not None:
                progress(len(ids))
        return ids
