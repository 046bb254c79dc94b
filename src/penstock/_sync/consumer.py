# Written by tools/unasync.py from src/penstock/_async/consumer.py:
# change that, run `make generate`.

"""Messages of a queue, one after the other: claimed in batches, waited for, kept, given back at the end."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import psycopg

from penstock import calls
from penstock.backoff import Backoff
from penstock.concurrency import Flag, now, to_the_end
from penstock.errors import ConnectionLost, DatabaseUnavailable, NotReplicated, PenstockError
from penstock.payloads import Codec
from penstock.values import Duration, interval
from penstock.watch import Watch

from .message import Lease, Message

if TYPE_CHECKING:
    from .consumer_runtime import ConsumerRuntime

__all__ = ["Consumer"]

T_co = TypeVar("T_co", covariant=True)

logger = logging.getLogger("penstock")

# Between attempts to reach the database.
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
# A lease is extended when a third of it is over.
KEEP_BELOW = 2 / 3
# A consumer that is cancelled waits so long for its claim, to release what it brings.
CLAIM_PATIENCE_SECONDS = 2.0
# How long to wait for a message that another session has locked.
LOCK_SECONDS = 0.1
LOCKED = "55P03"
# The server has half of what is left of a lease to answer, but not less than this.
SHORTEST_ANSWER_SECONDS = 1.0
# After a failure to extend.
RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """How to consume."""

    batch_size: int
    wait: Duration | None
    visibility_timeout: Duration | None
    auto_extend: bool
    reraise: bool
    codec: Codec[Any] | None


class Consumer(Generic[T_co]):
    """Iterates over the messages of a queue.

    Messages that were claimed ahead and not handed out are released at the end of the iteration.
    """

    def __init__(self, runtime: ConsumerRuntime, queue_name: str, options: ConsumeOptions) -> None:
        self.queue_name = queue_name
        self._runtime = runtime
        self._options = options
        self._wait = None if options.wait is None else interval("wait", options.wait)
        self._unread: deque[Message[T_co]] = deque()
        # Messages with leases to be extended: not handed out yet or, with auto_extend, in their block.
        self._kept: dict[Message[T_co], None] = {}
        self._flag = Flag()
        self._watch: Watch | None = None
        self._stopped = False
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._keep_not_before = 0.0

    def stop(self) -> None:
        """End the iteration after the message that is in hand; from a signal handler, or another thread."""
        self._stopped = True
        self._flag.set_from_anywhere()

    def close(self) -> None:
        """Stop, and release what was claimed and not handed out."""
        self.stop()
        self._leave()

    def __enter__(self) -> Consumer[T_co]:
        return self

    def __exit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message[T_co]]:
        self._runtime.enter(self)
        try:
            while (message := self._next()) is not None:
                yield message
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._pid != os.getpid():
            return  # the copy of a forked child; the messages are its parent's
        self._leave_watch()
        try:
            # Not while a claim is under way: what it brings is to be released, too.
            with self._lock:
                self._release_unread()
        finally:
            self._leave_watch()
            self._runtime.leave(self)

    def _leave_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            self._runtime.unwatch(watch, self._flag)

    def _release_unread(self) -> None:
        taken = list(iter(self._take, None))
        for message in taken:
            self._kept.pop(message, None)
        unread = [message for message in taken if not message.is_lost]
        for token, messages in _by_token(unread).items():
            ids = [message.id for message in messages]
            try:
                release = calls.release_messages(self.queue_name, calls.Held(ids, token))
                self._runtime.attempt(release, beyond=True)
            except (PenstockError, psycopg.Error) as exc:
                logger.debug("%d messages of %r were not released: %s", len(ids), self.queue_name, exc)

    def _next(self) -> Message[T_co] | None:
        """The next message; None after waiting for so long, or when stopped."""
        deadline = math.inf if self._wait is None else now() + self._wait
        backoff, is_reported = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS), False
        while not self._stopped:
            if (message := self._next_unread()) is not None:
                if (watch := self._watch) is not None:
                    watch.leave(self._flag)
                return message
            self._flag.clear()
            began_at = now()
            try:
                with self._lock:
                    if not self._stopped:
                        to_the_end(self._claim, CLAIM_PATIENCE_SECONDS)
            except (ConnectionLost, DatabaseUnavailable, NotReplicated) as exc:
                # What was claimed without an answer comes back when its lease is over.
                if now() >= deadline:
                    raise
                if not is_reported:
                    logger.warning("waiting for the database, to consume from %r: %s", self.queue_name, exc)
                is_reported = True
                if (watch := self._watch) is not None:
                    watch.leave(self._flag)
                pause = backoff.next()
            else:
                if is_reported:
                    logger.info("consuming from %r again", self.queue_name)
                is_reported = False
                backoff.reset()
                pause = self._looked(now() - began_at, now() < deadline)
            if self._unread:
                continue
            if (remaining := deadline - now()) <= 0 or self._stopped:
                break
            self._flag.wait(min(pause, remaining))
        return None

    def _looked(self, took: float, will_wait: bool) -> float:
        """After a claim: how long to wait for a wake-up until the next."""
        if self._watch is None and not self._unread and will_wait and not self._stopped:
            self._watch = self._runtime.watch(self.queue_name)
        if (watch := self._watch) is None:
            return FIRST_PAUSE_SECONDS
        pause = watch.looked(self._flag, len(self._unread), took)
        if self._stopped or not will_wait:
            # Another thread may have closed this consumer before it waited.
            watch.leave(self._flag)
        return pause

    def _take(self) -> Message[T_co] | None:
        # By one thread or the other: the one that consumes, or one that closes.
        try:
            return self._unread.popleft()
        except IndexError:
            return None

    def _next_unread(self) -> Message[T_co] | None:
        while (message := self._take()) is not None:
            self._kept.pop(message, None)
            if not message.is_lost:
                return message
            logger.warning("%r: its lease was over before its turn came", message)
        return None

    def _claim(self) -> None:
        options = self._options
        # A token for each claim: one that comes back to this very consumer is another delivery.
        claim = calls.consume_messages_batch(
            self.queue_name, uuid.uuid4().hex, options.visibility_timeout, options.batch_size
        )
        timed = self._runtime.attempt(claim)
        for claimed in timed.result:
            message: Message[T_co] = self._runtime.api._message_of(claimed, options.codec, timed.sent_at)
            message._lease.reraise = options.reraise
            message._lease.in_block = self._in_block if options.auto_extend else None
            self._kept[message] = None
            self._unread.append(message)
        # One alone is handed out at once.
        if len(timed.result) > 1:
            shortest = min(claimed.lease_seconds for claimed in timed.result)
            self._runtime.keep(self, (1 - KEEP_BELOW) * shortest)

    # Leases are kept until the message is handed out; with auto_extend also while its block runs.

    def _in_block(self, message: Message[T_co], begins: bool) -> None:
        if begins:
            self._kept[message] = None
            self._runtime.keep(self, message._lease.deadline - KEEP_BELOW * message._lease.seconds - now())
        else:
            self._kept.pop(message, None)

    def _keep_in(self) -> float:
        """In how many seconds a lease has to be extended."""
        at = now()
        due = min((self._due_at(message._lease, at) for message in tuple(self._kept)), default=math.inf)
        return max(due, self._keep_not_before) - at

    def _due_at(self, lease: Lease, at: float) -> float:
        """When a lease has to be extended."""
        if lease.is_over:
            return math.inf
        due = lease.deadline - KEEP_BELOW * lease.seconds
        # In a transaction that is still open it is locked, and needs no lease unless that is rolled back.
        return max(due, at + RETRY_SECONDS) if lease.is_locked else due

    def _extend_leases(self) -> None:
        """Extend what is due, and give up what could not be."""
        at = now()
        due = [
            message
            for message in tuple(self._kept)
            if message._lease.deadline - at <= KEEP_BELOW * message._lease.seconds
            and not message._lease.is_over
            and not message._lease.is_locked
        ]
        for token, messages in _by_token(due).items():
            try:
                self._extend(token, messages)
            except DatabaseUnavailable as exc:
                if exc.sqlstate != LOCKED or len(messages) == 1:
                    raise
                # Another session is settling one of them, and takes long. The others must keep their leases.
                for message in messages:
                    with contextlib.suppress(DatabaseUnavailable):
                        self._extend(token, [message])
                self._put_off()

    def _extend(self, token: str, due: list[Message[T_co]]) -> None:
        at = now()
        missing = max(message._lease.seconds - (message._lease.deadline - at) for message in due)
        ids, extension = [message.id for message in due], max(1, math.ceil(missing))
        # Over a connection that is silent, there is to be time for a second attempt over a new one.
        left = min(message._lease.deadline for message in due) - at
        within = max(SHORTEST_ANSWER_SECONDS, left / 2)
        keep = calls.batch_extend_message_vt(
            self.queue_name, ids, token, extension, LOCK_SECONDS, within=within
        )
        timed = self._runtime.attempt(keep, beyond=True)
        held = {extended.message_id: extended for extended in timed.result}
        for message in due:
            if (extended := held.get(message.id)) is not None:
                message._lease.extended(extended, timed.sent_at)
            else:
                self._lose(message)

    def _put_off(self) -> None:
        """Extending failed: try again soon. The watch of a block cancels it when its lease ends meanwhile."""
        self._keep_not_before = now() + RETRY_SECONDS

    def _lose(self, message: Message[T_co]) -> None:
        # What was settled meanwhile is not held any more, but not lost either.
        if message in self._kept:
            self._kept.pop(message, None)
            message._lease.lose()
            if message._lease.is_lost:
                logger.warning("%r: its lease could not be kept", message)


def _by_token(messages: list[Message[T_co]]) -> dict[str, list[Message[T_co]]]:
    groups: dict[str, list[Message[T_co]]] = {}
    for message in messages:
        groups.setdefault(message.token, []).append(message)
    return groups
