"""The registry of workers: one row for each, with its queues and runs, written every ten seconds."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from datetime import UTC, datetime
from typing import Any

import psycopg

from penstock._async.client import AsyncClient
from penstock.concurrency import async_sleep
from penstock.errors import PenstockError
from penstock.tasks.app import App
from penstock.version import __version__

from .leases import Leases
from .run import HeldRuns, Run

__all__ = ["Registry"]

logger = logging.getLogger("penstock.worker")

BEAT_SECONDS = 10.0
# Runs that are listed one by one; the others are only counted.
MOST_SHOWN = 100


class Registry:
    """Keeps the row of this worker up to date."""

    def __init__(
        self,
        app: App,
        client: AsyncClient,
        held: HeldRuns,
        leases: Leases,
        *,
        queue_names: tuple[str, ...],
        concurrency: int,
    ) -> None:
        self._app = app
        self._client = client
        self._held = held
        self._concurrency = concurrency
        self._token = leases.name
        self._queue_names = queue_names
        self.stopping = False
        self.tried = asyncio.Event()
        """The first attempt to register has ended."""

    async def run(self) -> None:
        """Register, and beat until this is cancelled."""
        await self._patiently(self.register)
        self.tried.set()
        while True:
            await async_sleep(BEAT_SECONDS)
            await self._patiently(self.run_once)

    async def register(self) -> None:
        names = [task.name for task in self._app.tasks.values() if task.queue in self._queue_names]
        await self._client.register_worker(
            self._token,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            queues=list(self._queue_names),
            tasks=sorted(names),
            concurrency=self._concurrency,
        )

    async def run_once(self) -> None:
        """One beat."""
        runs = self._held.running
        is_registered = await self._client.beat_worker(
            self._token,
            held=len(self._held),
            running=[_shown(run) for run in runs[:MOST_SHOWN]],
            stopping=self.stopping,
        )
        if not is_registered:
            await self.register()

    async def forget(self) -> None:
        await self._patiently(lambda: self._client.forget_worker(self._token))

    async def _patiently(self, step: Any) -> None:
        try:
            await step()
        except (PenstockError, psycopg.Error) as exc:
            logger.debug("the registry of workers was not written: %s", exc)


def _shown(run: Run) -> dict[str, Any]:
    return {
        "task": run.task.name,
        "queue": run.queue_name,
        "message_id": run.message_id,
        "attempt": run.attempt,
        "since": datetime.fromtimestamp(run.started_epoch, UTC).isoformat(timespec="milliseconds"),
    }
