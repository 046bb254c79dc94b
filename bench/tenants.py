"""Load by tenants: clients that send on a timetable, consumers of a known capacity, waiting times."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psycopg
from psycopg.pq.abc import PGresult

from bench import wire
from bench.load import Maintainer, Pool, Sessions
from bench.queues import LEASE_SECONDS, Penstock, payloads

IDLE_SECONDS = 0.005
"""Rest of a consumer that found nothing: short, so that waiting for a message is not waiting for a look."""

START_SECONDS = 2.0
"""From the order to begin until all clients begin at once."""

ID, PUBLISHED_AT, LEASED_UNTIL, TENANT = range(4)
"""The columns of what `TenantQueue.claim` returns."""

CLAIMED = "bench_claimed"
"""The channel on which consumers tell a tenant that its messages were claimed."""


class Message(NamedTuple):
    """One message, its times in seconds after the beginning, by the database's clock."""

    tenant: str
    published: float
    claimed: float | None
    """None: it still waited at the end."""

    def waited(self, end: float) -> float:
        """How long it waited until it was claimed; an unclaimed one has waited until the end."""
        return (end if self.claimed is None else self.claimed) - self.published


class Send(NamedTuple):
    """A line of a timetable: which tenant sends how many messages in one call, and when."""

    at: float
    tenant: str
    messages: int = 1


class Sent(NamedTuple):
    """What came of a send."""

    message_id: bytes
    tenant: str
    at: float


class Claim(NamedTuple):
    """What a consumer got: times by the database's clock."""

    message_id: bytes
    published_at: float
    claimed_at: float


class TenantQueue(Penstock):
    """The queue, with the tenant of each message and the time of its claim."""

    def __init__(self, dsn: str, token: str) -> None:
        super().__init__(dsn, token)
        self._send_for = self.wire.prepare(
            "select id, clock_timestamp() from penstock.send_messages("
            "$1::text, $2::jsonb[], tenant => nullif($3::text, '')) id"
        )
        self._claim_times = self.wire.prepare(
            "select message_id, published_at, vt, tenant"
            " from penstock.consume_messages_batch($1::text, $2::text, $3::int, $4::int)"
        )

        self._tell = self.wire.prepare(f"select pg_notify('{CLAIMED}', $1::text)")

    def send_for(self, tenant: str, count: int) -> list[tuple[bytes, float]]:
        """Send messages of a tenant, or of none where it is empty; returns their ids and when it was."""
        result = self.wire.run(self._send_for, (self._queue, payloads(count), tenant.encode()))
        times = map(wire.unix_time, wire.column(result, 1))
        return list(zip(wire.column(result, 0), times, strict=True))

    def claim(self, count: int) -> PGresult:
        lease = (self._queue, self._token, wire.integer(LEASE_SECONDS), wire.integer(count))
        return self.wire.run(self._claim_times, lease)

    def tell(self, claimed: int) -> None:
        """Tell a `Refiller` that so many of its messages do not wait any more."""
        self.wire.run(self._tell, (str(claimed).encode(),))


@dataclass(frozen=True, slots=True)
class Sender:
    """A client that sends on a timetable; when it falls behind, it catches up without rest."""

    dsn: str
    begin: float
    timetable: tuple[Send, ...]
    named: bool
    """Whether it tells the queue whose message it is."""

    def play(self) -> list[Sent]:
        """Send all there is to send."""
        queue = TenantQueue(self.dsn, "sender")
        sent: list[Sent] = []
        for at, tenant, messages in self.timetable:
            _sleep_until(self.begin + at)
            ids = queue.send_for(tenant if self.named else "", messages)
            sent += (Sent(message_id, tenant, sent_at) for message_id, sent_at in ids)
        queue.wire.close()
        return sent


@dataclass(frozen=True, slots=True)
class Refiller:
    """A tenant that sends again only when all it had sent was claimed, at a rate at the most."""

    dsn: str
    begin: float
    end: float
    tenant: str
    messages: int
    """How many it sends in one call."""

    rate: float

    def play(self) -> list[Sent]:
        """Send until the end."""
        queue = TenantQueue(self.dsn, "refiller")
        sent: list[Sent] = []
        with psycopg.connect(self.dsn, autocommit=True) as listener:
            listener.execute(f"listen {CLAIMED}")
            due = self.begin
            while due < self.end:
                _sleep_until(due)
                ids = queue.send_for(self.tenant, self.messages)
                sent += (Sent(message_id, self.tenant, sent_at) for message_id, sent_at in ids)
                waiting = self.messages
                while waiting > 0 and (rest := self.end - time.monotonic()) > 0:
                    told = listener.notifies(timeout=rest, stop_after=1)
                    waiting -= sum(int(notice.payload) for notice in told)
                due = max(due + self.messages / self.rate, time.monotonic())
        queue.wire.close()
        return sent


