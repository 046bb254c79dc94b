"""The executor: gives runs their slots, and decides the outcome of each."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.errors import LeaseLost
from penstock.payloads import Json
from penstock.tasks.app import App
from penstock.tasks.outcomes import Reject, Retry, Snooze
from penstock.tasks.task import Task

from .failures import ErrorTexts, log_failure, own_frames_off
from .handlers import Handlers
from .lanes import Demand, Lane, Route, room_of
from .outcome import ACK, Outcome
from .run import HeldRuns, Run
from .settler import Settler
from .suspects import Suspects

__all__ = ["Executor"]

logger = logging.getLogger("penstock.worker")

# Coroutines that never wait may keep the event loop for so long.
TURN_SECONDS = 0.005
RELEASED: Final = Outcome.released()
UNKNOWN_END: Final = Outcome.retried(1.0, "the worker could not tell how it ended")


class Executor:
    """Three lanes, for the three kinds of handlers; and one for each task with a limit of its own.

    held: where runs are kept until the database has acknowledged their end. settled: called with runs whose
    handlers have settled their messages themselves. slot_freed: called when a slot has become free, or a
    run has ended. logs: whether to log failures; else a middleware does.
    """

    def __init__(
        self,
        app: App,
        settler: Settler,
        held: HeldRuns,
        *,
        settled: Callable[[list[Run]], None],
        slot_freed: Callable[[], None],
        concurrency: int,
        threads: int,
        processes: int,
        logs: bool,
    ) -> None:
        self._app = app
        self._settler = settler
        self._held = held
        self._settled = settled
        self._slot_freed = slot_freed
        self._logs = logs
        self._error_texts = ErrorTexts()
        self._loop = asyncio.get_running_loop()
        # Runs begin with the context variables of the worker, not with those of the run that freed the slot.
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
        # The routes of messages in a queue: of its own tasks, and of others that were claimed from it.
        self._routes: dict[str, dict[Route, None]] = {
            needs.name: {self.route(task): None for task in app.tasks.values() if task.queue == needs.name}
            for needs in app.queues
        }
        # What each lane had room for when the last claim was made.
        self._promised: dict[Lane, int] = {}
        self.suspects = Suspects()
        # Each runner runs coroutines one after the other. An idle runner waits for its future.
        self._runners: set[asyncio.Task[None]] = set()
        self._idle_runners: list[asyncio.Future[None]] = []

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

        The tasks of the messages are known only after the claim: admit() takes those that have room. Where
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
        """Whether a lane has no room, or had none a moment ago: it may have room soon."""
        lanes = (self.coroutines, self.threads, self.processes, *self._limited.values())
        return any(lane.is_busy for lane in lanes)

    # Runs

    def admit(self, runs: list[Run]) -> list[Run]:
        """The runs that there is room for. The caller must begin() all of them next."""
        grave = next((run for run in runs if run.claimed.lost_deliveries > 1), None)
        if grave is not None and self._admits(grave, {}):
            return [grave]  # no other run begins beside it
        rooms: dict[Lane, int] = {}
        return [run for run in runs if run is not grave and self._admits(run, rooms)]

    def begin(self, runs: list[Run]) -> None:
        """Take over runs that were admitted, and start those that have a slot."""
        for run in runs:
            self._line_up(run)
        self._start()

    def _admits(self, run: Run, rooms: dict[Lane, int]) -> bool:
        """Whether there is room for a run. rooms: what each lane has left in this call of admit()."""
        route = self.route(run.task)
        for lane in route:
            if lane not in rooms:
                # The room at the time of the claim: slots that became free since are for parked messages.
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
        self._held.add(run)
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
        """A coroutine waits for something: meanwhile another coroutine may run."""
        run.has_waited = True
        self._wake_runner()

    def _wake_runner(self) -> None:
        """Have an idle runner, or a new one, take the next coroutine."""
        lane = self.coroutines
        if not lane.waiting or lane.running >= lane.limit:
            return
        while self._idle_runners:
            idle = self._idle_runners.pop()
            if not idle.done():
                idle.set_result(None)
                return
        runner = self._loop.create_task(
            self._run_coroutines(), name="penstock runner", context=self._around.copy()
        )
        self._runners.add(runner)
        runner.add_done_callback(self._runners.discard)

    async def _run_coroutines(self) -> None:
        """Run one coroutine after the other, until one of them waits for something."""
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
                    # Other code may cancel this asyncio task, and mean the ended handler: do not reuse it.
                    self._wake_runner()
                    return
                if at - turn > TURN_SECONDS:
                    await asyncio.sleep(0)
                    turn = time.monotonic()
            idle = self._loop.create_future()
            self._idle_runners.append(idle)
            await idle
            turn = time.monotonic()

    async def _run(self, run: Run, lane: Lane) -> None:
        try:
            await self._call(run)
        except Exception:
            logger.exception("the worker could not tell how it ended: %s", run)
            self._end(run, UNKNOWN_END)
        finally:
            if run.thread is None or run.thread.done():
                self._leave(run, lane)
            else:
                # The attempt is over, and its thread still runs: the slot stays taken until the thread ends.
                run.thread.add_done_callback(lambda _: self._leave(run, lane))
                self._slot_freed()

    async def _call(self, run: Run) -> None:
        try:
            if run.interruption is not None:
                raise asyncio.CancelledError
            run.has_begun = True
            result = await self._handlers.call(run)
        except asyncio.CancelledError as exc:
            self._interrupted(run, exc)
        except BaseException as exc:
            # SystemExit, too: it ends the handler, not the worker.
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
        self._slot_freed()

    # Outcomes

    def _end(self, run: Run, outcome: Outcome) -> None:
        if run.is_over:
            return  # given up before
        run.is_over = True
        if not run.is_settled and run.interruption != "lost":
            self._settler.settle(run, outcome)
        elif run.is_settled:
            self._settled([run])
        else:
            self._held.forget([run])

    def _succeeded(self, run: Run, result: Json) -> None:
        if run.interruption == "lost":
            logger.warning("the lease was lost while it ran, it may run again: %s", run)
        self._end(run, ACK if run.is_plain else Outcome.done(result))

    def _interrupted(self, run: Run, exc: BaseException) -> None:
        if run.interruption is None:
            self._failed(run, exc)
            return
        if run.interruption == "lost":
            logger.warning("the lease was lost, the handler was cancelled: %s", run)
        elif run.has_begun:
            logger.warning("the worker stops, the handler was cancelled: %s", run)
        self._end(run, RELEASED)

    def _failed(self, run: Run, exc: BaseException) -> None:
        if isinstance(exc, Snooze):
            self._end(run, Outcome.released(exc.delay))
            return
        if isinstance(exc, LeaseLost) and not run.is_settled and run.interruption is None:
            run.interruption = "lost"
        # Not by assignment: an exception that is a frozen dataclass refuses that.
        exc.with_traceback(own_frames_off(exc.__traceback__))
        if self._logs or run.is_settled:
            log_failure(run, exc)
        if run.interruption == "stopped":
            self._end(run, RELEASED)
        elif isinstance(exc, Reject):
            self._end(run, Outcome.rejected(exc.reason or "rejected"))
        else:
            chosen = exc.delay if isinstance(exc, Retry) else None
            delay = run.task.policy.delay_after(run.attempt) if chosen is None else chosen
            self._end(run, Outcome.retried(delay, self._error_texts.of(exc)))

    # The end of the worker

    def release_waiting(self) -> None:
        """Release runs that never began."""
        for lane in (self.coroutines, self.threads, self.processes):
            while lane.waiting:
                run = lane.waiting.popleft()
                if (limited := self._limited.get(run.task.name)) is not None:
                    limited.running -= 1
                self._end(run, RELEASED)
        for lane in self._limited.values():
            while lane.waiting:
                self._end(lane.waiting.popleft(), RELEASED)

    def interrupt_all(self) -> None:
        for run in self._held.running:
            run.interrupt("stopped")

    def give_up(self) -> None:
        """Release runs whose handlers do not end: the process ends without them."""
        for run in self._held.running:
            self._end(run, RELEASED)

    async def close(self) -> None:
        for runner in tuple(self._runners):
            runner.cancel()
        await self._handlers.close()
