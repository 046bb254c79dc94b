"""The worker: its parts, and how they start, drain and end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from penstock import calls
from penstock._async.client import AsyncClient
from penstock._async.enqueuing import AsyncEnqueuing
from penstock.backoff import Backoff
from penstock.concurrency import async_sleep, now
from penstock.errors import ConnectionLost, DatabaseUnavailable, InvalidArgument, PenstockError
from penstock.health import Health
from penstock.middleware.logging import LoggingMiddleware
from penstock.tasks.app import App
from penstock.values import Duration, interval

from .contact import Contact
from .executor import Executor
from .fetcher import Fetcher
from .leases import Leases
from .maintainer import Maintainer
from .registry import Registry
from .run import Run
from .scheduler import Scheduler
from .settler import Settler
from .started import Started
from .supervisor import is_supervised

__all__ = ["Worker"]

logger = logging.getLogger("penstock.worker")

CONCURRENCY = 100
LEASE_SECONDS = 30
# What the schema takes.
LONGEST_LEASE_SECONDS = 2_592_000
GRACE_SECONDS = 30
# Connections for settling, schedules, the registry and handlers' transactions; claims have one of their own.
MOST_CONNECTIONS = 10
# What is left to tell the database when a worker ends in a hurry.
LAST_WORDS_SECONDS = 3.0
# However short the lease is, the server has so long to answer a claim or a pulse.
SHORTEST_CLAIM_TIMEOUT = 5.0
# How long a claim that is under way may take to come to its end.
CLAIM_SECONDS = 1.0
CANCEL_SECONDS = 0.5
# How often the loop shows that it turns.
BEAT_SECONDS = 1.0
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
# The last one aborts at once.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)

Stopping = Literal["drain", "abort"]
T = TypeVar("T")


class Worker:
    """Runs the tasks of an app until it is told to stop.

    `async with penstock.Worker(app):` runs it beside the block. It has started when the block begins, and an
    error of the start is raised there. At the end of the block it drains and stops. If the worker fails
    meanwhile, the block is cancelled, and the error of the worker is raised in its place.

    queues: those to work for; all of the app's, unless given. concurrency: async handlers at once. threads,
    processes: handlers of these kinds at once. lease: for how long a task is this worker's without a sign of
    life; when a worker is lost, its tasks run elsewhere after that. grace: how long handlers have to end
    when it stops. health: told how it is; see penstock.health.reporting().
    """

    def __init__(
        self,
        app: App,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = CONCURRENCY,
        threads: int | None = None,
        processes: int | None = None,
        lease: Duration = LEASE_SECONDS,
        grace: Duration = GRACE_SECONDS,
        health: Health | None = None,
    ) -> None:
        cores = os.cpu_count() or 1
        self._app = app
        self._queue_names = _chosen(app, queues)
        self._concurrency = _count("concurrency", concurrency)
        self._threads = _count("threads", 4 * cores if threads is None else threads)
        self._processes = _count("processes", cores if processes is None else processes)
        self._lease = interval("lease", lease, LONGEST_LEASE_SECONDS)
        if self._lease < 1:
            raise InvalidArgument(f"lease must be at least 1 second, not {lease!r}")
        self._grace = interval("grace", grace)
        self._health = Health() if health is None else health
        self._contact: Contact | None = None
        self._stop = asyncio.Event()
        self._stopping: Stopping | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: Executor | None = None
        self._silent_at: float | None = None
        self._running: asyncio.Task[None] | None = None
        # The task whose block runs beside this worker; cancelled where the worker fails.
        self._body: asyncio.Task[Any] | None = None
        self._has_cancelled = False
        self.started = Started()

    # Beside a block

    async def __aenter__(self) -> Self:
        if self._running is not None:
            raise InvalidArgument(
                "this worker runs already, or has run: make another Worker for another block"
            )
        self._running = running = self._loop_of(self.run(), "worker")
        try:
            await self.started.wait()
        except BaseException:
            await self._finish(running)
            raise
        self._body = asyncio.current_task()
        running.add_done_callback(self._ended)
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        running, body = self._running, self._body
        assert running is not None
        assert body is not None
        self._body = None
        if self._has_cancelled:
            body.uncancel()
        await self._finish(running)

    async def _finish(self, running: asyncio.Task[None]) -> None:
        """Drain and stop, and raise the error of the worker. To cancel the caller meanwhile aborts it."""
        if self._stopping is None:
            self.stop()
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait({running})
            raise
        running.result()

    def _ended(self, running: asyncio.Task[None]) -> None:
        """End the block, too, where run() has failed."""
        if self._body is not None and not running.cancelled() and running.exception() is not None:
            self._has_cancelled = True
            self._body.cancel()

    # From outside

    def stop(self) -> None:
        """Drain: claim nothing more, end what runs. The second time: abort. In the loop of run()."""
        self._stopping = "drain" if self._stopping is None else "abort"
        self._stop.set()
        self._health.set_stopping()

    def stop_from_anywhere(self) -> None:
        """stop(), from a signal handler or another thread."""
        if self._loop is None:
            self.stop()  # before it has begun
        else:
            self._loop.call_soon_threadsafe(self.stop)

    def run_forever(self) -> bool:
        """Work until SIGTERM or SIGINT; whether it ended in order."""
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self._run_with_signals())
        finally:
            # Not as asyncio.run() does: what cannot be cancelled must not keep the process.
            if left := asyncio.all_tasks(loop):
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(left, timeout=1))
            ending = loop.create_task(loop.shutdown_asyncgens())
            loop.run_until_complete(asyncio.wait({ending}, timeout=LAST_WORDS_SECONDS))
            loop.close()

    async def _run_with_signals(self) -> bool:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            await self.run()
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
        return self._stopping != "abort"

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGQUIT:
            self._stopping = self._stopping or "drain"
        elif self._stopping is not None and is_supervised():
            return  # to all processes, and once more from the supervisor, which says SIGQUIT to abort
        if self._stopping is None:
            logger.info("%s: ending what runs, for %g seconds at most; again to abort", name, self._grace)
        else:
            logger.warning("%s: aborting", name)
        self.stop()

    # The life of a worker

    async def run(self) -> None:
        """Work until stop(). A worker runs once."""
        if self._loop is not None:
            raise PenstockError("this worker has run already", hint="make another: penstock.Worker(app)")
        try:
            await self._run()
        except BaseException as exc:
            self.started.fail(exc)
            raise
        self.started.fail(None)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        client = self._app.new_async_client(max_connections=MOST_CONNECTIONS, maintain=False)
        claims = self._app.new_async_client(
            max_connections=1, maintain=False, call_timeout=self._claims_timeout()
        )
        claims._settings = (calls.SET_ASYNCHRONOUS,)
        claims._silence_log = client._silence_log
        client._be_quiet()
        beating = self._loop_of(self._beat(), "health")
        try:
            if await self._begin(client, claims):
                await self._work(client, claims)
        finally:
            await self._in_time(claims.close(), client.close())
            # What hangs in the network still has a connection.
            claims._abandon()
            client._abandon()
            beating.cancel()

    def _claims_timeout(self) -> float | None:
        """How long the server may be silent over a claim or a pulse: two pulses have to fit into a lease."""
        timeout = self._app.clients.call_timeout
        return None if timeout is None else min(timeout, max(SHORTEST_CLAIM_TIMEOUT, self._lease / 3))

    async def _beat(self) -> None:
        while True:
            self._health.beat()
            self._tell_health()
            await async_sleep(BEAT_SECONDS)

    def _tell_health(self) -> None:
        """Ready while it works and the database answers."""
        if self._contact is not None:
            trouble = self._contact.trouble
            self._health.set_ready(not trouble, trouble or f"working on {', '.join(self._queue_names)}")

    async def _begin(self, client: AsyncClient, claims: AsyncClient) -> bool:
        """Connect and declare the queues, as long as that takes; whether there is a worker then."""
        beginning = self._loop_of(self._connect(client, claims), "beginning")
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({beginning, stop}, return_when=asyncio.FIRST_COMPLETED)
            return beginning.done() and beginning.result()
        finally:
            stop.cancel()
            await self._end(beginning)

    async def _connect(self, client: AsyncClient, claims: AsyncClient) -> bool:
        backoff, is_told = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS), False
        while not self._stop.is_set():
            try:
                await client.open()
                await claims.open()
                await self._declare(client)
                # A role that may not consume may not ask this either: the start fails, not the first claim.
                await claims.channel(self._queue_names[0])
            except (DatabaseUnavailable, ConnectionLost) as exc:
                if not is_told:
                    logger.warning("the database cannot be reached, waiting for it: %s", exc)
                is_told = True
                self._health.set_ready(False, f"the database cannot be reached: {exc}")
            else:
                return True
            await _unless(self._stop, backoff.next())
        return False

    async def _declare(self, client: AsyncClient) -> None:
        for name in self._queue_names:
            needs = self._app.needs(name)
            self._app.declared.forget(needs)
            await AsyncEnqueuing(client, self._app.declared).declare(needs)

    async def _work(self, client: AsyncClient, claims: AsyncClient) -> None:
        app = self._app
        leases = Leases(claims, self._lease)
        settler = Settler(client, self._settled, leases.renew_token)
        self._executor = executor = Executor(
            app,
            settler,
            concurrency=self._concurrency,
            threads=self._threads,
            processes=self._processes,
            logs=not any(isinstance(middleware, LoggingMiddleware) for middleware in app.middleware),
        )
        leases.executor = executor
        self._contact = contact = Contact(claims)
        fetcher = Fetcher(
            app=app,
            client=client,
            claims=claims,
            executor=executor,
            settler=settler,
            leases=leases,
            contact=contact,
            queue_names=self._queue_names,
            declare=lambda: self._declare(client),
        )
        self._fetcher = fetcher
        executor.on_room = self._on_room
        executor.on_settled = self._settled
        settler.on_delay = fetcher.come_back
        registry = Registry(app, client, executor, leases, self._queue_names)
        maintainer = Maintainer(client, leases)
        fetcher.on_claimed = maintainer.claimed
        fetching = self._loop_of(fetcher.run(), "fetcher")
        loops = [
            fetching,
            self._loop_of(settler.run(), "settler"),
            self._loop_of(leases.run(), "leases"),
            self._loop_of(contact.run(), "contact"),
            self._loop_of(registry.run(), "registry"),
            self._loop_of(maintainer.run(), "maintainer"),
        ]
        if app.schedules:
            periodics = [p for p in app.schedules.values() if p.queue_name in self._queue_names]
            loops.append(self._loop_of(Scheduler(client, periodics).run(), "scheduler"))
        logger.info(
            "working on %s: %s, %d at once",
            ", ".join(self._queue_names),
            "1 task" if len(app.tasks) == 1 else f"{len(app.tasks)} tasks",
            self._concurrency,
        )
        self.started.set()
        self._tell_health()
        try:
            await self._until_stopped(loops)
            registry.stopping = True
            fetcher.stop()
            await asyncio.wait({fetching}, timeout=CLAIM_SECONDS)
            if not fetching.done():
                fetching.cancel()
                # What it may have claimed belongs to nobody here: it must not be kept alive by our token.
                leases.renew_token()
            await self._drain(executor, settler)
            logger.info("stopped")
        finally:
            await asyncio.gather(*map(self._end, loops))
            await self._in_time(maintainer.run_once(), executor.close(), registry.forget())

    def _settled(self, runs: list[Run]) -> None:
        """The database knows what became of these."""
        assert self._executor is not None
        self._executor.forget(runs)
        for queue_name in {run.queue_name for run in runs}:
            self._fetcher.permits_returned(queue_name)

    async def _until_stopped(self, loops: list[asyncio.Task[None]]) -> None:
        """Wait for stop(); a part that fails ends the worker with its error."""
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            done, _ = await asyncio.wait({stop, *loops}, return_when=asyncio.FIRST_COMPLETED)
            for ended in done - {stop}:
                ended.result()
        finally:
            stop.cancel()

    async def _drain(self, executor: Executor, settler: Settler) -> None:
        """Give back what never began, wait for what runs, and tell the database of all of it."""
        executor.release_waiting()
        deadline = now() + self._grace
        while executor.running and self._stopping != "abort" and now() < deadline:
            await self._a_moment(deadline - now())
        if executor.running:
            logger.warning("%d tasks did not end in time, and are given back", len(executor.running))
            executor.interrupt_all()
            deadline = now() + LAST_WORDS_SECONDS
            while executor.running and now() < deadline:
                await self._a_moment(deadline - now())
            executor.give_up()
        if not await settler.drained(self._last_words()):
            logger.warning("the end of some tasks could not be recorded: they will run again")

    async def _a_moment(self, patience: float) -> None:
        """Until a task ends, or stop() is called again."""
        self._stop.clear()
        await _unless(self._stop, patience)

    def _on_room(self) -> None:
        """A task has ended."""
        self._fetcher.wake()
        if self._stopping is not None:
            self._stop.set()

    async def _in_time(self, *steps: Coroutine[Any, Any, Any]) -> None:
        """Side by side, and not for ever: a network that hangs must not keep the process."""
        tasks = [asyncio.ensure_future(step) for step in steps]
        _, late = await asyncio.wait(tasks, timeout=self._last_words())
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=CANCEL_SECONDS)
        for task in tasks:
            if task.done() and not task.cancelled() and (exc := task.exception()) is not None:
                logger.debug("at the end: %s", exc)

    def _last_words(self) -> float:
        """How long the next step of the end may take: all together have a limit."""
        if self._silent_at is None:
            self._silent_at = now() + LAST_WORDS_SECONDS
        return max(0.3, self._silent_at - now())

    def _loop_of(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(coroutine, name=f"penstock {name}")

    async def _end(self, loop: asyncio.Task[Any]) -> None:
        """Cancel one of the loops; one that hangs in the network is left behind."""
        if not loop.done():
            loop.cancel()
            await asyncio.wait({loop}, timeout=self._last_words())


async def _unless(stop: asyncio.Event, pause: float) -> None:
    """Wait a while, or until it is time to stop."""
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait({waiting}, timeout=pause)
    waiting.cancel()


def _chosen(app: App, queues: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(needs.name for needs in app.queues)
    if not names:
        raise InvalidArgument("this app has no tasks", hint="are the modules with its tasks imported?")
    if queues is None:
        return names
    if unknown := [name for name in queues if name not in names]:
        raise InvalidArgument(
            f"no task of this app is in queue {unknown[0]!r}: its queues are {', '.join(names)}"
        )
    return tuple(dict.fromkeys(queues))


def _count(name: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise InvalidArgument(f"{name} must be at least 1, not {value!r}")
    return value
