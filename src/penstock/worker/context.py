"""The context of a run in a worker: beside what it knows, what can be done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock import calls
from penstock._async.transaction import AsyncTransaction
from penstock._sync.transaction import Transaction
from penstock.errors import InvalidArgument, LeaseLost
from penstock.payloads import load_json
from penstock.sql_call import Call
from penstock.tasks.app import App
from penstock.tasks.arguments import to_plain
from penstock.tasks.context import TaskContext, TaskMessage
from penstock.values import Duration, interval

from .run import Run, ack_special

__all__ = ["WorkerContext", "context_of"]


def context_of(run: Run) -> WorkerContext:
    """The context of a run."""
    context = run()
    assert isinstance(context, WorkerContext)
    return context


@dataclass(eq=False, slots=True)
class WorkerContext(TaskContext):
    """An attempt that runs here."""

    _run: Run = None  # type: ignore[assignment]

    @property
    def _app(self) -> App:
        return self._run.task.app

    @classmethod
    def of(cls, run: Run) -> WorkerContext:
        claimed = run.claimed
        return cls(
            task_name=run.task.name,
            queue_name=claimed.queue_name,
            message_id=claimed.message_id,
            attempt=claimed.attempt,
            max_attempts=run.max_attempts,
            priority=claimed.priority,
            tenant=claimed.tenant,
            published_at=run.published_at,
            headers=dict(run.headers),
            _run=run,
        )

    @property
    def message(self) -> TaskMessage:
        stored = self._run.claimed.stored
        return TaskMessage(
            self.message_id,
            self.queue_name,
            load_json(stored) if isinstance(stored, str) else stored,
            self.headers,
            self.attempt,
            self.priority,
            self.tenant,
            self.published_at,
        )

    def extend(self, extension: Duration) -> None:
        more = interval("extension", extension)
        if self._run.extend is not None:
            self._run.extend(more)

    @contextmanager
    def transaction(self, *, result: object = None) -> Iterator[Transaction[psycopg.Connection[Any]]]:
        with self._settling(), self._app.client.transaction() as transaction:
            yield transaction
            ack = self._ack(result)
            self._run.is_settling = True
            self._check(transaction._run(ack))
        if self._group is not None:
            self._app.client._run(calls.finish_groups([self._group]))

    @asynccontextmanager
    async def transaction_async(
        self, *, result: object = None
    ) -> AsyncIterator[AsyncTransaction[psycopg.AsyncConnection[Any]]]:
        client = self._app.async_client
        with self._settling():
            async with client.transaction() as transaction:
                yield transaction
                ack = self._ack(result)
                self._run.is_settling = True
                self._check(await transaction._run(ack))
        if self._group is not None:
            await client._run(calls.finish_groups([self._group]))

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """A block that settles the task: it is, where that comes to its end."""
        try:
            yield
            self._run.is_settled = True
        finally:
            self._run.is_settling = False

    @property
    def _group(self) -> int | None:
        return None if self._run.group is None else self._run.group[0]

    def _ack(self, result: object) -> Call[list[int]]:
        if self._run.is_settled:
            raise InvalidArgument("this task has ended already, in another transaction")
        if self._run.is_plain:
            return calls.ack_messages(self._run.queue_name, [self._run.receipt])
        return ack_special([self._run], [None if result is None else to_plain(result)])

    def _check(self, acked: list[int]) -> None:
        if not acked:
            raise LeaseLost(f"the lease was lost, and the transaction is rolled back: {self._run}")
