"""The registry: who works here, since when, and on what; one row a worker, written every ten seconds."""

from __future__ import annotations

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

from .executor import Executor
from .leases import Leases
from .run import Run

__all__ = ["Registry"]

logger = logging.getLogger("penstock.worker")

BEAT_SECONDS = 10.0
# Of what a worker holds, so much is told one by one.
MOST_SHOWN = 100


class Registry:
    """Tells the others of this worker."""

    def __init__(
        self, app: App, client: AsyncClient, executor: Executor, leases: Leases, queue_names: tuple[str, ...]
    ) -> None:
        self._app = app
        self._client = client
        self._executor = executor
        self._token = leases.name
        self._queue_names = queue_names
        self.stopping = False

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._patiently(self.register)
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
            concurrency=self._executor.coroutines.limit,
        )

    async def run_once(self) -> None:
        """One beat."""
        runs = self._executor.running
        told = await self._client.beat_worker(
            self._token,
            held=len(self._executor.runs),
            running=[_shown(run) for run in runs[:MOST_SHOWN]],
            stopping=self.stopping,
        )
        if not told:
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
