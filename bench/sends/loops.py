"""Consumers that are a bare loop: `python -m bench.sends.loops NAME`, on the database BENCH_DSN, for ever."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import psycopg

BATCH = 1000
PAUSE_SECONDS = 0.002
POLL_SECONDS = 1.0
"""How often a loop that waits for notifications looks without one."""

DELETE = """
delete from hand_rolled where id = any (array(
    select id from hand_rolled where queue = 'bench' and vt <= now()
    order by vt limit %s for update skip locked
)) returning payload
"""

Connection = psycopg.Connection[Any]


def hand_rolled(connection: Connection) -> int:
    """Take a batch of the hand-rolled queue."""
    return len(connection.execute(DELETE, (BATCH,)).fetchall())


def pgmq(connection: Connection) -> int:
    """Take a batch of pgmq's queue."""
    rows = connection.execute("select msg_id, message from pgmq.read('bench', 30, %s)", (BATCH,)).fetchall()
    if rows:
        ids = [row[0] for row in rows]
        connection.execute("select pgmq.delete('bench', %s::bigint[])", (ids,))
    return len(rows)


def poll(connection: Connection, take: Callable[[Connection], int]) -> None:
    """Take what there is, at even pauses."""
    while True:
        take(connection)
        time.sleep(PAUSE_SECONDS)


def listen(connection: Connection, channel: str, take: Callable[[Connection], int]) -> None:
    """Take what there is until nothing is left, then wait for a notification."""
    connection.execute(f'listen "{channel}"')
    while True:
        while take(connection):
            pass
        for _ in connection.notifies(timeout=POLL_SECONDS, stop_after=1):
            pass


LOOPS: dict[str, Callable[[Connection], None]] = {
    "hand_rolled": lambda connection: poll(connection, hand_rolled),
    "notified": lambda connection: listen(connection, "hand_rolled", hand_rolled),
    "pgmq": lambda connection: listen(connection, "pgmq.q_bench.INSERT", pgmq),
}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    with psycopg.connect(os.environ["BENCH_DSN"], autocommit=True, prepare_threshold=0) as connection:
        LOOPS[sys.argv[1]](connection)


if __name__ == "__main__":
    main()
