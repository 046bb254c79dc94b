"""How long a message takes to an idle consumer: published by another process, over the bare round trip.

The clock is the machine's monotonic one, which its processes share, from just before the publish to the
message in hand. Bare is what no consumer can be without: the publish and one claim, both with psycopg, by the
publisher in turn with the messages that are measured.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import psycopg
from psycopg.types.json import Jsonb

import penstock
from bench import report
from bench.queues import IDLE_QUEUE, LEASE_SECONDS, QUEUE

WARM_UP = 5
"""Messages at the begin that are not counted: connections, statements that get prepared."""
PATIENCE_SECONDS = 30.0
ENOUGH_FOR_MIDDLE, ENOUGH_FOR_P99 = 10, 100
"""Samples that say something of it."""

SEND = "select penstock.send_message(%s, %s)"
CLAIM = "select * from penstock.consume_message(%s, 'bare', %s::int)"
ACK = "select penstock.ack_message(%s, %s::bigint, 'bare')"


@dataclass(frozen=True, slots=True)
class Pauses:
    """How many messages, and how long the queue rests before each of them: seconds, at random."""

    name: str
    messages: int
    shortest: float
    longest: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds until a message was in hand, of one client."""

    client: str
    pauses: str
    samples: int
    bare_middle: float
    bare_p99: float
    middle: float
    p99: float
    highest: float

    @property
    def middle_over_bare(self) -> float | None:
        """None: too few to tell."""
        return self.middle - self.bare_middle if self.samples >= ENOUGH_FOR_MIDDLE else None

    @property
    def p99_over_bare(self) -> float | None:
        """Over the middle of the bare ones: the slow ones of those are no excuse."""
        return self.p99 - self.bare_middle if self.samples >= ENOUGH_FOR_P99 else None


def publish(pipe: Connection, dsn: str, pauses: Pauses) -> None:
    """Publish by turns for the consumer and for oneself; tells the bare round trips at the end."""
    chosen, bare = random.Random(11), list[float]()
    with psycopg.connect(dsn, autocommit=True) as connection:

        def send(queue: str, shortest: float, longest: float) -> float:
            time.sleep(chosen.uniform(shortest, longest))
            started = time.monotonic()
            connection.execute(SEND, (queue, Jsonb({"at": started})), prepare=True)
            return started

        for number in range(WARM_UP + pauses.messages):
            rest = (0.0, 0.05) if number < WARM_UP else (pauses.shortest, pauses.longest)
            send(QUEUE, *rest)
            started = send(IDLE_QUEUE, *rest)
            row = connection.execute(CLAIM, (IDLE_QUEUE, LEASE_SECONDS), prepare=True).fetchone()
            bare.append(time.monotonic() - started)
            assert row is not None
            connection.execute(ACK, (IDLE_QUEUE, row[0]), prepare=True)
    pipe.send(bare[WARM_UP:])


@contextmanager
def publisher(dsn: str, pauses: Pauses) -> Iterator[Connection]:
    """Another process that publishes; what it measured comes through the pipe at its end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=publish, args=(theirs, dsn, pauses), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.join(PATIENCE_SECONDS)
        ours.close()


def consume(dsn: str, count: int) -> list[float]:
    """What a Client waited for so many messages."""
    found: list[float] = []
    with penstock.connect(dsn) as client, closing(client.consume(QUEUE, wait=PATIENCE_SECONDS)) as consumer:
        for message in consumer:
            found.append(time.monotonic() - message.payload["at"])
            message.ack()
            if len(found) == count:
                break
    return found


def consume_async(dsn: str, count: int) -> list[float]:
    """What an AsyncClient waited for so many messages."""
    return asyncio.run(_consume_async(dsn, count))


async def _consume_async(dsn: str, count: int) -> list[float]:
    found: list[float] = []
    async with (
        penstock.connect_async(dsn) as client,
        client.consume(QUEUE, wait=PATIENCE_SECONDS) as consumer,
    ):
        async for message in consumer:
            found.append(time.monotonic() - message.payload["at"])
            await message.ack()
            if len(found) == count:
                break
    return found


CLIENTS: dict[str, Callable[[str, int], list[float]]] = {"Client": consume, "AsyncClient": consume_async}


def measure(dsn: str, variants: list[Pauses]) -> list[Latency]:
    """Both clients, with short and with long pauses."""
    return [_measure(dsn, client, pauses) for pauses in variants for client in CLIENTS]


def _measure(dsn: str, client: str, pauses: Pauses) -> Latency:
    with publisher(dsn, pauses) as pipe:
        found = [1e3 * each for each in CLIENTS[client](dsn, WARM_UP + pauses.messages)[WARM_UP:]]
        bare = [1e3 * each for each in pipe.recv()]
    assert len(found) == len(bare) == pauses.messages, "messages were lost, or late"
    return Latency(
        client,
        pauses.name,
        pauses.messages,
        *(report.percentile(bare, share) for share in (0.5, 0.99)),
        *(report.percentile(found, share) for share in (0.5, 0.99, 1.0)),
    )
