"""What differs between the two worlds: for each asynchronous primitive its twin for threads.

The client is written against the first of each pair, and generated for the second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

__all__ = [
    "AsyncBackground",
    "AsyncBlock",
    "AsyncFlag",
    "AsyncMany",
    "AsyncSlots",
    "AsyncWaker",
    "Background",
    "Block",
    "Flag",
    "Many",
    "Slots",
    "Waker",
    "async_chunks",
    "async_made",
    "async_sleep",
    "async_to_the_end",
    "chunks",
    "in_this_thread",
    "in_thread",
    "made",
    "now",
    "sleep",
    "to_the_end",
]

T = TypeVar("T")

# Payloads from wherever they come.
AsyncMany: TypeAlias = "Iterable[Any] | AsyncIterable[Any]"
Many: TypeAlias = Iterable[Any]

# The clock of leases: it goes on while the machine is suspended, as the database does.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds, of no particular beginning."""
    return time.clock_gettime(_CLOCK)


sleep = time.sleep
async_sleep = asyncio.sleep


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call something that blocks, while the loop goes on."""
    return await asyncio.to_thread(function, *arguments)


def in_this_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call something that blocks."""
    return function(*arguments)


async def async_to_the_end(function: Callable[[], Coroutine[Any, Any, None]], patience: float) -> None:
    """Await something that must not be cut off halfway: a cancelled caller waits for its end a while."""
    task = asyncio.ensure_future(function())
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=patience)
        finally:
            # Also where that is cancelled again.
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()  # read, or asyncio logs an exception that was never retrieved
        raise


def to_the_end(function: Callable[[], None], _patience: float) -> None:
    """Do something that should not be cut off halfway; nothing cancels a thread."""
    function()


async def async_made(make: Callable[[], Coroutine[Any, Any, T]], undo: Callable[[T], None]) -> T:
    """Create something. If the caller is cancelled, `undo` disposes of it as soon as it has been created."""
    task = asyncio.ensure_future(make())

    def clean(done: asyncio.Task[T]) -> None:
        if not done.cancelled() and done.exception() is None:
            undo(done.result())

    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(clean)
        raise


def made(make: Callable[[], T], _undo: Callable[[T], None]) -> T:
    """Make something; nothing cancels a thread."""
    return make()


