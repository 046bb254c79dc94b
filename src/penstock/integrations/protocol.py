"""The protocol of an adapter: run the text of a call on the caller's connection, in its open transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.sql_call import Call, Row

__all__ = ["OPEN", "AsyncExecutor", "Executor"]

# The states of libpq in which a transaction is open: active, waiting, failed. A closed connection has none.
OPEN = frozenset({1, 2, 3})


class AsyncExecutor(Protocol):
    """Runs calls over an awaited connection."""

    async def fetch(self, call: Call[Any]) -> Sequence[Row]:
        """Run the statement of a call, which has `%s` for its parameters, and return its rows."""
        ...

    def in_transaction(self) -> bool:
        """Whether a transaction is open on the connection."""
        ...


class Executor(Protocol):
    """Runs calls over a blocking connection."""

    def fetch(self, call: Call[Any]) -> Sequence[Row]: ...

    def in_transaction(self) -> bool: ...
