"""A command for each message: consume --exec."""

# ruff: noqa: PLC0415 - what needs psycopg is imported where it is used, so that --help is quick

from __future__ import annotations

import asyncio
import errno
import os
import signal
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import LeaseLost, PenstockError
from penstock.signals import handled_in_loop
from penstock.wording import signal_name

from .failures import FAILED, INTERRUPTED, NOTHING_THERE, Failure
from .output import STDERR, STDOUT, Output, age, as_json, count, printable
from .output.messages import plain
from .output.relay import Relay

if TYPE_CHECKING:
    from penstock._async.consumer import AsyncConsumer
    from penstock._async.message import AsyncMessage

__all__ = ["Runner", "Running"]

# What is kept of the errors of a command, for the history of the message.
TAIL_BYTES = 2000
# How long a command has to end after SIGTERM.
GRACE_SECONDS = 2.0
# What a shell returns where there is no such command, or it cannot be run.
NOT_RUN = (126, 127)
READ_BYTES = 65536
# A pipe holds no more than so many of these.
MOST_READS = 16


@dataclass(frozen=True, slots=True)
class Running:
    """What to run, for which messages, and how many at once."""

    command: str
    queue_name: str
    # 0: as many as there are.
    count: int
    wait: float | None
    visibility_timeout: float | None
    timeout: float | None
    concurrency: int


@dataclass(frozen=True, slots=True)
class End:
    """How a command ended."""

    exit_code: int | None
    # What was wrong, and the last words of the command; None where it succeeded.
    error: str | None = None
    # Whether that is no fault of the message: the command cannot be run at all.
    not_run: bool = False


NOT_ENDED = End(None, "the command was ended, and the message given back")


