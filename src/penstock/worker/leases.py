"""The leases of a worker: one pulse for all, and a look at which are still held where that is in doubt."""

from __future__ import annotations

import logging
import math
import secrets
from collections import defaultdict
from typing import TypeVar

import psycopg

from penstock import calls
from penstock._async.client import AsyncClient
from penstock.concurrency import async_sleep, now
from penstock.errors import ConnectionLost, DatabaseUnavailable, PenstockError, QueueNotFound
from penstock.sql_call import Call

from .executor import Executor
from .run import Run

__all__ = ["Leases"]

T = TypeVar("T")

logger = logging.getLogger("penstock.worker")

# Messages in one look.
MOST_CHECKED = 1000
# After a pulse that failed.
RETRY_SECONDS = 1.0
NAME_BYTES = 6


class Leases:
    """Keeps what this worker holds, with a third of the time of a lease between pulses."""

    def __init__(self, client: AsyncClient, seconds: float) -> None:
        self.seconds = seconds
        self._client = client
        # Short: it is written with every message that is claimed. The registry tells whose it is.
        self.name = self.token = secrets.token_urlsafe(NAME_BYTES)
        self._renewals = 0
        # Tokens of claims whose outcome is not known: a pulse would keep what nobody here has.
        self._doubtful: set[str] = set()
        self._pulsed_at = now()
        self.executor: Executor | None = None

    def renew_token(self) -> None:
        """Go on with another token; what the old one is known to hold is kept message by message."""
        self._doubtful.add(self.token)
        self._renewals += 1
        self.token = f"{self.name}-{self._renewals}"

    async def run(self) -> None:
        """Until it is cancelled."""
        # Short steps: a process that was stopped for a while has to notice that at once.
        step = min(1.0, self.seconds / 10)
        while True:
            before = now()
            await async_sleep(step)
            slept = now() - before
            if slept > self.seconds / 3 or now() - self._pulsed_at >= self.seconds / 3:
                await self._keep()

    async def catch_up(self) -> None:
        """Pulse first, where the last one is long ago: who looks for leases that are over would find ours."""
        if now() > self._pulsed_at + self.seconds / 2:
            await self.run_once()

    async def _keep(self) -> None:
        try:
            await self.run_once()
        except (DatabaseUnavailable, ConnectionLost) as exc:
            logger.debug("leases were not kept: %s", exc)
            await async_sleep(RETRY_SECONDS)
        except (PenstockError, psycopg.Error):
            logger.exception("leases were not kept")
            await async_sleep(RETRY_SECONDS)

    async def run_once(self) -> None:
        """One pulse, and a look at what it did not find."""
        assert self.executor is not None
        sent_at = now()
        was_late = sent_at >= self._pulsed_at + self.seconds
        by_token: dict[str, list[Run]] = defaultdict(list)
        for run in self.executor.runs.values():
            by_token[run.claimed.token].append(run)
        for token in tuple(by_token):
            runs = by_token[token]
            if token in self._doubtful:
                held_here = [run for run in runs if not run.settles_itself]
                # As much as has gone by since the last time, and a little.
                await self._check(held_here, math.ceil(sent_at - self._pulsed_at) + 1)
                continue
            queues = sorted({run.queue_name for run in runs})
            held = await self._attempt(calls.pulse(token, self.seconds, queues))
            still = [run for run in runs if run.is_held]
            # A lease that was over meanwhile may be somebody else's, however many are held.
            if held is None or held < len(still) or was_late:
                await self._check(still, 1)
        self._doubtful &= set(by_token) | {self.token}
        self._pulsed_at = sent_at

    async def _check(self, runs: list[Run], extension: float) -> None:
        """Extend these by name; those that are not held any more are lost."""
        by_queue: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for run in runs:
            by_queue[run.queue_name, run.claimed.token].append(run)
        for (queue_name, token), group in by_queue.items():
            for start in range(0, len(group), MOST_CHECKED):
                part = group[start : start + MOST_CHECKED]
                ids = sorted(run.message_id for run in part)
                found = await self._attempt(
                    calls.batch_extend_message_vt(queue_name, ids, token, max(1, extension))
                )
                held = {extended.message_id for extended in found or ()}
                for run in part:
                    if run.message_id not in held and not run.settles_itself:
                        run.interrupt("lost")

    async def _attempt(self, call: Call[T]) -> T | None:
        try:
            timed = await self._client._attempt(call, beyond=True)
        except QueueNotFound:
            return None
        return timed.result
