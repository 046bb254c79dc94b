"""Writing beside an event loop: a reader that does not read must not stop the loop."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

__all__ = ["Relay"]

# From so many bytes on that are not written yet there is no room for more.
MOST_BYTES = 1_000_000
STEP_SECONDS = 0.02
# How long the end waits for unwritten output after a signal.
HURRY_SECONDS = 1.0


class Relay:
    """Writes to stdout and stderr in a thread, in order. All else is called in the loop it was made in."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
        self._unwritten = 0
        self._waiting: list[asyncio.Future[None]] = []
        # One that is stuck does not keep the process.
        threading.Thread(target=self._run, name="penstock relay", daemon=True).start()

    @property
    def has_room(self) -> bool:
        return self._unwritten < MOST_BYTES

    def write(self, descriptor: int, data: bytes) -> None:
        """Queue a text to be written. A failure to write it is ignored: there is no other way to report."""
        self._unwritten += len(data)
        self._queue.put((descriptor, data))

    async def room(self) -> None:
        """Wait until there is room; to be called before more output is made."""
        while not self.has_room:
            future = self._loop.create_future()
            self._waiting.append(future)
            await future

    async def drain(self, in_a_hurry: Callable[[], bool]) -> None:
        """Wait until all is written; only for a moment once `in_a_hurry` says so."""
        hurried_for = 0.0
        while self._unwritten and hurried_for < HURRY_SECONDS:
            await asyncio.sleep(STEP_SECONDS)
            hurried_for += STEP_SECONDS if in_a_hurry() else 0.0

    def _written(self, size: int) -> None:
        self._unwritten -= size
        if self.has_room:
            for future in self._waiting:
                if not future.done():
                    future.set_result(None)
            self._waiting.clear()

    def _run(self) -> None:
        while True:
            descriptor, data = self._queue.get()
            with suppress(OSError):
                _write(descriptor, data)
            try:
                self._loop.call_soon_threadsafe(self._written, len(data))
            except RuntimeError:
                return  # the loop is closed


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
