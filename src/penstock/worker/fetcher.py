"""The fetcher: claims messages for the slots that are free, a little ahead where tasks are short."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any, NamedTuple

import psycopg

from penstock import calls
from penstock._async.client import AsyncClient
from penstock.backoff import Backoff
from penstock.calls import Claimed, Parked
from penstock.concurrency import AsyncFlag, async_sleep, now
from penstock.errors import (
    ConnectionLost,
    DatabaseUnavailable,
    PayloadInvalid,
    PenstockError,
    QueueNotFound,
    SchemaError,
)
from penstock.payloads import load_headers
from penstock.tasks.app import App
from penstock.wording import shown

from .contact import Contact
from .context import WorkerContext
from .executor import Executor
from .lanes import RATE_SECONDS, Demand, Lane, Route, room_of
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
# How often a busy queue is asked for parked messages of tasks that this worker knows.
PARKED_SECONDS = 1.0
# To ask for parked messages takes less, unless vacuum is held back.
SLOW_SECONDS = 0.01
# After messages that could not run, claims park the like themselves. So long after a search follows another.
SEARCH_SECONDS = 1.0
# A kind may be full for so long before a claim looks behind its messages for others.
UNEVEN_SECONDS = 0.25
# After a message that was lost with a worker more than once could not run beside others.
SUSPECTS_SECONDS = 1.0
# Deliveries that were lost with their workers, beyond max_attempts, before a task is given up.
LOST_DELIVERIES = 3
# The history of a message has its last ten errors: more are not known.
MOST_LOST = 10
# Between attempts to reach the database.
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
MOST_PARSED = 1000


class Source(AsyncFlag):
    """A queue: set when there may be something in it."""

    def __init__(self, queue_name: str, wake_up: AsyncFlag) -> None:
        super().__init__()
        self.queue_name = queue_name
        self.channel: str | None = None
        self.poll_at = 0.0
        self.backoff = Backoff(FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS)
        # When something is due that this worker has put off.
        self.due: list[float] = []
        # The queue has max_active: a claim may bring less than there is.
        self.is_capped = False
        # The last claim brought less than was asked for.
        self.was_short = True
        # When to ask for all parked messages, and not before when for any.
        self.parked_at = 0.0
        self.ask_at = 0.0
        # Routes of parked messages that were lost with a worker before, as far as this worker knows.
        self.suspect: dict[Route, None] = {}
        # Routes that had no room for messages of this queue, which this worker parked.
        self.full: dict[Route, None] = {}
        # Claims of late brought messages that could not run: till then claims park the like, and look on.
        self.search_until = 0.0
        # Some kinds of tasks are full and others idle since then; when to look for messages of the idle ones.
        self.uneven_since = math.inf
        self.search_at = 0.0
        self._wake_up = wake_up
        self.set()

    def next_poll(self) -> float:
        if self.is_set():
            return 0.0
        if any(room_of(route) > 0 for route in self.full):
            return self.ask_at
        return min(self.poll_at, self.due[0]) if self.due else self.poll_at

    @property
    def is_searching(self) -> bool:
        return now() < self.search_until

    def set(self) -> None:
        super().set()
        self._wake_up.set()


class Left(NamedTuple):
    """A message that cannot run here: its task, and the route that has no room; None if it is not known."""

    claimed: Claimed
    task_name: str
    route: Route | None


class Sorted(NamedTuple):
    """What a claim brought: runs that there is room for, and the rest."""

    claimed: list[Claimed]
    runs: list[Run]
    left: list[Left]


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
        self._wake_up = AsyncFlag()
        self._sources = [Source(name, self._wake_up) for name in queue_names]
        self._parsed: dict[str | None, dict[str, Any]] = {}
        self._unknown: set[str] = set()
        self._suspects_at = 0.0
        self._trouble = False
        self._stopped = False
        # Told how many messages were claimed.
        self.on_claimed: Callable[[int], None] = lambda _number: None

    def stop(self) -> None:
        self._stopped = True
        self._wake_up.set()

    def come_back(self, queue_name: str, delay: float) -> None:
        """Something of a queue is due then, as this worker knows since it has put it off itself."""
        for source in self._sources:
            if source.queue_name == queue_name:
                heappush(source.due, now() + delay + DUE_SLACK_SECONDS)

    def wake(self) -> None:
        """There is room, or something to look at."""
        self._wake_up.set()

    def permits_returned(self, queue_name: str) -> None:
        """Messages of a queue were settled: if it has a cap, others may be claimed now."""
        for source in self._sources:
            if source.queue_name == queue_name and source.is_capped:
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
                self._wake_up.clear()
                await async_sleep(backoff.next())
                continue
            if self._trouble:
                logger.info("the database is there again")
                self._contact.recovered()
            self._trouble = False
            backoff.reset()
            if pause > 0:
                await self._wake_up.wait(pause)

    async def run_once(self) -> float:
        """One round; how long to wait, unless something happens."""
        self._wake_up.clear()
        for source in self._sources:
            if source.next_poll() <= now() or self._lost_most(source.suspect):
                demand = self._demand(source)
                if demand.wanted:
                    await self._fetch(source, demand)
        # The queue that was served first is served last in the next round.
        self._sources.append(self._sources.pop(0))
        waits = [source.next_poll() - now() for source in self._sources if self._demand(source).wanted]
        if self._executor.is_busy:
            # Unless what is in line takes longer than those before it: then that is less than it was.
            waits.append(RATE_SECONDS)
        if alone_for := self._executor.suspects.alone_for:
            waits.append(alone_for)
        return max(0.0, min(waits, default=3600.0))

    def _demand(self, source: Source) -> Demand:
        """How many messages of a queue to claim; and whether to look behind those of a kind that is full."""
        may_search = now() >= max(source.search_at, source.uneven_since + UNEVEN_SECONDS)
        demand = self._executor.demand(source.queue_name, may_search=may_search)
        if not demand.is_uneven:
            source.uneven_since = math.inf
        elif source.uneven_since == math.inf:
            source.uneven_since = now()
        return demand

    async def _fetch(self, source: Source, demand: Demand) -> None:
        wanted, began_at = min(MOST_CLAIMED, demand.wanted), now()
        source.clear()
        while source.due and source.due[0] <= now():
            heappop(source.due)
        await self._leases.catch_up()
        token = self._leases.token
        is_search = source.is_searching or bool(demand.idle)
        asked = self._routes_to_ask_for(source, demand)
        room = {of: of.room for route in asked for of in route}
        lost_most = self._lost_most(source.suspect or asked)
        parked = self._parked(asked, lost_most, park_others=is_search) if asked else None
        claim = calls.claim_tasks(source.queue_name, token, self._leases.seconds, wanted, parked=parked)
        try:
            claimed = (await self._claims._attempt(claim)).result
        except QueueNotFound:
            await self._declare()
            source.poll_at = now() + LONGEST_POLL_SECONDS
            return
        except (ConnectionLost, DatabaseUnavailable):
            # No part of this worker knows what it may have claimed: our token must not keep that alive.
            self._leases.renew_token()
            source.set()
            raise
        except SchemaError:
            raise  # this worker does not fit the database any more
        except PenstockError as exc:
            logger.error("messages of queue %r could not be claimed: %s", source.queue_name, exc)
            self._contact.refused(source.queue_name, exc)
            source.poll_at = now() + LONGEST_PAUSE_SECONDS
            return
        self._contact.answered()
        self._contact.claimed(source.queue_name)
        sorted_out = self._sort_out(claimed)
        self._executor.begin(sorted_out.runs)
        if asked:
            self._parked_came(source, asked, room, sorted_out.runs)
            if lost_most:
                # As many as might begin: there may be more.
                lost = [run for run in sorted_out.runs if run.claimed.lost_deliveries]
                found = {self._executor.route(run.task): None for run in lost}
                source.suspect = found if len(lost) >= lost_most else {}
            if (took := now() - began_at) > SLOW_SECONDS and not sorted_out.runs:
                # The claim walks over what vacuum may not remove yet: not too often.
                source.ask_at = now() + 5 * took
        self._came(source, claimed, wanted)
        if is_search:
            # It may have parked more than it brought: the next claim tells whether there is anything left.
            source.set()
            source.search_until = source.search_until if claimed else 0.0
        if demand.idle:
            source.search_at = now() + max(SEARCH_SECONDS, 4 * (now() - began_at))
        if sorted_out.left:
            await self._set_aside(source, sorted_out.left)

    def _came(self, source: Source, claimed: list[Claimed], wanted: int) -> None:
        """When to look again: at once where there may be more."""
        source.was_short = len(claimed) < wanted
        heard = source.channel is not None and self._client._runtime.hears(source.channel)
        source.poll_at = now() + (POLL_LISTENING_SECONDS if heard else source.backoff.next())
        if claimed:
            source.backoff.reset()
            source.is_capped = claimed[0].queue_capped
            if not source.was_short or source.is_capped:
                source.set()
            self.on_claimed(len(claimed))

    # Parked messages

    def _routes_to_ask_for(self, source: Source, demand: Demand) -> dict[Route, list[str]]:
        """Tasks whose parked messages the next claim is to bring: those that there is room for.

        All of them where the queue has nothing else, or was not asked for a while. Else those of routes that
        had no room before.
        """
        is_all = source.is_searching or source.was_short or source.suspect or now() >= source.parked_at
        if now() < source.ask_at or not (is_all or source.full or demand.idle):
            return {}
        routes = self._executor.routes_with_room()
        if demand.idle:
            return {route: names for route, names in routes.items() if route in demand.idle}
        if is_all:
            return routes
        return {route: names for route, names in routes.items() if route in source.full}

    def _parked(self, routes: dict[Route, list[str]], lost_most: int, *, park_others: bool) -> Parked:
        parked = Parked([], [], [], [], lost_most, park_others)
        numbers: dict[Lane, int] = {}
        for route, names in routes.items():
            if route[0] not in numbers:
                parked.lane_limits.append(route[0].room)
            number = numbers.setdefault(route[0], len(numbers) + 1)
            parked.task_names.extend(names)
            parked.task_limits.extend([room_of(route)] * len(names))
            parked.task_lanes.extend([number] * len(names))
        return parked

    def _lost_most(self, routes: Iterable[Route]) -> int:
        """How many messages that were lost with a worker may begin, of any of these routes."""
        slots = min((route[0].limit for route in routes), default=0)
        if not slots or now() < self._suspects_at:
            return 0
        return min(MOST_CLAIMED, self._executor.suspects.room(slots))

    def _parked_came(
        self, source: Source, asked: Iterable[Route], room: dict[Lane, int], runs: list[Run]
    ) -> None:
        """Go on to ask for parked messages of a route as long as it gets as many as it has room for."""
        source.parked_at = now() + PARKED_SECONDS
        came: Counter[Lane] = Counter()
        for run in runs:
            came.update(self._executor.route(run.task))
        for route in asked:
            if any(came[lane] >= room[lane] for lane in route):
                source.full.setdefault(route)
            else:
                source.full.pop(route, None)

    async def _set_aside(self, source: Source, left: list[Left]) -> None:
        """Take messages that cannot run here out of the line, for workers that can run them."""
        source.search_until = now() + SEARCH_SECONDS
        for one in left:
            if one.route is not None and one.claimed.lost_deliveries:
                source.suspect.setdefault(one.route)
            elif one.route is not None:
                source.full.setdefault(one.route)
        ids, names = [one.claimed.message_id for one in left], [one.task_name for one in left]
        try:
            await self._claims._attempt(
                calls.park_messages(source.queue_name, ids, left[0].claimed.token, names)
            )
        except QueueNotFound:
            return
        except (ConnectionLost, DatabaseUnavailable):
            # Their leases run out, unless they were parked.
            self._leases.renew_token()
            raise
        except SchemaError:
            raise
        except PenstockError as exc:
            logger.error("messages of queue %r could not be parked: %s", source.queue_name, exc)
            self._leases.renew_token()

    # Runs

    def _sort_out(self, claimed: list[Claimed]) -> Sorted:
        """Make runs of what was claimed, of those that there is room for; and say what cannot run here."""
        runs, left = list[Run](), list[Left]()
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
                # It came back to the worker that has lost it.
                stale.interrupt("lost")
            if task is None:
                self._tell_unknown(row.queue_name, name)
                left.append(Left(row, name if isinstance(name, str) else "", None))
                continue
            limit = row.attempts_limit or task.policy.max_attempts
            run = Run(task, row, headers, limit, WorkerContext.of)
            if row.lost_deliveries >= min(limit + LOST_DELIVERIES, MOST_LOST):
                logger.error("given up, its workers were lost over and over: %s", run)
                error = f"given up: its worker was lost {row.lost_deliveries} times in a row while it ran"
                if row.attempt >= limit:
                    self._settler.failed(run, 0, error)
                else:
                    self._settler.rejected(run, error)
                continue
            runs.append(run)
        admitted = self._executor.admit(runs)
        if len(admitted) < len(runs):
            known = set(map(id, admitted))
            for run in runs:
                if id(run) not in known:
                    left.append(Left(run.claimed, run.task.name, self._executor.route(run.task)))
                    if run.claimed.lost_deliveries > 1:
                        self._suspects_at = now() + SUSPECTS_SECONDS
        return Sorted(claimed, admitted, left)

    def _parse(self, text: str | None) -> dict[str, Any]:
        headers = load_headers(text)
        if len(self._parsed) >= MOST_PARSED:
            self._parsed.clear()
        self._parsed[text] = headers
        return headers

    def _tell_unknown(self, queue_name: str, name: object) -> None:
        """Once for each task."""
        # Cut: any publisher may have written it.
        told = f"queue {queue_name!r} has a task {shown(name)}"
        if told not in self._unknown:
            logger.warning("%s, which is not known here: parked for a worker that knows it", told)
            if len(self._unknown) >= MOST_PARSED:
                self._unknown.clear()
            self._unknown.add(told)

    async def _subscribe(self) -> None:
        for source in self._sources:
            if source.channel is None:
                source.channel = await self._client._runtime.listen(source.queue_name, source)
