"""The worker: how it starts, drains and ends."""

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
from penstock.signals import handled_in_loop
from penstock.tasks.app import App
from penstock.values import Duration, interval

from .contact import Contact
from .parts import Options, Parts
from .started import Started
from .supervisor import is_supervised

__all__ = ["Worker"]

logger = logging.getLogger("penstock.worker")

CONCURRENCY = 100
LEASE_SECONDS = 30
# The longest that the schema accepts.
LONGEST_LEASE_SECONDS = 2_592_000
GRACE_SECONDS = 30
# Connections for settling, schedules and the registry. Claims have a connection of their own.
MOST_CONNECTIONS = 10
# Time for the last statements of a worker that ends in a hurry.
LAST_WORDS_SECONDS = 3.0
# The server has at least so long to answer a claim or a pulse, however short the lease is.
SHORTEST_CLAIM_TIMEOUT = 5.0
# How long a claim that is under way may take when the worker stops.
CLAIM_SECONDS = 1.0
CANCEL_SECONDS = 0.5
# How long the start waits until the worker is in the list of workers.
REGISTER_SECONDS = 1.0
# How often the loop shows that it turns.
BEAT_SECONDS = 1.0
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
# SIGQUIT aborts at once.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)

Stopping = Literal["drain", "abort"]
T = TypeVar("T")


