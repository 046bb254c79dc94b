"""The fetcher: claims messages for the places that are free, a little ahead where tasks are short."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import psycopg

from penstock import calls
from penstock._async.client import AsyncClient
from penstock.calls import Claimed
from penstock.concurrency import AsyncFlag, async_sleep, now
from penstock.errors import (
    ConnectionLost,
    DatabaseUnavailable,
    PayloadInvalid,
    PenstockError,
    PermissionDenied,
    QueueNotFound,
    SchemaError,
)
from penstock.payloads import load_headers
from penstock.tasks.app import App
from penstock.values import Backoff
from penstock.wording import shown

from .contact import Contact
from .context import WorkerContext
from .executor import Executor
from .lanes import RATE_SECONDS
from .leases import Leases
from .run import Run
from .settler import Settler

__all__ = ["Fetcher"]

logger = logging.getLogger("penstock.worker")

# Messages of one claim.
MOST_CLAIMED = 1000
# Polling, behind notifications and without them.
FIRST_POLL_SECONDS = 0.05
LONGEST_POLL_SECONDS = 1.0
POLL_LISTENING_SECONDS = 1.0
# What is due is looked for this much later.
DUE_SLACK_SECONDS = 0.02
# Behind tasks whose kind of place is full there may be others: how often to look there, and how far.
FIRST_LOOK_SECONDS = 0.25
LONGEST_LOOK_SECONDS = 2.0
LOOK_BEHIND = 100
# A task that nobody here knows is left alone, the longer the longer it is unknown.
LONGEST_LEFT_SECONDS = 3.0
# Who has met one polls more seldom for a while, so that those who know it come first.
STRANGER_SECONDS = 60.0
POLL_AFTER_STRANGERS_SECONDS = 3.0
STRANGER_PATIENCE_SECONDS = 0.3
# Deliveries that were lost with their workers, beyond max_attempts, before a task is given up.
LOST_DELIVERIES = 3
# Between attempts to reach the database.
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
MOST_PARSED = 1000


class Source(AsyncFlag):
    """A queue: set when there may be something in it."""

    def __init__(self, queue_name: str, bell: AsyncFlag) -> None:
        super().__init__()
        self.queue_name = queue_name
        self.channel: str | None = None
        self.poll_at = 0.0
        # How long others go first when there is something.
        self.patience = 0.0
        self._set_at = 0.0
        self.backoff = Backoff(FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS)
        # When to look behind those of a kind that is full: at once while that finds others.
        self.look_at = 0.0
        self.looks = Backoff(FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS)
        self._full_since: float | None = None
        # When something is due that this worker has put off.
        self.due: list[float] = []
        self._bell = bell
        self.set()

    def next_poll(self) -> float:
        at = self._set_at + self.patience if self.is_set() else self.poll_at
        return min(at, self.due[0]) if self.due else at

    def has_room(self, room: int) -> None:
        """Whether there is any: if not, first wait a moment for it."""
        if room:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now()

    def next_look(self) -> float:
        """When to look behind what is too many, if there is no room till then."""
        return max(self.look_at, (self._full_since or now()) + FIRST_LOOK_SECONDS)

    def looked(self, claimed: int, too_many: int) -> None:
        """After a claim, of which so many had to be given back."""
        if claimed > too_many:
            self.looks.reset()
            self.look_at = 0.0
        else:
            self.look_at = now() + self.looks.next()

    def set(self) -> None:
        if not self.is_set():
            self._set_at = now()
        super().set()
        self._bell.set()


class Fetcher:
    """Goes round the queues that may have something."""

    def __init__(
        self,
        *,
        app: App,
        client: AsyncClient,
        claims: AsyncClient,
        executor: Executor,
        settler: Settler,
        leases: Leases,
        contact: Contact,
        queue_names: tuple[str, ...],
        declare: Callable[[], Any],
    ) -> None:
        self._app = app
        self._client = client
        self._claims = claims
        self._executor = executor
        self._settler = settler
        self._leases = leases
        self._contact = contact
        self._declare = declare
        self._bell = AsyncFlag()
        self._sources = [Source(name, self._bell) for name in queue_names]
        self._parsed: dict[str | None, dict[str, Any]] = {}
        self._unknown: dict[str, float] = {}
        self._met_strangers: dict[str, float] = {}
        self._trouble = False
        self._stopped = False
        # Told how many messages were claimed.
        self.on_claimed: Callable[[int], None] = lambda _number: None

    def stop(self) -> None:
        self._stopped = True
        self._bell.set()

    def come_back(self, queue_name: str, delay: float) -> None:
        """Something of a queue is due then, as this worker knows since it has put it off itself."""
        for source in self._sources:
            if source.queue_name == queue_name:
                heappush(source.due, now() + delay + DUE_SLACK_SECONDS)

    def ring(self) -> None:
        """There is room, or something to look at."""
        self._bell.set()

    def look_again(self, queue_name: str) -> None:
        """A place of a queue with a cap has become free."""
        for source in self._sources:
            if source.queue_name == queue_name:
                source.set()

    async def run(self) -> None:
        """Until it is stopped; a claim that is under way comes to its end."""
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while not self._stopped:
            try:
                await self._subscribe()
                pause = await self.run_once()
            except (DatabaseUnavailable, ConnectionLost, psycopg.OperationalError) as exc:
                if not self._trouble:
                    logger.warning("the database cannot be reached, waiting for it: %s", exc)
                self._trouble = True
                self._contact.failed(exc)
                self._bell.clear()
                await async_sleep(backoff.next())
                continue
            if self._trouble:
                logger.info("the database is there again")
                self._contact.recovered()
            self._trouble = False
            backoff.reset()
            if pause > 0:
                await self._bell.wait(pause)

    async def run_once(self) -> float:
        """One round; how long to wait, unless something happens."""
        self._bell.clear()
        for source in self._sources:
            if source.next_poll() <= now():
                wanted = self._wanted(source)
                if wanted > 0:
                    await self._fetch(source, wanted)
        # Who was served first is served last in the next round.
        self._sources.append(self._sources.pop(0))
        waits = [s.next_poll() - now() for s in self._sources if self._wanted(s) > 0]
        looks = [s.next_look() - now() for s in self._sources if self._executor.is_blocked(s.queue_name)]
        if any(self._executor.has_enough(s.queue_name) for s in self._sources):
            # Unless what is in line takes longer than those before it: then that is less than it was.
            waits.append(RATE_SECONDS)
        return max(0.0, min([*waits, *(wait for wait in looks if wait > 0)], default=3600.0))

    def _wanted(self, source: Source) -> int:
        """How many to claim: for free places, and a little ahead; not in driblets while there is enough."""
        if self._executor.has_enough(source.queue_name):
            return 0
        room = min(MOST_CLAIMED, self._executor.room(source.queue_name))
        source.has_room(room)
        if not room and source.next_look() <= now() and self._executor.is_blocked(source.queue_name):
            return LOOK_BEHIND
        return room

    async def _fetch(self, source: Source, wanted: int) -> None:
        source.clear()
        while source.due and source.due[0] <= now():
            heappop(source.due)
        await self._leases.catch_up()
        token = self._leases.token
        claim = calls.claim_tasks(source.queue_name, token, self._leases.seconds, wanted)
        try:
            timed = await self._claims._attempt(claim)
        except QueueNotFound:
            await self._declare()
            source.poll_at = now() + LONGEST_POLL_SECONDS
            return
        except (ConnectionLost, DatabaseUnavailable):
            # What it may have claimed belongs to nobody here: it must not be kept alive by our token.
            self._leases.renew_token()
            source.set()
            raise
        except SchemaError:
            raise  # this worker does not fit the database any more
        except PermissionDenied as exc:
            logger.error("messages of queue %r could not be claimed: %s", source.queue_name, exc)
            self._contact.refused(source.queue_name, exc)
            source.poll_at = now() + LONGEST_PAUSE_SECONDS
            return
        except PenstockError as exc:
            logger.exception("messages of queue %r could not be claimed", source.queue_name)
            self._contact.refused(source.queue_name, exc)
            source.poll_at = now() + LONGEST_PAUSE_SECONDS
            return
        self._contact.answered()
        self._contact.claimed(source.queue_name)
        claimed = timed.result
        if claimed:
            self.on_claimed(len(claimed))
            source.looked(len(claimed), self._hand_over(claimed))
            source.backoff.reset()
        if len(claimed) == wanted or (claimed and self._app.needs(source.queue_name).max_active is not None):
            source.set()
        heard = source.channel is not None and self._client._host.hears(source.channel)
        pause = POLL_LISTENING_SECONDS if heard else source.backoff.next()
        if now() < self._met_strangers.get(source.queue_name, -STRANGER_SECONDS) + STRANGER_SECONDS:
            source.patience = STRANGER_PATIENCE_SECONDS
            pause = POLL_AFTER_STRANGERS_SECONDS * random.uniform(1, 2)
        else:
            source.patience = 0.0
        source.poll_at = now() + pause

    def _hand_over(self, claimed: list[Claimed]) -> int:
        """Make runs of what was claimed; how many had to be given back, since their kind of place is full."""
        runs = []
        for row in claimed:
            headers = self._parsed.get(row.headers)
            if headers is None:
                try:
                    headers = self._parse(row.headers)
                except PayloadInvalid as exc:
                    logger.error("message %d of %r is rejected: %s", row.message_id, row.queue_name, exc)
                    self._settler.reject(row, str(exc))
                    continue
            name = headers.get("task")
            task = self._app.tasks.get(name) if isinstance(name, str) else None
            stale = self._executor.runs.get((row.queue_name, row.message_id))
            if stale is not None:
                # It came back to the one that has lost it.
                stale.interrupt("lost")
            if task is None:
                self._leave_alone(row, headers)
                continue
            limit = row.attempts_limit or task.policy.max_attempts
            run = Run(task, row, headers, limit, WorkerContext.of)
            if row.attempt > limit + LOST_DELIVERIES:
                logger.error("given up, its workers were lost over and over: %s", run)
                self._settler.failed(run, 0, "given up: its workers were lost, over and over")
                continue
            runs.append(run)
        return self._executor.submit(runs)

    def _parse(self, text: str | None) -> dict[str, Any]:
        headers = load_headers(text)
        if len(self._parsed) >= MOST_PARSED:
            self._parsed.clear()
        self._parsed[text] = headers
        return headers

    def _leave_alone(self, row: Claimed, headers: dict[str, Any]) -> None:
        """Give back a message of a task that is not known here: another worker may know it."""
        # Cut: any publisher may have written it.
        name = shown(headers.get("task"))
        if name not in self._unknown:
            logger.warning(
                "queue %r has a task %s, which is not known here: left to others", row.queue_name, name
            )
        since = self._unknown.setdefault(name, time.monotonic())
        delay = min(1 + time.monotonic() - since, LONGEST_LEFT_SECONDS)
        self._met_strangers[row.queue_name] = now()
        self._settler.give_back(row, delay)

    async def _subscribe(self) -> None:
        for source in self._sources:
            if source.channel is None:
                source.channel = await self._client._host.listen(source.queue_name, source)
