"""The executor: runs handlers as coroutines, in threads or in processes, and says what came of each."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import logging
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock._async.message import describe
from penstock.errors import InvalidArgument, LeaseLost, PenstockError
from penstock.payloads import Json, encode_json, load_json
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
# Of handlers, apart from what the worker says of itself.
run_logger = logging.getLogger("penstock.worker.runs")

# What is kept of a traceback in the history of a message.
MOST_ERROR_CHARACTERS = 8000
# Frames of these are ours, and tell a user nothing.
OWN_FOLDERS = (str(Path(__file__).parent.parent), str(Path(concurrent.futures.__file__).parent))


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
        self._places = {needs.name: self._places_of(needs.name) for needs in app.queues}
        self._pool: ThreadPoolExecutor | None = None
        self._children: ProcessPool | None = None
        self.runs: dict[tuple[str, int], Run] = {}
        self.finished = 0
        self._loop = asyncio.get_running_loop()
        # Told when a place has become free.
        self.on_room: Callable[[], None] = lambda: None

    # Places

    def lane_of(self, run: Run) -> Lane:
        return self._lane(run.task.is_process, run.task.is_async)

    def _lane(self, is_process: bool, is_async: bool) -> Lane:
        return self.processes if is_process else self.coroutines if is_async else self.threads

    def room(self, queue_name: str) -> int:
        """How many more of a queue could start now, if they are shared out well among its tasks.

        What waits for one kind of place counts against the others: a queue of several kinds is not emptied
        into a line.
        """
        lanes, limited = self._places[queue_name]
        free = sum(lane.free for lane in lanes)
        if limited is not None:
            free = min(free, sum(max(0, lane.free) for lane in limited))
        return max(0, free)

    def _places_of(self, queue_name: str) -> tuple[tuple[Lane, ...], tuple[Lane, ...] | None]:
        tasks = [task for task in self._app.tasks.values() if task.queue == queue_name]
        lanes = {self._lane(task.is_process, task.is_async) for task in tasks}
        if all(task.name in self._limited for task in tasks):
            return tuple(lanes), tuple(self._limited[task.name] for task in tasks)
        return tuple(lanes), None

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
                run.job = self._loop.create_task(self._run(run, lane))

    def _leave(self, run: Run, lane: Lane) -> None:
        """A place has become free."""
        lane.running -= 1
        if self._limited and (limited := self._limited.get(run.task.name)) is not None:
            limited.running -= 1
            for following in limited.ready():
                limited.running += 1
                self.lane_of(following).waiting.append(following)
            self._start()
        elif lane.waiting:
            self._start()
        self.on_room()

    async def _run(self, run: Run, lane: Lane) -> None:
        # A thread that nobody waits for any more has its place until it ends.
        leaves = True
        try:
            if run.interruption is not None:
                raise asyncio.CancelledError
            run.has_begun = True
            result = await self._call(run, lane)
        except asyncio.CancelledError as exc:
            leaves = not self._has_thread(run)
            self._interrupted(run, exc)
        except BaseException as exc:
            # SystemExit, too: it is the end of the handler, not of the worker.
            leaves = not self._has_thread(run)
            self._failed(run, exc)
        else:
            self._succeeded(run, result)
        finally:
            self.finished += 1
            if leaves:
                self._leave(run, lane)

    def _has_thread(self, run: Run) -> bool:
        return run.thread is not None and not run.thread.done()

    async def _call(self, run: Run, lane: Lane) -> Any:
        run.context = context = WorkerContext.of(run, self._app)
        _current.set(context)
        if not self._middleware:
            return self._storable(run, await self._handle(run, context, lane))
        with ExitStack() as stack:
            for middleware in self._middleware:
                stack.enter_context(middleware.run(context))
            return self._storable(run, await self._handle(run, context, lane))
        raise PenstockError("a middleware has swallowed the exception of the handler")

    def _storable(self, run: Run, result: Any) -> Json:
        """The result as it is stored; nothing where nobody asks for it."""
        if run.task.result_seconds is None and run.group is None:
            return None
        try:
            plain = None if result is None else to_plain(result)
            encode_json(plain, "result")
        except (PenstockError, TypeError, ValueError) as exc:
            raise Reject(f"it was done, but its result cannot be stored: {exc}") from exc
        return plain

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

        def work() -> tuple[Any, BaseException | None]:
            # As a value: a future refuses some exceptions, and the loop would end by others.
            try:
                arguments = run.task.arguments
                decoded = arguments.decode(load_json(stored) if isinstance(stored, str) else stored)
                return arguments.call(decoded, context), None
            except BaseException as exc:
                return None, exc

        run.extend = extend
        run.thread = loop.run_in_executor(self._pool, contextvars.copy_context().run, work)
        while not run.thread.done():
            patience = None if deadline is None else deadline - loop.time()
            if patience is not None and patience <= 0:
                context.cancelled.set()
                self._abandon(run, lane)
                raise AttemptTimeout(timeout or 0.0)
            try:
                await asyncio.wait({run.thread}, timeout=patience)
            except asyncio.CancelledError:
                self._abandon(run, lane)
                raise
        result, exc = run.thread.result()
        if exc is not None:
            raise exc
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise InvalidArgument(f"task {run.task.name!r} returned an awaitable: make it an async def")
        return result

    def _abandon(self, run: Run, lane: Lane) -> None:
        """The place is taken for as long as the thread runs, although nobody waits for it any more."""
        if run.thread is not None and not run.thread.done():
            run.thread.add_done_callback(lambda _: self._leave(run, lane))

    async def _in_process(
        self, run: Run, context: WorkerContext, arguments: dict[str, Any], timeout: float | None
    ) -> Any:
        if self._children is None:
            self._children = ProcessPool(self.processes.limit)
        return await self._children.run(
            run.task.function, arguments, timeout=timeout, context_facts=context.fields()
        )

    # Ends

    def _end(self, run: Run, tell: Callable[..., None], *arguments: Any) -> None:
        run.is_over = True
        if not run.is_settled and run.interruption != "lost":
            tell(*arguments)
        elif self.runs.get((run.queue_name, run.message_id)) is run:
            del self.runs[run.queue_name, run.message_id]

    def _release(self, run: Run, delay: float = 0) -> None:
        self._end(run, self._settler.released, run, delay)

    def forget(self, runs: list[Run]) -> None:
        """The database knows what became of these."""
        for run in runs:
            key = (run.claimed.queue_name, run.claimed.message_id)
            if self.runs.get(key) is run:
                del self.runs[key]

    def _succeeded(self, run: Run, result: Json) -> None:
        if run.interruption == "lost":
            logger.warning("the lease was lost while it ran, it may run again: %s", run)
        if run.task.result_seconds is None and run.group is None:
            self._end(run, self._settler.done, run)
        else:
            self._end(run, self._settler.done_with, run, result)

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
        if isinstance(exc, LeaseLost) and not run.is_settled and run.interruption is None:
            run.interruption = "lost"
        exc.__traceback__ = own_frames_off(exc.__traceback__)
        if self._logs or run.is_settled:
            self._log_failure(run, exc)
        if run.interruption == "stopped":
            self._release(run)
        elif isinstance(exc, Reject):
            self._end(run, self._settler.rejected, run, exc.reason or "rejected")
        else:
            delay: float = run.task.policy.delay_after(run.attempt)
            if isinstance(exc, Retry) and exc.delay is not None:
                delay = exc.delay
            self._end(run, self._settler.failed, run, delay, error_text(exc))

    def _log_failure(self, run: Run, exc: BaseException) -> None:
        extra = {} if run.context is None else run.context.facts()
        if isinstance(exc, Retry):
            run_logger.info("to be tried again (%s): %s", exc, run, extra=extra)
        elif isinstance(exc, Reject):
            run_logger.error("rejected (%s): %s", exc.reason, run, extra=extra)
        elif run.is_settled:
            run_logger.error("failed after it was acked: %s", run, exc_info=exc, extra=extra)
        elif run.attempt >= run.max_attempts:
            run_logger.error("failed, no attempts left: %s", run, exc_info=exc, extra=extra)
        else:
            run_logger.warning("failed: %s", run, exc_info=exc, extra=extra)

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


def own_frames_off(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the handler on; all of it where it never came to one."""
    first = traceback
    while first is not None and first.tb_frame.f_code.co_filename.startswith(OWN_FOLDERS):
        first = first.tb_next
    return first or traceback


def error_text(exc: BaseException) -> str:
    """An error for the history of a message: in a line, and with its traceback."""
    lines = "".join(traceback.format_exception(exc))
    text = f"{describe(exc)}\n{lines}"
    if len(text) <= MOST_ERROR_CHARACTERS:
        return text
    half = MOST_ERROR_CHARACTERS // 2
    return f"{text[:half]}\n...\n{text[-half:]}"
