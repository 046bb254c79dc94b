"""The parts that the consumers of a client share: one listener, one lease extender, one maintenance loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import psycopg

from penstock import calls
from penstock.calls import WatchKeys
from penstock.concurrency import AsyncFlag
from penstock.errors import ClientClosed, ConnectionLost, DatabaseUnavailable
from penstock.models import MaintenanceResult
from penstock.sql_call import Call
from penstock.watch import Watch

from .api import AsyncApi
from .call_runner import Timed
from .lease_extender import AsyncLeaseExtender
from .listener import AsyncListener
from .maintenance import AsyncMaintenanceLoop

if TYPE_CHECKING:
    from .consumer import AsyncConsumer

__all__ = ["AsyncConsumerRuntime"]

T = TypeVar("T")


class AsyncAttempt(Protocol):
    """Runs a call once."""

    async def __call__(self, call: Call[T], /, *, beyond: bool = False) -> Timed[T]: ...


class AsyncConsumerRuntime:
    """Serves consumers, from the first one on."""

    def __init__(
        self,
        api: AsyncApi,
        attempt: AsyncAttempt,
        connect: Callable[[], Coroutine[Any, Any, psycopg.AsyncConnection[Any] | None]],
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
        self._consumers: set[AsyncConsumer[Any]] = set()
        self._keys: dict[str, WatchKeys] = {}
        self._listener = AsyncListener(self._connect)
        self._listener.is_quiet = self.is_quiet
        self._lease_extender = AsyncLeaseExtender()
        self._maintenance = AsyncMaintenanceLoop(self._maintain)

    async def _maintain(self) -> list[MaintenanceResult]:
        with self._lock:
            queue_names = sorted({consumer.queue_name for consumer in self._consumers})
        timed = await self.attempt(calls.maintain(queue_names))
        return timed.result

    def enter(self, consumer: AsyncConsumer[Any]) -> None:
        """A consumer begins."""
        if self._closed:
            raise ClientClosed
        if self._pid != os.getpid():
            self._start()  # a child process has none of its parent's threads
        with self._lock:
            self._consumers.add(consumer)
            if self._maintains:
                self._maintenance.start()

    def leave(self, consumer: AsyncConsumer[Any]) -> None:
        """A consumer ends. The leases of messages in a block are extended until the block ends."""
        with self._lock:
            self._consumers.discard(consumer)
            if not self._consumers:
                self._maintenance.stop()
                self._keys.clear()

    def unwatch(self, watch: Watch, flag: AsyncFlag) -> None:
        """One user of a watch less."""
        watch.leave(flag)
        self._listener.unwatch(watch)

    def keep(self, consumer: AsyncConsumer[Any], within: float) -> None:
        """Extend the leases of a consumer; the first of them is due within so many seconds."""
        self._lease_extender.keep(consumer, within)

    async def watch(self, queue_name: str) -> Watch | None:
        """The watch of a queue, for one more user; None if the database does not answer."""
        # Another thread may clear these meanwhile.
        keys = self._keys.get(queue_name)
        if keys is None:
            try:
                timed = await self.attempt(calls.watch_keys(queue_name))
            except (ConnectionLost, DatabaseUnavailable):
                return None
            self._keys[queue_name] = keys = timed.result
        return self._listener.watch(queue_name, keys)

    async def listen_done(self, queue_name: str, flag: AsyncFlag, message_id: int) -> str | None:
        """Set the flag when that message of the queue ends; the channel, if there is one."""
        if self._closed:
            raise ClientClosed
        if self._pid != os.getpid():
            self._start()
        try:
            timed = await self.attempt(calls.done_channel(queue_name))
        except (ConnectionLost, DatabaseUnavailable):
            return None
        self._listener.subscribe(timed.result, flag, str(message_id))
        return timed.result

    def unlisten(self, channel: str | None, flag: AsyncFlag) -> None:
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

    async def close(self) -> None:
        self._closed = True
        if self._pid != os.getpid():
            return  # its consumers are its parent's
        with self._lock:
            consumers = tuple(self._consumers)
        for consumer in consumers:
            await consumer.close()
        await self._maintenance.close()
        await self._lease_extender.close()
        await self._listener.close()
