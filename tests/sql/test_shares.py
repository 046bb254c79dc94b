"""How max_active is divided among the priorities."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ..isolation.invariants import broken
from .engine import Engine
from .occupancy import active, free_permits, take_all

Sql = psycopg.Connection[Any]

DEFAULT = [40, 30, 20, 10]

# Shares of many shapes, the most urgent with the most: all divisions into tenths, and some odd ones.
DESCENDING = [
    [10 * a, 10 * b, 10 * c, 10 * (10 - a - b - c)]
    for a in range(3, 11)
    for b in range(a + 1)
    for c in range(b + 1)
    if 0 <= 10 - a - b - c <= c
] + [[97, 1, 1, 1], [34, 33, 33, 0], [26, 25, 25, 24], [99, 1, 0, 0], [41, 29, 17, 13]]
ANY_ORDER = [
    [10, 20, 30, 40],
    [0, 100, 0, 0],
    [0, 0, 0, 100],
    [25, 0, 50, 25],
    [1, 97, 1, 1],
    [33, 34, 0, 33],
]


def quotas(sql: Sql, max_active: int, min_active: int, shares: list[int]) -> list[int]:
    """What the settings of a queue come to."""
    ((found,),) = sql.execute(
        "select penstock._quotas(%s, %s, %s)", (max_active, min_active, shares)
    ).fetchall()
    assert isinstance(found, list)
    return found


def many_quotas(sql: Sql, shares: list[int]) -> list[tuple[int, int, list[int]]]:
    """(max_active, min_active, quotas) for all small numbers, and some large ones."""
    return sql.execute(
        """
        select m, n, penstock._quotas(m, n, %s)
        from (select generate_series(1, 45) union values (99), (101), (997)) x(m)
        cross join (values (0), (1), (5), (8)) y(n)
        """,
        (shares,),
    ).fetchall()


@pytest.mark.parametrize(
    ("max_active", "min_active", "expected"),
    [
        (100, 5, [40, 30, 20, 10]),
        (1000, 5, [400, 300, 200, 100]),
        (10, 5, [4, 3, 2, 1]),
        (10, 0, [4, 3, 2, 1]),
        (20, 5, [5, 5, 5, 5]),
        (20, 0, [8, 6, 4, 2]),
        (19, 5, [7, 6, 4, 2]),
        (21, 5, [6, 5, 5, 5]),
        (30, 5, [10, 9, 6, 5]),
        (40, 5, [15, 12, 8, 5]),
        (50, 5, [20, 15, 10, 5]),
        (100, 25, [25, 25, 25, 25]),
        (100, 26, [40, 30, 20, 10]),
        (100, 20, [30, 30, 20, 20]),
        (7, 0, [3, 2, 1, 1]),
        (5, 0, [2, 1, 1, 1]),
        (5, 1, [2, 1, 1, 1]),
        (4, 0, [1, 1, 1, 1]),
        (4, 1, [1, 1, 1, 1]),
        (3, 5, [3]),
        (2, 0, [2]),
        (1, 5, [1]),
        (99, 0, [39, 30, 20, 10]),
        (101, 0, [41, 30, 20, 10]),
        (100000, 5, [40000, 30000, 20000, 10000]),
    ],
)
def test_default_shares(sql18: Sql, max_active: int, min_active: int, expected: list[int]) -> None:
    assert quotas(sql18, max_active, min_active, DEFAULT) == expected


@pytest.mark.parametrize(
    ("max_active", "min_active", "shares", "expected"),
    [
        (10, 0, [25, 25, 25, 25], [3, 3, 2, 2]),
        (11, 0, [25, 25, 25, 25], [3, 3, 3, 2]),
        (3, 0, [33, 33, 34, 0], [1, 1, 1, 0]),
        (10, 0, [100, 0, 0, 0], [10, 0, 0, 0]),
        (1, 5, [100, 0, 0, 0], [1, 0, 0, 0]),
        (20, 5, [100, 0, 0, 0], [5, 5, 5, 5]),
        (100, 5, [100, 0, 0, 0], [85, 5, 5, 5]),
        (19, 5, [100, 0, 0, 0], [19, 0, 0, 0]),
        (100, 0, [0, 0, 0, 100], [0, 0, 0, 100]),
        (2, 0, [50, 50, 0, 0], [1, 1, 0, 0]),
        (1, 0, [50, 50, 0, 0], [1]),
        (2, 0, [50, 49, 1, 0], [2]),
        (10, 0, [97, 1, 1, 1], [7, 1, 1, 1]),
        (4, 0, [97, 1, 1, 1], [1, 1, 1, 1]),
        (10, 0, [10, 20, 30, 40], [1, 2, 3, 4]),
        (100, 5, [1, 2, 3, 94], [5, 5, 5, 85]),
        (1, 5, [0, 0, 0, 0], [1]),
        (100, 5, [0, 0, 0, 0], [100]),
    ],
)
def test_other_shares(
    sql18: Sql, max_active: int, min_active: int, shares: list[int], expected: list[int]
) -> None:
    assert quotas(sql18, max_active, min_active, shares) == expected


def test_no_max_active_no_quotas(sql18: Sql) -> None:
    assert sql18.execute("select penstock._quotas(null, 5, '{40,30,20,10}')").fetchall() == [(None,)]


def test_quotas_add_up_and_none_is_below_its_least(sql18: Sql) -> None:
    for shares in DESCENDING + ANY_ORDER:
        served = sum(share > 0 for share in shares)
        for max_active, min_active, found in many_quotas(sql18, shares):
            case = (max_active, min_active, shares, found)
            assert sum(found) == max_active, case
            least = min_active if 4 * min_active <= max_active else 0
            if max_active < served:
                assert found == [max_active], case
                continue
            assert len(found) == 4, case
            for share, quota in zip(shares, found, strict=True):
                assert quota >= max(least, 1 if share else 0), case


def test_the_larger_share_never_gets_less(sql18: Sql) -> None:
    for shares in DESCENDING:
        for *case, found in many_quotas(sql18, shares):
            assert found == sorted(found, reverse=True), (case, shares, found)


def test_without_a_minimum_a_quota_is_its_share_within_one(sql18: Sql) -> None:
    """Without the rule that every share is worth at least one permit."""
    for shares in DESCENDING + ANY_ORDER:
        for max_active, min_active, found in many_quotas(sql18, shares):
            exact = [max_active * share / 100 for share in shares]
            if min_active == 0 and all(share == 0 or n >= 1 for share, n in zip(shares, exact, strict=True)):
                for quota, n in zip(found, exact, strict=True):
                    assert abs(quota - n) < 1, (max_active, shares, found)


def test_one_permit_more_is_one_permit_more_in_all(sql18: Sql) -> None:
    """The same settings give the same quotas, and an added permit goes to exactly one priority."""
    before = 0
    for max_active in range(4, 200):
        found = quotas(sql18, max_active, 5, DEFAULT)
        assert found == quotas(sql18, max_active, 5, DEFAULT)
        assert sum(found) - before in (1, max_active)
        before = sum(found)


def test_a_large_minimum_does_not_take_forever(sql18: Sql) -> None:
    sql18.execute("set statement_timeout = '2s'")
    assert quotas(sql18, 1_000_000, 250_000, [97, 1, 1, 1]) == [250_000] * 4


@pytest.mark.parametrize(
    "shares",
    [
        [40, 30, 20, 9],
        [40, 30, 20, 11],
        [0, 0, 0, 1],
        [10, -10, 0, 0],
        [110, -10, 0, 0],
        [50, 50],
        [25, 25, 25, 20, 5],
        [50, 50, None, None],
        [40, 30, 30, None],
        [100, 100, -100, 0],
        [[40, 30], [20, 10]],
        [],
    ],
)
@pytest.mark.parametrize("capped", [True, False])
def test_shares_that_do_not_add_up_are_refused_by_name_and_value(
    engine18: Engine, shares: list[Any], capped: bool
) -> None:
    value = "{" + ",".join("NULL" if s is None else str(s) for s in shares) + "}"
    if shares and isinstance(shares[0], list):
        value = "{{40,30},{20,10}}"
    settings = {"max_active": 10} if capped else {}
    engine18.queue("q", **settings)
    with engine18.refused("PN004", "priority_shares", value, "100"):
        engine18.queue("r", **settings, priority_shares=shares)
    with engine18.refused("PN004", "priority_shares", value, "100"):
        engine18.value("alter_queue", "q", priority_shares=shares)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("max_active", -1), ("max_active", 1_000_001), ("min_active", -1), ("min_active", 1_000_001)],
)
def test_caps_out_of_range_are_refused_by_name_and_value(engine18: Engine, setting: str, value: int) -> None:
    engine18.queue("q")
    with engine18.refused("PN004", setting, str(value)):
        engine18.queue("r", **{setting: value})
    with engine18.refused("PN004", setting, str(value)):
        engine18.value("alter_queue", "q", **{setting: value})


def test_shares_may_begin_at_any_subscript(engine18: Engine) -> None:
    engine18.query(
        "select penstock.create_queue('q', max_active => 10, priority_shares => '[0:3]={10,20,30,40}')"
    )
    assert free_permits(engine18) == {0: 1, 1: 2, 2: 3, 3: 4}


def fill(engine: Engine, **settings: Any) -> None:
    """A queue with a backlog in each priority."""
    engine.queue("q", **settings)
    for priority in (3, 2, 1, 0):
        engine.send_many("q", [priority] * 30, priority=priority)


def payloads(engine: Engine) -> list[Any]:
    """The payloads of claims until there is nothing more to have."""
    return [message.payload for message in take_all(engine)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_active": 100, "min_active": 0, "priority_shares": [10, 20, 30, 40]}, [10, 20, 30, 30]),
        ({"max_active": 20}, [5, 5, 5, 5]),
        ({"max_active": 30}, [10, 9, 6, 5]),
        ({"max_active": 10}, [4, 3, 2, 1]),
        ({"max_active": 4}, [1, 1, 1, 1]),
        ({"max_active": 10, "min_active": 0, "priority_shares": [50, 50, 0, 0]}, [5, 5]),
        ({"max_active": 20, "priority_shares": [100, 0, 0, 0]}, [5, 5, 5, 5]),
    ],
)
def test_what_is_active_fills_the_quotas_and_no_more(
    engine: Engine, settings: dict[str, Any], expected: list[int]
) -> None:
    fill(engine, **settings)
    payloads(engine)
    assert active(engine) == dict(enumerate(expected))
    assert engine.nothing_to_take("q")
    assert broken(engine.connection) == []


@pytest.mark.parametrize("max_active", [1, 2, 3])
def test_too_few_permits_to_divide_are_shared_by_all_the_most_urgent_first(
    engine: Engine, max_active: int
) -> None:
    fill(engine, max_active=max_active)
    assert payloads(engine) == [0] * max_active
    assert free_permits(engine) == {}
    engine.value("purge_queue", "q")
    engine.send_many("q", ["normal"] * 5)
    taken = engine.take_many("q", 10)
    assert len(taken) == 1
    engine.send("q", "urgent", priority=0)
    rest = payloads(engine)
    assert rest == ["urgent", *["normal"] * max_active][: max_active - 1]
    engine.ack(taken[0])
    assert len(payloads(engine)) == 1
    assert broken(engine.connection) == []


@pytest.mark.parametrize("max_active", [1, 2, 3])
def test_the_default_priority_alone_may_have_all_of_too_few_permits(engine: Engine, max_active: int) -> None:
    engine.queue("q", max_active=max_active)
    engine.send_many("q", list(range(10)))
    assert payloads(engine) == list(range(max_active))
    assert broken(engine.connection) == []


def test_a_priority_without_a_share_is_not_delivered_until_it_has_one(engine: Engine) -> None:
    engine.queue("q", max_active=10, min_active=0, priority_shares=[50, 50, 0, 0])
    engine.send_many("q", ["never"] * 3)
    assert engine.nothing_to_take("q")
    engine.value("alter_queue", "q", priority_shares=[50, 20, 30, 0])
    assert payloads(engine) == ["never"] * 3
    assert broken(engine.connection) == []


def test_a_cap_below_the_minimum_has_no_minimum(engine: Engine) -> None:
    engine.queue("q", max_active=3, min_active=1000)
    engine.send_many("q", list(range(10)))
    assert payloads(engine) == [0, 1, 2]
    engine.queue("r", max_active=10, min_active=1000)
    assert free_permits(engine, "r") == {0: 4, 1: 3, 2: 2, 3: 1}
    assert broken(engine.connection) == []
