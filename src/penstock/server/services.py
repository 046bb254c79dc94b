"""The services that `penstock up` runs in its process: their start, their health and their end."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.health import Health
from penstock.signals import handled_in_loop

__all__ = ["Service", "Services"]

# How often the health of the services is reported.
BEAT_SECONDS = 0.5
# How long services have to end in order, and how long after a second signal.
GRACE_SECONDS = 15.0
HURRY_SECONDS = 1.0
STEP_SECONDS = 0.1


class Service(Protocol):
    """A part of `penstock up` that runs until stop()."""

    @property
    def name(self) -> str:
        """The name in a word."""

    @property
    def where(self) -> str:
        """The address of the service, or what it does: printed when all services have started."""

    @property
    def started(self) -> asyncio.Event:
        """Set when the service does its work for the first time."""

    @property
    def trouble(self) -> str | None:
        """Why it does not do its work now; None where it does."""

    async def run(self) -> None:
        """Run until stop(). An error that it raises ends all services."""

    def stop(self) -> None:
        """End in order; after a second call: soon."""


class Services:
    """Runs services side by side until a signal arrives, or until one of the services fails.

    health: live while the loop turns, and ready while every service has started and has no trouble.
    on_started: called when all services do their work. on_signal: called with the name of each signal, and
    whether it is the first; the second signal ends the services soon.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        health: Health,
        on_started: Callable[[], None],
        on_signal: Callable[[str, bool], None],
    ) -> None:
        self._services = services
        self._health = health
        self._on_started = on_started
        self._on_signal = on_signal
        self._stop = asyncio.Event()
        self._deadline = math.inf
        self._has_started = False

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    async def run(self) -> None:
        """Run until all services have ended; then raise the error of a service that failed."""
        beating = asyncio.create_task(self._beat())
        try:
            with handled_in_loop(self._signalled):
                await self._run()
        finally:
            beating.cancel()

    def trouble(self) -> str | None:
        """The names of services with trouble, and their troubles; None where there is none."""
        troubles = [(service.name, service.trouble) for service in self._services]
        return "; ".join(f"{name}: {trouble}" for name, trouble in troubles if trouble is not None) or None

    async def _beat(self) -> None:
        while True:
            self._health.beat()
            if self._has_started:
                self._report()
            await asyncio.sleep(BEAT_SECONDS)

    def _report(self) -> None:
        trouble = self.trouble()
        self._health.set_ready(trouble is None, trouble or "up")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        running = {
            loop.create_task(service.run(), name=f"penstock {service.name}") for service in self._services
        }
        starting = loop.create_task(self._start())
        stopping = loop.create_task(self._stop.wait())
        watched: set[asyncio.Task[Any]] = {starting, stopping, *running}
        while watched >= {stopping, *running}:
            _, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and starting.exception() is not None:
                break
        if not self.is_stopping:
            self._stop_all()
        await self._end(running)
        await _cancel({starting, stopping, *running})
        for task in (*running, starting):
            if task.done() and not task.cancelled():
                task.result()

    async def _start(self) -> None:
        await asyncio.gather(*(service.started.wait() for service in self._services))
        if not self.is_stopping:
            self._has_started = True
            # A caller that waits for on_started may ask for the health at once.
            self._report()
            self._on_started()

    def _signalled(self, number: signal.Signals) -> None:
        is_first = not self.is_stopping
        self._health.set_stopping()
        self._stop_all()
        self._on_signal(number.name, is_first)

    def _stop_all(self) -> None:
        patience = HURRY_SECONDS if self.is_stopping else GRACE_SECONDS
        self._deadline = min(self._deadline, time.monotonic() + patience)
        self._stop.set()
        for service in self._services:
            service.stop()

    async def _end(self, running: set[asyncio.Task[None]]) -> None:
        """Wait until the services have ended, or until the deadline that the signals have set."""
        while (left := _unfinished(running)) and time.monotonic() < self._deadline:
            await asyncio.wait(left, timeout=STEP_SECONDS)


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel tasks; a task that does not end in time is left behind."""
    left = _unfinished(tasks)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=HURRY_SECONDS)


def _unfinished(tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    return {task for task in tasks if not task.done()}