async def async_chunks(items: AsyncMany, size: int) -> AsyncIterator[list[Any]]:
    """Items in lists of so many; while they are taken from an ordinary iterable the loop has its turns."""
    if not isinstance(items, AsyncIterable):
        for chunk in chunks(items, size):
            yield chunk
        return
    chunk = []
    async for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def chunks(items: Many, size: int) -> Iterator[list[Any]]:
    """Items in lists of so many."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


class AsyncFlag:
    """Is set by others and awaited by one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self) -> None:
        self._event.set()

    def set_from_anywhere(self) -> None:
        """Set it from a signal handler or another thread, where the loop has to be woken."""
        if self._loop is None:
            self._event.set()
            return
        # In a loop that is closed, no task waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout: float | None) -> bool:
        """Wait until it is set, at most so many seconds; whether it is."""
        self._loop = asyncio.get_running_loop()
        if not self._event.is_set() and (timeout is None or timeout > 0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._event.wait()
        return self._event.is_set()


class Flag:
    """Is set by other threads, or a signal handler, and awaited by one.

    No threading.Event: a handler that sets it while the same thread is about to wait would wait for itself.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._tokens: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        # A flag that is set needs no second token: the thread that clears it checks its condition after that.
        if not self._is_set:
            self._is_set = True
            self._tokens.put(None)

    set_from_anywhere = set

    def clear(self) -> None:
        self._is_set = False
        with contextlib.suppress(Empty):
            while True:
                self._tokens.get_nowait()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None) -> bool:
        if not self._is_set and (timeout is None or timeout > 0):
            with contextlib.suppress(Empty):
                self._tokens.get(timeout=timeout)
        return self._is_set


class AsyncSlots:
    """So many may be inside at once."""

    def __init__(self, count: int) -> None:
        self._semaphore = asyncio.Semaphore(count)

    async def acquire(self, timeout: float) -> bool:
        """Get in, waiting so many seconds at most; whether that succeeded."""
        if not self._semaphore.locked():
            await self._semaphore.acquire()
            return True
        try:
            async with asyncio.timeout(timeout):
                await self._semaphore.acquire()
        except TimeoutError:
            return False
        return True

    def release(self) -> None:
        self._semaphore.release()


class Slots:
    """So many threads may be inside at once. Not a threading.Semaphore, which is not written in C."""

    def __init__(self, count: int) -> None:
        self._tokens: SimpleQueue[None] = SimpleQueue()
        for _ in range(count):
            self._tokens.put(None)

    def acquire(self, timeout: float) -> bool:
        try:
            self._tokens.get(timeout=timeout)
        except Empty:
            return False
        return True

    def release(self) -> None:
        self._tokens.put(None)


class AsyncBackground:
    """Runs a coroutine until it returns or the loop ends."""

    def __init__(self, function: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._task = asyncio.get_running_loop().create_task(function(), name=name)

    async def end(self, patience: float) -> bool:
        """Wait so many seconds for its end, and then cancel it; whether it has ended."""
        if not self._task.done() and self._task is not asyncio.current_task():
            await asyncio.wait({self._task}, timeout=patience)
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=patience)
        return self._task.done()

    def is_alive(self) -> bool:
        return not self._task.done()


class Background:
    """Runs a function in a thread until it returns or the process ends."""

    def __init__(self, function: Callable[[], None], name: str) -> None:
        self._pid = os.getpid()
        self._thread = threading.Thread(target=function, name=name, daemon=True)
        self._thread.start()

    def end(self, patience: float) -> bool:
        """Wait so many seconds for its end, if this is not itself; whether it has ended."""
        if self.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(patience)
        return not self.is_alive()

    def is_alive(self) -> bool:
        # A child process has a copy of the object, but not the thread.
        return self._pid == os.getpid() and self._thread.is_alive()


class AsyncWaker:
    """Waits for a socket to become readable, and can be woken meanwhile."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def wait(self, fileno: int | None, timeout: float) -> bool:
        """Wait for the socket, a wake() or the end of time; whether the socket is readable."""
        readable = False

        def notice() -> None:
            nonlocal readable
            readable = True
            self._woken.set()

        loop = asyncio.get_running_loop()
        if fileno is not None:
            loop.add_reader(fileno, notice)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._woken.wait()
        finally:
            if fileno is not None:
                loop.remove_reader(fileno)
        self._woken.clear()
        return readable

    def close(self) -> None:
        pass


class Waker:
    """Waits for a socket to become readable, and can be woken by other threads meanwhile."""

    def __init__(self) -> None:
        # Made when first needed: most clients never wait.
        self._pair: tuple[socket.socket, socket.socket] | None = None
        self._lock = threading.Lock()

    def _ends(self) -> tuple[socket.socket, socket.socket]:
        with self._lock:
            if self._pair is None:
                self._pair = socket.socketpair()
                for end in self._pair:
                    end.setblocking(False)
            return self._pair

    def wake(self) -> None:
        # A full buffer, or a waker that is closed: the waiting thread has been woken already.
        with contextlib.suppress(OSError):
            self._ends()[1].send(b"!")

    def wait(self, fileno: int | None, timeout: float) -> bool:
        ours = self._ends()[0]
        poll = select.poll()
        poll.register(ours.fileno(), select.POLLIN)
        if fileno is not None:
            poll.register(fileno, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, timeout) * 1000)}
        if ours.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                ours.recv(4096)
        return fileno in ready

    def close(self) -> None:
        for end in self._pair or ():
            end.close()


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class AsyncBlock:
    """The `async with message:` of a task. It can be cancelled when the lease is lost."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        self._cancelled = False
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, deadline: Callable[[], float], lose: Callable[[], None]) -> None:
        """Call `lose` at the deadline, which may be put off meanwhile."""

        def check() -> None:
            if now() >= deadline():
                lose()
            else:
                self.watch(deadline, lose)

        delay = max(0.0, deadline() - now())
        self._timer = asyncio.get_running_loop().call_later(delay, check)

    def cancel(self) -> None:
        # One that finds out itself, by a call of its own, is told by that.
        if self._task is not None and not self._cancelled and self._task is not _current_task():
            self._cancelled = True
            self._task.cancel()

    def end(self, exc: BaseException | None) -> bool:
        """Leave the block; whether the exception is the cancellation that was made here."""
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if not self._cancelled or task is None:
            return False
        # As asyncio.timeout() does: a cancellation by another task goes on.
        return task.uncancel() <= self._cancelling and isinstance(exc, asyncio.CancelledError)


class Block:
    """The `with message:` of a thread, which cannot be cancelled: the message has `is_lost`."""

    def watch(self, deadline: Callable[[], float], lose: Callable[[], None]) -> None:
        pass

    def cancel(self) -> None:
        pass

    def end(self, _exc: BaseException | None) -> bool:
        return False
