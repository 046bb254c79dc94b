# Written by tools/unasync.py from src/penstock/_async/transaction.py:
# change that, run `make generate`.

"""The calls in somebody's own transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from penstock.concurrency import now
from penstock.errors import InvalidArgument, from_database, sqlstate_of
from penstock.integrations import Executor
from penstock.payloads import Codec
from penstock.sql_call import Call

from .api import Api
from .call_runner import UNREADABLE_STATES, Progress, Timed, unreadable

__all__ = ["Transaction"]

T = TypeVar("T")
C = TypeVar("C")


class Transaction(Api, Generic[C]):
    """All calls, on a connection that somebody else commits or rolls back."""

    def __init__(self, connection: C, executor: Executor, codec: Codec[Any] | None) -> None:
        super().__init__(codec)
        self.connection = connection
        self._executor = executor
        # The connection belongs to somebody else by now.
        self._is_over = False

    def in_transaction(self) -> bool:
        """Whether a transaction is open on the connection."""
        return self._in_transaction()

    def _in_transaction(self) -> bool:
        return not self._is_over and self._executor.in_transaction()

    def _run_timed(self, call: Call[T]) -> Timed[T]:
        if self._is_over:
            raise InvalidArgument(f"{call.function}: this transaction is over")
        sent_at = now()
        try:
            return Timed(sent_at, call.parse(self._executor.fetch(call)))
        except Exception as exc:
            error = from_database(exc)
            if error is None and call.remedy is not None and sqlstate_of(exc).startswith(UNREADABLE_STATES):
                error = unreadable(call, exc)
            if error is not None:
                raise error from exc
            raise

    def _run_many(
        self,
        many: Iterator[Call[list[int]]],
        progress: Progress | None,
        atomic: bool,  # noqa: ARG002 - it is in a transaction anyway
    ) -> list[int]:
        ids: list[int] = []
        for call in many:
            more = self._run(call)
            ids += more
            if progress is not None:
                progress(len(ids))
        return ids
