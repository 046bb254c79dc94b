"""Any number of messages: statements of a thousand each, sent while the server executes the previous one."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row

from penstock.errors import PenstockError
from penstock.sql_call import Call

__all__ = ["AsyncBulk"]

# The most statements that are under way at once.
WINDOW = 10

E = TypeVar("E", bound=Exception)
Pending = tuple[Call[list[int]], psycopg.AsyncCursor[tuple[Any, ...]]]


class AsyncBulk:
    """Runs many calls on one connection, in one transaction or several."""

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        progress: Callable[[int], None] | None,
        *,
        pipelined: bool,
    ) -> None:
        self.committed: list[int] = []
        self._connection = connection
        self._progress = progress
        self._pipelined = pipelined
        self._ids: list[int] = []

    async def run(
        self, first: list[Call[list[int]]], rest: AsyncIterator[Call[list[int]]], commit_every: int | None
    ) -> None:
        """Run the calls, and commit after every so many, or at the end."""
        more = True
        while more:
            async with self._connection.transaction():
                more = await self._run_some(first, rest, commit_every)
            self.committed += self._ids
            self._ids = []

    def interrupted(self, exc: E, *, with_last: bool = False) -> E:
        """Add the ids of published messages to the exception; with_last: also of the last transaction."""
        if with_last:
            self.committed += self._ids
        if self.committed:
            exc.add_note(f"{len(self.committed)} messages had been published before this happened.")
            if isinstance(exc, PenstockError):
                exc.published = tuple(self.committed)
        return exc

    async def _run_some(
        self, first: list[Call[list[int]]], rest: AsyncIterator[Call[list[int]]], limit: int | None
    ) -> bool:
        """Run so many calls. Returns whether there may be more."""
        try:
            async with self._connection.pipeline() if self._pipelined else nullcontext():
                return await self._run_all(first, rest, limit)
        except BaseException as exc:
            self._give_up_if_interrupted(exc)
            raise

    async def _run_all(
        self, first: list[Call[list[int]]], rest: AsyncIterator[Call[list[int]]], limit: int | None
    ) -> bool:
        pending: deque[Pending] = deque()
        done = 0
        try:
            while done != limit:
                call = first.pop(0) if first else await anext(rest, None)
                if call is None:
                    break
                cursor = psycopg.AsyncCursor(self._connection, row_factory=tuple_row)
                await cursor.execute(call.text, call.parameters)
                pending.append((call, cursor))
                done += 1
                if len(pending) >= WINDOW:
                    await self._collect(pending)
            while pending:
                await self._collect(pending)
        except BaseException as exc:
            # Also before the end of the pipeline, which would wait for answers.
            self._give_up_if_interrupted(exc)
            raise
        return done == limit

    def _give_up_if_interrupted(self, exc: BaseException) -> None:
        """Close the connection if the caller was cancelled or pressed Ctrl-C.

        A second interruption during a clean end would leave a pipeline that hangs. Or a late cancel request
        could hit a statement of the next user of the connection.
        """
        if not isinstance(exc, Exception):
            self._connection.pgconn.finish()

    async def _collect(self, pending: deque[Pending]) -> None:
        call, cursor = pending.popleft()
        self._ids += call.parse(await cursor.fetchall())
        if self._progress is not None:
            self._progress(len(self.committed) + len(self._ids))
