"""What commits after its time is found as soon as what was there in time.

A sweep remembers how far it looked. A lease end or a due time that becomes visible later lies behind that
mark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import psycopg
import pytest

from penstock.embedded import Server

from ..conftest import Connect, Servers
from .engine import Engine, Row

# How late a lease end or a due time may be found.
SOON = 2.0
MAINTAIN_SECONDS = 0.2


@pytest.fixture
def database18(servers: Servers, server18: Server) -> Iterator[str]:
    """A fresh one: how often all is looked at depends on how many dead rows are in the way."""
    with servers.database(server18) as dsn:
        yield dsn


@dataclass(frozen=True)
class Late:
    """A message whose due time or lease end is over when its transaction commits."""

    message_id: int
    connection: psycopg.Connection[object]


def a_delayed_message(engine: Engine, late: Engine) -> int:
    return late.send("q", deliver_after=engine.now() + timedelta(seconds=1))


def a_claim(engine: Engine, late: Engine) -> int:
    message_id = engine.send("q", priority=0)
    assert late.take("q", vt_seconds=1).message_id == message_id
    return message_id


def a_retry(engine: Engine, late: Engine) -> int:
    message_id = engine.send("q", priority=0)
    message = engine.take("q", vt_seconds=600)
    assert message.message_id == message_id
    assert late.nack(message, delay_seconds=1)
    return message_id


WAYS: list[Callable[[Engine, Engine], int]] = [a_delayed_message, a_claim, a_retry]


def keep_busy(engine: Engine, seconds: float) -> None:
    """Messages come, are due and done: so sweeps have something to do and remember how far they looked."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        engine.send("q", "busy", deliver_after=engine.now() + timedelta(milliseconds=MAINTAIN_SECONDS * 500))
        time.sleep(MAINTAIN_SECONDS)
        engine.maintain()
        for message in engine.take_many("q", 10):
            engine.ack(message)


def commit_late(engine: Engine, connect: Connect) -> list[int]:
    """Messages whose time was over, by a second and more, when their transactions committed."""
    engine.queue("q", max_delivery_attempts=0)
    keep_busy(engine, MAINTAIN_SECONDS)
    late = []
    for way in WAYS:
        connection = connect(autocommit=False)
        late.append(Late(way(engine, Engine(connection)), connection))
    keep_busy(engine, 2.4)
    for one in late:
        one.connection.commit()
    return [one.message_id for one in late]


def check_what_is_said(engine: Engine, ids: list[int]) -> None:
    """Statistics count them, and an explanation that promises something for the next call is true."""
    unfinished = [state for state in engine.states("q").values() if state not in ("done", "dead")]
    row = engine.statistics("q")
    assert row.total_count - row.completed_count - row.dead_count >= len(ids), row
    assert row.pending_count + row.processing_count == len(unfinished), row
    promised = [one for one in ids if "the next consume or maintain()" in engine.explain("q", one)]
    engine.maintain()
    kept = [one for one in promised if engine.state("q", one) == "ready"]
    assert kept == promised, "explain_delivery() says that the next maintain() makes them ready"


def test_statistics_and_explanations_of_what_commits_late(engine18: Engine, connect18: Connect) -> None:
    check_what_is_said(engine18, commit_late(engine18, connect18))


def test_maintain_finds_what_commits_late(engine18: Engine, connect18: Connect) -> None:
    ids = commit_late(engine18, connect18)
    until = time.monotonic() + SOON
    while time.monotonic() < until:
        engine18.maintain()
        states = engine18.states("q")
        if all(states[message_id] == "ready" for message_id in ids):
            return
        time.sleep(MAINTAIN_SECONDS)
    left = {way.__name__: states[message_id] for way, message_id in zip(WAYS, ids, strict=True)}
    raise AssertionError(f"not ready after {SOON} s: {left}")


@pytest.mark.parametrize("batch_size", [1, 10])
def test_a_polling_consumer_finds_what_commits_late(
    engine18: Engine, connect18: Connect, batch_size: int
) -> None:
    ids = commit_late(engine18, connect18)
    until = time.monotonic() + SOON
    got: list[Row] = []
    while time.monotonic() < until and len(got) < len(ids):
        got += engine18.take_many("q", batch_size)
        time.sleep(0.05)
    assert {message.message_id for message in got} == set(ids), f"{len(got)} of {len(ids)} after {SOON} s"
