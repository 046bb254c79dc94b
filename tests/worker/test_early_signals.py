"""Signals that come before a worker has begun, or in the middle of the start of one of several."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Any

import psycopg

from penstock import App, Worker

from .stage import PATIENCE, holds, one

# The signal comes while the second of six is started, before any other part of the supervisor knows of it.
SUPERVISE = """
import os, signal, subprocess, sys
from penstock.health import Health
from penstock.worker import supervisor

real, started = subprocess.Popen, []

def popen(*arguments, **options):
    process = real(*arguments, **options)
    started.append(process)
    if len(started) == 2:
        os.kill(os.getpid(), signal.SIGTERM)
    return process

supervisor.subprocess.Popen = popen
one = supervisor.Supervisor(6, [], environ={}, grace=600, lease=30, health=Health())
one._argv = ["sleep", "600"]
code = one.run()
print(len(started), [process.poll() for process in started])
sys.exit(code)
"""

# The first start fails, as where there are too many processes.
FAIL_TO_START = """
import os, signal, subprocess, sys, threading
from penstock.health import Health
from penstock.worker import supervisor

real, calls = subprocess.Popen, []

def popen(*arguments, **options):
    calls.append(1)
    if len(calls) == 1:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    if len(calls) == 3:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    return real(*arguments, **options)

supervisor.subprocess.Popen = popen
one = supervisor.Supervisor(2, [], environ={}, grace=600, lease=30, health=Health())
one._argv = ["sleep", "600"]
sys.exit(one.run())
"""

# Sessions that wait for the lock of the registry.
REGISTERS = """
select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'register_worker'
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_a_signal_in_the_middle_of_a_start_reaches_all_of_them() -> None:
    done = run(SUPERVISE)
    # They had no time to begin, so SIGTERM itself ends them, which is in order.
    assert (done.returncode, done.stdout) == (0, f"2 [{-signal.SIGTERM}, {-signal.SIGTERM}]\n"), done.stderr


def test_a_worker_that_cannot_be_started_does_not_end_the_others() -> None:
    done = run(FAIL_TO_START)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("a worker cannot be started: [Errno 11]") == 1


async def test_a_worker_that_is_stopped_before_it_begins_does_not_begin(database18: str) -> None:
    app = App(database18)

    @app.task()
    def nothing() -> None:
        pass

    worker = Worker(app)
    # As the thread does that finds the supervisor gone.
    worker.stop_from_anywhere()
    async with asyncio.timeout(PATIENCE):
        await worker.run()
    assert not worker.started.is_set()
    await app.aclose()


async def test_a_worker_that_is_stopped_while_it_registers_claims_nothing(
    database18: str, sql18: psycopg.Connection[Any]
) -> None:
    app = App(database18)

    @app.task()
    async def nothing() -> None:
        pass

    await nothing.enqueue_async()
    worker = Worker(app)
    with psycopg.connect(database18) as other:
        other.execute("lock table penstock.workers in exclusive mode")
        running = asyncio.ensure_future(worker.run())
        await holds(lambda: one(sql18, REGISTERS), "the worker registers")
        worker.stop()
        async with asyncio.timeout(PATIENCE):
            await running
    assert not worker.started.is_set()
    assert one(sql18, "select count(*) from penstock.ready") == 1
    await app.aclose()
