"""The executor: runs handlers as coroutines, in threads or in processes, and says what came of each."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from penstock._async.message import describe
from penstock.errors import LeaseLost, PenstockError
from penstock.payloads import encode_json, load_json
from penstock.tasks.app import App
from penstock.tasks.arguments import to_plain
from penstock.tasks.context import _current
from penstock.tasks.hooks import Middleware
from penstock.tasks.outcomes import Reject, Retry, Snooze

from .context import WorkerContext
from .errors import AttemptTimeout
from .lanes import Lane
from .processes import ProcessPool
from .run import Run
from .settler import Settler

__all__ = ["Executor"]

logger = logging.getLogger("penstock.worker")

# What is kept of a traceback in the history of a message.
MOST_ERROR_CHARACTERS = 8000
# A task that does not end although it was cancelled is left alone after so long.
CANCEL_SECONDS = 5.0


class Executor:
    """Three lanes, for the three kinds of handlers; and one for each task with a limit of its own."""

    def __init__(
        self, app: App, settler: Settler, *, concurrency: int, threads: int, processes: int, logs: bool
    ) -> None:
        self._app = app
        self._settler = settler
        self._logs = logs
        self._middleware = [m for m in app.middleware if type(m).run is not Middleware.run]
        self.coroutines = Lane("async", concurrency)
        self.threads = Lane("thread", threads)
        self.processes = Lane("process", processes)
        self._limited = {
            task.name: Lane(task.name, task.concurrency)
            for task in app.tasks.values()
            if task.concurrency is not None
        }
        self._pool: ThreadPoolExecutor | None = None
        self._children: ProcessPool | None = None
        self.runs: dict[tuple[str, int], Run] = {}
        self.finished = 0
        # Told when a place has become free.
        self.on_room: Callable[[], None] = lambda: None

    # Places

    def lane_of(self, run: Run) -> Lane:
        return self._lane(run.task.is_process, run.task.is_async)

    def _lane(self, is_process: bool, is_async: bool) -> Lane:
        return self.processes if is_process else self.coroutines if is_async else self.threads

    def room(self, queue_name: str) -> int:
        """How many more of a queue could start now, if they are shared out well among its tasks."""
        tasks = [task for task in self._app.tasks.values() if task.queue == queue_name]
        lanes = {self._lane(task.is_process, task.is_async) for task in tasks}
        free = sum(max(0, lane.free) for lane in lanes)
        if all(task.name in self._limited for task in tasks):
            free = min(free, sum(max(0, self._limited[task.name].free) for task in tasks))
        return free

    @property
    def waiting(self) -> int:
        """How many were claimed and have not begun."""
        return sum(len(lane.waiting) for lane in (self.coroutines, self.threads, self.processes))

    # Runs

    def submit(self, runs: list[Run]) -> None:
        """Take over runs, and start those that there is a place for."""
        for run in runs:
            self.runs[run.queue_name, run.message_id] = run
            limited = self._limited.get(run.task.name)
            if limited is not None:
                if limited.running >= limited.limit:
                    if len(limited.waiting) >= limited.limit:
                        # A task that is full must not keep others from the places of the worker.
                        self._release(run, 1)
                    else:
                        limited.waiting.append(run)
                    continue
                limited.running += 1
            self.lane_of(run).waiting.append(run)
        self._start()

    def _start(self) -> None:
        for lane in (self.coroutines, self.threads, self.processes):
            for run in lane.ready():
                lane.running += 1
                run.started_at = time.monotonic()
                run.job = asyncio.get_running_loop().create_task(self._run(run, lane))

    def _leave(self, run: Run, lane: Lane) -> None:
        """A place has become free."""
        lane.running -= 1
        limited = self._limited.get(run.task.name)
        if limited is not None:
            limited.running -= 1
            for following in limited.ready():
                limited.running += 1
                self.lane_of(following).waiting.append(following)
        if lane.waiting or limited is not None:
            self._start()
        self.on_room()

    async def _run(self, run: Run, lane: Lane) -> None:
        try:
            result = await self._call(run, lane)
        except asyncio.CancelledError as exc:
            self._interrupted(run, exc)
        except Exception as exc:
            self._failed(run, exc)
        except BaseException as exc:
            self._failed(run, exc)
            raise
        else:
            self._succeeded(run, result)
        finally:
            self.finished += 1
            if run.task.is_async or run.task.is_process:
                self._leave(run, lane)

    async def _call(self, run: Run, lane: Lane) -> Any:
        task = run.task
        run.context = context = WorkerContext.of(run, self._app)
        _current.set(context)
        if not self._middleware:
            return await self._handle(run, context, lane)
        with ExitStack() as stack:
            for middleware in self._middleware:
                stack.enter_context(middleware.run(context))
            return await self._handle(run, context, lane)
        raise AssertionError(f"a middleware has swallowed the exception of {task}")

    async def _handle(self, run: Run, context: WorkerContext, lane: Lane) -> Any:
        task, stored = run.task, run.claimed.stored
        timeout = task.policy.attempt_timeout
        if task.is_process:
            arguments = task.arguments.decode(load_json(stored) if isinstance(stored, str) else stored)
            return await self._in_process(run, context, arguments, timeout)
        if not task.is_async:
            return await self._in_thread(run, context, lane, timeout)
        arguments = task.arguments.decode(load_json(stored) if isinstance(stored, str) else stored)
        if timeout is None:
            return await task.arguments.call(arguments, context)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout) as scope:
                run.extend = lambda more: scope.reschedule((scope.when() or loop.time()) + more)
                return await task.arguments.call(arguments, context)
        except TimeoutError:
            if not scope.expired():
                raise
            context.cancelled.set()
        raise AttemptTimeout(timeout)

    async def _in_thread(self, run: Run, context: WorkerContext, lane: Lane, timeout: float | None) -> Any:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads.limit, thread_name_prefix="penstock task")
        loop, stored = asyncio.get_running_loop(), run.claimed.stored
        deadline = None if timeout is None else loop.time() + timeout

        def extend(more: float) -> None:
            nonlocal deadline
            deadline = None if deadline is None else deadline + more

        def work() -> Any:
            arguments = run.task.arguments
            return arguments.call(
                arguments.decode(load_json(stored) if isinstance(stored, str) else stored), context
            )

        run.extend = extend
        try:
            future = loop.run_in_executor(self._pool, contextvars.copy_context().run, work)
        except BaseException:
            self._leave(run, lane)
            raise
        # The place is taken for as long as the thread runs, whether anybody still waits for it or not.
        future.add_done_callback(lambda done: self._thread_ended(run, lane, done))
        while not future.done():
            patience = None if deadline is None else deadline - loop.time()
            if patience is not None and patience <= 0:
                context.cancelled.set()
                raise AttemptTimeout(timeout or 0.0)
            await asyncio.wait({future}, timeout=patience)
        return future.result()

    def _thread_ended(self, run: Run, lane: Lane, done: asyncio.Future[Any]) -> None:
        if not done.cancelled():
            done.exception()
        self._leave(run, lane)

    async def _in_process(
        self, run: Run, context: WorkerContext, arguments: dict[str, Any], timeout: float | None
    ) -> Any:
        if self._children is None:
            self._children = ProcessPool(self.processes.limit)
        return await self._children.run(
            run.task.function, arguments, timeout=timeout, context_facts=context.facts()
        )

    # Ends

    def _end(self, run: Run, tell: Callable[[], None]) -> None:
        run.is_over = True
        if not run.is_settled and run.interruption != "lost":
            tell()
        elif self.runs.get((run.queue_name, run.message_id)) is run:
            del self.runs[run.queue_name, run.message_id]

    def _release(self, run: Run, delay: float = 0) -> None:
        self._end(run, lambda: self._settler.released(run, delay))

    def forget(self, runs: list[Run]) -> None:
        """The database knows what became of these."""
        for run in runs:
            key = (run.claimed.queue_name, run.claimed.message_id)
            if self.runs.get(key) is run:
                del self.runs[key]

    def _succeeded(self, run: Run, result: Any) -> None:
        if run.interruption == "lost":
            logger.warning("the lease was lost while it ran, another one may run it again: %s", run)
        task = run.task
        if task.result_seconds is None and "group" not in run.headers:
            self._end(run, lambda: self._settler.done(run))
            return
        try:
            plain = None if result is None else to_plain(result)
            encode_json(plain, "result")
        except (PenstockError, TypeError, ValueError) as exc:
            error = f"it was done, but its result cannot be stored: {exc}"
            logger.exception("%s: %s", run, error)
            self._end(run, lambda: self._settler.rejected(run, error))
            return
        self._end(run, lambda: self._settler.done_with(run, plain))

    def _interrupted(self, run: Run, exc: BaseException) -> None:
        if run.interruption is None:
            self._failed(run, exc)
            return
        if run.interruption == "lost":
            logger.warning("the lease was lost, the handler was cancelled: %s", run)
        else:
            logger.warning("the worker stops, the handler was cancelled: %s", run)
        self._release(run)

    def _failed(self, run: Run, exc: BaseException) -> None:
        if isinstance(exc, Snooze):
            self._release(run, exc.delay)
            return
        if isinstance(exc, LeaseLost) and run.is_settled is False and run.interruption is None:
            run.interruption = "lost"
        if self._logs or run.is_settled:
            self._log_failure(run, exc)
        if run.interruption == "stopped":
            self._release(run)
        elif isinstance(exc, Reject):
            self._end(run, lambda: self._settler.rejected(run, exc.reason or "rejected"))
        else:
            delay: float = run.task.policy.delay_after(run.attempt)
            if isinstance(exc, Retry) and exc.delay is not None:
                delay = exc.delay
            self._end(run, lambda: self._settler.failed(run, delay, error_text(exc)))

    def _log_failure(self, run: Run, exc: BaseException) -> None:
        extra = {} if run.context is None else run.context.facts()
        if isinstance(exc, Retry):
            logger.info("to be tried again (%s): %s", exc, run, extra=extra)
        elif isinstance(exc, Reject):
            logger.error("rejected (%s): %s", exc.reason, run, extra=extra)
        elif run.is_settled:
            logger.error("failed after it was acked: %s", run, exc_info=exc, extra=extra)
        elif run.attempt >= run.max_attempts:
            logger.error("failed, no attempts left: %s", run, exc_info=exc, extra=extra)
        else:
            logger.warning("failed: %s", run, exc_info=exc, extra=extra)

    # The end of the worker

    def release_waiting(self) -> None:
        """Give back what never began."""
        for lane in (self.coroutines, self.threads, self.processes, *self._limited.values()):
            while lane.waiting:
                run = lane.waiting.popleft()
                if lane not in self._limited.values() and run.task.name in self._limited:
                    self._limited[run.task.name].running -= 1
                self._release(run)

    @property
    def running(self) -> list[Run]:
        """Those that have begun and not ended."""
        return [run for run in self.runs.values() if run.job is not None and not run.is_over]

    def interrupt_all(self) -> None:
        for run in self.running:
            run.interrupt("stopped")

    async def close(self) -> None:
        if self._children is not None:
            await self._children.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def error_text(exc: BaseException) -> str:
    """An error for the history of a message: in a line, and with its traceback."""
    lines = "".join(traceback.format_exception(exc))
    text = f"{describe(exc)}\n{lines}"
    if len(text) <= MOST_ERROR_CHARACTERS:
        return text
    half = MOST_ERROR_CHARACTERS // 2
    return f"{text[:half]}\n...\n{text[-half:]}"
