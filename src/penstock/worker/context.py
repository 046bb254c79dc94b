"""The context of a run in a worker: a TaskContext with the actions that need the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock._async.transaction import AsyncTransaction
from penstock._sync.transaction import Transaction
from penstock.errors import InvalidArgument, LeaseLost
from penstock.payloads import Json, load_json
from penstock.tasks.app import App
from penstock.tasks.arguments import to_plain
from penstock.tasks.context import TaskContext, TaskMessage
from penstock.values import Duration, interval

from .run import Run

__all__ = ["WorkerContext", "context_of"]


def context_of(run: Run) -> WorkerContext:
    """The context of a run."""
    context = run()
    assert isinstance(context, WorkerContext)
    return context


@dataclass(eq=False, slots=True)
class WorkerContext(TaskContext):
    """The context of an attempt that this worker runs."""

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
        run, client = self._run, self._app.client
        with self._settling(), client.transaction() as transaction:
            yield transaction
            plain = self._checked_result(result)
            run.is_settling = True
            if run.is_plain:
                self._check(not transaction.ack_many([run.receipt]))
            else:
                self._check(transaction.ack_tasks(**self._ack_arguments(plain)))
        if run.group is not None:
            client.finish_groups([run.group[0]])

    @asynccontextmanager
    async def transaction_async(
        self, *, result: object = None
    ) -> AsyncIterator[AsyncTransaction[psycopg.AsyncConnection[Any]]]:
        run, client = self._run, self._app.async_client
        with self._settling():
            async with client.transaction() as transaction:
                yield transaction
                plain = self._checked_result(result)
                run.is_settling = True
                if run.is_plain:
                    self._check(not await transaction.ack_many([run.receipt]))
                else:
                    self._check(await transaction.ack_tasks(**self._ack_arguments(plain)))
        if run.group is not None:
            await client.finish_groups([run.group[0]])

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """A block that settles the message: it has, when the block ends without an exception."""
        try:
            yield
            self._run.is_settled = True
        finally:
            self._run.is_settling = False

    def _checked_result(self, result: object) -> Json:
        if self._run.is_settled:
            raise InvalidArgument("this task has ended already, in another transaction")
        return None if result is None or self._run.is_plain else to_plain(result)

    def _ack_arguments(self, result: Json) -> dict[str, Any]:
        """The arguments of ack_tasks() for this run."""
        run = self._run
        group_id, position = run.group or (None, None)
        return {
            "queue_name": run.queue_name,
            "message_ids": [run.message_id],
            "token": run.claimed.token,
            "results": [result],
            "group_ids": [group_id],
            "positions": [position],
        }

    def _check(self, is_acked: object) -> None:
        if not is_acked:
            raise LeaseLost(f"the lease was lost, and the transaction is rolled back: {self._run}")
