"""The app: tasks and where they are enqueued."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

from penstock._async.api import AsyncApi
from penstock._async.client import AsyncClient
from penstock._async.enqueuing import AsyncEnqueuing
from penstock._sync.api import Api
from penstock._sync.client import Client
from penstock._sync.enqueuing import Enqueuing
from penstock.declarations import Declared, QueueNeeds
from penstock.errors import InvalidArgument
from penstock.tasks.hooks import Middleware
from penstock.values import Duration, interval, seconds

from .clients import Clients
from .context import TaskContext
from .decorators import PeriodicDecorator, TaskDecorator
from .derived_options import Tenant, Unique
from .groups import group_handle, group_start
from .handle import GroupHandle
from .importable import check_no_method
from .options import check_priority
from .periodic import Cron, Every, Missed, Periodic
from .policy import Policy, RetryDelays
from .task import RESULT_SECONDS, Task, TaskCall

__all__ = ["App"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Task[..., Any]")

# The queue of tasks that name no queue and need none of their own.
DEFAULT_QUEUE = "default"
# The largest max_active that the schema accepts.
MOST_AT_ONCE = 100_000


class App:
    """The tasks of a program, and the database that holds their queues.

    dsn, listen_dsn, call_timeout: as in penstock.connect(). middleware: hooks around enqueue and run, the
    first one outermost.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        listen_dsn: str | None = None,
        call_timeout: Duration | None = 30,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self.clients = Clients(dsn, listen_dsn, call_timeout)
        for one in middleware if isinstance(middleware, list | tuple) else [middleware]:
            if not isinstance(one, Middleware):
                raise InvalidArgument(
                    f"middleware must be a list of penstock.Middleware objects, not of {one!r}"
                )
        self.middleware = list(middleware)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.schedules: dict[str, Periodic] = {}
        self._queues: dict[str, QueueNeeds] = {}

    def __repr__(self) -> str:
        return f"<app of {len(self.tasks)} tasks>"

    # Declare

    @overload
    def task(
        self, function: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[TaskContext, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        max_attempts: int = 1,
        attempt_timeout: Duration | None = None,
        retry_delays: RetryDelays | None = None,
        ttl: Duration | None = None,
        concurrency: int | None = None,
        max_active: int | None = None,
        priority: int | None = None,
        tenant: Tenant | None = None,
        unique: Unique = False,
        result: bool | Duration = False,
        process: bool = False,
    ) -> TaskDecorator: ...

    def task(self, *function: Any, **options: Any) -> Any:
        """Make a function a task: `@app.task`, or `@app.task(queue="mail", max_attempts=5)`.

        name: the function's by default. queue: "default" by default; a task with concurrency, max_active or
        result gets a queue of its own, with the name of the task. max_attempts: with 1, the first error ends
        the task. attempt_timeout: how long one attempt may take. retry_delays: the delay after a failed
        attempt: one for all, one for each (the last one repeats), or penstock.Exponential(). ttl: how long
        after its enqueue the task becomes a dead letter; by default the sum of all attempts and delays, if
        attempt_timeout is given. concurrency: how many of these tasks a worker runs at once. max_active: how
        many all workers run at once. priority: penstock.URGENT to LOW. tenant: the tenant of the task, or a
        function of the arguments. unique: refuse a second task while the first is not finished; by all
        arguments (True), by the named ones, or by a function of the arguments.
        result: keep the return value, for a day (True) or for a duration. process: run the task in a process
        of its own, for work that keeps the processor busy.
        """

        if unknown := options.keys() - TASK_OPTIONS:
            raise InvalidArgument(
                f"there is no option {min(unknown)!r}: there are {', '.join(sorted(TASK_OPTIONS))}"
            )

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            return self._declare_task(function, **options)

        return declare(*function) if function else declare

    def _declare_task(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str | None = None,
        max_attempts: int = 1,
        attempt_timeout: Duration | None = None,
        retry_delays: RetryDelays | None = None,
        ttl: Duration | None = None,
        concurrency: int | None = None,
        max_active: int | None = None,
        priority: int | None = None,
        tenant: Tenant | None = None,
        unique: Unique = False,
        result: bool | Duration = False,
        process: bool = False,
    ) -> Task[..., Any]:
        check_no_method(function)
        if isinstance(function, Task) or not callable(function):
            raise InvalidArgument(f"a task is made of a function, not of {function!r}")
        name = getattr(function, "__name__", None) if name is None else name
        if not isinstance(name, str) or not name or "\0" in name:
            raise InvalidArgument(
                f"a task needs a name, a string, not {name!r}", hint='@app.task(name="...")'
            )
        if name in self.tasks:
            raise InvalidArgument(f"there is a task {name!r} already", hint="give one of them a name=")
        for option, value in (("concurrency", concurrency), ("max_active", max_active)):
            if value is not None and (type(value) is not int or not 1 <= value <= MOST_AT_ONCE):
                raise InvalidArgument(f"{option} must be 1 to {MOST_AT_ONCE}, not {value!r}")
        check_priority(priority)
        if result is False:
            kept = None
        else:
            kept = RESULT_SECONDS if result is True else seconds("result", result)
            if not kept:
                raise InvalidArgument(f"result must be True, or for how long to keep it, not {result!r}")
        if queue is None:
            has_own = concurrency is not None or max_active is not None or kept is not None
            queue = name if has_own else DEFAULT_QUEUE
        task: Task[..., Any] = Task(
            self,
            function,
            name=name,
            queue=queue,
            policy=Policy.of(max_attempts, attempt_timeout, retry_delays, ttl),
            concurrency=concurrency,
            max_active=max_active,
            priority=priority,
            tenant=tenant,
            unique=unique,
            result_seconds=kept,
            process=process,
        )
        self._add_needs(task)
        self.tasks[name] = task
        return task

    def _add_needs(self, task: Task[..., Any]) -> None:
        """Tasks that share a queue must agree on its cap. Results are kept for the longest time."""
        if not isinstance(task.queue, str) or not task.queue or "\0" in task.queue:
            raise InvalidArgument(f"queue must be the name of a queue, not {task.queue!r}")
        before = self._queues.get(task.queue)
        if before is not None and before.max_active != task.max_active:
            raise InvalidArgument(
                f"task {task.name!r} has max_active {task.max_active}, others in queue {task.queue!r} have"
                f" {before.max_active}",
                hint="max_active is a cap of the whole queue: give the task a queue of its own",
            )
        kept = task.result_seconds
        if before is not None and before.retain_completed is not None:
            kept = max(before.retain_completed, kept or 0)
        self._queues[task.queue] = QueueNeeds(task.queue, task.max_active, kept)

    def needs(self, queue: str) -> QueueNeeds:
        """The settings that tasks of this app need in a queue."""
        return self._queues[queue]

    @property
    def queues(self) -> tuple[QueueNeeds, ...]:
        """All queues of this app's tasks."""
        return tuple(self._queues.values())

    def periodic(
        self,
        *,
        cron: str | None = None,
        tz: str = "UTC",
        every: Duration | None = None,
        missed: Missed = "one",
        name: str | None = None,
        arguments: Mapping[str, object] | None = None,
        **options: Any,
    ) -> PeriodicDecorator:
        """Enqueue a task at times: `@app.periodic(cron="*/5 * * * *", tz="Europe/Riga")`, or every=60.

        On a function it makes a task, with options as in task(). It may also stand above `@app.task(...)`.
        Each tick is enqueued once, with any number of workers. missed: what a worker does about ticks that
        passed while no worker ran: "skip" them, make up for the last "one", or for "all". arguments: of the
        task.
        """
        schedule = _schedule(cron, tz, every)

        def declare(function: Any) -> Any:
            task = function if isinstance(function, Task) else self._declare_task(function, **options)
            if isinstance(function, Task) and options:
                raise InvalidArgument(
                    f"options of a task stand in its @app.task(...), not here: {sorted(options)}"
                )
            self._add_schedule(task, schedule, missed, name or task.name, arguments or {})
            return task

        return declare

    def _add_schedule(
        self,
        task: Task[..., Any],
        schedule: Cron | Every,
        missed: Missed,
        name: str,
        arguments: Mapping[str, object],
    ) -> None:
        if name in self.schedules:
            raise InvalidArgument(f"there is a schedule {name!r} already", hint="give one of them a name=")
        message = task.options()._message(task.arguments.bind((), arguments))
        self.schedules[name] = Periodic(
            name=name,
            task_name=task.name,
            queue_name=task.queue,
            payload=message.payload,
            headers=message.headers or {},
            priority=message.priority,
            tenant=message.tenant,
            ttl=message.ttl,
            schedule=schedule,
            missed=missed,
        )

    # Groups

    def enqueue_group(
        self, calls: Sequence[TaskCall], *, callback: TaskCall | Task[..., Any], using: object = None
    ) -> GroupHandle:
        """Enqueue tasks together, and `callback` when all of them are done; all or nothing.

        callback: a task, or task.call(...) with arguments. A parameter `results` of the callback gets the
        return values, in order. using: the caller's own transaction.
        """
        calls = list(calls)
        api = self.client if using is None else using if isinstance(using, Api) else self.client.using(using)
        group_id, ids = Enqueuing(api, self.declared).send_group(group_start(calls, callback))
        return group_handle(group_id, ids, calls)

    async def enqueue_group_async(
        self, calls: Sequence[TaskCall], *, callback: TaskCall | Task[..., Any], using: object = None
    ) -> GroupHandle:
        """Enqueue tasks together, and `callback` when all of them are done. See enqueue_group()."""
        calls, own = list(calls), self.async_client
        api = own if using is None else using if isinstance(using, AsyncApi) else own.using(using)
        group_id, ids = await AsyncEnqueuing(api, self.declared).send_group(group_start(calls, callback))
        return group_handle(group_id, ids, calls)

    # Attempts for failed tasks

    def add_retries(self, task: Task[..., Any] | str, attempts: int) -> int:
        """Requeue all messages of a task that had no attempts left or expired, with so many more attempts."""
        found = self._find(task)
        return self.client.add_retries(found.queue, attempts, headers={"task": found.name})

    async def add_retries_async(self, task: Task[..., Any] | str, attempts: int) -> int:
        """Requeue all messages of a task that had no attempts left or expired, with so many more attempts."""
        found = self._find(task)
        return await self.async_client.add_retries(found.queue, attempts, headers={"task": found.name})

    def _find(self, task: Task[..., Any] | str) -> Task[..., Any]:
        name = task.name if isinstance(task, Task) else task
        if name not in self.tasks:
            raise InvalidArgument(f"there is no task {name!r}: there are {sorted(self.tasks)}")
        return self.tasks[name]

    # Clients

    @property
    def client(self) -> Client:
        """The client that enqueues tasks; it connects at the first call."""
        return self.clients.blocking()

    @property
    def async_client(self) -> AsyncClient:
        """The client that enqueues tasks in the running event loop."""
        return self.clients.awaited()

    @property
    def declared(self) -> Declared:
        """The queues that this app has declared already."""
        return self.clients.declared

    def new_async_client(self, **options: Any) -> AsyncClient:
        """Another client of the same database."""
        return self.clients.new_awaited(**options)

    def use(self, dsn: str | None, *, listen_dsn: str | None = None) -> None:
        """Use another database from now on."""
        self.clients.drop()
        self.clients = Clients(dsn, listen_dsn, self.clients.call_timeout)

    @contextmanager
    def connected_to(self, dsn: str, *, listen_dsn: str | None = None) -> Iterator[Self]:
        """Use another database while the block runs, as in tests."""
        before = self.clients
        self.clients = Clients(dsn, listen_dsn, before.call_timeout)
        try:
            yield self
        finally:
            self.clients.drop()
            self.clients = before

    def close(self) -> None:
        """Close the connections; a later call opens new ones. For async clients: aclose()."""
        self.clients.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self.clients.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
        self.close()


def _schedule(cron: str | None, tz: str, every: Duration | None) -> Cron | Every:
    if (cron is None) == (every is None):
        raise InvalidArgument(f"give either cron or every, not cron={cron!r} and every={every!r}")
    return Every(interval("every", every)) if every is not None else Cron(cron or "", tz)


TASK_OPTIONS = frozenset(
    name
    for name, parameter in inspect.signature(App._declare_task).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
)
