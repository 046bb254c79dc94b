"""What one call costs the calling process: microseconds of processor over the same call with bare psycopg.

Bare, a message is a `Jsonb`, and the connection is of the same kind: one in autocommit mode, or the open
transaction of the caller. A commit does not wait for the disk: the wait would be noise here.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import quantiles
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

import penstock
from bench.queues import LEASE_SECONDS, QUEUE, SMALL_JSON
from bench.turns import turns

PAYLOAD: dict[str, Any] = json.loads(SMALL_JSON)
CALLS_IN_A_SLICE = 50
OWN, TRANSACTION = "own connection", "caller's transaction"
TOPIC = "bench_topic"
TASKS = "bench_tasks"
TASK = "bench_task"
TOKEN = "bare"  # noqa: S105 - the token of a lease

SEND = "select penstock.send_message(%s, %s)"
PUBLISH = "select penstock.publish_message(%s, %s)"
ENQUEUE = "select penstock.send_message(%s, %s, headers => %s)"
CLAIM = "select * from penstock.consume_message(%s, %s, %s::int)"
ACK = "select penstock.ack_message(%s, %s, %s)"


@dataclass(frozen=True, slots=True)
class Single:
    """One call of one client, against psycopg: microseconds of processor."""

    client: str
    call: str
    where: str
    bare: float
    ours: float

    @property
    def over(self) -> float:
        return self.ours - self.bare


Pair = tuple[Callable[[], Any], Callable[[], Any]]
"""The same call, bare and by the client. A claim and an ack take what the call before them left."""


def _task(dsn: str) -> Any:
    app = penstock.App(dsn)

    @app.task(name=TASK, queue=TASKS)
    def handler(order: int, customer: str, amount: float, x: int) -> None: ...

    return handler


class Claims:
    """Messages that were claimed and are to be acknowledged."""

    def __init__(self) -> None:
        self.bare: list[int] = []
        self.ours: list[Any] = []


def _blocking(
    connection: psycopg.Connection[Any], client: Any, task: Any, claims: Claims
) -> Iterator[tuple[str, Pair]]:
    def bare(text: str, *parameters: Any) -> Any:
        return connection.execute(text, parameters).fetchone()[0]  # type: ignore[index]

    headers = {"task": TASK}
    yield "send", (lambda: bare(SEND, QUEUE, Jsonb(PAYLOAD)), lambda: client.send(QUEUE, PAYLOAD))
    yield "publish", (lambda: bare(PUBLISH, TOPIC, Jsonb(PAYLOAD)), lambda: client.publish(TOPIC, PAYLOAD))
    yield (
        "enqueue",
        (
            lambda: bare(ENQUEUE, TASKS, Jsonb(PAYLOAD), Jsonb(headers)),
            lambda: task.enqueue(**PAYLOAD),
        ),
    )
    yield (
        "consume_one",
        (
            lambda: claims.bare.append(bare(CLAIM, QUEUE, TOKEN, LEASE_SECONDS)),
            lambda: claims.ours.append(client.consume_one(QUEUE, visibility_timeout=LEASE_SECONDS)),
        ),
    )
    yield "ack", (lambda: bare(ACK, QUEUE, claims.bare.pop(), TOKEN), lambda: client.ack(claims.ours.pop()))


def _awaited(
    connection: psycopg.AsyncConnection[Any], client: Any, task: Any, claims: Claims
) -> Iterator[tuple[str, tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[Any]]]]]:
    async def bare(text: str, *parameters: Any) -> Any:
        cursor = await connection.execute(text, parameters)
        return (await cursor.fetchone())[0]  # type: ignore[index]

    async def bare_claim() -> None:
        claims.bare.append(await bare(CLAIM, QUEUE, TOKEN, LEASE_SECONDS))

    async def claim() -> None:
        claims.ours.append(await client.consume_one(QUEUE, visibility_timeout=LEASE_SECONDS))

    headers = {"task": TASK}
    yield "send", (lambda: bare(SEND, QUEUE, Jsonb(PAYLOAD)), lambda: client.send(QUEUE, PAYLOAD))
    yield "publish", (lambda: bare(PUBLISH, TOPIC, Jsonb(PAYLOAD)), lambda: client.publish(TOPIC, PAYLOAD))
    yield (
        "enqueue",
        (
            lambda: bare(ENQUEUE, TASKS, Jsonb(PAYLOAD), Jsonb(headers)),
            lambda: task.enqueue_async(**PAYLOAD),
        ),
    )
    yield "consume_one", (bare_claim, claim)
    yield "ack", (lambda: bare(ACK, QUEUE, claims.bare.pop(), TOKEN), lambda: client.ack(claims.ours.pop()))


def _slice(call: Callable[[], Any]) -> float:
    began = time.process_time_ns()
    for _ in range(CALLS_IN_A_SLICE):
        call()
    return (time.process_time_ns() - began) / CALLS_IN_A_SLICE / 1000


async def _async_slice(call: Callable[[], Awaitable[Any]]) -> float:
    began = time.process_time_ns()
    for _ in range(CALLS_IN_A_SLICE):
        await call()
    return (time.process_time_ns() - began) / CALLS_IN_A_SLICE / 1000


def measure(dsn: str, rounds: int) -> list[Single]:
    """Each call of both clients, in both places."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "do $$ begin execute format("
            "'alter database %I set synchronous_commit = off', current_database()); end $$"
        )
    with penstock.connect(dsn) as client:
        client.create_queue(TASKS)
        client.create_topic(TOPIC)
        client.create_queue(f"{TOPIC}_queue", topic=TOPIC)
    return [*_measure_blocking(dsn, rounds), *_measure_awaited(dsn, rounds)]


