"""What a client costs over the bare call of the same function with psycopg: send, consume, ack, in batches.

Both sides read the payload of each message. Bare, a message is a `Jsonb`, and comes back as psycopg parses
jsonb. A send is also measured against the fastest that was found by hand: all messages in one JSON document,
which the server takes apart.
"""

from __future__ import annotations

import asyncio
import cProfile
import io
import json
import pstats
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

import penstock
from bench.queues import LEASE_SECONDS, QUEUE, SMALL_JSON
from bench.turns import Ratio, turns

PAYLOAD: dict[str, Any] = json.loads(SMALL_JSON)
BATCHES = (1, 10, 100)
CONSUME_AND_ACK = "consume + ack"
CALLS_IN_A_SLICE = {1: 20, 10: 15, 100: 6}
TOKEN = "bare"  # noqa: S105 - the token of a lease

SEND = "select * from penstock.send_messages(%s, %s)"
SEND_DOCUMENT = "select * from penstock.send_messages(%s, array(select jsonb_array_elements(%s)))"
CLAIM = "select * from penstock.consume_messages_batch(%s, %s, %s::int, %s::int)"
ACK = "select * from penstock.ack_messages(%s, %s::bigint[], %s::text[])"
CLAIMED_ID, CLAIMED_PAYLOAD = 0, 2


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds for each call, in one slice."""

    send: float
    consume: float
    ack: float

    def of(self, call: str) -> float:
        """One call, or the two that belong together."""
        return {"send": self.send, "consume": self.consume, "ack": self.ack}.get(
            call, self.consume + self.ack
        )


@dataclass(frozen=True, slots=True)
class Slice:
    """By the clock, and of this process's processor, which does not count waiting."""

    clock: Times
    processor: Times


@dataclass(frozen=True, slots=True)
class Overhead:
    """One line of the result: one client, one call, one batch size, against one way to do it bare."""

    client: str
    call: str
    batch: int
    against: str
    bare_microseconds: float
    client_microseconds: float
    ratio: Ratio
    bare_processor: float
    client_processor: float
    """Microseconds of processor that the calling process used."""


class Contestant(ABC):
    """One way to send, consume and ack."""

    @abstractmethod
    def slice(self, batch: int, calls: int) -> Slice:
        """Send, consume and ack so many batches."""


class Blocking(Contestant):
    """One that blocks."""

    @abstractmethod
    def send(self, payloads: list[dict[str, Any]]) -> list[int]: ...

    @abstractmethod
    def consume(self, batch: int) -> tuple[Any, int]:
        """What to ack, and how many payloads were read."""

    @abstractmethod
    def ack(self, claimed: Any) -> None: ...

    def slice(self, batch: int, calls: int) -> Slice:
        payloads = [PAYLOAD] * batch
        marks = [_clocks()]
        for _ in range(calls):
            self.send(payloads)
        marks.append(_clocks())
        claimed = [self.consume(batch) for _ in range(calls)]
        marks.append(_clocks())
        for batch_claimed, _ in claimed:
            self.ack(batch_claimed)
        marks.append(_clocks())
        return _slice(marks, calls, batch, [read for _, read in claimed])


