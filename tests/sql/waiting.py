"""A call in a session of its own that has to wait for another one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg

from .engine import Engine


@contextmanager
def blocked(watcher: Engine, waiter: psycopg.Connection[Any], call: Any) -> Iterator[Future[Any]]:
    """Starts a call on `waiter` and goes on once it waits for a lock, which the body has to set free."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(call)
        pid = waiter.info.backend_pid
        deadline = time.monotonic() + 30
        while watcher.query("select cardinality(pg_blocking_pids(%s))", pid) == [(0,)]:
            assert not future.done(), f"it did not wait: {future.result()}"
            assert time.monotonic() < deadline, "it never began to wait"
        yield future
