"""Retention touches what is old, and a bounded number of what is not, however much is kept."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ..conftest import Connect
from .calls import Call, check
from .dataset import Dataset
from .observed import Session

# An hour is kept. Two hundred are old; the others were published lately, or long ago and completed lately.
DONE = """
insert into penstock.done
    (queue_id, id, priority, attempts, completed_at, claimed_at, published_at, tenant, token, payload)
select
    q.id, %(base)s::int8 + n, 2, 1,
    clock_timestamp() - case when n <= 200 then interval '2 hours' else '0' end,
    clock_timestamp(), clock_timestamp() - case when n <= 200 then interval '2 hours' else '{age}' end,
    '', 'me', '1'
from penstock.queues q, generate_series(1, %(rows)s) n where q.name = 'kept'
"""
INDEXES = {"done": {"done_key"}}
FORGET = """
select penstock._forget_done(q.id, clock_timestamp() - interval '1 hour', 10)
from penstock.queues q where q.name = 'kept'
"""


@pytest.mark.parametrize(("age", "blocks"), [("1 minute", 1500), ("1 day", 2500)], ids=["lately", "long ago"])
def test_retention_at_two_sizes(connect: Connect, age: str, blocks: int) -> None:
    connection: psycopg.Connection[Any] = connect()
    data = Dataset(connection)
    call = Call("forget", FORGET, blocks, INDEXES, 1100)
    found: dict[str, list[str]] = {}
    for rows in (12_000, 60_000):
        connection.execute("truncate penstock.done")
        data.execute(DONE.format(age=age), rows, rows)
        data.analyze()
        caller = connect()
        # As in maintain().
        for name in ("seqscan", "sort", "bitmapscan", "hashjoin", "mergejoin"):
            caller.execute(f"set enable_{name} = off")
        session = Session(caller)
        for problem in check(session, data.params(), [call]):
            found.setdefault(problem, []).append(f"({rows})")
    assert not found, "\n".join(f"{problem}: {' '.join(stages)}" for problem, stages in found.items())
