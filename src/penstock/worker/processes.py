"""Child processes for CPU-bound handlers: kept and used again, killed for good when time is up."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from typing import Any

from penstock.errors import InvalidArgument, PenstockError
from penstock.tasks.importable import check_importable

from .child import HEADER, Call, Failure, resolve, serve
from .errors import AttemptTimeout, ProcessDied, RemoteError

__all__ = ["ChildTraceback", "ProcessPool"]

# A process that imports a large application takes its time. One that hangs in an import is given up.
START_LIMIT = 120.0
# How long an idle child may take to end by itself, and a killed one to disappear.
END_LIMIT = 5.0
# After its line has ended, a process has so long to end.
DEATH_LIMIT = 1.0


class ChildTraceback(Exception):  # noqa: N818
    """The traceback of an exception in the process where it was raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class ProcessPool:
    """Up to `size` child processes, started when they are needed, each for one call at a time.

    Belongs to the event loop that runs it.
    """

    def __init__(self, size: int) -> None:
        if type(size) is not int or size < 1:
            raise InvalidArgument(f"the size of a process pool must be at least 1, not {size!r}")
        self._slots = asyncio.Semaphore(size)
        self._children: set[_Child] = set()
        self._idle: list[_Child] = []
        self._closed = False
        self._owner = os.getpid()

    async def run(
        self,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        *,
        timeout: float | None,
        context_facts: dict[str, Any] | None = None,
    ) -> Any:
        """Run a function in a child and return what it returns, or raise what it raises.

        timeout: seconds from when the child has it; then the child is killed, as it is when this call is
        cancelled. context_facts: the fields of a TaskContext, which the function gets where it takes one.
        """
        reference = _reference(function)
        request = _request(Call(reference, arguments, context_facts))
        async with self._slots:
            child = await self._take(reference)
            try:
                answer = await child.ask(request, timeout)
            except BaseException:
                self._drop(child)
                raise
            self._idle.append(child)
        return _unpack(answer, reference)

    async def close(self) -> None:
        """End all children for good: idle ones may end by themselves, busy ones are killed."""
        self._closed = True
        for child in self._children - set(self._idle):
            child.kill()
        for child in self._idle:
            child.hang_up()
        self._idle.clear()
        await asyncio.gather(*(child.end() for child in self._children))
        self._children.clear()
        atexit.unregister(self.kill)

    def kill(self) -> None:
        """Kill all children at once, from wherever this is called; runs in progress raise ProcessDied."""
        self._closed = True
        if os.getpid() == self._owner:  # not in a fork
            for child in tuple(self._children):
                child.kill()

    async def _take(self, reference: str) -> _Child:
        """An idle child, the one that was busy last; else a new one."""
        self._look_open()
        while self._idle:
            child = self._idle.pop()
            if not child.has_ended:
                return child
            self._drop(child)
        if not self._children:
            # Runs before multiprocessing's own exit function, which would wait for the children.
            atexit.unregister(self.kill)
            atexit.register(self.kill)
        child = _Child(reference)
        self._children.add(child)
        try:
            await child.ready()
            self._look_open()
        except BaseException:
            self._drop(child)
            raise
        return child

    def _drop(self, child: _Child) -> None:
        child.kill()
        child.hang_up()
        self._forget(child)

    def _forget(self, child: _Child) -> None:
        """Forget a child when it has ended. It stays in the table of processes until its parent has asked."""
        if child.has_ended:
            self._children.discard(child)
        else:
            asyncio.get_running_loop().call_later(0.05, self._forget, child)

    def _look_open(self) -> None:
        if self._closed:
            raise PenstockError("the process pool is closed")


