# Written by tools/unasync.py from src/penstock/_async/consumer_runtime.py:
# change that, run `make generate`.

"""The parts that the consumers of a client share: one listener, one lease extender, one maintenance loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import psycopg

from penstock import calls
from penstock.calls import WatchKeys
from penstock.concurrency import Flag
from penstock.errors import ClientClosed, ConnectionLost, DatabaseUnavailable
from penstock.models import MaintenanceResult
from penstock.sql_call import Call
from penstock.watch import Watch

from .api import Api
from .call_runner import Timed
from .lease_extender import LeaseExtender
from .listener import Listener
from .maintenance import MaintenanceLoop

if TYPE_CHECKING:
    from .consumer import Consumer

__all__ = ["ConsumerRuntime"]

T = TypeVar("T")


class Attempt(Protocol):
    """Runs a call once."""

    def __call__(self, call: Call[T], /, *, beyond: bool = False) -> Timed[T]: ...


class ConsumerRuntime:
    """Serves consumers, from the first one on."""

    def __init__(
        self,
        api: Api,
        attempt: Attempt,
        connect: Callable[[], psycopg.Connection[Any] | None],
        *,
        maintain: bool,
    ) -> None:
        self.api = api
        # Without a retry: a consumer has its own patience.
        self.attempt = attempt
        self._connect = connect
        self._maintains = maintain
        self._closed = False
        self.is_quiet = False
        self._start()

    def be_quiet(self) -> None:
        """The caller reports trouble with the database, so this does not."""
        self.is_quiet = self._listener.is_quiet = True

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._consumers: set[Consumer[Any]] = set()
        self._keys: dict[str, WatchKeys] = {}
        self._listener = Listener(self._connect)
        self._listener.is_quiet = self.is_quiet
        self._lease_extender = LeaseExtender()
        self._maintenance = MaintenanceLoop(self._maintain)

    def _maintain(self) -> list[MaintenanceResult]:
        with self._lock:
            queue_names = sorted({consumer.queue_name for consumer in self._consumers})
        timed = self.attempt(calls.maintain(queue_names))
        return timed.result

    def enter(self, consumer: Consumer[Any]) -> None:
        """A consumer begins."""
        if self._closed:
            raise ClientClosed
        if self._pid != os.getpid():
            self._start()  # a child process has none of its parent's threads
        with self._lock:
            self._consumers.add(consumer)
            if self._maintains:
                self._maintenance.start()

    def leave(self, consumer: Consumer[Any]) -> None:
        """A consumer ends. The leases of messages in a block are extended until the block ends."""
        with self._lock:
            self._consumers.discard(consumer)
            if not self._consumers:
                self._maintenance.stop()
                self._keys.clear()

    def unwatch(self, watch: Watch, flag: Flag) -> None:
        """One user of a watch less."""
        watch.leave(flag)
        self._listener.unwatch(watch)

    def keep(self, consumer: Consumer[Any], within: float) -> None:
        """Extend the leases of a consumer; the first of them is due within so many seconds."""
        self._lease_extender.keep(consumer, within)

    def watch(self, queue_name: str) -> Watch | None:
        """The watch of a queue, for one more user; None if the database does not answer."""
        # Another thread may clear these meanwhile.
        keys = self._keys.get(queue_name)
        if keys is None:
            try:
                timed = self.attempt(calls.watch_keys(queue_name))
            except (ConnectionLost, DatabaseUnavailable):
                return None
            self._keys[queue_name] = keys = timed.result
        return self._listener.watch(queue_name, keys)

    def listen_done(self, queue_name: str, flag: Flag, message_id: int) -> str | None:
        """Set the flag when that message of the queue ends; the channel, if there is one."""
        if self._closed:
            raise ClientClosed
        if self._pid != os.getpid():
            self._start()
        try:
            timed = self.attempt(calls.done_channel(queue_name))
        except (ConnectionLost, DatabaseUnavailable):
            return None
        self._listener.subscribe(timed.result, flag, str(message_id))
        return timed.result

    def unlisten(self, channel: str | None, flag: Flag) -> None:
        """Do not set this flag any more."""
        if channel is not None:
            self._listener.unsubscribe(channel, flag)

    def hears(self, channel: str) -> bool:
        """Whether notifications of a channel arrive at present."""
        return self._listener.is_listening(channel)

    def abandon(self) -> None:
        """Its loop is over."""
        self._closed = True
        if self._pid == os.getpid():
            self._listener.abandon()

    def close(self) -> None:
        self._closed = True
        if self._pid != os.getpid():
            return  # its consumers are its parent's
        with self._lock:
            consumers = tuple(self._consumers)
        for consumer in consumers:
            consumer.close()
        self._maintenance.close()
        self._lease_extender.close()
        self._listener.close()
