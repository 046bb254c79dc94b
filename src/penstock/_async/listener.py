"""One connection that listens and watches queues, however many consumers wait.

It comes back by itself after a cut, a failover or a connection that is dead without a word, and subscribes
again. It wakes consumers then, since notifications may have been missed. Consumers poll meanwhile.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from penstock import calls
from penstock.backoff import Backoff
from penstock.calls import WatchKeys
from penstock.concurrency import AsyncBackground, AsyncFlag, AsyncWaker, now
from penstock.watch import Role, Watch

__all__ = ["AsyncListener"]

logger = logging.getLogger("penstock")

# After so long without a word from the server it is asked for one, and has so long to answer.
PROBE_SECONDS = 15.0
ANSWER_SECONDS = 5.0
# How long close() waits for a connection that is being made.
CLOSE_SECONDS = 1.0
# A session watches so many queues that it holds at most this share of the locks that the server has room for:
# two for each queue, and one where it is next. It looks at the others once a second.
SHARE_OF_LOCKS = 0.2
# Between attempts to connect.
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

POOLED = (
    "polling for messages, which takes up to a second: this connection leads through a pooler like PgBouncer,"
    " through which LISTEN does not work; to be woken at once, give the DSN of PostgreSQL itself as"
    " listen_dsn, --listen-dsn or PENSTOCK_LISTEN_URL"
)

Connection = psycopg.AsyncConnection[Any]


class AsyncListener:
    """Wakes consumers when there is something for them."""

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, Connection | None]]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        # For each channel the flags to be set, with the word of the notification that they wait for.
        self._waiting: dict[str, dict[AsyncFlag, str]] = {}
        self._listening: frozenset[str] = frozenset()
        # The watched queues by name, each with its keys and the number of its users.
        self._watches: dict[str, tuple[Watch, WatchKeys, int]] = {}
        # Channels or queues came or went.
        self._is_outdated = True
        # Watches that this session has, or had a moment ago; and by the channels that concern each of them.
        self._tended: dict[Watch, WatchKeys] = {}
        self._by_channel: dict[str, Watch] = {}
        # Watches whose wanted role may have changed, and those that are to be checked at a certain time. Only
        # these are examined: there may be thousands of watches.
        self._stirred: set[Watch] = set()
        self._timed: set[Watch] = set()
        # How many queues this session may watch.
        self._most_watched = 0
        self._waker = AsyncWaker()
        self._background: AsyncBackground | None = None
        self._stopped = False
        self._troubled = False
        self._has_told_of_pooler = False
        # Whether the caller reports trouble with the database.
        self.is_quiet = False
        self._connection: Connection | None = None
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self.probe_seconds = PROBE_SECONDS
        self.answer_seconds = ANSWER_SECONDS

    def watch(self, queue_name: str, keys: WatchKeys) -> Watch:
        """The watch of a queue, for one more user."""
        with self._lock:
            watch, _, users = self._watches.get(queue_name) or (Watch(queue_name, self._stir), keys, 0)
            self._watches[queue_name] = watch, keys, users + 1
            self._is_outdated = True
            self._start()
        self._waker.wake()
        return watch

    def unwatch(self, watch: Watch) -> None:
        """One user less."""
        with self._lock:
            found, keys, users = self._watches.get(watch.queue_name, (None, None, 0))
            if found is watch and keys is not None:
                self._watches[watch.queue_name] = watch, keys, users - 1
                if users == 1:
                    del self._watches[watch.queue_name]
                    self._is_outdated = True
        self._waker.wake()

    def subscribe(self, channel: str, flag: AsyncFlag, word: str) -> None:
        """Set the flag at each notification of a channel with that word, and when listening begins."""
        with self._lock:
            self._waiting.setdefault(channel, {})[flag] = word
            self._is_outdated = True
            self._start()
        self._waker.wake()

    def _start(self) -> None:
        if self._background is None or not self._background.is_alive():
            self._background = AsyncBackground(self._run, "penstock listener")

    def unsubscribe(self, channel: str, flag: AsyncFlag) -> None:
        with self._lock:
            flags = self._waiting.get(channel, {})
            flags.pop(flag, None)
            if not flags:
                self._waiting.pop(channel, None)
                self._is_outdated = True
        self._waker.wake()

    def _stir(self, watch: Watch) -> None:
        """A watch wants another role, or to be checked at another time."""
        with self._lock:
            self._stirred.add(watch)
        self._waker.wake()

    def is_listening(self, channel: str) -> bool:
        """Whether a notification would be heard now; else it is time to poll."""
        return channel in self._listening

    def abandon(self) -> None:
        """Close the connection without a word to the server."""
        self._stopped = True
        if self._connection is not None:
            self._connection.pgconn.finish()

    async def close(self) -> None:
        self._stopped = True
        if self._background is not None:
            self._waker.wake()
            if await self._background.end(CLOSE_SECONDS):
                self._waker.close()

    async def _run(self) -> None:
        while not self._stopped:
            connection = None
            try:
                connection = self._connection = await self._connect()
                if connection is None:
                    self._tell_of_pooler()
                    return
                await self._serve(connection)
            except Exception as exc:
                # Whatever it is: consumers poll, and listening is to come back.
                if not self._troubled and not self._stopped:
                    level = logging.DEBUG if self.is_quiet else logging.WARNING
                    logger.log(level, "not listening for messages, polling meanwhile: %s", exc)
                self._troubled = True
            finally:
                self._listening = frozenset()
                for watch in self._tended:
                    watch.begin(Role.DEAF)
                self._tended, self._by_channel, self._is_outdated = {}, {}, True
                self._stirred, self._timed = set(), set()
                if connection is not None:
                    await connection.close()
            if not self._stopped:
                await self._waker.wait(None, self._backoff.next())

    def _tell_of_pooler(self) -> None:
        """Once: from now on there is only polling."""
        if not self._has_told_of_pooler:
            logger.warning("%s", POOLED)
        self._has_told_of_pooler = True

    async def _serve(self, connection: Connection) -> None:
        pgconn, heard = connection.pgconn, time.monotonic()
        was_writable = not _is_read_only(connection)
        for setting in (calls.SET_ASYNCHRONOUS, calls.SET_KEEPALIVES):
            await self._command(connection, setting)
        room = int(await self._command(connection, calls.ROOM_FOR_LOCKS) or 0)
        self._most_watched = int(room * SHARE_OF_LOCKS / 2)
        while not self._stopped:
            changed = await self._adjust(connection) or await self._tend(connection)
            if self._listening and not changed:
                self._recovered()
            if changed:
                self._dispatch(connection)  # what came along with the answers
                continue  # so did a wake-up, perhaps: look again before waiting
            patience = heard + self.probe_seconds - time.monotonic()
            check_at = min((watch.check_at for watch in self._timed), default=math.inf)
            if await self._waker.wait(pgconn.socket, max(0.0, min(patience, check_at - now()))):
                pgconn.consume_input()
                heard = time.monotonic()
                self._dispatch(connection)
            elif time.monotonic() >= heard + self.probe_seconds:
                await self._command(connection, calls.PROBE)
                self._dispatch(connection)
                heard = time.monotonic()
                if was_writable and _is_read_only(connection):
                    # Another server may be the primary now: no message is sent here any more.
                    raise psycopg.OperationalError("the server takes no changes any more")
        handed_over = [
            calls.hand_over(keys, is_idle=watch.role is Role.IDLE)
            for watch, keys in self._tended.items()
            if watch.role.is_watching
        ]
        if left := [keys for watch, keys in self._tended.items() if watch.is_next]:
            handed_over.append(calls.step_back(left, tells=True))
        if handed_over:
            await self._command(connection, "; ".join(handed_over), is_last=True)

    async def _adjust(self, connection: Connection) -> bool:
        """Listen to what is waited for, and to nothing else; whether there was anything to change."""
        with self._lock:
            if not self._is_outdated:
                return False
            self._is_outdated = False
            watches = {watch: keys for watch, keys, _ in self._watches.values()}
            wanted = frozenset(self._waiting) | {keys.handover_channel for keys in watches.values()}
        for watch in self._tended.keys() - watches.keys():
            if watch.role.is_watching:
                await self._hand_over(connection, watch, self._tended[watch])
            elif watch.is_next:
                await self._step_back(connection, [watch])
            keys = self._tended.pop(watch)
            self._timed.discard(watch)
            for channel in (keys.channel, keys.handover_channel, keys.next_channel):
                if self._by_channel.get(channel) is watch:
                    del self._by_channel[channel]
            watch.begin(Role.DEAF)
        statements = [calls.listen(channel) for channel in wanted - self._listening]
        statements += [calls.unlisten(channel) for channel in self._listening - wanted]
        if statements:
            await self._command(connection, "; ".join(statements))
        changed, begun = wanted != self._listening, wanted - self._listening
        self._listening = wanted
        for channel in begun:
            self._wake(channel)
        for watch in watches.keys() - self._tended.keys():
            keys = self._tended[watch] = watches[watch]
            for channel in (keys.channel, keys.handover_channel, keys.next_channel):
                self._by_channel[channel] = watch
            watch.begin(Role.STANDBY)
            watch.offer()
            self._stirred.add(watch)
        return changed

    def _recovered(self) -> None:
        """The session can do all that it is asked for."""
        if self._troubled:
            logger.log(logging.DEBUG if self.is_quiet else logging.INFO, "listening for messages again")
        self._troubled = False
        self._backoff.reset()

    async def _tend(self, connection: Connection) -> bool:
        """Give this session the roles that its watches want; whether there was anything to change."""
        with self._lock:
            stirred, self._stirred = self._stirred, set()
        changed = False
        candidates: dict[Watch, Role] = {}
        for watch in stirred | {watch for watch in self._timed if watch.check_at <= now()}:
            if (keys := self._tended.get(watch)) is None:
                continue
            if watch.check_at <= now():
                watch.check()
            if (wanted := watch.wanted) is not watch.role:
                changed = True
                if watch.role is Role.STANDBY:
                    candidates[watch] = wanted
                else:
                    await self._change(connection, watch, keys, wanted)
                self._stirred.add(watch)  # it may want the next role already
            elif watch.is_next_in_vain:
                changed = True
                await self._step_back(connection, [watch])
            if watch.check_at < math.inf:
                self._timed.add(watch)
            else:
                self._timed.discard(watch)
        if candidates:
            await self._begin_watching(connection, candidates)
        return changed

    async def _begin_watching(self, connection: Connection, candidates: dict[Watch, Role]) -> None:
        """Watch those of the queues that no other session watches, with a few statements for all.

        Where another session watches, this one is next, if no third one is.
        """
        first = [watch for watch in candidates if watch.is_next]
        free = self._most_watched - sum(watch.role.is_watching or watch.is_next for watch in self._tended)
        others = [watch for watch in candidates if not watch.is_next][: max(0, free)]
        locks = await self._try(connection, calls.try_to_watch, first)
        locks |= await self._try(connection, calls.try_to_watch_or_be_next, others)
        following = [watch for watch in others if self._tended[watch].next in locks]
        locks |= await self._try(connection, calls.hear_as_next, following)
        for watch in following:
            watch.be_next(True)
        got = {watch for watch in candidates if self._tended[watch].watching in locks}
        await self._step_back(connection, [watch for watch in got if watch.is_next], tells=False)
        locks = await self._try(
            connection, calls.try_to_idle, [watch for watch in got if candidates[watch] is Role.IDLE]
        )
        for watch in candidates:
            if self._tended[watch].idle in locks:
                watch.begin(Role.IDLE)
            elif watch in got:
                watch.begin(Role.POLLING)
                watch.stay()
            else:
                watch.stay()

    async def _step_back(
        self, connection: Connection, watches: Sequence[Watch], *, tells: bool = True
    ) -> None:
        """Be next no more."""
        if watches:
            keys = [self._tended[watch] for watch in watches]
            await self._command(connection, calls.step_back(keys, tells=tells))
        for watch in watches:
            watch.be_next(False)

    async def _try(
        self,
        connection: Connection,
        statement: Callable[[Sequence[WatchKeys]], str],
        watches: Sequence[Watch],
    ) -> set[int]:
        """The keys of the locks that the session has got."""
        if not watches:
            return set()
        listed = await self._command(connection, statement([self._tended[watch] for watch in watches])) or b""
        return {int(key) for key in listed.split(b",") if key}

    async def _change(self, connection: Connection, watch: Watch, keys: WatchKeys, wanted: Role) -> None:
        """Give a session that watches a queue another role."""
        if wanted is Role.STANDBY:
            await self._hand_over(connection, watch, keys)
        elif watch.role is Role.IDLE:
            await self._command(connection, calls.start_polling(keys))
            watch.begin(Role.POLLING)
        elif keys.idle in await self._try(connection, calls.try_to_idle, [watch]):
            watch.begin(Role.IDLE)
        else:
            watch.stay()

    async def _hand_over(self, connection: Connection, watch: Watch, keys: WatchKeys) -> None:
        await self._command(connection, calls.hand_over(keys, is_idle=watch.role is Role.IDLE))
        watch.begin(Role.STANDBY)

    async def _command(self, connection: Connection, text: str, *, is_last: bool = False) -> bytes | None:
        """Run statements, or give the connection up if there is no answer in time. Returns the last value."""
        pgconn, deadline, value = connection.pgconn, time.monotonic() + self.answer_seconds, None
        pgconn.send_query(text.encode())
        pgconn.flush()
        while True:
            while pgconn.is_busy():
                patience = deadline - time.monotonic()
                if patience <= 0 or (self._stopped and not is_last):
                    raise psycopg.OperationalError(f"no answer within {self.answer_seconds:g} seconds")
                if await self._waker.wait(pgconn.socket, patience):
                    pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                return value
            if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
                raise psycopg.OperationalError(result.get_error_message())
            if result.ntuples:
                value = result.get_value(0, 0)

    def _dispatch(self, connection: Connection) -> None:
        while (notification := connection.pgconn.notifies()) is not None:
            self._wake(notification.relname.decode(), notification.extra.decode())

    def _wake(self, channel: str, payload: str | None = None) -> None:
        with self._lock:
            waiting = tuple(self._waiting.get(channel, {}).items())
        words = None if payload is None else frozenset(payload.split(","))
        for flag, word in waiting:
            if words is None or word in words:
                flag.set()
        if (watch := self._by_channel.get(channel)) is None:
            return
        if channel == self._tended[watch].channel:
            watch.wake()
        elif payload == calls.LOOK:
            watch.look()
        else:
            watch.offer()
        with self._lock:
            self._stirred.add(watch)


def _is_read_only(connection: Connection) -> bool:
    """Whether the server takes changes of this session. It reports that by itself with each answer."""
    status = connection.pgconn.parameter_status
    return b"on" in (status(b"default_transaction_read_only"), status(b"in_hot_standby"))
