"""What an adapter does: run the text of a call on somebody's connection, in the transaction open there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.sql_call import Call, Row

__all__ = ["OPEN", "AsyncExecutor", "Executor"]

# The states of libpq in which a transaction is open: at work, waiting, failed. Not so when it is closed.
OPEN = frozenset({1, 2, 3})


class AsyncExecutor(Protocol):
    """Carries calls over a connection that is awaited."""

    async def fetch(self, call: Call[Any]) -> Sequence[Row]:
        """Run the statement of a call, which has `%s` for its parameters, and return its rows."""
        ...

    def in_transaction(self) -> bool:
        """Whether a transaction is open on the connection."""
        ...


class Executor(Protocol):
    """Carries calls over a connection that blocks."""

    def fetch(self, call: Call[Any]) -> Sequence[Row]: ...

    def in_transaction(self) -> bool: ...
