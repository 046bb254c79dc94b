"""A task: a handler with its policy, and the ways to enqueue it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from penstock._async.api import AsyncApi
from penstock._async.enqueuing import AsyncEnqueuing
from penstock._sync.api import Api
from penstock._sync.enqueuing import Enqueuing
from penstock.declarations import GroupMember, QueueNeeds
from penstock.errors import InvalidArgument, PayloadInvalid, UnsupportedConnection
from penstock.message_options import CHUNK, CHUNK_BYTES, Batch, Batched, batches
from penstock.models import NewMessage
from penstock.payloads import columns_of, encode_all
from penstock.values import Duration, flag, interval

from .arguments import Arguments, inner_function
from .derived_options import Tenant, Unique, tenant_of, unique_key_of
from .handle import Handle
from .hooks import EnqueueCall, Middleware
from .importable import check_importable
from .options import CallOptions
from .policy import LONGEST_TTL, Policy

if TYPE_CHECKING:
    from .app import App

__all__ = ["BoundTask", "Task", "TaskCall"]

P = ParamSpec("P")
R = TypeVar("R")
Progress = Callable[[int], None]

# How long a result is kept by default.
RESULT_SECONDS = 86_400
# The parameter of a group's callback that gets the return values of the members.
RESULTS = "results"
NO_MIDDLEWARE = nullcontext()


@dataclass(frozen=True, slots=True)
class TaskCall:
    """A task with its arguments, for a group; not enqueued yet."""

    bound: BoundTask[..., Any]
    arguments: Mapping[str, object]

    @property
    def task(self) -> Task[..., Any]:
        return self.bound.task

    def member(self) -> GroupMember:
        """The call as a message of a group."""
        call = self.bound._call(1)
        with self.bound._middleware(call):
            message = replace(self.bound._message(self.arguments), headers=call.headers)
        return GroupMember(self.task.needs, message)


class Task(Generic[P, R]):
    """A function that workers run. A direct call runs the function itself."""

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        *,
        name: str,
        queue: str,
        policy: Policy,
        concurrency: int | None,
        max_active: int | None,
        priority: int | None,
        tenant: Tenant | None,
        unique: Unique,
        result_seconds: int | None,
        process: bool,
    ) -> None:
        update_wrapper(self, function)
        self.app = app
        self.function = function
        self.name = name
        self.queue = queue
        self.policy = policy
        self.concurrency = concurrency
        self.max_active = max_active
        self.priority = priority
        self.result_seconds = result_seconds
        self.is_process = flag("process", process)
        self.is_async = _is_async(function)
        if self.is_process:
            check_importable(function)
        self.arguments = Arguments(function, name)
        self.tenant = tenant_of(tenant, self.arguments)
        self.unique_key = unique_key_of(unique, name, self.arguments)
        # Whether options of a call depend on its arguments.
        self.has_derived_options = callable(self.tenant) or self.unique_key is not None
        self._bound = BoundTask(self, CallOptions(), None)

    @property
    def needs(self) -> QueueNeeds:
        """The settings that the task needs in its queue."""
        return self.app.needs(self.queue)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name!r} of queue {self.queue!r}>"

    # Enqueue: the same as on a task that is bound to options or a transaction

    def options(
        self,
        *,
        delay: Duration | None = None,
        deliver_after: datetime | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        ttl: Duration | None = None,
        dedup_key: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> BoundTask[P, R]:
        """The task with options for its calls: not before `delay`, with another priority, and others.

        ttl: counted from now; a computed one counts from the due time. dedup_key: refuses a second task while
        the first is not finished, and returns the id of the first.
        """
        return self._bound.options(
            delay=delay,
            deliver_after=deliver_after,
            priority=priority,
            tenant=tenant,
            ttl=ttl,
            dedup_key=dedup_key,
            headers=headers,
        )

    def using(self, connection: object) -> BoundTask[P, R]:
        """The task in the caller's own transaction: of a connection, a session, or a penstock.Transaction."""
        return self._bound.using(connection)

    def handle(self, message_id: int) -> Handle[R]:
        """The handle of a task that was enqueued before, perhaps by another process."""
        return Handle(self, message_id)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue one call; a worker runs it. Arguments are checked here."""
        return self._bound.enqueue(*args, **kwargs)

    async def enqueue_async(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue one call; a worker runs it. Arguments are checked here."""
        return await self._bound.enqueue_async(*args, **kwargs)

    def enqueue_many(
        self, calls: Iterable[Any], *, progress: Progress | None = None, atomic: bool = False
    ) -> list[Handle[R]]:
        """Enqueue any number of calls: each a dict of arguments, or a tuple of positional ones.

        progress, atomic: as in Client.send_many().
        """
        return self._bound.enqueue_many(calls, progress=progress, atomic=atomic)

    async def enqueue_many_async(
        self,
        calls: Iterable[Any] | AsyncIterable[Any],
        *,
        progress: Progress | None = None,
        atomic: bool = False,
    ) -> list[Handle[R]]:
        """Enqueue any number of calls. See enqueue_many()."""
        return await self._bound.enqueue_many_async(calls, progress=progress, atomic=atomic)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """The task with these arguments, for a group."""
        return self._bound.call(*args, **kwargs)


