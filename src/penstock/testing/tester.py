"""The tester: apps connected to a database under test, their enqueued tasks, and drain() to run them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from penstock._sync.client import Client
from penstock.errors import InvalidArgument
from penstock.tasks.app import App
from penstock.tasks.task import Task
from penstock.values import Duration

from .clock import Clock
from .draining import Drain, DrainOptions, Ran
from .pending import Dead, Enqueued, Pending, shown
from .pending import times as counted

__all__ = ["TaskTester"]

# Stops a task that enqueues itself for ever.
LIMIT = 1000
# How many entries of each kind the message of a failed assertion lists.
MOST_SHOWN = 20


class TaskTester:
    """Tests the tasks of apps on a database: `with TaskTester(dsn, app) as tasks:`.

    Apps are connected to that database while the block runs. ran: all runs of drain() so far. clock: the time
    of the database. All methods may be called in coroutines, too; for drain() use drain_async() there.
    """

    def __init__(self, dsn: str, *apps: App, clock: Clock | None = None) -> None:
        self.dsn = dsn
        self._stack = ExitStack()
        self._apps: list[App] = []
        self._owns_clock = clock is None
        self.clock = Clock(dsn) if clock is None else clock
        self.ran: list[Ran] = []
        for app in apps:
            self.connect(app)

    # Apps

    def connect(self, app: App) -> App:
        """Connect an app to the database of the test, until the end of the test; returns the app."""
        if not isinstance(app, App):
            raise InvalidArgument(f"app must be a penstock.App, not {app!r}")
        if app not in self._apps:
            self._stack.enter_context(app.connected_to(self.dsn))
            self._stack.callback(app.clients.close_resting)
            self._apps.append(app)
        return app

    @cached_property
    def client(self) -> Client:
        """A client of the database of the test."""
        client = Client(self.dsn, maintain=False, install=False)
        self._stack.callback(client.close)
        return client

    def close(self) -> None:
        """Reconnect the apps to their own database, and restore the time of the test's database."""
        if self._owns_clock:
            self._stack.push(self.clock)
        self._stack.close()
        self._apps.clear()
        self.__dict__.pop("client", None)

    async def aclose(self) -> None:
        """close() within a loop: closes there what was opened there."""
        for app in self._apps:
            await app.aclose()
        self.close()

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

    # Run

    def drain(
        self,
        *apps: App,
        with_scheduled: bool = False,
        with_periodic: bool = False,
        raise_errors: bool = True,
        limit: int = LIMIT,
        timeout: Duration | None = None,
    ) -> list[Ran]:
        """Run ready tasks here, one after the other, and the tasks that they enqueue, until none is ready.

        Of these apps, or of all connected ones. Returns the runs, in order. with_scheduled: also run delayed
        tasks and retries, by moving the clock to their due times. with_periodic: first enqueue the periodic
        tasks that are due; their times begin with the first such call. raise_errors: raise the first
        exception of a handler (not Retry, Reject or Snooze) after recording it, and stop. limit: at most so
        many tasks, else DrainError. timeout: at most so long, else DrainError.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise InvalidArgument("drain() was called in a coroutine", hint="await drain_async() there")
        options = DrainOptions.of(
            with_scheduled=with_scheduled,
            with_periodic=with_periodic,
            raise_errors=raise_errors,
            limit=limit,
            timeout=timeout,
        )
        # A loop of its own that is not set as the current loop, so that the test's loop stays current.
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(self._drained(apps, options, closes=True))

    async def drain_async(
        self,
        *apps: App,
        with_scheduled: bool = False,
        with_periodic: bool = False,
        raise_errors: bool = True,
        limit: int = LIMIT,
        timeout: Duration | None = None,
    ) -> list[Ran]:
        """Run ready tasks in this loop. See drain()."""
        options = DrainOptions.of(
            with_scheduled=with_scheduled,
            with_periodic=with_periodic,
            raise_errors=raise_errors,
            limit=limit,
            timeout=timeout,
        )
        return await self._drained(apps, options, closes=False)

    async def _drained(self, apps: Sequence[App], options: DrainOptions, *, closes: bool) -> list[Ran]:
        drain = Drain(self._chosen(apps), self.dsn, options, self.clock.move_to)
        try:
            return await drain.run()
        finally:
            self.ran += drain.ran
            for app in self._apps if closes else ():
                await app.aclose()

    def _chosen(self, apps: Sequence[App]) -> list[App]:
        for app in apps:
            if app not in self._apps:
                raise InvalidArgument(
                    f"{app!r} is not connected to the database of the test", hint="connect() it first"
                )
        if not (apps or self._apps):
            raise InvalidArgument("no app is connected to the database of the test", hint="connect(app)")
        return list(apps or self._apps)

    # Look

    @property
    def _pending(self) -> Pending:
        return Pending(self.client, self._apps)

    def enqueued(self, task: Task[..., Any] | str | None = None) -> list[Enqueued]:
        """Enqueued tasks that do not run, in order: of a task, or all."""
        return self._pending.enqueued(task)

    def dead(self, task: Task[..., Any] | str | None = None) -> list[Dead]:
        """Dead letters, in the order in which they were enqueued: of a task, or all."""
        return self._pending.dead(task)

    def assert_enqueued(
        self, task: Task[..., Any] | str, /, *, times: int = 1, **arguments: object
    ) -> list[Enqueued]:
        """Fail unless a task is enqueued so many times with these arguments, and any others; returns them.

        An argument that was not given at the enqueue counts with the default of the handler's parameter.
        """
        __tracebackhide__ = True
        found = self._pending.matching(task, arguments)
        if len(found) != times:
            wanted = shown(task if isinstance(task, str) else task.name, arguments)
            raise AssertionError(
                f"{wanted} is enqueued {counted(len(found))}, not {counted(times)}\n{self._situation()}"
            )
        return found

    def assert_not_enqueued(self, task: Task[..., Any] | str | None = None, /, **arguments: object) -> None:
        """Fail if a task is enqueued with these arguments; without a task, if any task is enqueued."""
        __tracebackhide__ = True
        found = self.enqueued() if task is None else self._pending.matching(task, arguments)
        if found:
            name = "something" if task is None else task if isinstance(task, str) else task.name
            wanted = name if task is None else shown(name, arguments)
            raise AssertionError(f"{wanted} is enqueued\n{self._situation()}")

    def _situation(self) -> str:
        """A list of enqueued tasks, dead letters and runs, for the message of a failed assertion."""
        lines = []
        for title, found in (
            ("enqueued", self.enqueued()),
            ("dead", self.dead()),
            ("run by drain()", self.ran),
        ):
            if found or title == "enqueued":
                lines.append(f"{title}:" if found else f"{title}: nothing")
                lines += [f"  {entry}" for entry in found[:MOST_SHOWN]]
                if len(found) > MOST_SHOWN:
                    lines.append(f"  and {len(found) - MOST_SHOWN} more")
        return "\n".join(lines)
