"""A look at many queues costs by the queues that it is asked for."""

from __future__ import annotations

from ..case import Case, Connection
from ..filling import fill_ready


def _queues(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q' || n) from generate_series(1, %s) n", [size])
    sql.execute("analyze")


def _waiting(sql: Connection, size: int) -> None:
    _queues(sql, 100)
    fill_ready(sql, "q1", size)


LOOK = "select * from penstock.queues_with_work(array(select 'q' || n from generate_series(1, {n}) n))"

CASES = [
    Case(
        name="queues_with_work() of 100 queues",
        grows="queues",
        law="constant",
        build=_queues,
        call=LOOK.format(n=100),
        sizes=(200, 2_000),
        most=1.5,
    ),
    Case(
        name="queues_with_work() of 100 queues",
        grows="messages ready in one of them",
        law="constant",
        build=_waiting,
        call=LOOK.format(n=100),
        sizes=(1_000, 100_000),
        most=1.5,
    ),
    Case(
        name="queues_with_work()",
        grows="queues asked for",
        law="linear",
        build=_queues,
        call=LOOK.format(n="{size}"),
        sizes=(100, 1_000),
        most=12,
    ),
]