class Awaited(Contestant):
    """One that is awaited, always in the same loop."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner

    @abstractmethod
    async def send(self, payloads: list[dict[str, Any]]) -> list[int]: ...

    @abstractmethod
    async def consume(self, batch: int) -> tuple[Any, int]: ...

    @abstractmethod
    async def ack(self, claimed: Any) -> None: ...

    def slice(self, batch: int, calls: int) -> Slice:
        return self.runner.run(self._slice(batch, calls))

    async def _slice(self, batch: int, calls: int) -> Slice:
        payloads = [PAYLOAD] * batch
        marks = [_clocks()]
        for _ in range(calls):
            await self.send(payloads)
        marks.append(_clocks())
        claimed = [await self.consume(batch) for _ in range(calls)]
        marks.append(_clocks())
        for batch_claimed, _ in claimed:
            await self.ack(batch_claimed)
        marks.append(_clocks())
        return _slice(marks, calls, batch, [read for _, read in claimed])


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _slice(marks: Sequence[tuple[float, float]], calls: int, batch: int, read: Sequence[int]) -> Slice:
    assert all(number == batch for number in read), "a claim brought less than was sent"
    clock, processor = (
        Times(*((late - early) / calls for early, late in pairwise(values)))
        for values in zip(*marks, strict=True)
    )
    return Slice(clock, processor)


def _read(rows: Sequence[Any]) -> tuple[list[int], int]:
    """The ids of claimed rows, and how many of their payloads are what was sent."""
    return [row[CLAIMED_ID] for row in rows], sum(row[CLAIMED_PAYLOAD] == PAYLOAD for row in rows)


class Bare(Blocking):
    """The functions, called with psycopg."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def send(self, payloads: list[dict[str, Any]]) -> list[int]:
        parameters = (QUEUE, [Jsonb(payload) for payload in payloads])
        return [row[0] for row in self.connection.execute(SEND, parameters, prepare=True)]

    def consume(self, batch: int) -> tuple[Any, int]:
        parameters = (QUEUE, TOKEN, LEASE_SECONDS, batch)
        return _read(self.connection.execute(CLAIM, parameters, prepare=True).fetchall())

    def ack(self, claimed: Any) -> None:
        parameters = (QUEUE, claimed, [TOKEN] * len(claimed))
        assert len(self.connection.execute(ACK, parameters, prepare=True).fetchall()) == len(claimed)


class BareDocument(Bare):
    """The same, but all messages of a send are in one document."""

    def send(self, payloads: list[dict[str, Any]]) -> list[int]:
        parameters = (QUEUE, Jsonb(payloads))
        return [row[0] for row in self.connection.execute(SEND_DOCUMENT, parameters, prepare=True)]


class Ours(Blocking):
    """penstock.Client."""

    def __init__(self, client: penstock.Client) -> None:
        self.client = client

    def send(self, payloads: list[dict[str, Any]]) -> list[int]:
        return self.client.send_many(QUEUE, payloads)

    def consume(self, batch: int) -> tuple[Any, int]:
        claimed = self.client.consume_batch(QUEUE, batch_size=batch, visibility_timeout=LEASE_SECONDS)
        return claimed, sum(message.payload == PAYLOAD for message in claimed)

    def ack(self, claimed: Any) -> None:
        assert not self.client.ack_many(claimed)


