"""What goes on in the queues while the dashboard is measured."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from .contents import LONG, ORDINARY

EVERY_SECONDS = 1.0


@contextmanager
def repeated(dsn: str, statements: Sequence[str], every: float) -> Iterator[None]:
    """Run statements again and again while the block runs."""
    stop = threading.Event()
    failures: list[Exception] = []

    def loop() -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as sql:
                while not stop.wait(every):
                    for statement in statements:
                        sql.execute(statement.encode())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise RuntimeError("the traffic stopped") from failures[0]


@contextmanager
def everywhere(dsn: str) -> Iterator[None]:
    """A message into every queue, every second: all numbers of all queues change from tick to tick."""
    send = "select count(penstock.send_message(q.name, '1')) from penstock.queues q"
    with repeated(dsn, (send,), EVERY_SECONDS):
        yield


def turn_over(dsn: str, messages: int) -> None:
    """Send so many messages to two queues, claim and ack them: with vacuum held back all leave dead rows."""
    batch = 500
    with psycopg.connect(dsn, autocommit=True) as sql:
        for number in range(max(1, messages // batch // 2)):
            for queue in (LONG, f"{ORDINARY}1"):
                sql.execute(
                    "select penstock.send_messages(%s, array_fill('{\"n\": 1}'::jsonb, array[%s]))",
                    (queue, batch),
                )
                sql.execute(
                    """with claimed as materialized (
                        select array_agg(m.message_id) as ids, array_agg(m.consumer_token) as tokens
                        from penstock.consume_messages_batch(%s, batch_size => %s) m
                    )
                    select count(*) from claimed c, penstock.ack_messages(%s, c.ids, c.tokens)""",
                    (queue, batch, queue),
                )
            if number % 20 == 0:
                sql.execute("select penstock.maintain()")
        # As workers do a few times a second.
        sql.execute("select penstock.maintain()")
