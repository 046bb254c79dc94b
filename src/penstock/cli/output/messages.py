"""Messages to stdout: written as they were stored, and acked when the reader of stdout has taken them."""

# ruff: noqa: PLC0415 - what needs psycopg is imported where it is used, so that --help is quick

from __future__ import annotations

import errno
import math
import os
import select
import stat
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from penstock.backoff import Backoff
from penstock.errors import ConnectionLost, DatabaseUnavailable

from ..failures import Failure
from ..interrupts import Interrupts
from . import count

if TYPE_CHECKING:
    from penstock._async.message import AsyncMessage
    from penstock._sync.client import Client
    from penstock._sync.message import Message

__all__ = ["END_SECONDS", "Acks", "Returns", "Stdout", "envelope", "let_go", "line", "plain"]

# How long the reader has to take a message before the next one is written.
STEP_SECONDS = 0.5
# At the end it has so long to take the rest: it may be a program that has just been started.
END_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.00005
LONGEST_PAUSE_SECONDS = 0.005
# Between two tries, where a database is there but cannot: its disk is full.
FIRST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 5.0
# Messages that are acked in one call.
MOST_ACKS = 1000


# How a message is written


def stored(message: Message[Any] | AsyncMessage[Any]) -> str | bytes:
    """Text of JSON, or bytes: as it is in the database, which may hold numbers that Python would round."""
    return message.internals.stored


def line(message: Message[Any]) -> bytes:
    """The payload as a line of JSON; bytes are {"body": ...}, in base64."""
    from msgspec.json import encode

    found = stored(message)
    return (found.encode() if isinstance(found, str) else encode({"body": found})) + b"\n"


def plain(message: Message[Any] | AsyncMessage[Any]) -> bytes:
    """The payload as a line of JSON, or its bytes and nothing else."""
    found = stored(message)
    return found.encode() + b"\n" if isinstance(found, str) else found


def envelope(message: Message[Any]) -> bytes:
    """All that is known of a message, as a line of JSON."""
    from msgspec import Raw
    from msgspec.json import encode

    found = stored(message)
    facts: dict[str, Any] = {
        "id": message.id,
        "queue_name": message.queue_name,
        "payload": Raw(found.encode()) if isinstance(found, str) else None,
        "headers": Raw((message.internals.headers or "{}").encode()),
        "priority": message.priority,
        "tenant": message.tenant,
        "attempt": message.attempt,
        "published_at": message.published_at,
        "leased_until": message.leased_until,
        "token": message.token,
    }
    if isinstance(found, bytes):
        facts["body"] = found
    return encode(facts) + b"\n"


class Stdout:
    """Writes, and knows how much was read, and whether the reader is still there."""

    def __init__(self, descriptor: int, interrupts: Interrupts) -> None:
        self.written = 0
        self._descriptor = descriptor
        self._interrupts = interrupts
        # Elsewhere the writing end does not tell how much has not been read.
        self._tells = sys.platform == "linux" and stat.S_ISFIFO(os.fstat(descriptor).st_mode)
        # So many bytes go into a pipe all or not at all: a signal does not leave open how many did.
        self._at_once = select.PIPE_BUF if self._tells else None
        self._patience = STEP_SECONDS

    @classmethod
    def opened(cls, interrupts: Interrupts) -> Stdout:
        if sys.stdout is None:
            # The next file that is opened would get its number.
            raise Failure("stdout is closed")
        sys.stdout.flush()
        return cls(sys.stdout.fileno(), interrupts)

    @property
    def read(self) -> int:
        """How many of the bytes that were written are read."""
        return self.written - _unread_bytes(self._descriptor) if self._tells else self.written

    @property
    def has_reader(self) -> bool:
        # A new object each time: the threads that write and ack may ask at once, which one object refuses.
        poll = select.poll()
        poll.register(self._descriptor, 0)
        return not poll.poll(0)

    def write(self, data: bytes) -> int:
        """Write; returns how many bytes are read when all of this is. BrokenPipeError: no reader."""
        try:
            with self._interrupts.breakable():
                left = memoryview(data)
                while left:
                    left = left[self._write(left) :]
                self._wait_for_reader()
        except BrokenPipeError:
            raise
        except OSError as exc:
            raise Failure(f"cannot write to stdout: {exc.strerror}") from None
        return self.written

    def _write(self, data: memoryview) -> int:
        try:
            done = os.write(self._descriptor, data[: self._at_once])
        except BlockingIOError:
            select.select([], [self._descriptor], [])
            return 0
        self.written += done
        return done

    def _wait_for_reader(self) -> None:
        """One message at a time, while the reader keeps pace: `head -1` takes no more than it wants, then.

        One that does not, since it is slow or reads at the end only, is given what the pipe takes.
        """
        deadline, pause = time.monotonic() + self._patience, FIRST_PAUSE_SECONDS
        while True:
            # First asked, then counted: one that was gone before takes nothing after.
            has_reader = self.has_reader
            if self.read >= self.written:
                break
            if not has_reader:
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            if time.monotonic() >= deadline:
                self._patience = 0.0
                return
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        self._patience = STEP_SECONDS


