"""The executor: gives runs their slots, and says what came of each."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable
from typing import Any

from penstock.errors import LeaseLost
from penstock.payloads import Json
from penstock.tasks.app import App
from penstock.tasks.outcomes import Reject, Retry, Snooze
from penstock.tasks.task import Task

from .failures import error_text, log_failure, own_frames_off
from .handlers import Handlers
from .lanes import Demand, Lane, Route, room_of
from .run import Run
from .settler import Settler
from .suspects import Suspects

__all__ = ["Executor"]

logger = logging.getLogger("penstock.worker")

# How long coroutines that never wait keep the loop from other things.
TURN_SECONDS = 0.005
# After an end that could not even be told.
UNTOLD_DELAY_SECONDS = 1.0


class Executor:
    """Three lanes, for the three kinds of handlers; and one for each task with a limit of its own."""

    def __init__(
        self, app: App, settler: Settler, *, concurrency: int, threads: int, processes: int, logs: bool
    ) -> None:
        self._app = app
        self._settler = settler
        self._logs = logs
        self._loop = asyncio.get_running_loop()
        # Runs begin with the context variables of the worker, not with those of the run that made room.
        self._around = contextvars.copy_context()
        self._handlers = Handlers(app, threads=threads, processes=processes, suspended=self._suspended)
        self.coroutines = Lane("async", concurrency)
        self.threads = Lane("thread", threads)
        self.processes = Lane("process", processes)
        self._limited = {
            task.name: Lane(task.name, task.concurrency)
            for task in app.tasks.values()
            if task.concurrency is not None
        }
        # The routes of what is in a queue: those of its tasks, and of others that were claimed from it.
        self._routes: dict[str, dict[Route, None]] = {
            needs.name: {self.route(task): None for task in app.tasks.values() if task.queue == needs.name}
            for needs in app.queues
        }
        # What each lane had room for when the last claim was made.
        self._promised: dict[Lane, int] = {}
        self.suspects = Suspects()
        # Coroutines are run by these, one after the other; the idle ones wait.
        self._runners: set[asyncio.Task[None]] = set()
        self._parked: list[asyncio.Future[None]] = []
        self.runs: dict[tuple[str, int], Run] = {}
        # Told when a slot has become free, or a task has ended.
        self.on_room: Callable[[], None] = lambda: None
        # Told which tasks have settled themselves.
        self.on_settled: Callable[[list[Run]], None] = self.forget

    # Slots

    def _lane_of(self, run: Run) -> Lane:
        return self.route(run.task)[0]

    def route(self, task: Task[..., Any]) -> Route:
        """The lanes that a task goes through."""
        lane = self.processes if task.is_process else self.coroutines if task.is_async else self.threads
        limited = self._limited.get(task.name) if self._limited else None
        return (lane,) if limited is None else (lane, limited)

    def demand(self, queue_name: str, *, may_search: bool) -> Demand:
        """How many messages of a queue to claim.

        Which tasks they are of is known only when they are there: admit() takes those that have room. Where
        some routes are full and others idle, a claim may search for messages of the idle ones; else it asks
        for no more than the busy ones take. A route that has been full for a while does not count.
        """
        routes = self._routes[queue_name]
        self._promised = rooms = {lane: lane.room for route in routes for lane in route}
        if self.suspects.alone_for:
            return Demand(0, is_uneven=False)
        room = {route: min(rooms[lane] for lane in route) for route in routes}
        idle = tuple(route for route in routes if room[route] and not any(lane.is_busy for lane in route))
        is_uneven = 0 < len(idle) < len(routes)
        if is_uneven and may_search:
            return Demand(max(room[route] for route in idle), is_uneven, idle)
        moving = [route for route in routes if not any(lane.is_blocked for lane in route)]
        busy = [room[route] for route in moving if route not in idle]
        if is_uneven and busy:
            return Demand(min(busy), is_uneven)
        return Demand(max((room[route] for route in moving), default=0), is_uneven)

    def routes_with_room(self) -> dict[Route, list[str]]:
        """The names of all tasks that there is room for, by their route."""
        names: dict[Route, list[str]] = {}
        for task in self._app.tasks.values():
            names.setdefault(self.route(task), []).append(task.name)
        return {route: names[route] for route in names if room_of(route) > 0}

    @property
    def is_busy(self) -> bool:
        """Whether a lane has no room, or had none a moment ago: it may be otherwise soon."""
        lanes = (self.coroutines, self.threads, self.processes, *self._limited.values())
        return any(lane.is_busy for lane in lanes)

    # Runs

    def admit(self, runs: list[Run]) -> list[Run]:
        """Those of the runs that there is room for; all of these have to be begun, or given up, next."""
        grave = next((run for run in runs if run.claimed.lost_deliveries > 1), None)
        if grave is not None and self._admits(grave, {}):
            return [grave]  # nothing else begins beside it
        rooms: dict[Lane, int] = {}
        return [run for run in runs if run is not grave and self._admits(run, rooms)]

    def begin(self, runs: list[Run]) -> None:
        """Take over runs that were admitted, and start those that there is a slot for."""
        for run in runs:
            self._line_up(run)
        self._start()

    def _admits(self, run: Run, rooms: dict[Lane, int]) -> bool:
        """Whether there is room for a run. rooms: what each lane has left in this submission."""
        route = self.route(run.task)
        for lane in route:
            if lane not in rooms:
                # As when the claim was made: slots that became free since are for parked messages first.
                rooms[lane] = self._promised.get(lane, lane.room)
            if rooms[lane] <= 0:
                return False
        if run.claimed.lost_deliveries and not self.suspects.accept(run, route[0].limit):
            return False
        for lane in route:
            rooms[lane] -= 1
        return True

    def _line_up(self, run: Run) -> None:
        route = self.route(run.task)
        self.runs[run.claimed.queue_name, run.claimed.message_id] = run
        self._routes[run.claimed.queue_name].setdefault(route)
        lane, *limits = route
        for limited in limits:
            if limited.running >= limited.limit:
                limited.waiting.append(run)
                return
            limited.running += 1
        lane.waiting.append(run)

    def _start(self) -> None:
        self._wake_runner()
        for lane in (self.threads, self.processes):
            for run in lane.ready():
                lane.running += 1
                run.started_at = time.monotonic()
                run.job = self._loop.create_task(self._run(run, lane), context=self._around.copy())

    def _suspended(self, run: Run) -> None:
        """A coroutine waits for something: others may go on."""
        run.has_waited = True
        self._wake_runner()

    def _wake_runner(self) -> None:
        """Somebody has to take the next coroutine: an idle runner, or a new one."""
        lane = self.coroutines
        if not lane.waiting or lane.running >= lane.limit:
            return
        while self._parked:
            parked = self._parked.pop()
            if not parked.done():
                parked.set_result(None)
                return
        runner = self._loop.create_task(
            self._run_coroutines(), name="penstock runner", context=self._around.copy()
        )
        self._runners.add(runner)
        runner.add_done_callback(self._runners.discard)

    async def _run_coroutines(self) -> None:
        """Runs one coroutine after the other, as long as none of them waits for anything."""
        lane, turn = self.coroutines, time.monotonic()
        me = asyncio.current_task()
        assert me is not None
        while True:
            while lane.waiting and lane.running < lane.limit:
                run = lane.waiting.popleft()
                lane.running += 1
                run.job = me
                run.started_at = at = time.monotonic()
                await self._run(run, lane)
                if run.has_waited or me.cancelling():
                    # Whoever cancels this task from now on means the handler that has ended.
                    self._wake_runner()
                    return
                if at - turn > TURN_SECONDS:
                    await asyncio.sleep(0)
                    turn = time.monotonic()
            parked = self._loop.create_future()
            self._parked.append(parked)
            await parked
            turn = time.monotonic()

    async def _run(self, run: Run, lane: Lane) -> None:
        try:
            await self._call(run)
        except Exception:
            logger.exception("it cannot be told how it ended: %s", run)
            self._end(run, self._settler.failed, UNTOLD_DELAY_SECONDS, "it could not be told how it ended")
        finally:
            if run.thread is None or run.thread.done():
                self._leave(run, lane)
            else:
                # The slot is taken for as long as the thread runs, although no run waits for it any more.
                run.thread.add_done_callback(lambda _: self._leave(run, lane))
                self.on_room()

    async def _call(self, run: Run) -> None:
        try:
            if run.interruption is not None:
                raise asyncio.CancelledError
            run.has_begun = True
            result = await self._handlers.call(run)
        except asyncio.CancelledError as exc:
            self._interrupted(run, exc)
        except BaseException as exc:
            # SystemExit, too: it is the end of the handler, not of the worker.
            self._failed(run, exc)
        else:
            self._succeeded(run, result)

    def _leave(self, run: Run, lane: Lane) -> None:
        """A slot has become free."""
        lane.end()
        if self._limited and (limited := self._limited.get(run.task.name)) is not None:
            limited.end()
            for following in limited.ready():
                limited.running += 1
                self._lane_of(following).waiting.append(following)
            self._start()
        elif lane.waiting and lane is not self.coroutines:
            self._start()
        self.on_room()

    # Ends

    def _end(self, run: Run, tell: Callable[..., None], *arguments: Any) -> None:
        if run.is_over:
            return  # given up before
        run.is_over = True
        if not run.is_settled and run.interruption != "lost":
            tell(run, *arguments)
        elif run.is_settled:
            self.on_settled([run])
        else:
            self.forget([run])

    def _release(self, run: Run, delay: float = 0) -> None:
        self._end(run, self._settler.released, delay)

    def forget(self, runs: list[Run]) -> None:
        """The database knows what became of these."""
        for run in runs:
            key = (run.claimed.queue_name, run.claimed.message_id)
            if self.runs.get(key) is run:
                del self.runs[key]

    def _succeeded(self, run: Run, result: Json) -> None:
        if run.interruption == "lost":
            logger.warning("the lease was lost while it ran, it may run again: %s", run)
        if run.is_plain:
            self._end(run, self._settler.done)
        else:
            self._end(run, self._settler.done_with, result)

    def _interrupted(self, run: Run, exc: BaseException) -> None:
        if run.interruption is None:
            self._failed(run, exc)
            return
        if run.interruption == "lost":
            logger.warning("the lease was lost, the handler was cancelled: %s", run)
        elif run.has_begun:
            logger.warning("the worker stops, the handler was cancelled: %s", run)
        self._release(run)

    def _failed(self, run: Run, exc: BaseException) -> None:
        if isinstance(exc, Snooze):
            self._release(run, exc.delay)
            return
        if isinstance(exc, LeaseLost) and not run.is_settled and run.interruption is None:
            run.interruption = "lost"
        # Not by assignment, which an exception may refuse: one that is a frozen dataclass.
        exc.with_traceback(own_frames_off(exc.__traceback__))
        if self._logs or run.is_settled:
            log_failure(run, exc)
        if run.interruption == "stopped":
            self._release(run)
        elif isinstance(exc, Reject):
            self._end(run, self._settler.rejected, exc.reason or "rejected")
        else:
            delay: float = run.task.policy.delay_after(run.attempt)
            if isinstance(exc, Retry) and exc.delay is not None:
                delay = exc.delay
            self._end(run, self._settler.failed, delay, error_text(exc))

    # The end of the worker

    def release_waiting(self) -> None:
        """Give back what never began."""
        for lane in (self.coroutines, self.threads, self.processes):
            while lane.waiting:
                run = lane.waiting.popleft()
                if (limited := self._limited.get(run.task.name)) is not None:
                    limited.running -= 1
                self._release(run)
        for lane in self._limited.values():
            while lane.waiting:
                self._release(lane.waiting.popleft())

    @property
    def running(self) -> list[Run]:
        """Those that have begun and not ended."""
        return [run for run in self.runs.values() if run.job is not None and not run.is_over]

    def interrupt_all(self) -> None:
        for run in self.running:
            run.interrupt("stopped")

    def give_up(self) -> None:
        """Give back what runs on although it was told to end: the process ends without it."""
        for run in self.running:
            self._release(run)

    async def close(self) -> None:
        for runner in tuple(self._runners):
            runner.cancel()
        await self._handlers.close()
