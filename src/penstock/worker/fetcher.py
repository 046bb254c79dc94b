"""The fetcher: claims messages for free slots, and a little ahead where tasks are short."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock import calls
from penstock._async.client import AsyncClient
from penstock.backoff import Backoff
from penstock.calls import Claimed, Parked
from penstock.concurrency import async_sleep, now
from penstock.errors import (
    ConnectionLost,
    DatabaseUnavailable,
    NotReplicated,
    PenstockError,
    QueueNotFound,
    SchemaError,
)

from .contact import Contact
from .executor import Executor
from .intake import Intake, Left
from .lanes import RATE_SECONDS, Demand, Lane, Route, room_of
from .leases import Leases
from .run import Run
from .sources import LONGEST_POLL_SECONDS, Source, Sources

__all__ = ["Fetcher"]

logger = logging.getLogger("penstock.worker")

# A look at several queues asks which of them have messages; fewer flags than this do not need one.
FEW_FLAGS = 10
# Messages of one claim.
MOST_CLAIMED = 1000
# How often a busy queue is asked for parked messages of tasks that this worker knows.
PARKED_SECONDS = 1.0
# Asking for parked messages takes less than this, unless vacuum is held back.
SLOW_SECONDS = 0.01
# After messages that could not run, claims park messages of the same kind for this long. It is also the least
# time between two searches.
SEARCH_SECONDS = 1.0
# A kind of task may be full for so long before a claim looks behind its messages for others.
UNEVEN_SECONDS = 0.25
# Pause after a message that was lost with a worker more than once could not run beside others.
SUSPECTS_SECONDS = 1.0
# Between attempts to reach the database. As consumers do: a worker is back a second after a failover.
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0
# Errors after which the fetcher waits for the database. A claim that was not replicated has no answer either.
AWAY = (ConnectionLost, DatabaseUnavailable, NotReplicated)
# After an error of a queue.
REFUSED_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of messages of one queue, and which parked messages it asks for.

    room: what each lane had room for. is_search: all messages that cannot run here are parked on the way.
    """

    source: Source
    demand: Demand
    wanted: int
    began_at: float
    asked: dict[Route, list[str]]
    room: dict[Lane, int]
    lost_most: int
    is_search: bool


