"""Holders that hold back vacuum: a transaction that keeps its snapshot, and perhaps writes elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import IsolationLevel

WRITES_PER_SECOND = 4


@contextmanager
def held_snapshot(dsn: str, *, writes: bool) -> Iterator[None]:
    """Keep a REPEATABLE READ transaction open while the block runs; where asked, one that writes."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table if not exists public.elsewhere (at timestamptz)")
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        connection.autocommit = False
        connection.execute("select count(*) from public.elsewhere")  # takes the snapshot
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(1 / WRITES_PER_SECOND):
                connection.execute("insert into public.elsewhere values (clock_timestamp())")

        thread = threading.Thread(target=write if writes else stop.wait, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            connection.rollback()