@dataclass(frozen=True, slots=True)
class Consumer:
    """A client that works on each message for a while, `work_seconds` on the average, then acks.

    The time of its claims and acks is part of that, so its capacity is known. How long a message takes varies
    by half up and down, or consumers that once began together would ever after be free at the same moment.
    """

    dsn: str
    begin: float
    end: float
    batch: int
    work_seconds: float
    number: int
    tells: str
    """The tenant that is told of its messages' claims; empty: none is."""

    def play(self) -> list[Claim]:
        """Work until the end."""
        queue = TenantQueue(self.dsn, f"consumer-{self.number}")
        chance = random.Random(self.number)
        claims: list[Claim] = []
        _sleep_until(self.begin)
        free_at = time.monotonic()
        while free_at < self.end:
            result = queue.claim(self.batch)
            ids = wire.column(result, ID)
            if not ids:
                time.sleep(IDLE_SECONDS)
                free_at = time.monotonic()
                continue
            mine = wire.column(result, TENANT).count(self.tells.encode()) if self.tells else 0
            if mine:
                queue.tell(mine)
            published = map(wire.unix_time, wire.column(result, PUBLISHED_AT))
            leased_until = map(wire.unix_time, wire.column(result, LEASED_UNTIL))
            claims += (
                Claim(message_id, sent_at, until - LEASE_SECONDS)
                for message_id, sent_at, until in zip(ids, published, leased_until, strict=True)
            )
            free_at += sum(self.work_seconds * chance.uniform(0.5, 1.5) for _ in ids)
            _sleep_until(min(free_at, self.end))
            queue.ack(ids, kept=False)
        queue.wire.close()
        return claims


@dataclass(frozen=True, slots=True)
class Load:
    """The senders and the consumers, from `-lead` seconds until `seconds`."""

    timetables: Sequence[Sequence[Send]]
    """One for each client that sends."""

    lead: float
    seconds: float
    consumers: int
    batch: int
    capacity: float
    """Messages a second that all consumers together can work on."""

    named: bool = True
    backlog: Sequence[Send] = ()
    """What is put in before anything begins."""

    refill: Send | None = None
    """What a tenant sends whenever nothing of its own waits, at the rate `refill_rate` at the most."""

    refill_rate: float = 0.0

    def run(self, pool: Pool, dsn: str) -> list[Message]:
        """Put the load on an empty queue; returns every message that was sent."""
        backlog = Sender(dsn, 0.0, tuple(self.backlog), self.named).play()
        zero, zero_at = self._start(dsn)
        begin, end = zero - self.lead, zero + self.seconds
        senders: list[Sender | Refiller] = [
            Sender(dsn, zero, tuple(sorted(timetable)), self.named) for timetable in self.timetables
        ]
        if self.refill:
            _, tenant, messages = self.refill
            senders.append(Refiller(dsn, begin, end, tenant, messages, self.refill_rate))
        tells = self.refill.tenant if self.refill else ""
        work_seconds = self.consumers / self.capacity
        consumers = [
            Consumer(dsn, begin, end, self.batch, work_seconds, number, tells)
            for number in range(self.consumers)
        ]
        maintainer = Maintainer(dsn)
        with maintainer.running():
            answers = pool.once(play, [*senders, *consumers])
        maintainer.close()
        sent: list[Sent] = sum(answers[: len(senders)], backlog)
        claims = {claim.message_id: claim for answer in answers[len(senders) :] for claim in answer}
        return [_message(one, claims.get(one.message_id), zero_at) for one in sent]

    def _start(self, dsn: str) -> tuple[float, float]:
        """The second 0 on the machine's monotonic clock and on the database's."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            row = connection.execute("select extract(epoch from clock_timestamp())::float8").fetchone()
            assert row is not None
            ahead = START_SECONDS + self.lead
            return time.monotonic() + ahead, row[0] + ahead


def play(_: Sessions, part: Sender | Refiller | Consumer) -> Iterator[list[Sent] | list[Claim]]:
    """What a client process runs."""
    yield part.play()


def _message(sent: Sent, claim: Claim | None, zero_at: float) -> Message:
    if claim is None:
        return Message(sent.tenant, sent.at - zero_at, None)
    return Message(sent.tenant, claim.published_at - zero_at, claim.claimed_at - zero_at)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