class Fetcher:
    """Passes over the queues that may have messages, and claims from each what there are slots for.

    client: listens. claims: the client that claims. claimed: called with how many messages a claim returned.
    """

    def __init__(
        self,
        *,
        client: AsyncClient,
        claims: AsyncClient,
        executor: Executor,
        intake: Intake,
        leases: Leases,
        contact: Contact,
        sources: Sources,
        declare: Callable[[], Coroutine[Any, Any, None]],
        claimed: Callable[[int], None],
    ) -> None:
        self._client = client
        self._claims = claims
        self._executor = executor
        self._intake = intake
        self._leases = leases
        self._contact = contact
        self._sources = sources
        self._declare = declare
        self._claimed = claimed
        self._suspects_at = 0.0
        self._trouble = False
        self._stopped = False

    def stop(self) -> None:
        """Claim nothing more. A claim that is under way comes to its end."""
        self._stopped = True
        for source in self._sources:
            self._tell_room(source, False)
        self._sources.wake()

    async def run(self) -> None:
        """Claim messages, until stop()."""
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while not self._stopped:
            try:
                await self._subscribe()
                pause = await self.run_once()
            except (*AWAY, psycopg.OperationalError) as exc:
                if not self._trouble:
                    logger.warning("the database cannot be reached, waiting for it: %s", exc)
                self._trouble = True
                self._contact.failed(exc)
                for source in self._sources:
                    self._tell_room(source, False)
                self._sources.wake_up.clear()
                await async_sleep(backoff.next())
                continue
            if self._trouble:
                logger.info("the database is there again")
                self._contact.recovered()
            self._trouble = False
            backoff.reset()
            if pause > 0:
                await self._sources.wake_up.wait(pause)

    async def run_once(self) -> float:
        """One pass over the queues; how long to wait for a wake-up until the next."""
        self._sources.wake_up.clear()
        await self._look()
        for source in tuple(self._sources):
            if source.next_poll() <= now() or self._lost_most(source.suspect):
                demand = self._demand(source)
                if demand.wanted:
                    await self._fetch(source, demand)
        self._sources.rotate()
        waits = []
        for source in self._sources:
            has_room = bool(self._demand(source).wanted)
            self._tell_room(source, has_room and not source.is_refused)
            if has_room:
                waits.append(source.next_poll() - now())
        if self._executor.is_busy:
            # A lane claims ahead by its recent rate. Where tasks have become slower, it claims less ahead.
            waits.append(RATE_SECONDS)
        if alone_for := self._executor.suspects.alone_for:
            waits.append(alone_for)
        return max(0.0, min(waits, default=3600.0))

    def _demand(self, source: Source) -> Demand:
        """How many messages of a queue to claim, and whether to look behind those of a kind that is full."""
        may_search = now() >= max(source.search_at, source.uneven_since + UNEVEN_SECONDS)
        demand = self._executor.demand(source.queue_name, may_search=may_search)
        if not demand.is_uneven:
            source.uneven_since = math.inf
        elif source.uneven_since == math.inf:
            source.uneven_since = now()
        return demand

    async def _look(self) -> None:
        """Ask once for all idle queues whether they have messages. Those that have none need no claim."""
        sources = self._to_look_at()
        if len(sources) < 2:
            return
        for source in sources:
            source.begin_claim()
        began_at = now()
        names = {source.queue_name for source in sources}
        full = names
        try:
            full = set((await self._claims.internals.attempt(calls.queues_with_work(list(names)))).result)
        except (*AWAY, SchemaError):
            raise
        except PenstockError as exc:
            logger.debug("queues could not be looked at: %s", exc)
        finally:
            for source in sources:
                if source.queue_name in full:
                    source.set()
        for source in sources:
            if source.queue_name in full:
                continue
            self._contact.answered()
            source.was_short = True
            source.parked_at = now() + PARKED_SECONDS
            source.search_until = 0.0
            source.full, source.suspect = {}, {}
            self._pause(source, 0, now() - began_at)

    def _to_look_at(self) -> list[Source]:
        """Idle queues whose turn it is, and those whose turn comes soon."""
        at = now()
        idle = [source for source in self._sources if source.is_idle]
        if len(idle) < 2:
            return []
        flagged = [source for source in idle if source.is_set()]
        waiting = [source for source in idle if source.look_at <= at and not source.is_set()]
        if all(source.next_poll() > at for source in waiting):
            waiting = []
        if len(flagged) <= FEW_FLAGS:
            flagged = []
        return [source for source in (*flagged, *waiting) if self._demand(source).wanted]

    async def _fetch(self, source: Source, demand: Demand) -> None:
        await self._leases.catch_up()
        claim = self._planned(source, demand)
        source.begin_claim()
        claimed = await self._run_claim(claim)
        if claimed is None:
            return
        self._contact.answered()
        self._contact.claimed(source.queue_name)
        found = self._intake.sort_out(claimed)
        self._executor.begin(found.runs)
        if claim.asked:
            self._note_parked(claim, found.runs)
        self._plan_next_poll(claim, claimed)
        if any(left.is_grave for left in found.left):
            self._suspects_at = now() + SUSPECTS_SECONDS
        if found.left:
            await self._park(source, found.left)

    def _planned(self, source: Source, demand: Demand) -> Claim:
        asked = self._routes_to_ask_for(source, demand)
        return Claim(
            source=source,
            demand=demand,
            wanted=min(MOST_CLAIMED, demand.wanted),
            began_at=now(),
            asked=asked,
            room={lane: lane.room for route in asked for lane in route},
            lost_most=self._lost_most(source.suspect or asked),
            is_search=source.is_searching or bool(demand.idle),
        )

    async def _run_claim(self, claim: Claim) -> list[Claimed] | None:
        """The messages; None where none of this queue can be claimed now."""
        source, leases = claim.source, self._leases
        source.is_refused = True
        parked = self._parked(claim) if claim.asked else None
        call = calls.claim_tasks(source.queue_name, leases.token, leases.seconds, claim.wanted, parked=parked)
        try:
            timed = await self._claims.internals.attempt(call)
        except QueueNotFound:
            await self._declare()
            source.pause(LONGEST_POLL_SECONDS)
        except AWAY:
            source.set()
            raise
        except SchemaError:
            raise  # this worker does not fit the database any more
        except PenstockError as exc:
            logger.error("messages of queue %r could not be claimed: %s", source.queue_name, exc)
            self._contact.refused(source.queue_name, exc)
            source.pause(REFUSED_SECONDS)
        else:
            source.is_refused = False
            return timed.result
        return None

    def _plan_next_poll(self, claim: Claim, claimed: list[Claimed]) -> None:
        """When to ask the queue again: at once where there may be more."""
        source = claim.source
        source.was_short = len(claimed) < claim.wanted
        source.was_empty = not claimed
        self._pause(source, len(claimed), now() - claim.began_at)
        if claimed:
            source.is_capped = claimed[0].queue_capped
            if not source.was_short or source.is_capped:
                source.set()
            self._claimed(len(claimed))
        if claim.is_search:
            # The claim may have parked more than it returned. Only another claim tells whether more is left.
            source.set()
            source.search_until = source.search_until if claimed else 0.0
        if claim.demand.idle:
            source.search_at = now() + max(SEARCH_SECONDS, 4 * (now() - claim.began_at))

    def _pause(self, source: Source, found: int, took: float) -> None:
        """After a claim or a look that found so many messages."""
        watch = source.watch
        source.pause(LONGEST_POLL_SECONDS if watch is None else watch.looked(source, found, took))

    # Parked messages

    def _routes_to_ask_for(self, source: Source, demand: Demand) -> dict[Route, list[str]]:
        """Tasks whose parked messages the next claim should return: those that there is room for.

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

    def _parked(self, claim: Claim) -> Parked:
        parked = Parked([], [], [], [], claim.lost_most, claim.is_search)
        numbers: dict[Lane, int] = {}
        for route, names in claim.asked.items():
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

    def _note_parked(self, claim: Claim, runs: list[Run]) -> None:
        """Decide which parked messages the next claim asks for, by what this one returned.

        A route that got as many messages as it has room for is asked for again.
        """
        source = claim.source
        source.parked_at = now() + PARKED_SECONDS
        came: Counter[Lane] = Counter()
        for run in runs:
            came.update(self._executor.route(run.task))
        for route in claim.asked:
            if any(came[lane] >= claim.room[lane] for lane in route):
                source.full.setdefault(route)
            else:
                source.full.pop(route, None)
        if claim.lost_most:
            lost = [run for run in runs if run.claimed.lost_deliveries]
            found = {self._executor.route(run.task): None for run in lost}
            # As many as might begin: there may be more.
            source.suspect = found if len(lost) >= claim.lost_most else {}
        if (took := now() - claim.began_at) > SLOW_SECONDS and not runs:
            # The claim passes over rows that vacuum may not remove yet: ask less often.
            source.ask_at = now() + 5 * took

    async def _park(self, source: Source, left: list[Left]) -> None:
        """Park messages that cannot run here, for workers that can run them."""
        source.search_until = now() + SEARCH_SECONDS
        for one in left:
            if one.route is not None and one.claimed.lost_deliveries:
                source.suspect.setdefault(one.route)
            elif one.route is not None:
                source.full.setdefault(one.route)
        ids, names = [one.claimed.message_id for one in left], [one.task_name for one in left]
        park = calls.park_messages(source.queue_name, ids, left[0].claimed.token, names)
        try:
            await self._claims.internals.attempt(park)
        except QueueNotFound:
            return
        except AWAY:
            raise  # the leases run out, unless the messages were parked
        except SchemaError:
            raise
        except PenstockError as exc:
            logger.error("messages of queue %r could not be parked: %s", source.queue_name, exc)

    async def _subscribe(self) -> None:
        for source in self._sources:
            if source.watch is None:
                source.watch = await self._client.internals.watch(source.queue_name)

    def _tell_room(self, source: Source, has_room: bool) -> None:
        """Tell the watch of a queue whether this worker would take messages of it."""
        if source.watch is not None and has_room and not self._stopped:
            source.watch.enter(source)
        elif source.watch is not None:
            source.watch.leave(source)
