"""What `penstock up` runs in its process: services of one shape, from their start to the last one's end."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.signals import handled_in_loop

__all__ = ["Service", "Services"]

# How long services have to end in order, and how long when they are told to hurry.
GRACE_SECONDS = 15.0
HURRY_SECONDS = 1.0
STEP_SECONDS = 0.1


class Service(Protocol):
    """Something that runs until it is told to stop."""

    @property
    def name(self) -> str:
        """In a word."""

    @property
    def where(self) -> str:
        """An address, or what it does: told when it has started."""

    @property
    def started(self) -> asyncio.Event:
        """Set when it does its work."""

    async def run(self) -> None:
        """Until it is stopped. An error that it cannot live with ends all of them."""

    def stop(self) -> None:
        """End in order; called again: soon."""


class Services:
    """Runs services side by side until a signal comes, or until one of them fails.

    on_started: called when all of them do their work. on_signal: called with the name of each signal, and
    whether it is the first; the second one is for those who are in a hurry.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        on_started: Callable[[], None],
        on_signal: Callable[[str, bool], None],
    ) -> None:
        self._services = services
        self._on_started = on_started
        self._on_signal = on_signal
        self._stop = asyncio.Event()
        self._deadline = math.inf

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    async def run(self) -> None:
        """Until all of them have ended; the error of one that failed is raised then."""
        with handled_in_loop(self._signalled):
            await self._run()

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
            self._tell_to_stop()
        await self._end(running)
        await _cancel({starting, stopping, *running})
        for task in (*running, starting):
            if task.done() and not task.cancelled():
                task.result()

    async def _start(self) -> None:
        await asyncio.gather(*(service.started.wait() for service in self._services))
        if not self.is_stopping:
            self._on_started()

    def _signalled(self, number: signal.Signals) -> None:
        is_first = not self.is_stopping
        self._tell_to_stop()
        self._on_signal(number.name, is_first)

    def _tell_to_stop(self) -> None:
        patience = HURRY_SECONDS if self.is_stopping else GRACE_SECONDS
        self._deadline = min(self._deadline, time.monotonic() + patience)
        self._stop.set()
        for service in self._services:
            service.stop()

    async def _end(self, running: set[asyncio.Task[None]]) -> None:
        """Wait until they have ended, or for as long as the signals give them."""
        while (left := _unfinished(running)) and time.monotonic() < self._deadline:
            await asyncio.wait(left, timeout=STEP_SECONDS)


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    """What cannot be cancelled is left behind."""
    left = _unfinished(tasks)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=HURRY_SECONDS)


def _unfinished(tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    return {task for task in tasks if not task.done()}
