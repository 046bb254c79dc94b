"""The leases of a worker: one pulse for all, and a check where the pulse did not find all of them."""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from typing import TypeVar

import psycopg

from penstock import calls
from penstock._async.client import AsyncClient
from penstock.concurrency import async_sleep, now
from penstock.errors import (
    ConnectionLost,
    DatabaseUnavailable,
    NotReplicated,
    PenstockError,
    PermissionDenied,
    QueueNotFound,
)
from penstock.sql_call import Call

from .run import HeldRuns, Run

__all__ = ["Leases"]

T = TypeVar("T")

logger = logging.getLogger("penstock.worker")

# Messages in one check.
MOST_CHECKED = 1000
# After a pulse that failed.
RETRY_SECONDS = 1.0
NAME_BYTES = 6


class Leases:
    """Extends the leases that this worker holds. Pulses are a third of a lease apart."""

    def __init__(self, client: AsyncClient, seconds: float, held: HeldRuns) -> None:
        self.seconds = seconds
        self._client = client
        self._held = held
        # Short, because every claimed message is written with it. The registry has the worker of each token.
        self.name = self.token = secrets.token_urlsafe(NAME_BYTES)
        self._renewals = 0
        self._pulsed_at = now()

    def renew_token(self) -> None:
        """Go on with another token, so that messages that come back here are not settled with the old one."""
        self._renewals += 1
        self.token = f"{self.name}-{self._renewals}"

    async def run(self) -> None:
        """Extend leases, until this is cancelled."""
        # Short steps: a process that was suspended for a while has to notice that at once.
        step = min(1.0, self.seconds / 10)
        while True:
            before = now()
            await async_sleep(step)
            slept = now() - before
            if slept > self.seconds / 3 or now() - self._pulsed_at >= self.seconds / 3:
                await self._keep()

    async def catch_up(self) -> None:
        """Pulse now if the last pulse is long ago. Else the caller's own sweep would find our leases over."""
        if now() > self._pulsed_at + self.seconds / 2:
            await self.run_once()

    async def _keep(self) -> None:
        try:
            await self.run_once()
        except (DatabaseUnavailable, ConnectionLost, NotReplicated) as exc:
            logger.debug("leases were not extended: %s", exc)
            await async_sleep(RETRY_SECONDS)
        except (PenstockError, psycopg.Error):
            logger.exception("leases were not extended")
            await async_sleep(RETRY_SECONDS)

    async def run_once(self) -> None:
        """One pulse, and a check of messages that it did not find."""
        sent_at = now()
        was_late = sent_at >= self._pulsed_at + self.seconds
        by_token: dict[str, list[Run]] = defaultdict(list)
        for run in self._held:
            by_token[run.claimed.token].append(run)
        for token, runs in by_token.items():
            # By name: the token may hold messages that this worker never received. Their leases have to end.
            queues, ids = [run.queue_name for run in runs], [run.message_id for run in runs]
            held = await self._attempt(calls.pulse(token, self.seconds, queues, ids))
            still = [run for run in runs if run.is_held]
            # A lease that was over meanwhile may be held by another worker, although the numbers agree.
            if held is None or held < len(still) or was_late:
                await self._check(still)
        self._pulsed_at = sent_at

    async def _check(self, runs: list[Run]) -> None:
        """Ask for each message whether its lease is held. Interrupt runs whose lease is not held any more."""
        by_queue: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for run in runs:
            by_queue[run.queue_name, run.claimed.token].append(run)
        for (queue_name, token), group in by_queue.items():
            for start in range(0, len(group), MOST_CHECKED):
                part = group[start : start + MOST_CHECKED]
                ids = sorted(run.message_id for run in part)
                found = await self._attempt(calls.batch_extend_message_vt(queue_name, ids, token, 1))
                held = {extended.message_id for extended in found or ()}
                for run in part:
                    if run.message_id not in held and not run.settles_itself:
                        run.interrupt("lost")

    async def _attempt(self, call: Call[T]) -> T | None:
        try:
            timed = await self._client.internals.attempt(call, beyond=True)
        except (QueueNotFound, PermissionDenied):
            return None  # because of one queue, which must not cost the leases of the others
        return timed.result
