"""The preview of a cap divides it as the engine does."""

import random
from typing import Any

import psycopg

from penstock.dashboard.quotas import quotas


def test_as_the_engine_divides(sql18: psycopg.Connection[Any]) -> None:
    rng = random.Random(4)
    cases = [
        (12, 5, [40, 30, 20, 10]),
        (3, 5, [40, 30, 20, 10]),
        (100, 0, [100, 0, 0, 0]),
        (7, 1, [0, 0, 0, 0]),
    ]
    for _ in range(3000):
        cuts = sorted(rng.randint(0, 100) for _ in range(3))
        shares = [cuts[0], cuts[1] - cuts[0], cuts[2] - cuts[1], 100 - cuts[2]]
        cases.append(
            (rng.randint(1, rng.choice([5, 50, 5000])), rng.randint(0, rng.choice([3, 30, 1000])), shares)
        )
    found = sql18.execute(
        "select penstock._quotas(c.cap, c.least, c.shares::int[])"
        " from unnest(%s::int[], %s::int[], %s::text[]) with ordinality c(cap, least, shares, n) order by n",
        (
            [cap for cap, _, _ in cases],
            [least for _, least, _ in cases],
            ["{" + ",".join(map(str, shares)) + "}" for _, _, shares in cases],
        ),
    ).fetchall()
    for case, (expected,) in zip(cases, found, strict=True):
        assert quotas(*case) == expected, case
