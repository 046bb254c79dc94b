"""The tasks of a run: `penstock worker tests.liveness.app:app`. Every handler logs when it begins and ends.

LIVENESS_LOG names the log. With LIVENESS_LATER the app has one more task, as a newer version of it would.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import penstock
from penstock import Snooze, TaskContext

from .history import Ended, Log, Started, Up

QUEUES = ("plain", "fair", "tenants", "capped")
CONCURRENCY, THREADS = 20, 2
# An attempt that fails is repeated after a second, twice.
ATTEMPTS, RETRY_SECONDS = 3, 1
SNOOZE_SECONDS = 1

app = penstock.App()
log = Log(Path(os.environ["LIVENESS_LOG"]))
me = os.getpid()


def begin(context: TaskContext) -> None:
    log.write(Started(time.monotonic(), context.message_id, me))


def end(context: TaskContext, *, is_last: bool = True, delay: float = 0.0) -> None:
    log.write(Ended(time.monotonic(), context.message_id, me, is_last, delay))


async def quick(context: TaskContext, seconds: float) -> None:
    begin(context)
    await asyncio.sleep(seconds)
    end(context)


def slow(context: TaskContext, seconds: float) -> None:
    begin(context)
    time.sleep(seconds)
    end(context)


async def flaky(context: TaskContext, seconds: float) -> None:
    begin(context)
    await asyncio.sleep(seconds)
    end(context, is_last=context.is_last_attempt, delay=RETRY_SECONDS)
    raise ValueError("always")


async def lazy(context: TaskContext, seconds: float) -> None:
    begin(context)
    await asyncio.sleep(seconds)
    if random.random() < 0.5:
        end(context, is_last=False, delay=SNOOZE_SECONDS)
        raise Snooze(SNOOZE_SECONDS)
    end(context)


for queue in QUEUES:
    app.task(queue=queue, name=f"quick.{queue}")(quick)
    app.task(queue=queue, name=f"slow.{queue}")(slow)
    app.task(queue=queue, name=f"lazy.{queue}")(lazy)
    app.task(queue=queue, name=f"flaky.{queue}", max_attempts=ATTEMPTS, retry_delays=RETRY_SECONDS)(flaky)
    if "LIVENESS_LATER" in os.environ:
        app.task(queue=queue, name=f"later.{queue}")(quick)

if "LIVENESS_WORKER" in os.environ:
    log.write(Up(time.monotonic(), me, list(app.tasks), {"async": CONCURRENCY, "thread": THREADS}))
