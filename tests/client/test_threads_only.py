"""What only the blocking client has: threads, signals, forks, and a lost lease that interrupts no thread."""

# ruff: noqa: PT012 - it is a whole block that raises

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import Client, Consumer, LeaseLost
from tests.sql.engine import Engine, fingerprint

from .both import Running, until
from .conftest import Activity, Clock

SCRIPT_SECONDS = 60


@pytest.fixture
def client(database18: str) -> Iterator[Client]:
    with Client(database18) as client:
        yield client


def run(script: str, *arguments: str) -> str:
    """What a program prints; it must end well."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=SCRIPT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")]


# Threads


def test_one_client_for_many_threads(client: Client, engine18: Engine, activity18: Activity) -> None:
    engine18.queue("q")
    seen: list[int] = []

    def publish(thread: int) -> list[int]:
        ids = [client.send("q", number) for number in range(25)]
        return ids + client.send_many("q", range(25))

    def consume(_thread: int) -> None:
        for message in client.consume("q", batch_size=3, wait=2):
            with message:
                seen.append(message.id)

    with ThreadPoolExecutor(12) as threads:
        consuming = [threads.submit(consume, number) for number in range(4)]
        ids = [one for batch in threads.map(publish, range(8)) for one in batch]
        until(lambda: len(seen) >= 400)
        client.close()
        for each in consuming:
            each.result()
    assert sorted(seen) == sorted(ids)
    assert len(set(ids)) == 400
    assert engine18.statistics("q").completed_count == 400
    until(lambda: activity18.count() == 0)


def test_no_thread_is_left_behind(database18: str, engine18: Engine) -> None:
    engine18.queue("q")
    engine18.send("q")
    assert ours() == []
    with Client(database18) as client:
        client.list_queues()
        assert ours() == [], "none before the first consumer"
        for message in client.consume("q", wait=0.1, auto_extend=True):
            with message:
                pass
        assert ours() != []
    assert ours() == []


def test_stop_from_another_thread(client: Client, engine18: Engine, activity18: Activity) -> None:
    engine18.queue("q")
    consumer = client.consume("q")
    running = Running(lambda: [message.id for message in consumer])
    until(lambda: activity18.listening() == 1)
    until(lambda: activity18.idle_for(0.3))
    begun = time.monotonic()
    consumer.stop()
    assert running.result() == []
    assert time.monotonic() - begun < 0.1


def test_a_program_ends_although_a_consumer_runs(database18: str, engine18: Engine) -> None:
    """The program has not closed the client: the threads must not keep the process alive."""
    engine18.queue("q")
    engine18.send("q")
    script = """
import sys, penstock
client = penstock.connect(sys.argv[1])
for message in client.consume("q", auto_extend=True):
    with message:
        print(message.id)
    break
"""
    assert run(script, database18) == "1\n"


# Signals


def test_a_real_interrupt_in_a_block_releases(client: Client, engine18: Engine) -> None:
    engine18.queue("q")
    client.send_many("q", range(3))
    with pytest.raises(KeyboardInterrupt):
        for message in client.consume("q"):
            with message:
                signal.raise_signal(signal.SIGINT)
                time.sleep(60)
    until(lambda: set(engine18.states("q").values()) == {"ready"})
    assert {row.delivery_attempts for row in engine18.rows("list_messages", "q")} == {0}


def test_an_interrupt_ends_the_wait(database18: str, engine18: Engine, activity18: Activity) -> None:
    engine18.queue("q")
    script = """
import sys, penstock
with penstock.connect(sys.argv[1]) as client:
    try:
        for message in client.consume("q"):
            pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""
    command = [sys.executable, "-c", script, database18]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: activity18.listening() == 1)
        until(lambda: activity18.idle_for(0.3))
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=SCRIPT_SECONDS)[0] == "interrupted\n"
        assert process.returncode == 0
        assert time.monotonic() - begun < 3


