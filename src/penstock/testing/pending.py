"""Enqueued tasks and dead letters, with the arguments as a handler gets them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock._sync.client import Client
from penstock.errors import InvalidArgument, PenstockError, QueueNotFound
from penstock.models import DeadLetter, MessageDetails, State
from penstock.payloads import Json
from penstock.tasks.app import App
from penstock.tasks.task import Task

__all__ = ["Dead", "Enqueued", "Pending", "shown", "times"]

PAGE = 1000
WHOLE_WITHIN_SECONDS = 0.25
STATES: tuple[State, ...] = ("ready", "waiting", "scheduled")


@dataclass(frozen=True, slots=True)
class Enqueued:
    """An enqueued task that does not run.

    arguments: as given at the enqueue. delay: how many seconds after its enqueue it is due. attempts: how
    often it has run. task: None for a message that is not a task.
    """

    task: str | None
    arguments: dict[str, Any]
    queue: str
    message_id: int
    delay: float
    due_at: datetime | None
    priority: int
    tenant: str | None
    attempts: int
    headers: dict[str, Any]

    def __str__(self) -> str:
        return _described(self, self.delay)


@dataclass(frozen=True, slots=True)
class Dead:
    """A task that has failed for good.

    reason: "no_attempts_left", "expired", or "failed" if it was rejected. error: the last one, with its
    traceback.
    """

    task: str | None
    arguments: dict[str, Any]
    queue: str
    message_id: int
    reason: str
    error: str | None
    priority: int
    tenant: str | None
    attempts: int
    headers: dict[str, Any]

    def __str__(self) -> str:
        return f"{_described(self)}: {self.reason}" + (
            f", {self.error.splitlines()[0]}" if self.error else ""
        )


class Pending:
    """Reads the queues of a database."""

    def __init__(self, client: Client, apps: Sequence[App]) -> None:
        self._client = client
        self._apps = apps

    def enqueued(self, task: Task[..., Any] | str | None) -> list[Enqueued]:
        """The pending messages of the queues, in the order in which they were enqueued."""
        name, found = _name(task), []
        for queue_name in self._queues(task):
            for details in self._details(queue_name):
                known = self._task(details.headers, task)
                if name is None or details.headers.get("task") == name:
                    found.append(_enqueued(details, known))
        return sorted(found, key=lambda message: message.message_id)

    def dead(self, task: Task[..., Any] | str | None) -> list[Dead]:
        """The dead letters, in the order in which they were enqueued."""
        name, found = _name(task), []
        for queue_name in self._queues(task):
            for letter in self._letters(queue_name):
                if name is None or letter.headers.get("task") == name:
                    found.append(_dead(letter, self._task(letter.headers, task)))
        return sorted(found, key=lambda message: message.message_id)

    def matching(self, task: Task[..., Any] | str, arguments: Mapping[str, object]) -> list[Enqueued]:
        """The messages of a task that have these arguments, and any others."""
        known = self._task({"task": _name(task)}, task)
        defaults = _defaults(known, arguments)
        return [
            message for message in self.enqueued(task) if _has(arguments, {**defaults, **message.arguments})
        ]

    def _queues(self, task: Task[..., Any] | str | None) -> list[str]:
        if isinstance(task, Task):
            return [task.queue]
        return [queue.name for queue in self._client.list_queues()]

    def _task(self, headers: Mapping[str, Any], task: Task[..., Any] | str | None) -> Task[..., Any] | None:
        name = headers.get("task")
        if isinstance(task, Task) and task.name == name:
            return task
        return next((app.tasks[name] for app in self._apps if name in app.tasks), None)

    def _details(self, queue_name: str) -> Iterator[MessageDetails]:
        for state in STATES:
            after = None
            while page := self._page(queue_name, state, after):
                for listed in page:
                    details = self._client.get_message(queue_name, listed.message_id)
                    if details is not None and details.state in STATES:
                        yield details
                after = page[-1].cursor

    def _page(self, queue_name: str, state: State, after: str | None) -> list[Any]:
        try:
            return list(self._client.list_messages(queue_name, state=state, page_size=PAGE, after=after))
        except QueueNotFound:
            return []

    def _letters(self, queue_name: str) -> Iterator[DeadLetter]:
        after = None
        try:
            while page := self._client.list_dlq_messages(queue_name, page_size=PAGE, after=after):
                yield from page
                after = page[-1].cursor
        except QueueNotFound:
            return


def times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def shown(task: str | None, arguments: Mapping[str, object]) -> str:
    """A call of a task, as in source code."""
    return f"{task or '(no task)'}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _described(message: Enqueued | Dead, delay: float = 0.0) -> str:
    facts = [f"queue {message.queue!r}"]
    if delay:
        facts.append(f"delay {delay:g} s")
    if message.tenant is not None:
        facts.append(f"tenant {message.tenant!r}")
    if message.attempts:
        facts.append(f"run {times(message.attempts)}")
    return f"{shown(message.task, message.arguments)} in {', '.join(facts)}"


def _name(task: Task[..., Any] | str | None) -> str | None:
    if task is None or isinstance(task, str):
        return task
    if isinstance(task, Task):
        return task.name
    raise InvalidArgument(f"task must be a task of an app, or the name of one, not {task!r}")


def _enqueued(details: MessageDetails, task: Task[..., Any] | None) -> Enqueued:
    due_at = details.due_at
    return Enqueued(
        task=details.headers.get("task"),
        arguments=_decoded(details.payload, task),
        queue=details.queue_name,
        message_id=details.message_id,
        delay=0.0 if due_at is None else _delay((due_at - details.published_at).total_seconds()),
        due_at=due_at,
        priority=details.priority,
        tenant=details.tenant,
        attempts=details.delivery_attempts,
        headers=details.headers,
    )


def _delay(seconds: float) -> float:
    """The delay as given: the clock has advanced a little between publish and due time."""
    whole = round(seconds)
    return float(whole) if abs(seconds - whole) < WHOLE_WITHIN_SECONDS else round(seconds, 1)


def _dead(letter: DeadLetter, task: Task[..., Any] | None) -> Dead:
    return Dead(
        task=letter.headers.get("task"),
        arguments=_decoded(letter.payload, task),
        queue=letter.queue_name,
        message_id=letter.message_id,
        reason=letter.reason,
        error=letter.last_error,
        priority=letter.priority,
        tenant=letter.tenant,
        attempts=letter.delivery_attempts,
        headers=letter.headers,
    )


def _decoded(payload: Json, task: Task[..., Any] | None) -> dict[str, Any]:
    if task is not None:
        try:
            return task.arguments.decode(payload)
        except PenstockError:
            # The test enqueued arguments that the handler will refuse: show them unchanged.
            pass
    return payload if isinstance(payload, dict) else {"payload": payload}


def _defaults(task: Task[..., Any] | None, arguments: Mapping[str, object]) -> dict[str, Any]:
    """The defaults of a handler's parameters. An argument without a parameter is a mistake of the test."""
    if task is None:
        return {}
    unknown = [name for name in arguments if name not in task.arguments.names]
    if unknown and not task.arguments.takes_any:
        raise InvalidArgument(
            f"task {task.name!r} has no parameter {unknown[0]!r}:"
            f" its arguments are {task.arguments.signature}"
        )
    parameters = inspect.signature(task.function).parameters
    return {
        name: parameters[name].default
        for name in task.arguments.names
        if parameters[name].default is not inspect.Parameter.empty
    }


def _has(wanted: Mapping[str, object], arguments: Mapping[str, object]) -> bool:
    return all(name in arguments and bool(arguments[name] == value) for name, value in wanted.items())