class _Child:
    """One child process, and the line to it."""

    def __init__(self, reference: str) -> None:
        self._line, theirs = socket.socketpair()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        level = logging.getLogger().level
        with theirs, _interrupts_held():
            self._process = SpawnProcess(
                target=serve, args=(theirs, os.getpid(), level, reference), name="penstock"
            )
            try:
                self._process.start()
            except BaseException:
                self._line.close()
                raise
        assert self._process.pid is not None
        self._pid = self._process.pid
        self._exitcode: int | None = None
        self._name = reference

    @property
    def has_ended(self) -> bool:
        if self._exitcode is None:
            self._exitcode = self._process.exitcode
            if self._exitcode is not None:
                self._process.close()
        return self._exitcode is not None

    async def ready(self) -> None:
        """Wait until the child has imported what it needs."""
        self._line.setblocking(False)
        self._streams = await asyncio.open_unix_connection(sock=self._line)
        try:
            async with asyncio.timeout(START_LIMIT):
                await self._read(self._streams[0], "that was started for a handler")
        except TimeoutError:
            raise PenstockError(
                f"the process for {self._name} was not ready after {START_LIMIT:g} s",
                hint="does a module that it imports wait for something?",
            ) from None

    async def ask(self, request: bytes, timeout: float | None) -> bytes:
        assert self._streams is not None
        reader, writer = self._streams
        try:
            async with asyncio.timeout(timeout):
                writer.write(request)
                # A child that dies while the request is sent is noticed by its missing answer.
                with suppress(ConnectionError):
                    await writer.drain()
                return await self._read(reader, "of the handler")
        except TimeoutError:
            assert timeout is not None
            raise AttemptTimeout(timeout) from None

    async def _read(self, reader: asyncio.StreamReader, which: str) -> bytes:
        try:
            size = int.from_bytes(await reader.readexactly(HEADER), "big")
            return await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._wait(DEATH_LIMIT)
            self._kill_group()
            raise ProcessDied(self._exitcode, which) from None

    def hang_up(self) -> None:
        """Close the line: an idle child ends then."""
        if self._streams is None:
            self._line.close()
        else:
            self._streams[1].transport.abort()

    def kill(self) -> None:
        """SIGKILL for the child and all that it has started."""
        if not self.has_ended:
            self._kill_group()
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _kill_group(self) -> None:
        # The child makes a process group when it starts. The group lasts until its last process has ended.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)

    async def end(self) -> None:
        """Wait for the end, but not for ever."""
        await self._wait(END_LIMIT)
        self.kill()
        await self._wait(END_LIMIT)
        self.hang_up()

    async def _wait(self, limit: float) -> None:
        deadline = time.monotonic() + limit
        while not self.has_ended and time.monotonic() < deadline:
            await asyncio.sleep(0.005)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start a process that a Ctrl-C cannot reach before it has set its own signal handlers."""
    # The resource tracker unblocks interrupts when it starts its process, so it has to start before.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reference(function: Callable[..., Any]) -> str:
    """ "module:qualname" of a function. The name must lead to this very function."""
    check_importable(function)
    reference = f"{function.__module__}:{function.__qualname__}"
    if resolve(reference) != function:
        raise InvalidArgument(
            f"{reference} is not the function that was given: another one has its name",
            hint="a decorator of a task with process=True stands below @app.task, not above it",
        )
    return reference


def _request(call: Call) -> bytes:
    try:
        pickled = pickle.dumps(call, pickle.HIGHEST_PROTOCOL)
    except Exception as exc:
        name = next((name for name, value in call.arguments.items() if not _can_be_pickled(value)), None)
        which = (
            "the arguments"
            if name is None
            else f"the argument {name!r} (of type {type(call.arguments[name]).__qualname__})"
        )
        raise InvalidArgument(
            f"{which} of {call.reference} cannot be pickled for its process: {exc}"
        ) from exc
    return len(pickled).to_bytes(HEADER, "big") + pickled


def _can_be_pickled(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def _unpack(answer: bytes, reference: str) -> Any:
    try:
        content = pickle.loads(answer)  # noqa: S301 - it comes from our child
    except Exception as exc:
        raise RemoteError(f"the result of {reference} cannot be unpickled here: {exc}") from exc
    if isinstance(content, Failure):
        raise _exception(content) from ChildTraceback(content.trace)
    return content[0]


def _exception(failure: Failure) -> Exception:
    """The exception itself, else a RemoteError that names it."""
    if failure.pickled is not None:
        with suppress(Exception):
            exc = pickle.loads(failure.pickled)  # noqa: S301
            if isinstance(exc, Exception):
                return exc
    text = f"{failure.type_name}: {failure.text}" if failure.text else failure.type_name
    return RemoteError(text, type_name=failure.type_name)