def test_stop_from_a_signal_handler(client: Client, engine18: Engine, activity18: Activity) -> None:
    engine18.queue("q")
    consumer: Consumer[Any] = client.consume("q", wait=20)

    def interrupt() -> None:
        until(lambda: activity18.listening() == 1)
        until(lambda: activity18.idle_for(0.3))
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())
    try:
        running = Running(interrupt)
        begun = time.monotonic()
        assert [message.id for message in consumer] == []
        assert time.monotonic() - begun < 10
        running.result()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_may_stop_a_consumer_at_any_moment() -> None:
    """Also while the interrupted thread itself holds whatever protects its flag."""
    script = """
import faulthandler, signal, time
from penstock.concurrency import Flag

flag, end = Flag(), time.monotonic() + 1.5
stop = getattr(flag, "set_from_anywhere", flag.set)

def handle(*_):
    stop()
    if time.monotonic() < end:
        signal.setitimer(signal.ITIMER_REAL, 0.0003)

faulthandler.dump_traceback_later(20, exit=True)
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.0003)
while time.monotonic() < end:
    flag.clear()
    flag.wait(0.00001)
# The last one may be on its way, and Python at its end has no handlers any more.
signal.signal(signal.SIGALRM, signal.SIG_IGN)
print("alive")
"""
    assert run(script) == "alive\n"


# Fork


FORK = """
import os, sys, penstock

client = penstock.connect(sys.argv[1])
first = client.send("q", "before")
if {consume!r}:
    for message in client.consume("q", wait=0.2, auto_extend=True):
        with message:
            pass
child = os.fork()
if child == 0:
    ids = [client.send("q", "child") for _ in range(20)]
    for message in client.consume("q", wait=2, batch_size=1):
        with message:
            pass
        break
    client.close()
    os._exit(0 if len(set(ids)) == 20 else 1)
ids = [client.send("q", "parent") for _ in range(20)]
_, status = os.waitpid(child, 0)
client.send_many("q", range(5))
client.close()
print(os.waitstatus_to_exitcode(status), len(set(ids)))
"""


@pytest.mark.parametrize("consume", [False, True])
def test_a_child_has_connections_of_its_own(database18: str, engine18: Engine, consume: bool) -> None:
    engine18.queue("q")
    assert run(FORK.format(consume=consume), database18) == "0 20\n"
    statistics = engine18.statistics("q")
    assert statistics.total_count == 46
    assert statistics.completed_count == (2 if consume else 1)
    assert statistics.processing_count == 0


# A lease that is lost


def test_a_purge_marks_the_message(client: Client, engine18: Engine) -> None:
    engine18.queue("q")
    client.send("q", 1)
    rounds = 0
    for message in client.consume("q", visibility_timeout=1, auto_extend=True, wait=0):
        with message:
            rounds += 1
            engine18.value("purge_queue", "q")
            begun = time.monotonic()
            until(lambda message=message: message.is_lost)  # type: ignore[misc]
            assert time.monotonic() - begun < 1.5
        with pytest.raises(LeaseLost):
            message.ack()
    assert rounds == 1


def test_another_consumer_has_it(client: Client, engine18: Engine, clock18: Clock) -> None:
    engine18.queue("q", max_delivery_attempts=100)
    message_id = client.send("q", 1)
    for reraise in (False, True):
        iterator = iter(client.consume("q", visibility_timeout=2, auto_extend=True, reraise=reraise))
        message = next(iterator)
        lost = None
        try:
            with message:
                clock18.advance(3)
                other = engine18.take("q", vt_seconds=1)
                until(lambda message=message: message.is_lost)  # type: ignore[misc]
        except LeaseLost as exc:
            lost = exc
        assert (lost is not None) == reraise
        row = engine18.message("q", message_id)
        assert (row.state, row.consumer) == ("active", fingerprint(other.consumer_token))
        assert {entry["error"] for entry in row.errors} == {"the lease ran out"}
        clock18.advance(3)


def test_a_lost_one_may_still_fail(client: Client, engine18: Engine) -> None:
    engine18.queue("q")
    client.send("q", 1)
    for message in client.consume("q", visibility_timeout=1, auto_extend=True, wait=0):
        with message:
            engine18.value("purge_queue", "q")
            until(lambda message=message: message.is_lost)  # type: ignore[misc]
            raise ValueError("and besides it failed")
    assert engine18.states("q") == {}