def _measure_blocking(dsn: str, rounds: int) -> Iterator[Single]:
    task = _task(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection, penstock.connect(dsn) as client:
        yield from _compare("Client", OWN, _blocking(connection, client, task, Claims()), rounds, _slice)
        task.app.client.close()
    with psycopg.connect(dsn) as connection, psycopg.connect(dsn) as ours, penstock.connect(dsn) as client:
        pairs = _blocking(connection, client.using(ours), task.using(ours), Claims())
        yield from _compare("Client", TRANSACTION, pairs, rounds, _slice)


def _measure_awaited(dsn: str, rounds: int) -> Iterator[Single]:
    with asyncio.Runner() as runner:

        def run(call: Callable[[], Awaitable[Any]]) -> float:
            return runner.run(_async_slice(call))

        connect = psycopg.AsyncConnection.connect
        connection, transaction, ours = (
            runner.run(connect(dsn, autocommit=autocommit)) for autocommit in (True, False, False)
        )
        client, task = penstock.AsyncClient(dsn), _task(dsn)
        try:
            pairs = _awaited(connection, client, task, Claims())
            yield from _compare("AsyncClient", OWN, pairs, rounds, run)
            pairs = _awaited(transaction, client.using(ours), task.using(ours), Claims())
            yield from _compare("AsyncClient", TRANSACTION, pairs, rounds, run)
        finally:
            runner.run(client.close())
            for each in (connection, transaction, ours):
                runner.run(each.close())


def _compare(
    client: str, where: str, pairs: Iterator[tuple[str, Any]], rounds: int, run: Callable[[Any], float]
) -> Iterator[Single]:
    for call, (bare, ours) in pairs:
        slices = {"bare": partial(run, bare), "ours": partial(run, ours)}
        found = turns(slices, rounds + 1)
        # The first slices prepare the statements.
        yield Single(client, call, where, _typical(found["bare"][1:]), _typical(found["ours"][1:]))


def _typical(costs: list[float]) -> float:
    """The first quartile: what else runs on the machine can only add to the cost, by emptied caches."""
    return quantiles(costs, n=4)[0]