class Worker:
    """Runs the tasks of an app until stop().

    `async with penstock.Worker(app):` runs it beside the block. It has started when the block begins, and an
    error of the start is raised there. At the end of the block it drains and stops. If the worker fails
    meanwhile, the block is cancelled, and the error of the worker is raised in its place.

    queues: those to work for; all of the app's, unless given. concurrency: async handlers at once. threads,
    processes: handlers of these kinds at once. lease: for how long a worker keeps its tasks without a sign of
    life; when a worker is lost, its tasks run elsewhere after that. grace: how long handlers have to end
    when the worker stops. health: where the worker reports whether it is ready; see
    penstock.health.reporting().
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
        self._options = Options(
            _chosen(app, queues),
            _count("concurrency", concurrency),
            _count("threads", 4 * cores if threads is None else threads),
            _count("processes", cores if processes is None else processes),
            interval("lease", lease, LONGEST_LEASE_SECONDS),
            interval("grace", grace),
        )
        if self._options.lease < 1:
            raise InvalidArgument(f"lease must be at least 1 second, not {lease!r}")
        self._health = Health() if health is None else health
        self._contact: Contact | None = None
        self._stop = asyncio.Event()
        self._stopping: Stopping | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._silent_at: float | None = None
        self._running: asyncio.Task[None] | None = None
        # The asyncio task whose block runs beside this worker. It is cancelled if the worker fails.
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
        """Drain and stop, and raise the error of the worker. If the caller is cancelled meanwhile, abort."""
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
        """End the block, too, if run() has failed."""
        if self._body is not None and not running.cancelled() and running.exception() is not None:
            self._has_cancelled = True
            self._body.cancel()

    # From outside

    def stop(self) -> None:
        """Drain: claim nothing more, let runs end. The second time: abort. Call it in the loop of run()."""
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
            # Not as asyncio.run() does: a task that cannot be cancelled must not keep the process.
            if left := asyncio.all_tasks(loop):
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(left, timeout=1))
            ending = loop.create_task(loop.shutdown_asyncgens())
            loop.run_until_complete(asyncio.wait({ending}, timeout=LAST_WORDS_SECONDS))
            loop.close()

    async def _run_with_signals(self) -> bool:
        with handled_in_loop(self._on_signal, SIGNALS):
            await self.run()
        return self._stopping != "abort"

    def _on_signal(self, number: signal.Signals) -> None:
        name = number.name
        if number == signal.SIGQUIT:
            self._stopping = self._stopping or "drain"
        elif self._stopping is not None and is_supervised():
            return  # the second SIGTERM: the supervisor repeats it, and sends SIGQUIT to abort
        if self._stopping is None:
            logger.info(
                "%s: ending what runs, for %g seconds at most; again to abort", name, self._options.grace
            )
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
        claims.internals.set_on_connections(calls.SET_ASYNCHRONOUS)
        claims.internals.share_silence_log(client.internals.silence_log)
        client.internals.be_quiet()
        beating = self._loop_of(self._beat(), "health")
        try:
            if await self._begin(client, claims):
                await self._work(client, claims)
        finally:
            await self._in_time(claims.close(), client.close())
            # A call that hangs in the network still has a connection.
            claims.internals.abandon()
            client.internals.abandon()
            beating.cancel()

    def _claims_timeout(self) -> float | None:
        """How long the server may be silent over a claim or a pulse: two pulses have to fit into a lease."""
        timeout = self._app.clients.call_timeout
        return None if timeout is None else min(timeout, max(SHORTEST_CLAIM_TIMEOUT, self._options.lease / 3))

    async def _beat(self) -> None:
        while True:
            self._health.beat()
            self._report_health()
            await async_sleep(BEAT_SECONDS)

    def _report_health(self) -> None:
        """The worker is ready while it works and the database answers."""
        if self._contact is not None:
            trouble = self._contact.trouble
            self._health.set_ready(
                not trouble, trouble or f"working on {', '.join(self._options.queue_names)}"
            )

    async def _begin(self, client: AsyncClient, claims: AsyncClient) -> bool:
        """Connect and declare the queues, however long that takes; False if the worker is stopped before."""
        beginning = self._loop_of(self._connect(client, claims), "beginning")
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({beginning, stop}, return_when=asyncio.FIRST_COMPLETED)
            return beginning.done() and beginning.result()
        finally:
            stop.cancel()
            await self._end(beginning)

    async def _connect(self, client: AsyncClient, claims: AsyncClient) -> bool:
        backoff, is_logged = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS), False
        while not self._stop.is_set():
            try:
                await client.open()
                await claims.open()
                await self._declare(client)
                # A role that may not consume may not ask for the channel: so the start fails already.
                await claims.channel(self._options.queue_names[0])
            except (DatabaseUnavailable, ConnectionLost) as exc:
                if not is_logged:
                    logger.warning("the database cannot be reached, waiting for it: %s", exc)
                is_logged = True
                self._health.set_ready(False, f"the database cannot be reached: {exc}")
            else:
                return True
            await _unless(backoff.next(), self._stop)
        return False

    async def _declare(self, client: AsyncClient) -> None:
        for name in self._options.queue_names:
            needs = self._app.needs(name)
            self._app.declared.forget(needs)
            await AsyncEnqueuing(client, self._app.declared).declare(needs)

    async def _work(self, client: AsyncClient, claims: AsyncClient) -> None:
        parts = Parts.make(
            self._app,
            self._options,
            client=client,
            claims=claims,
            declare=lambda: self._declare(client),
            slot_freed=self._slot_freed,
        )
        loops = [self._loop_of(loop, name) for name, loop in parts.loops().items()]
        try:
            # A worker that says that it works is in the list of workers.
            await _unless(REGISTER_SECONDS, parts.registry.tried, self._stop)
            if self._stop.is_set():
                logger.info("stopped")
                return
            fetching = self._loop_of(parts.fetcher.run(), "fetcher")
            loops.append(fetching)
            self._contact = parts.contact
            self._log_start()
            self.started.set()
            self._report_health()
            await self._until_stopped(loops)
            parts.registry.stopping = True
            await self._stop_fetching(parts, fetching)
            await self._drain(parts)
            logger.info("stopped")
        finally:
            await asyncio.gather(*map(self._end, loops))
            await self._in_time(parts.maintainer.run_once(), parts.executor.close(), parts.registry.forget())

    def _log_start(self) -> None:
        tasks = len(self._app.tasks)
        logger.info(
            "working on %s: %s, %d at once",
            ", ".join(self._options.queue_names),
            "1 task" if tasks == 1 else f"{tasks} tasks",
            self._options.concurrency,
        )

    async def _stop_fetching(self, parts: Parts, fetching: asyncio.Task[None]) -> None:
        parts.fetcher.stop()
        await asyncio.wait({fetching}, timeout=CLAIM_SECONDS)
        if not fetching.done():
            fetching.cancel()

    async def _until_stopped(self, loops: list[asyncio.Task[None]]) -> None:
        """Wait for stop(). A part that fails ends the worker with its error."""
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            done, _ = await asyncio.wait({stop, *loops}, return_when=asyncio.FIRST_COMPLETED)
            for ended in done - {stop}:
                ended.result()
        finally:
            stop.cancel()

    async def _drain(self, parts: Parts) -> None:
        """Release runs that never began, wait for those that run, and settle all of them."""
        held, executor = parts.held, parts.executor
        executor.release_waiting()
        deadline = now() + self._options.grace
        while held.running and self._stopping != "abort" and now() < deadline:
            await self._a_moment(deadline - now())
        if held.running:
            logger.warning("%d tasks did not end in time, and are given back", len(held.running))
            executor.interrupt_all()
            deadline = now() + LAST_WORDS_SECONDS
            while held.running and now() < deadline:
                await self._a_moment(deadline - now())
            executor.give_up()
        if not await parts.settler.drained(self._last_words()):
            logger.warning("the end of some tasks could not be recorded: they will run again")

    async def _a_moment(self, patience: float) -> None:
        """Wait until a run ends, or stop() is called again."""
        self._stop.clear()
        await _unless(patience, self._stop)

    def _slot_freed(self) -> None:
        """A run has ended: _drain() looks again."""
        if self._stopping is not None:
            self._stop.set()

    async def _in_time(self, *steps: Coroutine[Any, Any, Any]) -> None:
        """Run steps side by side, with a limit: a network that hangs must not keep the process."""
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
        """How long the next step of the end may take: all steps together have a limit."""
        if self._silent_at is None:
            self._silent_at = now() + LAST_WORDS_SECONDS
        return max(0.3, self._silent_at - now())

    def _loop_of(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(coroutine, name=f"penstock {name}")

    async def _end(self, loop: asyncio.Task[Any]) -> None:
        """Cancel a loop. One that hangs in the network is left behind."""
        if not loop.done():
            loop.cancel()
            await asyncio.wait({loop}, timeout=self._last_words())


async def _unless(pause: float, *events: asyncio.Event) -> None:
    """Wait for so many seconds, or until one of the events is set."""
    waiting = {asyncio.ensure_future(event.wait()) for event in events}
    try:
        await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()


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
