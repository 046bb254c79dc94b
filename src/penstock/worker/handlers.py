"""How a handler is called: as a coroutine, in a thread, or in a process."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from penstock.errors import InvalidArgument, PenstockError
from penstock.payloads import Json, encode_json
from penstock.tasks.app import App
from penstock.tasks.arguments import to_plain
from penstock.tasks.context import CURRENT
from penstock.tasks.hooks import Middleware
from penstock.tasks.outcomes import Reject
from penstock.tasks.task import Task

from .context import WorkerContext, context_of
from .errors import AttemptTimeout
from .processes import ProcessPool
from .run import Run
from .stepping import Stepped

__all__ = ["Handlers"]


class Handlers:
    """Calls handlers inside the middleware of the app. suspended: called when a coroutine waits."""

    def __init__(self, app: App, *, threads: int, processes: int, suspended: Callable[[Run], None]) -> None:
        self._middleware = [one for one in app.middleware if type(one).run is not Middleware.run]
        self._threads = threads
        self._processes = processes
        self._suspended = suspended
        self._plain: set[str] = set()
        self._pool: ThreadPoolExecutor | None = None
        self._children: ProcessPool | None = None

    async def call(self, run: Run) -> Json:
        """Run a handler to its end. Returns what to store of its result."""
        task = run.task
        if task.name not in self._plain:
            if not task.is_async or task.is_process:
                return await self._call(run)
            if not self._is_plain(task):
                return await Stepped(self._call(run), contextvars.copy_context(), run, self._suspended)
            self._plain.add(task.name)
        # Most tasks: the context is made only if the handler asks for it.
        around = contextvars.copy_context()
        around.run(CURRENT.set, run)
        handler = task.arguments.call(task.arguments.decode_stored(run.claimed.stored), None)
        return storable(run, await Stepped(handler, around, run, self._suspended))

    def _is_plain(self, task: Task[..., Any]) -> bool:
        """Whether a handler needs neither middleware nor context nor timeout."""
        return (
            not self._middleware
            and task.policy.attempt_timeout is None
            and task.arguments.context_name is None
            and inspect.iscoroutinefunction(task.function)
        )

    async def _call(self, run: Run) -> Json:
        context = context_of(run)
        CURRENT.set(context)
        with ExitStack() as stack:
            for middleware in self._middleware:
                stack.enter_context(middleware.run(context))
            return storable(run, await self._handle(run, context))
        raise PenstockError("a middleware has swallowed the exception of the handler")

    async def _handle(self, run: Run, context: WorkerContext) -> Any:
        if run.task.is_process:
            return await self._in_process(run, context)
        if not run.task.is_async:
            return await self._in_thread(run, context)
        timeout, arguments = run.task.policy.attempt_timeout, run.task.arguments
        decoded = arguments.decode_stored(run.claimed.stored)
        if timeout is None:
            return await arguments.call(decoded, context)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout) as scope:
                run.extend = lambda more: scope.reschedule((scope.when() or loop.time()) + more)
                return await arguments.call(decoded, context)
        except TimeoutError:
            if not scope.expired():
                raise
            context.cancelled.set()
        raise AttemptTimeout(timeout)

    # Threads

    async def _in_thread(self, run: Run, context: WorkerContext) -> Any:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="penstock task")
        loop, timeout = asyncio.get_running_loop(), run.task.policy.attempt_timeout
        deadline = None if timeout is None else loop.time() + timeout

        def extend(more: float) -> None:
            nonlocal deadline
            deadline = None if deadline is None else deadline + more

        run.extend = extend
        # Made here, because two threads that ask for the event at once would make two.
        _ = context.cancelled
        run.thread = loop.run_in_executor(self._pool, contextvars.copy_context().run, _work, run, context)
        while not run.thread.done():
            patience = None if deadline is None else deadline - loop.time()
            if patience is not None and patience <= 0:
                context.cancelled.set()
                raise AttemptTimeout(timeout or 0.0)
            await asyncio.wait({run.thread}, timeout=patience)
        result, exc = run.thread.result()
        if exc is not None:
            raise exc
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise InvalidArgument(f"task {run.task.name!r} returned an awaitable: make it an async def")
        return result

    # Processes

    async def _in_process(self, run: Run, context: WorkerContext) -> Any:
        if self._children is None:
            self._children = ProcessPool(self._processes)
        return await self._children.run(
            run.task.function,
            run.task.arguments.decode_stored(run.claimed.stored),
            timeout=run.task.policy.attempt_timeout,
            context_facts=context.fields(),
        )

    async def close(self) -> None:
        if self._children is not None:
            await self._children.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _work(run: Run, context: WorkerContext) -> tuple[Any, BaseException | None]:
    """What a thread runs. Errors are returned: a future refuses some, and others would end the event loop."""
    arguments = run.task.arguments
    try:
        return arguments.call(arguments.decode_stored(run.claimed.stored), context), None
    except BaseException as exc:
        return None, exc


def storable(run: Run, result: Any) -> Json:
    """The result as it is stored; None where the task keeps no result."""
    if run.is_plain:
        return None
    try:
        plain = None if result is None else to_plain(result)
        encode_json(plain, "result")
    except (PenstockError, TypeError, ValueError) as exc:
        raise Reject(f"it was done, but its result cannot be stored: {exc}") from exc
    return plain
