"""A call in a session of its own that has to wait for another one."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from .engine import Engine

T = TypeVar("T")


def start_blocked(watcher: Engine, waiter: Engine, call: Callable[[], T]) -> Future[T]:
    """Starts a call that uses `waiter`, and returns once it waits for a lock of another session."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    pid = waiter.connection.info.backend_pid
    deadline = time.monotonic() + 30
    while watcher.query("select cardinality(pg_blocking_pids(%s))", pid) == [(0,)]:
        assert not future.done(), f"it did not wait: {future.result()}"
        assert time.monotonic() < deadline, "it never began to wait"
    return future
