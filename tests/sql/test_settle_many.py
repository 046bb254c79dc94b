"""nack_messages, release_messages, reject_messages: many messages in one call, each with its token."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest

from .engine import Engine

SETTLE = ("nack_messages", "release_messages", "reject_messages")


def claim(engine: Engine, n: int, holder: str = "me", **settings: Any) -> list[int]:
    if not engine.query("select from penstock.queues where name = 'q'"):
        engine.value("create_queue", "q", **settings)
    engine.send_many("q", [1] * n)
    rows = engine.query("select message_id from penstock.consume_messages_batch('q', %s, 30, %s)", holder, n)
    return sorted(row[0] for row in rows)


def settle(engine: Engine, function: str, ids: list[int], tokens: list[str], **lists: Any) -> list[int]:
    names = "".join(f", {name} => %s" for name in lists)
    rows = engine.query(
        f"select * from penstock.{function}('q', %s::bigint[], %s{names})", ids, tokens, *lists.values()
    )
    return sorted(row[0] for row in rows)


def states(engine: Engine, ids: list[int]) -> list[tuple[Any, ...]]:
    return engine.query(
        "select m.state, m.delivery_attempts, m.last_error,"
        " round(extract(epoch from m.due_at - penstock.clock()))"
        " from unnest(%s::bigint[]) i cross join lateral penstock.get_message('q', i) m order by i",
        ids,
    )


def test_each_message_has_its_delay_and_error(engine: Engine) -> None:
    ids = claim(engine, 3, retry_delays=[60])
    held = settle(engine, "nack_messages", ids, ["me"] * 3, delays=[0, None, 600], errors=["a", None, "c"])
    assert held == ids
    assert [(state, due) for state, _, _, due in states(engine, ids)] == [
        ("ready", None),
        ("scheduled", 60),
        ("scheduled", 600),
    ]
    errors = "select errors -> -1 ->> 'error' from penstock.get_message('q', %s)"
    assert [engine.query(errors, i) for i in ids] == [[("a",)], [(None,)], [("c",)]]


def test_each_message_has_its_limit_of_attempts(engine: Engine) -> None:
    ids = claim(engine, 3, max_delivery_attempts=5)
    settle(engine, "nack_messages", ids, ["me"] * 3, max_attempts=[1, 2, None])
    assert [state for state, *_ in states(engine, ids)] == ["dead", "ready", "ready"]


def test_a_release_does_not_count_and_a_reject_is_final(engine: Engine) -> None:
    ids = claim(engine, 4)
    assert settle(engine, "release_messages", ids[:2], ["me"] * 2, delays=[None, 30]) == ids[:2]
    assert settle(engine, "reject_messages", ids[2:], ["me"] * 2, errors=["no", None]) == ids[2:]
    assert states(engine, ids) == [
        ("ready", 0, None, None),
        ("scheduled", 0, None, 30),
        ("dead", 1, "no", None),
        ("dead", 1, None, None),
    ]


@pytest.mark.parametrize("function", SETTLE)
def test_only_what_the_token_holds(engine: Engine, function: str) -> None:
    mine, others = claim(engine, 2), claim(engine, 2, "other")
    ids = [*mine, *others, 1_000_000]
    held = settle(engine, function, ids, ["me", "not me", "other", "me", "me"])
    assert held == [mine[0], others[0]]
    assert engine.query("select id from penstock.active order by id") == [(mine[1],), (others[1],)]


@pytest.mark.parametrize("function", SETTLE)
def test_no_messages(engine: Engine, function: str) -> None:
    claim(engine, 1)
    assert settle(engine, function, [], []) == []


@pytest.mark.parametrize(
    "option", ["delays => '{{7}}'", "delays => '{1,2}'", "errors => '{}'", "delays => '{-1}'"]
)
def test_lists_that_do_not_fit(engine: Engine, option: str) -> None:
    (message,) = claim(engine, 1)
    with pytest.raises(psycopg.Error) as caught:
        engine.query(f"select penstock.nack_messages('q', %s, '{{me}}', {option})", [message])
    assert caught.value.sqlstate == "PN004"


def test_lists_with_other_subscripts(engine: Engine) -> None:
    (message,) = claim(engine, 1)
    statement = (
        "select penstock.nack_messages('q', %s, '[0:0]={me}', delays => '[7:7]={45}', errors => '[0:0]={x}')"
    )
    assert engine.query(statement, [message]) == [(message,)]
    assert states(engine, [message]) == [("scheduled", 1, "x", 45)]


@pytest.mark.parametrize(("number", "most"), [(2, 32_000), (2_000, 25_000)])
def test_errors_of_a_batch_are_cut_to_what_fits(engine: Engine, number: int, most: int) -> None:
    ids = claim(engine, number)
    errors = f"array_fill('begin' || repeat('x', 40000) || 'end', array[{number}])"
    statement = (
        f"select penstock.nack_messages('q', %s, array_fill('me'::text, array[{number}]), errors => {errors})"
    )
    assert sorted(row[0] for row in engine.query(statement, ids)) == ids
    ((error,),) = engine.query("select distinct errors -> -1 ->> 'error' from penstock.ready")
    begin, mark, end = error.split("\n")
    assert mark == f"[... {40_008 - len(begin) - len(end)} characters left out ...]"
    assert (begin[:6], end[-4:]) == ("beginx", "xend")
    assert most - 100 < len(error) <= most


@pytest.mark.parametrize("function", SETTLE)
def test_the_time_grows_with_the_number_of_messages(engine: Engine, function: str) -> None:
    """Not with its square. Tokens and lists as a worker gives them."""

    def seconds(n: int) -> float:
        ids = claim(engine, n)
        began = time.monotonic()
        settle(engine, function, ids, ["me"] * n)
        return time.monotonic() - began

    seconds(100)
    small, large = min(seconds(500) for _ in range(3)), min(seconds(5000) for _ in range(2))
    assert large < 40 * small