class Runner:
    """Runs the command for one message after the other, or for several at once. Made in the loop."""

    def __init__(self, running: Running, output: Output) -> None:
        self._running = running
        self._output = output
        self._relay = Relay()
        self._tasks: set[asyncio.Task[None]] = set()
        self._signals = 0
        self._fault: Failure | None = None
        self._done = 0
        self._failed = 0
        self._others = 0

    async def run(self, dsn: str | None, **options: Any) -> None:
        """Run until there are no more messages, or a signal. Raises Failure with the exit code."""
        from penstock.connecting import connect_async

        running = self._running
        with ExitStack() as signals:
            async with connect_async(dsn, **options) as client:
                consumer = client.consume(
                    running.queue_name,
                    # Nothing is claimed ahead: other consumers may have a free slot.
                    batch_size=1,
                    wait=running.wait,
                    visibility_timeout=running.visibility_timeout,
                    auto_extend=True,
                    reraise=True,
                )
                if running.wait is not None:
                    # A consumer calls maintain() now and then, but this one may end before that.
                    await client.maintain()
                # Until the very end, which waits for the reader of our output.
                signals.enter_context(handled_in_loop(lambda _: self._signalled(consumer)))
                try:
                    await self._take(consumer)
                finally:
                    for task in self._tasks:
                        task.cancel()
                    await asyncio.gather(*self._tasks, return_exceptions=True)
            self._summarize()
            await self._relay.drain(lambda: self._signals > 0)
            self._conclude()

    def _signalled(self, consumer: AsyncConsumer[Any]) -> None:
        self._signals += 1
        consumer.stop()
        if self._signals > 1:
            for task in self._tasks:
                task.cancel()
        elif self._tasks:
            self.note(f"Waiting for {count(len(self._tasks), 'command')}; once more to end that.")

    async def _take(self, consumer: AsyncConsumer[Any]) -> None:
        slots = asyncio.Semaphore(self._running.concurrency)
        taken = 0

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            slots.release()
            # An unexpected error of a task is raised by the gathering at the end, or here.
            if not task.cancelled() and (exc := task.exception()) is not None and self._fault is None:
                self._fault = Failure(f"{type(exc).__name__}: {exc}")
            if self._fault is not None:
                consumer.stop()

        async with consumer:
            messages = aiter(consumer)
            while not self._running.count or taken < self._running.count:
                await slots.acquire()
                message = await anext(messages, None)
                if message is None:
                    break
                taken += 1
                task = asyncio.create_task(self._handle(message))
                self._tasks.add(task)
                task.add_done_callback(ended)
            while self._tasks:
                await asyncio.wait(self._tasks)

    async def _handle(self, message: AsyncMessage[Any]) -> None:
        """Run the command for a message, and settle it accordingly."""
        begun, end = time.monotonic(), NOT_ENDED
        outcome = "released"
        try:
            async with message:
                end = await self._execute(message)
                if end.not_run:
                    await message.release()
                    self._fault = Failure(f"the command cannot be run: {end.error}")
                elif end.error is not None:
                    await message.nack(error=end.error)
                    outcome = "nacked"
            if end.error is None:
                outcome = "acked"
        except LeaseLost as exc:
            outcome, end = "lost", End(end.exit_code, str(exc))
        except PenstockError as exc:
            outcome, end = "unknown", End(end.exit_code, f"it could not be settled: {exc}")
        except asyncio.CancelledError:
            if end is not NOT_ENDED:
                outcome, end = "unknown", End(end.exit_code, "it was not waited for until it was settled")
        self._count(outcome)
        self._report(message, outcome, end, time.monotonic() - begun)

    async def _execute(self, message: AsyncMessage[Any]) -> End:
        await self._relay.room()
        tail = Tail(self._relay)
        try:
            # A file, not a pipe: whether the command reads it or not makes no difference.
            with tempfile.TemporaryFile() as payload:
                payload.write(plain(message))
                payload.seek(0)
                process = await asyncio.create_subprocess_shell(
                    self._running.command,
                    stdin=payload,
                    # With --json, stdout is for that.
                    stdout=STDERR if self._output.as_json else None,
                    stderr=tail.write_end,
                    env=_environment(message),
                    # Of its own: Ctrl-C is for us, and what it starts ends with it.
                    process_group=0,
                )
            try:
                async with asyncio.timeout(self._running.timeout):
                    code = await process.wait()
            except TimeoutError:
                await _end(process)
                tail.finish()
                limit = age(self._running.timeout)
                return End(process.returncode, tail.after(f"the command was ended after {limit}"))
            except asyncio.CancelledError:
                await _end(process)
                raise
            tail.finish()
        except OSError as exc:
            if exc.errno == errno.E2BIG:
                return End(None, "the headers are too long for the environment of a command")
            return End(None, exc.strerror, not_run=True)
        finally:
            await tail.close()
        if code == 0:
            return End(0)
        name = f"exit code {code}" if code > 0 else f"killed by {signal_name(-code)}"
        # Most likely a typing error, which should not use up the attempts of every message.
        return End(code, tail.after(name), not_run=code in NOT_RUN and not self._done)

    # What became of it

    def _count(self, outcome: str) -> None:
        self._done += outcome == "acked"
        self._failed += outcome == "nacked"
        self._others += outcome not in {"acked", "nacked"}

    def _report(self, message: AsyncMessage[Any], outcome: str, end: End, seconds: float) -> None:
        if self._output.as_json:
            facts = {
                "id": message.id,
                "queue_name": message.queue_name,
                "attempt": message.attempt,
                "outcome": outcome,
                "exit_code": end.exit_code,
                "error": end.error,
                "seconds": round(seconds, 3),
            }
            self._relay.write(STDOUT, as_json(facts).encode() + b"\n")
        elif end.error is not None and self._fault is None:
            first = end.error.splitlines()[0]
            self.note(f"message {message.id}, attempt {message.attempt}: {first} ({outcome})")

    def note(self, text: str) -> None:
        """On stderr, as soon as it takes it."""
        self._relay.write(STDERR, printable(text).encode(errors="replace") + b"\n")

    def _summarize(self) -> None:
        if self._fault is not None:
            return
        if self._done + self._failed + self._others:
            others = f", {self._others:,} given back or lost" if self._others else ""
            self.note(f"{self._done:,} done, {self._failed:,} failed{others}")
        elif not self._signals:
            self.note(f"there is no message in queue {self._running.queue_name} now")

    def _conclude(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self._signals:
            raise Failure(exit_code=INTERRUPTED)
        if not self._done + self._failed + self._others:
            raise Failure(exit_code=NOTHING_THERE)
        if self._failed + self._others:
            raise Failure(exit_code=FAILED)


class Tail:
    """Passes on what a command writes to stderr, and keeps the end of it.

    The command waits while its output is not read.
    """

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._kept = b""
        self._reading = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._relay.room()
            await _readable(self._read_end)
            self._read()

    def _read(self) -> bool:
        """Take in some of it; whether there was any."""
        try:
            data = os.read(self._read_end, READ_BYTES)
        except BlockingIOError:
            return False
        self._relay.write(STDERR, data)
        self._kept = (self._kept + data)[-TAIL_BYTES:]
        return bool(data)

    def finish(self) -> None:
        """Take in the rest. Not up to its end: something in the background may keep it open, and write."""
        for _ in range(MOST_READS):
            if not self._read():
                return

    def after(self, what: str) -> str:
        """What happened, and the last words."""
        words = self._kept.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}").strip()
        return f"{what}: {words}" if words else what

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])
        os.close(self._read_end)
        os.close(self.write_end)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command and all that it started: asked first, then killed."""
    try:
        _signal_group(process, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await process.wait()
    finally:
        # Also where the shell is gone: what it started may have chosen to stay.
        _signal_group(process, signal.SIGKILL)
    await process.wait()


def _signal_group(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _environment(message: AsyncMessage[Any]) -> dict[str, str]:
    return {
        **os.environ,
        "PENSTOCK_MESSAGE_ID": str(message.id),
        "PENSTOCK_QUEUE": message.queue_name,
        "PENSTOCK_ATTEMPT": str(message.attempt),
        "PENSTOCK_PRIORITY": str(message.priority),
        "PENSTOCK_TENANT": message.tenant or "",
        "PENSTOCK_HEADERS": message.internals.headers or "{}",
    }