class AsyncBare(Awaited):
    """The functions, called with psycopg, awaited."""

    def __init__(self, runner: asyncio.Runner, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(runner)
        self.connection = connection

    async def send(self, payloads: list[dict[str, Any]]) -> list[int]:
        parameters = (QUEUE, [Jsonb(payload) for payload in payloads])
        cursor = await self.connection.execute(SEND, parameters, prepare=True)
        return [row[0] for row in await cursor.fetchall()]

    async def consume(self, batch: int) -> tuple[Any, int]:
        parameters = (QUEUE, TOKEN, LEASE_SECONDS, batch)
        cursor = await self.connection.execute(CLAIM, parameters, prepare=True)
        return _read(await cursor.fetchall())

    async def ack(self, claimed: Any) -> None:
        parameters = (QUEUE, claimed, [TOKEN] * len(claimed))
        cursor = await self.connection.execute(ACK, parameters, prepare=True)
        assert len(await cursor.fetchall()) == len(claimed)


class AsyncBareDocument(AsyncBare):
    """The same, but all messages of a send are in one document."""

    async def send(self, payloads: list[dict[str, Any]]) -> list[int]:
        parameters = (QUEUE, Jsonb(payloads))
        cursor = await self.connection.execute(SEND_DOCUMENT, parameters, prepare=True)
        return [row[0] for row in await cursor.fetchall()]


class AsyncOurs(Awaited):
    """penstock.AsyncClient."""

    def __init__(self, runner: asyncio.Runner, client: penstock.AsyncClient) -> None:
        super().__init__(runner)
        self.client = client

    async def send(self, payloads: list[dict[str, Any]]) -> list[int]:
        return await self.client.send_many(QUEUE, payloads)

    async def consume(self, batch: int) -> tuple[Any, int]:
        claimed = await self.client.consume_batch(QUEUE, batch_size=batch, visibility_timeout=LEASE_SECONDS)
        return claimed, sum(message.payload == PAYLOAD for message in claimed)

    async def ack(self, claimed: Any) -> None:
        assert not await self.client.ack_many(claimed)


@contextmanager
def blocking(dsn: str) -> Iterator[dict[str, Contestant]]:
    """Client, and what it is compared with."""
    with psycopg.connect(dsn, autocommit=True) as connection, penstock.connect(dsn) as client:
        yield {"client": Ours(client), "Jsonb": Bare(connection), "document": BareDocument(connection)}


@contextmanager
def awaited(dsn: str) -> Iterator[dict[str, Contestant]]:
    """AsyncClient, and what it is compared with."""
    with asyncio.Runner() as runner:
        connection = runner.run(psycopg.AsyncConnection.connect(dsn, autocommit=True))
        client = penstock.AsyncClient(dsn)
        try:
            yield {
                "client": AsyncOurs(runner, client),
                "Jsonb": AsyncBare(runner, connection),
                "document": AsyncBareDocument(runner, connection),
            }
        finally:
            runner.run(client.close())
            runner.run(connection.close())


CLIENTS = {"Client": blocking, "AsyncClient": awaited}


def measure(dsn: str, rounds: int) -> list[Overhead]:
    """Both clients, all batch sizes."""
    found: list[Overhead] = []
    for name, contestants in CLIENTS.items():
        with contestants(dsn) as by_name:
            for batch in BATCHES:
                calls = CALLS_IN_A_SLICE[batch]
                slices = {key: partial(each.slice, batch, calls) for key, each in by_name.items()}
                turns(slices, 1)  # statements get prepared, caches warm
                found += _compare(name, batch, turns(slices, rounds))
    return found


def _compare(client: str, batch: int, slices: dict[str, list[Slice]]) -> Iterator[Overhead]:
    for call in ("send", "consume", "ack", CONSUME_AND_ACK):
        # Only a send can be written in two ways.
        for against in ("Jsonb", "document") if call == "send" else ("Jsonb",):
            sides = slices[against], slices["client"]
            bare, ours = ([each.clock.of(call) for each in side] for side in sides)
            processor = (1e6 * median(each.processor.of(call) for each in side) for side in sides)
            microseconds = (1e6 * median(bare), 1e6 * median(ours))
            yield Overhead(client, call, batch, against, *microseconds, Ratio.of(ours, bare), *processor)


def profile(dsn: str, top: int = 14) -> str:
    """Where the time of Client goes: the functions that take most of it, by call and batch size."""
    parts = []
    with blocking(dsn) as by_name:
        client = by_name["client"]
        assert isinstance(client, Ours)
        for batch, calls in ((100, 100), (1, 500)):
            profiles = [cProfile.Profile() for _ in range(3)]
            send, consume, ack = profiles
            payloads = [PAYLOAD] * batch
            for _ in range(calls):
                send.runcall(client.send, payloads)
                claimed, _ = consume.runcall(client.consume, batch)
                ack.runcall(client.ack, claimed)
            for call, found in zip(("send", "consume", "ack"), profiles, strict=True):
                text = io.StringIO()
                pstats.Stats(found, stream=text).strip_dirs().sort_stats("tottime").print_stats(top)
                lines = [line for line in text.getvalue().splitlines() if line.strip()]
                parts.append("\n".join((f"{call}, batch {batch}, {calls} calls", *lines)))
    return "\n\n".join(parts)
