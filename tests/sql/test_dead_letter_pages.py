"""Dead letters in pages: each page once, also if messages die again meanwhile."""

from __future__ import annotations

import pytest

from ..conftest import Connect
from .engine import Engine


def dead(engine: Engine, number: int, reason: str = "failed", **options: object) -> list[int]:
    """So many dead letters of queue q."""
    ids = engine.send_many("q", list(range(number)), **options)
    for message in engine.take_many("q", number):
        if reason == "failed":
            engine.reject(message)
        else:
            engine.nack(message)
    return ids


def test_pages_end_and_a_message_that_dies_again_is_requeued_once(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=1)
    ids = dead(engine, 5)
    after, sizes = 0, []
    while after is not None:
        page = engine.row("requeue_dlq_page", "q", 2, after)
        sizes.append(page.affected)
        for message in engine.take_many("q", 10):
            engine.reject(message)
        after = page.last_id
        assert len(sizes) < 10, "endless"
    assert sizes == [2, 2, 1]
    assert sorted(row.message_id for row in engine.rows("list_dlq_messages", "q")) == ids


def test_a_full_last_page_is_followed_by_an_empty_one(engine: Engine) -> None:
    engine.queue("q")
    ids = dead(engine, 4)
    first = engine.row("requeue_dlq_page", "q", 4)
    assert (first.affected, first.last_id) == (4, ids[-1])
    last = engine.row("requeue_dlq_page", "q", 4, first.last_id)
    assert (last.affected, last.last_id) == (0, None)
    assert [row.message_id for row in engine.take_many("q", 10)] == ids


def test_with_attempts_only_those_that_ran_out_of_them_come_back(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=1)
    rejected = dead(engine, 2)
    pay = dead(engine, 3, "no_attempts_left", headers={"task": "pay"})
    mail = dead(engine, 2, "no_attempts_left", headers={"task": "mail"})
    page = engine.row("requeue_dlq_page", "q", attempts=2, headers={"task": "pay"})
    assert (page.affected, page.last_id) == (3, None)
    back = engine.take_many("q", 10)
    assert [row.message_id for row in back] == pay
    assert {row.delivery_attempts for row in back} == {2}
    left = [row.message_id for row in engine.rows("list_dlq_messages", "q")]
    assert sorted(left) == sorted(rejected + mail)


def test_pages_of_a_purge_free_large_payloads(engine: Engine) -> None:
    engine.queue("q")
    engine.send_many("q", ["x" * 5000] * 3)
    for message in engine.take_many("q", 3):
        engine.reject(message)
    page = engine.row("purge_dlq_page", "q", 2)
    assert page.affected == 2
    assert engine.count("payloads") == 1
    page = engine.row("purge_dlq_page", "q", 2, page.last_id)
    assert (page.affected, page.last_id) == (1, None)
    assert (engine.count("dead"), engine.count("payloads")) == (0, 0)


@pytest.mark.parametrize("function", ["requeue_dlq_page", "purge_dlq_page"])
def test_a_page_passes_over_what_another_session_has_locked(
    function: str, engine: Engine, connect: Connect
) -> None:
    engine.queue("q")
    ids = dead(engine, 5)
    other = connect()
    with other.transaction():
        other.execute("select from penstock.dead where id = any(%s) for update", [ids[:2]])
        page = engine.row(function, "q", 2)
        assert (page.affected, page.last_id) == (2, ids[3])
    assert [row.message_id for row in engine.rows("list_dlq_messages", "q")] == [*ids[:2], ids[4]]


@pytest.mark.parametrize(
    ("options", "named"),
    [({"page_size": 0}, "page_size"), ({"page_size": None}, "page_size"), ({"attempts": 0}, "attempts")],
)
def test_bad_values_are_refused(options: dict[str, object], named: str, engine: Engine) -> None:
    engine.queue("q")
    with engine.refused("PN004", named):
        engine.rows("requeue_dlq_page", "q", **options)
