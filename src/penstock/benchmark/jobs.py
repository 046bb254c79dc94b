"""What a process of a measurement does: calls that are timed, until it has done enough or its time is up."""

# ruff: noqa: PLC0415 - the worker is imported by the job that runs one

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from penstock import calls
from penstock._sync.client import Client
from penstock.dsn import complete

from .figures import Outcome
from .plan import BATCH

__all__ = [
    "Commit",
    "Drain",
    "Job",
    "Receive",
    "RoundTrip",
    "Send",
    "SendBatch",
    "SendMany",
    "SendPaced",
    "Work",
]

WARM_UP = 10
"""Calls that are not counted: a connection is made, statements get prepared."""
PATIENCE_SECONDS = 30.0
SETTLED_EVERY = 0.005
"""Seconds between looks."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.05
"""Seconds that a queue rests before each message whose latency is taken; at random, not to fall into step."""
TASK = "nothing"

Report = Callable[[int], None]
"""Called with how many more are done."""


class Job(Protocol):
    """Something to do in another process: first prepare, then, with all others, run."""

    def prepare(self, client: Client) -> None: ...
    def run(self, client: Client, report: Report) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class Amount:
    """When it is enough."""

    count: int
    seconds: float

    def repeat(self, step: Callable[[], int], report: Report) -> Outcome:
        """Repeat a step, which says how many it did; until there is nothing to do, or it is enough."""
        durations: list[float] = []
        messages = 0
        before = started = time.monotonic()
        while messages < self.count and before < started + self.seconds:
            done = step()
            after = time.monotonic()
            if not done:
                break
            durations.append(after - before)
            messages += done
            before = after
            report(done)
        return Outcome(started, before, messages, durations)


# The yardsticks


class Statement:
    """A statement on a bare connection of psycopg."""

    text: str

    def __init__(self, dsn: str, amount: Amount) -> None:
        self._dsn = dsn
        self._amount = amount

    def prepare(self, client: Client) -> None:
        """The connection is made by run(): one cannot be kept in what goes from process to process."""

    def run(self, _client: Client, report: Report) -> Outcome:
        with psycopg.connect(complete(self._dsn), autocommit=True) as connection:

            def step() -> int:
                connection.execute(self.text)
                return 1

            for _ in range(WARM_UP):
                step()
            return self._amount.repeat(step, report)


class RoundTrip(Statement):
    text = calls.PROBE


class Commit(Statement):
    text = calls.SMALLEST_COMMIT


# Senders


@dataclass(frozen=True, slots=True)
class Send:
    """One message a call."""

    queue: str
    payload: dict[str, Any]
    amount: Amount

    def prepare(self, client: Client) -> None:
        for _ in range(WARM_UP):
            client.send(self.queue, self.payload)

    def run(self, client: Client, report: Report) -> Outcome:
        def step() -> int:
            client.send(self.queue, self.payload)
            return 1

        return self.amount.repeat(step, report)


@dataclass(frozen=True, slots=True)
class SendBatch:
    """A hundred messages a call."""

    queue: str
    payload: dict[str, Any]
    amount: Amount

    def prepare(self, client: Client) -> None:
        for _ in range(WARM_UP):
            self._send(client)

    def run(self, client: Client, report: Report) -> Outcome:
        return self.amount.repeat(lambda: self._send(client), report)

    def _send(self, client: Client) -> int:
        return len(client.send_many(self.queue, [self.payload] * min(BATCH, self.amount.count)))


@dataclass(frozen=True, slots=True)
class SendMany:
    """All messages in one call."""

    queue: str
    payload: dict[str, Any]
    count: int

    def prepare(self, client: Client) -> None:
        pass

    def run(self, client: Client, report: Report) -> Outcome:
        started = time.monotonic()
        sent = client.send_many(self.queue, [self.payload] * self.count, progress=report)
        return Outcome(started, time.monotonic(), len(sent))


@dataclass(frozen=True, slots=True)
class SendPaced:
    """One message now and then, which says when it was sent."""

    queue: str
    payload: dict[str, Any]
    count: int

    def prepare(self, client: Client) -> None:
        pass

    def run(self, client: Client, report: Report) -> Outcome:
        chosen = random.Random(11)
        started = time.monotonic()
        for number in range(WARM_UP + self.count):
            time.sleep(chosen.uniform(SHORTEST_PAUSE, LONGEST_PAUSE))
            client.send(self.queue, {**self.payload, "at": time.monotonic()})
            report(int(number >= WARM_UP))
        return Outcome(started, time.monotonic(), self.count)


# Consumers


@dataclass(frozen=True, slots=True)
class Drain:
    """Claims and acks, a hundred messages each, until the queue is empty. Prepares on a queue beside it."""

    queue: str
    beside: str
    amount: Amount

    def prepare(self, client: Client) -> None:
        for _ in range(WARM_UP):
            client.send(self.beside, {})
            self._step(client, self.beside)

    def run(self, client: Client, report: Report) -> Outcome:
        return self.amount.repeat(lambda: self._step(client, self.queue), report)

    @staticmethod
    def _step(client: Client, queue: str) -> int:
        batch = client.consume_batch(queue, batch_size=BATCH)
        if batch:
            client.ack_many(batch)
        return len(batch)


@dataclass(frozen=True, slots=True)
class Receive:
    """Waits for messages of SendPaced, and says how old each was."""

    queue: str
    count: int

    def prepare(self, client: Client) -> None:
        pass

    def run(self, client: Client, report: Report) -> Outcome:  # noqa: ARG002 - the sender tells
        ages: list[float] = []
        started = time.monotonic()
        with closing(client.consume(self.queue, wait=PATIENCE_SECONDS)) as consumer:
            for message in consumer:
                ages.append(time.monotonic() - message.payload["at"])
                message.ack()
                if len(ages) == WARM_UP + self.count:
                    break
        counted = ages[WARM_UP:]
        return Outcome(started, time.monotonic(), len(counted), counted)


@dataclass(frozen=True, slots=True)
class Work:
    """A worker with a task that does nothing: from the begin of the first one until all are settled."""

    dsn: str
    queue: str
    amount: Amount

    def prepare(self, client: Client) -> None:
        client.send_many(self.queue, [{}] * self.amount.count, headers={"task": TASK})

    def run(self, client: Client, report: Report) -> Outcome:
        return asyncio.run(self._work(client, report))

    async def _work(self, client: Client, report: Report) -> Outcome:
        from penstock.tasks.app import App
        from penstock.worker.worker import Worker

        app = App(self.dsn)
        begun: list[float] = []
        enough = asyncio.Event()

        @app.task(name=TASK, queue=self.queue)
        async def nothing() -> None:
            begun.append(time.monotonic())
            if len(begun) % BATCH == 0:
                report(BATCH)
            if len(begun) >= self.amount.count:
                enough.set()

        worker = Worker(app, grace=1)
        running = asyncio.create_task(worker.run())
        waiting = asyncio.create_task(enough.wait())
        try:
            await asyncio.wait(
                {running, waiting}, timeout=self.amount.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if running.done():
                await running
            while enough.is_set() and client.get_queue_statistics(self.queue)[0].processing_count:
                await asyncio.sleep(SETTLED_EVERY)
            ended = time.monotonic()
            done = len(begun)
        finally:
            waiting.cancel()
            worker.stop()
            await running
            await app.aclose()
        return Outcome(begun[0] if begun else ended - self.amount.seconds, ended, done)
