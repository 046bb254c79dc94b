"""A steady load: a publisher that keeps its pace, consumers that take what there is, counted by windows."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from bench import wire
from bench.load import Sessions
from bench.queues import ATTEMPTS, MESSAGE_ID, PUBLISHED_AT, Queue

PUBLISH_BATCH = 100
CONSUME_BATCH = 10
NACKED_SHARE = 0.05
NACK_DELAY_SECONDS = 1
IDLE_SECONDS = 0.02
LINGER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Part:
    """What one client plays, and for how long: the ends of the windows on the machine's monotonic clock."""

    role: str
    side: str
    dsn: str
    rate: int
    ends: tuple[float, ...]
    seed: int


@dataclass(slots=True)
class Tally:
    """What one client did in one window."""

    sent: int = 0
    consumed: int = 0
    first_deliveries: int = 0
    nacked: int = 0
    empty_claims: int = 0
    oldest_seconds: float = 0.0
    """How long the message that waited longest for its first delivery had waited."""

    claim_times: list[float] = field(default_factory=list)
    ack_times: list[float] = field(default_factory=list)
    send_times: list[float] = field(default_factory=list)

    @classmethod
    def total(cls, tallies: list[Tally]) -> Tally:
        """What all clients did."""
        return cls(
            sent=sum(t.sent for t in tallies),
            consumed=sum(t.consumed for t in tallies),
            first_deliveries=sum(t.first_deliveries for t in tallies),
            nacked=sum(t.nacked for t in tallies),
            empty_claims=sum(t.empty_claims for t in tallies),
            oldest_seconds=max((t.oldest_seconds for t in tallies), default=0.0),
            claim_times=[time for t in tallies for time in t.claim_times],
            ack_times=[time for t in tallies for time in t.ack_times],
            send_times=[time for t in tallies for time in t.send_times],
        )


class Role(Protocol):
    """Something to do again and again."""

    def step(self, tally: Tally) -> float:
        """Do one thing; returns how many seconds to rest."""

    def finish(self) -> None:
        """Leave nothing open."""


class Publisher:
    """Sends at a fixed pace; when it falls behind, it catches up without rest."""

    def __init__(self, queue: Queue, part: Part) -> None:
        self._queue = queue
        self._interval = PUBLISH_BATCH / part.rate
        self._due = time.monotonic()

    def step(self, tally: Tally) -> float:
        now = time.monotonic()
        if now < self._due:
            return self._due - now
        self._queue.send(PUBLISH_BATCH)
        tally.send_times.append(time.monotonic() - now)
        tally.sent += PUBLISH_BATCH
        self._due += self._interval
        return 0.0

    def finish(self) -> None:
        pass


class Consumer:
    """Claims, acks most and nacks a few; rests when there was nothing."""

    def __init__(self, queue: Queue, part: Part) -> None:
        self._queue = queue
        self._random = random.Random(part.seed)

    def step(self, tally: Tally) -> float:
        ids = self._claim(tally)
        self._settle(ids, tally)
        return 0.0 if ids else IDLE_SECONDS

    def finish(self) -> None:
        pass

    def _claim(self, tally: Tally) -> list[bytes]:
        begun = time.monotonic()
        result = self._queue.claim(CONSUME_BATCH)
        tally.claim_times.append(time.monotonic() - begun)
        ids = wire.column(result, MESSAGE_ID)
        tally.empty_claims += not ids
        now = time.time()
        for row, attempts in enumerate(wire.column(result, ATTEMPTS)):
            if wire.small_integer(attempts) == 1:
                tally.first_deliveries += 1
                published = wire.unix_time(result.get_value(row, PUBLISHED_AT) or b"")
                tally.oldest_seconds = max(tally.oldest_seconds, now - published)
        return ids

    def _settle(self, ids: list[bytes], tally: Tally) -> None:
        failed = {message_id for message_id in ids if self._random.random() < NACKED_SHARE}
        good = [message_id for message_id in ids if message_id not in failed]
        if good:
            begun = time.monotonic()
            self._queue.ack(good, kept=True)
            tally.ack_times.append(time.monotonic() - begun)
        for message_id in failed:
            self._queue.nack(message_id, NACK_DELAY_SECONDS)
        tally.nacked += len(failed)
        tally.consumed += len(ids)


class Lingerer(Consumer):
    """A consumer that keeps the transaction of each claim open for a long time."""

    def __init__(self, queue: Queue, part: Part) -> None:
        super().__init__(queue, part)
        self._held: list[bytes] | None = None
        self._until = 0.0

    def step(self, tally: Tally) -> float:
        if self._held is None:
            self._queue.wire.command("begin")
            self._held = self._claim(tally)
            self._until = time.monotonic() + LINGER_SECONDS
        if time.monotonic() < self._until:
            return self._until - time.monotonic()
        self._settle(self._held, tally)
        self._queue.wire.command("commit")
        self._held = None
        return 0.0

    def finish(self) -> None:
        if self._held is not None:
            self._queue.wire.command("rollback")


ROLES: dict[str, Callable[[Queue, Part], Role]] = {
    "publisher": Publisher,
    "consumer": Consumer,
    "lingerer": Lingerer,
}


def play(sessions: Sessions, part: Part) -> Iterator[Tally]:
    """Play a part; yields a tally at the end of each window."""
    role: Role = ROLES[part.role](sessions.get(part.side, part.dsn), part)
    for end in part.ends:
        tally = Tally()
        while (now := time.monotonic()) < end:
            rest = role.step(tally)
            if rest > 0:
                time.sleep(min(rest, max(0.0, end - now)))
        yield tally
    role.finish()
