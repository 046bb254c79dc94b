"""The two clients of the dashboard: one that PostgreSQL lets read only, and one for actions.

Every page reads on connections in the role penstock_viewer, with transactions that only read. So a fault of a
page cannot change a message. Actions run on the other client, which is not made with `read_only`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from penstock import calls
from penstock._async.client import AsyncClient
from penstock.doctor import Finding, examine, gather
from penstock.dsn import complete
from penstock.errors import PenstockError
from penstock.tasks.app import App

from .condition import Condition, condition_of

__all__ = ["VIEWER_ROLE", "Database"]

VIEWER_ROLE = "penstock_viewer"


class Database:
    """The clients of one database.

    app_or_dsn: an app, a DSN, or None for the database of the environment. viewer_dsn: a DSN of its own for
    what pages read; needed where the role of the other one may not become penstock_viewer, or behind
    PgBouncer.
    """

    def __init__(
        self,
        app_or_dsn: App | str | None,
        *,
        viewer_dsn: str | None,
        read_only: bool,
        viewer_connections: int,
        action_connections: int,
    ) -> None:
        dsn = app_or_dsn.clients.dsn if isinstance(app_or_dsn, App) else app_or_dsn
        self._viewer_dsn = viewer_dsn
        self.viewers = AsyncClient(
            dsn if viewer_dsn is None else viewer_dsn,
            max_connections=viewer_connections,
            maintain=False,
            retry_for=0,
        )
        settings = () if viewer_dsn is not None else (calls.SET_VIEWER,)
        self.viewers.internals.set_on_connections(*settings, calls.SET_READ_ONLY, calls.SET_STATEMENT_TIMEOUT)
        self.actions = None
        if not read_only:
            self.actions = AsyncClient(dsn, max_connections=action_connections, maintain=False, retry_for=0)
        self._is_checked = False
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Connect, and make sure that pages cannot write."""
        async with self._lock:
            if self._is_checked:
                return
            try:
                await self.viewers.open()
                role, is_read_only = await self._role()
            except psycopg.errors.InsufficientPrivilege as exc:
                raise PenstockError(f"the dashboard may not read as {VIEWER_ROLE}: {exc}", hint=HINT) from exc
            except psycopg.errors.InvalidParameterValue as exc:
                raise PenstockError(
                    f"there is no role {VIEWER_ROLE} on this server: {exc}", hint=HINT
                ) from exc
            if self._viewer_dsn is None and (role != VIEWER_ROLE or not is_read_only):
                raise PenstockError(
                    f"pages would read as {role!r}, not as {VIEWER_ROLE}: a pooler is in between", hint=HINT
                )
            if not is_read_only and (others := await self._other_roles()):
                raise PenstockError(
                    f"pages would read as {role!r}, with the rights of {', '.join(others)}: a pooler is in "
                    "between, so nothing keeps them from writing",
                    hint=HINT,
                )
            self._is_checked = True

    async def close(self) -> None:
        await self.viewers.close()
        if self.actions is not None:
            await self.actions.close()

    async def examine(self) -> tuple[list[Finding], Condition]:
        """What the doctor says, as a viewer sees it, and some facts. In a thread: the doctor blocks."""
        return await asyncio.to_thread(self._examined)

    def _examined(self) -> tuple[list[Finding], Condition]:
        with self._viewer_connection() as connection:
            facts = gather(connection)
        return examine(facts), condition_of(facts)

    @contextmanager
    def _viewer_connection(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(complete(self.viewers.internals.dsn), autocommit=True) as connection:
            if self._viewer_dsn is None:
                connection.execute(calls.SET_VIEWER.encode())
            yield connection

    async def _role(self) -> tuple[str, bool]:
        found = await self.viewers.diagnose_server()
        return found.role_name, found.is_read_only

    async def _other_roles(self) -> list[str]:
        held = (await self.viewers.internals.attempt(calls.roles_held())).result
        return [each.role for each in held if each.is_held and each.role != VIEWER_ROLE]


HINT = (
    f"grant {VIEWER_ROLE} to the role that the dashboard connects as, or give a viewer_dsn (--viewer-dsn) of"
    f" a role that is a member of {VIEWER_ROLE} only"
)
