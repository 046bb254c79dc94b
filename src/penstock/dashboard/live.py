"""Live updates: one task reads each tick once; every open tab gets what has changed, over one stream.

A stream has no queue of its own. It remembers the last tick that it sent, and sends the difference to the
newest one. Equal differences are encoded and compressed once. So a viewer costs no SQL, and a slow one no
memory.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from typing import Any

import psycopg
from starlette.types import Receive, Send

from penstock.doctor import Finding
from penstock.errors import PenstockError

from .condition import Condition
from .database import Database
from .exact_json import dump
from .outlets import GzipOutlet, Outlet, Piece
from .reading import QueueNow, Reading, read

__all__ = ["Live"]

logger = logging.getLogger("penstock.dashboard")

TICK_SECONDS = 2.0
# Without a viewer the numbers are read for /metrics and for the first page only.
IDLE_TICK_SECONDS = 10.0
# Reading must not take more than a twentieth of the time, however many queues there are.
SHARE = 20
RING_SIZE = 60
KEEP_ALIVE_SECONDS = 15.0
# On average, of a stream, as sent.
MOST_BYTES_PER_SECOND = 4000
# Where a process may have 1,024 files, the others are for pages, actions and the database.
MOST_STREAMS = 500
# Then it ends, and the tab asks for another one: whether the viewer may still look is found out anew.
STREAM_SECONDS = 1800.0
DOCTOR_SECONDS = 20.0
IDLE_DOCTOR_SECONDS = 120.0
# After the last stream ended, viewers are expected back for so long: they go from page to page.
LINGER_SECONDS = 30.0
# A reader that fails is tried again after so long.
RETRY_SECONDS = 1.0

RETRY = Piece(b"retry: 1000\n\n")
STILL_HERE = Piece(b": still here\n\n")

ALL = "*"
# Of a queue, what the stream tells: all but the name, and the spark, which the page has already.
FIELDS = tuple(each.name for each in fields(QueueNow) if each.name not in ("name", "spark"))


class Live:
    """Reads ticks while it runs, keeps the newest in a ring, and feeds the streams."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Ticks of another process, or of this one before it started anew, are not known here.
        self._boot = secrets.token_hex(4)
        self._number = 0
        self._ring: OrderedDict[int, Reading] = OrderedDict()
        self._changed = asyncio.Event()
        self._closing = False
        # Ticks that were begun, and the last one that was read; and whether the next one is to begin at once.
        self._begun = self._finished = 0
        self._hurry = asyncio.Event()
        self._streams = 0
        self._watched_at = time.monotonic()
        self._encode = lru_cache(maxsize=256)(self._encoded)
        self._tasks: list[asyncio.Task[None]] = []
        self.findings: list[Finding] | None = None
        self.findings_at: float | None = None
        self.condition = Condition()
        # Why the last attempt failed, by the step that failed.
        self._troubles: dict[str, str] = {}

    # The reader

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._keep(self._read_tick, self._hurry), name="penstock dashboard reader"),
            asyncio.create_task(
                self._keep(self._read_findings, asyncio.Event()), name="penstock dashboard doctor"
            ),
        ]

    def end_streams(self) -> None:
        """End every stream now: the server is about to stop."""
        self._closing = True
        self._wake()

    async def close(self) -> None:
        self.end_streams()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, step: Callable[[], Awaitable[float]], hurry: asyncio.Event) -> None:
        """Repeat a step, which returns the pause until the next one, whatever happens to the database."""
        while not self._closing:
            try:
                pause = await step()
                self._troubles.pop(step.__name__, None)
            except Exception as exc:
                # Also of a kind that no one expected: a reader that has ended would leave numbers that are
                # old, and say nothing.
                is_expected = isinstance(exc, PenstockError | psycopg.Error | OSError)
                if step.__name__ not in self._troubles:
                    trace = None if is_expected else exc
                    logger.warning("the dashboard cannot read: %s", exc, exc_info=trace)
                self._troubles[step.__name__] = " ".join(str(exc).split()) or type(exc).__name__
                pause = RETRY_SECONDS
            await self._pause(pause, hurry)

    async def _pause(self, seconds: float, hurry: asyncio.Event) -> None:
        """Wait until the pause ends or hurry is set.

        A viewer who comes meanwhile does not wait for the pause of an idle dashboard.
        """
        end = time.monotonic() + seconds
        was_watched = self.is_watched
        while (left := end - time.monotonic()) > 0 and was_watched == self.is_watched and not self._closing:
            with suppress(TimeoutError):
                await asyncio.wait_for(hurry.wait(), min(left, 0.25))
                return

    async def _read_tick(self) -> float:
        await self._database.open()
        self._hurry.clear()
        self._begun += 1
        reading = await read(self._database.viewers, self.newest)
        self._finished = self._begun
        self._add(reading)
        return max(TICK_SECONDS if self.is_watched else IDLE_TICK_SECONDS, reading.seconds * SHARE)

    async def _read_findings(self) -> float:
        await self._database.open()
        began = time.monotonic()
        self.findings, self.condition = await self._database.examine()
        self.findings_at = time.time()
        took = time.monotonic() - began
        return max(DOCTOR_SECONDS if self.is_watched else IDLE_DOCTOR_SECONDS, took * SHARE)

    async def renew(self, within: float = 0.5) -> None:
        """Wait for a tick that begins now: a person who has just acted sees what came of it."""
        wanted = self._begun + 1
        self._hurry.set()
        give_up = time.monotonic() + within
        while self._finished < wanted and (left := give_up - time.monotonic()) > 0:
            await self._wait(left)

    def _add(self, reading: Reading) -> None:
        self._number += 1
        self._ring[self._number] = reading
        while len(self._ring) > RING_SIZE:
            self._ring.popitem(last=False)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # What pages read

    @property
    def trouble(self) -> str | None:
        """Why the database cannot be read; None if it can."""
        return next(iter(self._troubles.values()), None)

    @property
    def newest(self) -> Reading | None:
        return next(reversed(self._ring.values())) if self._ring else None

    @property
    def is_ready(self) -> bool:
        """Whether there are numbers to show, and the database answers."""
        return self.trouble is None and self.newest is not None

    @property
    def tick(self) -> str:
        """The id of the newest tick."""
        return f"{self._boot}.{self._number}"

    @property
    def is_watched(self) -> bool:
        return self._streams > 0 or time.monotonic() - self._watched_at < LINGER_SECONDS

    @property
    def has_room(self) -> bool:
        """Whether one more stream may begin: each holds a connection."""
        return self._streams < MOST_STREAMS

    @property
    def stream_count(self) -> int:
        return self._streams

    def expect_viewer(self) -> None:
        """A page was asked for: its stream will follow."""
        self._watched_at = time.monotonic()

    async def reading(self, within: float = 5.0) -> Reading:
        """The newest numbers; waits for the first ones."""
        give_up = time.monotonic() + within
        while (found := self.newest) is None:
            left = give_up - time.monotonic()
            if left <= 0 or self._closing:
                raise PenstockError(self.trouble or "the numbers of the queues are not known yet")
            await self._wait(left)
        return found

    # Streams

    async def stream(
        self, receive: Receive, send: Send, *, queue: str | None, since: str | None, takes_gzip: bool = False
    ) -> None:
        """Send what changes until the client goes, or until the server stops.

        queue: None: the sums only; `*`: all queues; else that queue.
        """
        outlet: Outlet = GzipOutlet(send) if takes_gzip else Outlet(send)
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"vary", b"Accept-Encoding"),
            (b"x-accel-buffering", b"no"),
            *outlet.headers,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._streams += 1
        leaving = asyncio.create_task(_gone(receive))
        try:
            await self._feed(outlet, leaving, queue, self._known(since))
        finally:
            is_gone = leaving.done()
            leaving.cancel()
            self._streams -= 1
            self._watched_at = time.monotonic()
        if not is_gone:
            # The client comes back by itself, if need be soon after the start of the next server.
            await outlet.end()

    async def _feed(self, outlet: Outlet, leaving: asyncio.Task[None], queue: str | None, sent: int) -> None:
        await outlet.send(RETRY)
        quiet_until = time.monotonic() + KEEP_ALIVE_SECONDS
        end = time.monotonic() + STREAM_SECONDS
        while not self._closing and not leaving.done() and time.monotonic() < end:
            number = self._number
            if number != sent and number:
                size = await outlet.send(self._encode(sent, number, queue))
                sent, quiet_until = number, time.monotonic() + KEEP_ALIVE_SECONDS
                await self._rest(size / MOST_BYTES_PER_SECOND, leaving)
            elif time.monotonic() > quiet_until:
                await outlet.send(STILL_HERE)
                quiet_until = time.monotonic() + KEEP_ALIVE_SECONDS
            if number == self._number:
                await self._wait(min(quiet_until, end) - time.monotonic(), leaving)

    async def _rest(self, seconds: float, leaving: asyncio.Task[None]) -> None:
        """Pace a stream with much to tell: the ticks of that time become one."""
        if seconds > TICK_SECONDS / 2:
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0 and not self._closing and not leaving.done():
                await self._wait(left, leaving)

    async def _wait(self, seconds: float, leaving: asyncio.Task[None] | None = None) -> None:
        changed = asyncio.create_task(self._changed.wait())
        try:
            watched: set[asyncio.Task[Any]] = {changed} if leaving is None else {changed, leaving}
            await asyncio.wait(watched, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    def _known(self, since: str | None) -> int:
        """The number of a tick, if it is still in the ring; else 0."""
        boot, _, number = (since or "").partition(".")
        if boot != self._boot or not number.isdecimal() or int(number[:18]) not in self._ring:
            return 0
        return int(number)

    def _encoded(self, since: int, number: int, queue: str | None) -> Piece:
        after = self._ring[number]
        before = self._ring.get(since)
        told: dict[str, Any] = {"at": int(after.at.timestamp() * 1000), "totals": after.totals}
        if queue is not None:
            names = after.queues if queue == ALL else {queue} & after.queues.keys()
            told["queues"] = {
                name: difference for name in names if (difference := _difference(before, after.queues[name]))
            }
        if before is not None and before.queues.keys() != after.queues.keys():
            told["changed"] = "queues"
        event = f"id: {self._boot}.{number}\nevent: tick\ndata: ".encode()
        return Piece(b"".join((event, dump(told), b"\n\n")))


def _difference(before: Reading | None, after: QueueNow) -> Mapping[str, Any]:
    was = None if before is None else before.queues.get(after.name)
    if was is None:
        return {name: getattr(after, name) for name in FIELDS}
    return {name: value for name in FIELDS if (value := getattr(after, name)) != getattr(was, name)}


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