def _unread_bytes(pipe: int) -> int:
    from fcntl import ioctl
    from termios import FIONREAD

    (number,) = struct.unpack("i", ioctl(pipe, FIONREAD, bytes(4)))
    return int(number)


# What becomes of a message after that


class Returns:
    """Holds the messages that were printed, and releases them at the end: --ack was not given."""

    def __init__(self) -> None:
        self._held: list[Message[Any]] = []

    def put(self, message: Message[Any], _end: int) -> None:
        self._held.append(message)

    def close(self, *, patience: float = 0.0) -> None:  # noqa: ARG002
        # What is given back goes in front: the last one first, so that the order stays.
        for message in reversed(self._held):
            let_go(message)


class Acks:
    """Acks what was printed and read, in a thread: as many in one call as were read during the last.

    So a reader that fails does not take with it what it has not even looked at.
    """

    def __init__(
        self, client: Client, stdout: Stdout, note: Callable[[str], None], *, patient: bool = False
    ) -> None:
        # Messages that were printed but could not be acked, and messages that were not read.
        self.unacked = 0
        self.unread = 0
        # Called in its thread when it cannot go on: the main thread must stop waiting for messages.
        self.on_failure: Callable[[], None] = lambda: None
        self._client = client
        self._stdout = stdout
        self._note = note
        # Whether to wait for a database that is away, until close().
        self._patient = patient
        self._printed: SimpleQueue[tuple[Message[Any], int] | None] = SimpleQueue()
        self._pending: deque[tuple[Message[Any], int]] = deque()
        self._has_more = True
        # When to give up waiting for the reader.
        self._deadline = math.inf
        self._gives_back = False
        self._error: BaseException | None = None
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="penstock acks", daemon=True)
        self._thread.start()

    def put(self, message: Message[Any], end: int) -> None:
        """This one was written, and is read when so many bytes of stdout are."""
        if self._error is not None:
            let_go(message)
            raise self._error
        self._printed.put((message, end))

    def flush(self, *, patience: float) -> None:
        """Ack what was printed so far, and go on."""
        self.close(patience=patience)
        self._has_more, self._deadline = True, math.inf
        self._start()

    def close(self, *, patience: float = 0.0) -> None:
        """Ack the rest. The reader has so long to take it; messages that were not read are released."""
        self._gives_back = not patience
        self._deadline = time.monotonic() + patience
        self._printed.put(None)
        self._thread.join()
        if self._error is not None:
            self._take_in(FIRST_PAUSE_SECONDS)
            self._give_back()
            raise self._error

    def _run(self) -> None:
        try:
            pause = FIRST_PAUSE_SECONDS
            while self._pending or self._has_more:
                self._take_in(pause if self._pending else None)
                has_reader, read = self._stdout.has_reader, self._stdout.read
                group: list[Message[Any]] = []
                while self._pending and self._pending[0][1] <= read and len(group) < MOST_ACKS:
                    group.append(self._pending.popleft()[0])
                if group:
                    self._ack(group)
                    pause = FIRST_PAUSE_SECONDS
                elif not has_reader:
                    self._give_back()
                elif time.monotonic() >= self._deadline:
                    self._end()
                else:
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        except BaseException as exc:
            # Told by put() or close().
            self._error = exc
            self.on_failure()

    def _take_in(self, seconds: float | None) -> None:
        """Wait for something that was printed; for so long, or until there is, or close()."""
        with suppress(Empty):
            found = self._printed.get(timeout=seconds)
            while found is not None:
                self._pending.append(found)
                found = self._printed.get_nowait()
            self._has_more = False

    def _end(self) -> None:
        """It is in the pipe, and the reader is there, but has not taken it."""
        if self._gives_back:
            self._give_back()
        else:
            self._ack([message for message, _ in self._pending])
            self._pending.clear()

    def _give_back(self) -> None:
        self.unread += len(self._pending)
        while self._pending:
            let_go(self._pending.pop()[0])

    def _ack(self, group: list[Message[Any]]) -> None:
        backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        while True:
            try:
                lost = self._client.ack_many(group)
            except (ConnectionLost, DatabaseUnavailable) as exc:
                if self._patient and self._deadline == math.inf:
                    time.sleep(backoff.next())
                    continue
                self._report(len(group), str(exc))
                return
            except BaseException:
                for message in group:
                    let_go(message)
                raise
            for message in group:
                let_go(message)
            if lost:
                self._report(len(lost), "the lease was over")
            return

    def _report(self, number: int, why: str) -> None:
        self.unacked += number
        were = "was" if number == 1 else "were"
        self._note(f"{count(number, 'message')} {were} printed but not acked, and may come again: {why}")


def let_go(message: Message[Any]) -> None:
    """Its lease need not be kept any more; where it is not settled it is given back."""
    message.__exit__(GeneratorExit, GeneratorExit(), None)