class BoundTask(Generic[P, R]):
    """A task with options, or in a transaction."""

    def __init__(self, task: Task[P, R], options: CallOptions, connection: object) -> None:
        self.task = task
        self._options = options
        self._connection = connection

    def options(
        self,
        *,
        delay: Duration | None = None,
        deliver_after: datetime | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        ttl: Duration | None = None,
        dedup_key: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> BoundTask[P, R]:
        """The task with these options, too. See Task.options()."""
        given = CallOptions(delay, deliver_after, priority, tenant, ttl, dedup_key, headers)
        options = self._options.with_more(given)
        return BoundTask(self.task, options, self._connection)

    def using(self, connection: object) -> BoundTask[P, R]:
        """The same in the caller's own transaction."""
        if connection is None:
            raise UnsupportedConnection("using() takes a connection or a session, not None")
        return BoundTask(self.task, self._options, connection)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue one call; a worker runs it. Arguments are checked here."""
        payload, options = self._single(args, kwargs)
        try:
            if not self.task.app.middleware:
                return Handle(self.task, self._send(payload, options, self._headers()))
            call = self._call(1)
            with self._middleware(call):
                found = self._send(payload, options, call.headers)
                call.message_ids.append(found)
        except PayloadInvalid as exc:
            raise self._refused(exc) from exc
        return Handle(self.task, found)

    def _send(self, payload: Any, options: dict[str, Any], headers: Mapping[str, Any]) -> int:
        options["headers"] = headers
        return Enqueuing(self._api(), self.task.app.declared).send(self.task.needs, payload, options)

    async def enqueue_async(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue one call; a worker runs it. Arguments are checked here."""
        payload, options = self._single(args, kwargs)
        try:
            if not self.task.app.middleware:
                return Handle(self.task, await self._send_async(payload, options, self._headers()))
            call = self._call(1)
            with self._middleware(call):
                found = await self._send_async(payload, options, call.headers)
                call.message_ids.append(found)
        except PayloadInvalid as exc:
            raise self._refused(exc) from exc
        return Handle(self.task, found)

    def _send_async(
        self, payload: Any, options: dict[str, Any], headers: Mapping[str, Any]
    ) -> Coroutine[Any, Any, int]:
        options["headers"] = headers
        sender = AsyncEnqueuing(self._async_api(), self.task.app.declared)
        return sender.send(self.task.needs, payload, options)

    def enqueue_many(
        self, calls: Iterable[Any], *, progress: Progress | None = None, atomic: bool = False
    ) -> list[Handle[R]]:
        """Enqueue any number of calls. See Task.enqueue_many()."""
        task = self.task
        call = self._call(len(calls) if isinstance(calls, list | tuple) else None)
        try:
            with self._middleware(call):
                call.message_ids[:] = Enqueuing(self._api(), task.app.declared).send_many(
                    task.needs,
                    (lambda: self._many(calls)) if isinstance(calls, list | tuple) else self._many(calls),
                    {**self._common(), "headers": call.headers},
                    progress=progress,
                    atomic=atomic,
                )
        except PayloadInvalid as exc:
            raise self._refused(exc) from exc
        return [Handle(task, found) for found in call.message_ids]

    async def enqueue_many_async(
        self,
        calls: Iterable[Any] | AsyncIterable[Any],
        *,
        progress: Progress | None = None,
        atomic: bool = False,
    ) -> list[Handle[R]]:
        """Enqueue any number of calls. See Task.enqueue_many()."""
        task = self.task
        call = self._call(len(calls) if isinstance(calls, list | tuple) else None)
        try:
            with self._middleware(call):
                sender = AsyncEnqueuing(self._async_api(), task.app.declared)
                many: Any = (lambda: self._many(calls)) if isinstance(calls, list | tuple) else None
                if many is None:
                    many = self._many_async(calls) if isinstance(calls, AsyncIterable) else self._many(calls)
                options = {**self._common(), "headers": call.headers}
                call.message_ids[:] = await sender.send_many(
                    task.needs, many, options, progress=progress, atomic=atomic
                )
        except PayloadInvalid as exc:
            raise self._refused(exc) from exc
        return [Handle(task, found) for found in call.message_ids]

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """The task with these options and arguments, for a group."""
        bound = cast("BoundTask[..., Any]", self)
        return TaskCall(bound, self.task.arguments.bind(args, kwargs, without=RESULTS))

    # How a call becomes a message

    def _refused(self, exc: PayloadInvalid) -> PayloadInvalid:
        """The error for a payload that does not fit, as an argument of this task."""
        refused = PayloadInvalid(f"task {self.task.name!r}: {exc}")
        refused.published = exc.published
        return refused

    def _api(self) -> Api:
        if self._connection is None:
            return self.task.app.client
        if isinstance(self._connection, Api):
            return self._connection
        if isinstance(self._connection, AsyncApi):
            raise UnsupportedConnection(f"{self._connection!r} is awaited", hint=f"await {self._other(True)}")
        try:
            return self.task.app.client.using(self._connection)
        except UnsupportedConnection as exc:
            raise self._misplaced(exc, is_async=True) from None

    def _async_api(self) -> AsyncApi:
        if self._connection is None:
            return self.task.app.async_client
        if isinstance(self._connection, AsyncApi):
            return self._connection
        if isinstance(self._connection, Api):
            raise UnsupportedConnection(f"{self._connection!r} blocks", hint=self._other(False))
        try:
            return self.task.app.async_client.using(self._connection)
        except UnsupportedConnection as exc:
            raise self._misplaced(exc, is_async=False) from None

    def _other(self, is_async: bool) -> str:
        return f"{self.task.name}.using(...).{'enqueue_async' if is_async else 'enqueue'}(...)"

    def _misplaced(self, exc: UnsupportedConnection, *, is_async: bool) -> UnsupportedConnection:
        """Add a hint with the method that would work, if there is one."""
        if exc.hint is None:
            return exc
        return UnsupportedConnection(str(exc), hint=("await " if is_async else "") + self._other(is_async))

    def _call(self, count: int | None) -> EnqueueCall:
        """The call, as the middleware gets it."""
        return EnqueueCall(self.task.name, self.task.queue, self._headers(), count)

    def _middleware(self, call: EnqueueCall) -> AbstractContextManager[None]:
        """The block of the middleware around a call."""
        middleware = self.task.app.middleware
        return _entered(middleware, call) if middleware else NO_MIDDLEWARE

    def _headers(self) -> dict[str, Any]:
        return {**(self._options.headers or {}), "task": self.task.name}

    def _common(self) -> dict[str, Any]:
        """The options that all messages share, but for the headers."""
        if self._options.deliver_after is None:
            return self._common_once
        return self._make_common()

    @cached_property
    def _common_once(self) -> dict[str, Any]:
        return self._make_common()

    def _make_common(self) -> dict[str, Any]:
        options, task = self._options, self.task
        tenant = options.tenant
        if tenant is None and isinstance(task.tenant, str):
            tenant = task.tenant
        common = {
            "delay": options.delay,
            "deliver_after": options.deliver_after,
            "priority": options.priority if options.priority is not None else task.priority,
            "tenant": tenant,
            "ttl": self._ttl(),
            "dedup_key": options.dedup_key,
        }
        return {name: value for name, value in common.items() if value is not None}

    def _ttl(self) -> float | None:
        """As given for the call or the task; else the time of all attempts, counted from the due time."""
        options, policy = self._options, self.task.policy
        if options.ttl is not None:
            return interval("ttl", options.ttl)
        if policy.given_ttl is not None or policy.ttl is None:
            return policy.given_ttl
        later = 0.0 if options.delay is None else interval("delay", options.delay)
        if options.deliver_after is not None and options.deliver_after.utcoffset() is not None:
            later = max(0.0, (options.deliver_after - datetime.now(UTC)).total_seconds())
        return min(policy.ttl + later, LONGEST_TTL)

    def _single(
        self, positional: Sequence[object], named: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The payload of one call, and its options but for the headers."""
        task = self.task
        if not task.has_derived_options:
            payload = None if positional else task.arguments.plain(named)
            if payload is None:
                payload = task.arguments.encode(task.arguments.bind(positional, named))
            return payload, self._common().copy()
        return self._derived(task.arguments.bind(positional, named))

    def _derived(self, arguments: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The same for arguments that are bound, and that options may depend on."""
        payload, options = self.task.arguments.encode(arguments), self._common().copy()
        if (tenant := self._tenant(arguments)) is not None:
            options["tenant"] = tenant
        if (key := self._key(arguments)) is not None:
            options["dedup_key"] = key
        return payload, options

    def _message(self, arguments: Mapping[str, object]) -> NewMessage:
        """One call as a message with all its options."""
        payload, options = self._derived(arguments)
        return NewMessage(payload, headers=self._headers(), **options)

    def _tenant(self, arguments: Mapping[str, object]) -> str | None:
        if self._options.tenant is not None:
            return self._options.tenant
        tenant = self.task.tenant
        return tenant(self.task.arguments.with_defaults(arguments)) if callable(tenant) else tenant

    def _key(self, arguments: Mapping[str, object]) -> str | None:
        find = self.task.unique_key
        if self._options.dedup_key is not None or find is None:
            return self._options.dedup_key
        return str(find(self.task.arguments.with_defaults(arguments)))

    def _many(self, calls: Iterable[Any]) -> Iterable[Any]:
        if isinstance(calls, str | bytes | Mapping) or not isinstance(calls, Iterable):
            raise InvalidArgument(f"calls must be an iterable of arguments, not a {type(calls).__name__}")
        payloads = map(self._one_of_many, calls)
        if isinstance(calls, list | tuple) and not self.task.has_derived_options:
            return Batched(payloads, lambda: self._batches(calls))
        # A generator may change a dict after it has yielded it, so each call is bound at once.
        return payloads

    def _batches(self, calls: Sequence[Any]) -> Iterator[Batch]:
        for start in range(0, len(calls), CHUNK):
            some = calls[start : start + CHUNK]
            columns = columns_of(some)
            if columns is not None and self.task.arguments.are_plain(columns):
                document = encode_all(some, CHUNK_BYTES, columns)
                if document is not None:
                    yield Batch(document=document)
                    continue
            yield from batches(list(map(self._one_of_many, some)), None, CHUNK_BYTES)

    async def _many_async(self, calls: AsyncIterable[Any]) -> Any:
        async for call in calls:
            yield self._one_of_many(call)

    def _one_of_many(self, call: Any) -> Any:
        task = self.task
        if (
            type(call) is dict
            and not task.has_derived_options
            and (plain := task.arguments.plain(call)) is not None
        ):
            return plain
        if isinstance(call, Mapping):
            arguments = task.arguments.bind((), call)
        elif isinstance(call, tuple):
            arguments = task.arguments.bind(call, {})
        else:
            raise InvalidArgument(
                f"each call is a dict or a tuple of arguments, not of type {type(call).__name__}",
                hint="one argument: (value,)",
            )
        payload = task.arguments.encode(arguments)
        tenant = self._tenant(arguments) if callable(task.tenant) else None
        key = self._key(arguments) if task.unique_key is not None else None
        if tenant is None and key is None:
            return payload
        return NewMessage(payload, tenant=tenant, dedup_key=key)


@contextmanager
def _entered(middleware: Iterable[Middleware], call: EnqueueCall) -> Iterator[None]:
    with ExitStack() as stack:
        for one in middleware:
            stack.enter_context(one.enqueue(call))
        yield


def _is_async(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine; generator functions are refused."""
    inner = inner_function(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise InvalidArgument(f"a task is a function that ends, not a generator: {function!r}")
    return inspect.iscoroutinefunction(inner)
