"""The hot calls: a send, a claim and an ack cost the same, however many messages wait."""

from __future__ import annotations

from ..case import Case, Connection
from ..filling import fill_ready


def _waiting(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q')")
    fill_ready(sql, "q", size)


CASES = [
    Case(
        name="send_message()",
        grows="messages ready in the queue",
        law="constant",
        build=_waiting,
        call="select penstock.send_message('q', '1')",
        sizes=(1_000, 100_000),
        most=1.5,
    ),
    Case(
        name="consume_messages_batch() of 10",
        grows="messages ready in the queue",
        law="constant",
        build=_waiting,
        call="select * from penstock.consume_messages_batch('q', batch_size => 10)",
        sizes=(1_000, 100_000),
        most=1.5,
    ),
]
