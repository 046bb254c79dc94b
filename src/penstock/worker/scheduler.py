"""The loop that enqueues periodic tasks. The worker that first moves a schedule on sends its message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from penstock._async.client import AsyncClient
from penstock.backoff import Backoff
from penstock.concurrency import now
from penstock.errors import ConnectionLost, DatabaseUnavailable, PenstockError, PermissionDenied
from penstock.models import ListedSchedule
from penstock.tasks.periodic import Cron, Every, Periodic, times_of

__all__ = ["Scheduler"]

T = TypeVar("T")

logger = logging.getLogger("penstock")

# How soon a worker sees that a schedule was paused, resumed, changed or moved. A schedule with an error is
# tried again after the same time.
LOOK_SECONDS = 10.0
# Clocks drift apart.
MEASURE_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 0.5
INSUFFICIENT_PRIVILEGE = "42501"


@dataclass(frozen=True, slots=True)
class Trouble:
    """The error of a schedule, and when to try again."""

    text: str
    until: float


class Scheduler:
    """Keeps the schedules of some periodic tasks going, beside any number of schedulers of other workers.

    The definition in the database counts, also where another worker has put it there.
    """

    def __init__(self, client: AsyncClient, periodics: Sequence[Periodic]) -> None:
        self._client = client
        self._periodics = {periodic.name: periodic for periodic in periodics}
        # Schedules that may be different in the database than in the code: at the start, all of them.
        self._to_put = set(self._periodics)
        self._clock: tuple[datetime, float] | None = None
        self._troubles: dict[str, Trouble] = {}
        self._is_away = False

    async def run(self) -> None:
        """Enqueue periodic tasks, until this is cancelled."""
        backoff = Backoff(FIRST_PAUSE_SECONDS, LOOK_SECONDS)
        while True:
            try:
                pause = await self.run_once()
            except Exception as exc:
                pause = backoff.next()
                self._away(exc)
            else:
                backoff.reset()
            await asyncio.sleep(pause)

    async def run_once(self) -> float:
        """One pass over all schedules: enqueue what is due. Returns the seconds until the next pass."""
        listed = await self._list()
        if missing := self._to_put | (self._periodics.keys() - listed.keys()):
            for name in sorted(missing):
                await self._guarded(
                    name, partial(self._put_or_follow, self._periodics[name], is_listed=name in listed)
                )
            listed = await self._list()
        if self._is_away:
            self._is_away = False
            logger.info("periodic tasks go on")
        nearest = LOOK_SECONDS
        for schedule in listed.values():
            next_at = await self._guarded(schedule.name, partial(self._advance, schedule))
            if next_at is not None:
                nearest = min(nearest, (next_at - await self._now()).total_seconds())
        return max(0.0, nearest)

    async def _list(self) -> dict[str, ListedSchedule]:
        return {
            schedule.name: schedule
            for schedule in await self._client.list_schedules()
            if schedule.name in self._periodics
        }

    async def _put_or_follow(self, periodic: Periodic, *, is_listed: bool) -> None:
        """Put a schedule as it is in the code. Where this role may not, follow the one in the database."""
        try:
            await self._put(periodic)
        except PermissionDenied as exc:
            if not is_listed:
                raise
            self._to_put.discard(periodic.name)
            logger.error("periodic task %s stays as it was: %s (%s)", periodic.name, exc, exc.hint)

    async def _put(self, periodic: Periodic) -> None:
        await self._client.put_schedule(
            periodic.name,
            periodic.queue_name,
            periodic.payload,
            definition=periodic.schedule.definition(),
            next_at=periodic.schedule.next_after(await self._now()),
            missed=periodic.missed,
            headers=periodic.headers,
            priority=periodic.priority,
            tenant=periodic.tenant,
            ttl=periodic.ttl,
        )
        self._to_put.discard(periodic.name)

    async def _advance(self, schedule: ListedSchedule) -> datetime:
        """Enqueue what is due. Returns the next due time."""
        times, at = self._times(schedule), await self._now()
        if at < schedule.next_at:
            return schedule.next_at
        ticks, next_at = times.due(schedule.next_at, at, schedule.missed)
        ids = await self._client.advance_schedule(schedule.name, schedule.next_at, next_at, ticks)
        if ids:
            logger.debug("periodic task %s: enqueued %d, next at %s", schedule.name, len(ids), next_at)
        return next_at

    def _times(self, schedule: ListedSchedule) -> Cron | Every:
        own = self._periodics[schedule.name].schedule
        if schedule.definition == own.definition():
            return own
        times = times_of(schedule.definition)
        if times is None:
            raise PenstockError(f"its definition in the database is not known here: {schedule.definition}")
        return times

    async def _now(self) -> datetime:
        """The time of the database, which all schedulers use, without a call each time."""
        if self._clock is None or now() - self._clock[1] > MEASURE_SECONDS:
            # The answer is older than its arrival: so a tick is a little late, and never early.
            self._clock = (await self._client.clock(), now())
        answered, at = self._clock
        return answered + timedelta(seconds=now() - at)

    async def _guarded(self, name: str, step: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """An error of one schedule does not stop the others. Without a database all of them stop."""
        before = self._troubles.get(name)
        if before is not None and now() < before.until:
            return None
        try:
            result = await step()
        except (DatabaseUnavailable, ConnectionLost):
            raise
        except Exception as exc:
            trouble = Trouble(f"{type(exc).__name__}: {exc}", now() + LOOK_SECONDS)
            self._troubles[name] = trouble
            if before is None or before.text != trouble.text:
                logger.error("periodic task %s: %s", name, trouble.text)
            return None
        self._troubles.pop(name, None)
        return result

    def _away(self, exc: Exception) -> None:
        """The database does not answer, or refuses: log that once."""
        if not self._is_away and getattr(exc, "sqlstate", None) == INSUFFICIENT_PRIVILEGE:
            logger.error("periodic tasks need a role with penstock_publisher: %s", exc)
        elif not self._is_away:
            logger.warning("periodic tasks wait for the database: %s", exc)
        self._is_away = True
        # After an outage it may be another server, with another clock.
        self._clock = None
