"""Waiting for a result: each look of Handle.result() costs the same, however many messages wait."""

from __future__ import annotations

from ..case import Case, Connection
from ..filling import fill_ready

LAST = "(select last_value from penstock.message_ids)"


def _waiting(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q')")
    fill_ready(sql, "q", size)


CASES = [
    Case(
        name=f"get_result() of {what} message",
        grows="messages ready in the queue",
        law="constant",
        build=_waiting,
        call=f"select * from penstock.get_result('q', {message_id})",
        sizes=(1_000, 100_000),
        most=1.5,
    )
    for what, message_id in (("the last ready", LAST), ("an unknown", f"{LAST} + 1"))
]
