"""Dead letters: look at them, bring them back, remove them."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from .bad_input import Bad, expect
from .conftest import ACTIVE, DEAD, READY, Clock
from .engine import Engine


def bury(engine: Engine, queue: str, payload: Any = 1, **options: Any) -> int:
    """A dead letter, reason failed."""
    message_id = engine.send(queue, payload, **options)
    (message,) = [m for m in engine.take_many(queue, 10000) if m.message_id == message_id]
    assert engine.reject(message, error="broken")
    return message_id


def exhaust(engine: Engine, queue: str, payload: Any = 1, **options: Any) -> int:
    """A dead letter, reason no_attempts_left."""
    message_id = engine.send(queue, payload, **options)
    while engine.state(queue, message_id) == "ready":
        assert engine.nack(engine.take(queue), delay_seconds=0, error="failed again")
    return message_id


def test_a_dead_letter_shows_what_it_was_and_why_it_died(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=2)
    before = engine.now()
    message_id = exhaust(engine, "q", {"n": 1}, priority=0, tenant="acme", headers={"h": 1})
    (letter,) = engine.rows("list_dlq_messages", "q")
    assert (letter.queue_name, letter.message_id, letter.payload) == ("q", message_id, {"n": 1})
    assert (letter.body, letter.priority, letter.tenant, letter.headers) == (None, 0, "acme", {"h": 1})
    assert (letter.delivery_attempts, letter.reason) == (2, "no_attempts_left")
    assert letter.last_error == "failed again"
    assert [e["attempt"] for e in letter.errors] == [1, 2]
    assert before <= letter.moved_at <= engine.now()


def test_the_list_is_of_one_queue_or_of_all(engine: Engine) -> None:
    for queue in ("a", "b", "c"):
        engine.queue(queue)
    first, second = bury(engine, "a"), bury(engine, "b")
    assert [row.message_id for row in engine.rows("list_dlq_messages", "a")] == [first]
    assert [row.message_id for row in engine.rows("list_dlq_messages", "c")] == []
    rows = engine.rows("list_dlq_messages")
    assert {(row.queue_name, row.message_id) for row in rows} == {("a", first), ("b", second)}


def test_a_message_may_die_in_several_queues(engine: Engine) -> None:
    engine.topic("t", "a", "b", "c")
    message_id = engine.publish("t", "x" * 5000)
    engine.reject(engine.take("a"))
    engine.reject(engine.take("b"))
    rows = engine.rows("list_dlq_messages")
    assert [(row.queue_name, row.message_id) for row in rows] == [("a", message_id), ("b", message_id)]
    assert all(row.payload == "x" * 5000 for row in rows)


@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 100])
def test_pages_have_no_gap_and_no_repeat(engine: Engine, page_size: int) -> None:
    expected = []
    for queue in ("a", "b", "c"):
        engine.queue(queue)
        ids = engine.send_many(queue, list(range(5)))
        for message in engine.take_many(queue, 5):
            engine.reject(message)
        expected += [(queue, message_id) for message_id in ids]
    seen: list[tuple[str, int]] = []
    after = None
    while rows := engine.rows("list_dlq_messages", page_size=page_size, after=after):
        assert len(rows) <= page_size
        seen += [(row.queue_name, row.message_id) for row in rows]
        after = rows[-1].cursor
    assert seen == expected


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_of_queues_with_the_highest_ids(engine: Engine, newest_first: bool) -> None:
    engine.query("select setval(pg_get_serial_sequence('penstock.queues', 'id'), 2147483645)")
    expected = []
    for queue in ("a", "b"):
        engine.queue(queue)
        expected += [bury(engine, queue), bury(engine, queue)]
    seen: list[int] = []
    after = None
    while rows := engine.rows("list_dlq_messages", page_size=1, after=after, newest_first=newest_first):
        seen += [row.message_id for row in rows]
        after = rows[-1].cursor
    assert sorted(seen) == expected
    # Another client may pass any number.
    beyond = "newest 1 1 9999999999" if newest_first else "9999999999:1"
    assert engine.rows("list_dlq_messages", after=beyond, newest_first=newest_first) == []


def test_pages_of_one_queue_go_on_where_rows_went_away(engine: Engine) -> None:
    engine.queue("other")
    bury(engine, "other")
    engine.queue("q")
    ids = engine.send_many("q", list(range(6)))
    for message in engine.take_many("q", 6):
        engine.reject(message)
    page = engine.rows("list_dlq_messages", "q", page_size=2)
    engine.value("requeue_dlq_messages", "q", ids[1:3])
    rest = engine.rows("list_dlq_messages", "q", page_size=10, after=page[-1].cursor)
    assert [row.message_id for row in page + rest] == [ids[0], ids[1], *ids[3:]]


def test_requeue_brings_all_back_with_attempts_from_zero(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=2)
    ids = [exhaust(engine, "q", n) for n in range(3)]
    assert engine.value("requeue_dlq_messages", "q") == 3
    assert engine.count("dead") == 0
    messages = engine.take_many("q", 10)
    assert [(m.message_id, m.payload, m.delivery_attempts) for m in messages] == [
        (message_id, n, 1) for n, message_id in enumerate(ids)
    ]
    assert engine.nack(messages[0])
    assert engine.state("q", ids[0]) == "ready"


def test_requeue_brings_back_those_that_are_named(engine: Engine) -> None:
    engine.queue("q")
    ids = engine.send_many("q", list(range(4)))
    for message in engine.take_many("q", 4):
        engine.reject(message)
    named = [ids[2], ids[0], ids[0], None, 999999]
    assert engine.value("requeue_dlq_messages", "q", named) == 2
    assert [engine.state("q", i) for i in ids] == ["ready", "dead", "ready", "dead"]


def test_requeue_keeps_the_error_history(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=1)
    message_id = exhaust(engine, "q")
    engine.value("requeue_dlq_messages", "q")
    engine.nack(engine.take("q"), error="and again")
    assert [e["error"] for e in engine.message("q", message_id).errors] == ["failed again", "and again"]


def test_requeue_brings_back_every_kind(engine: Engine, clock: Clock) -> None:
    engine.queue("q", max_delivery_attempts=1)
    failed, exhausted = bury(engine, "q"), exhaust(engine, "q")
    expired = engine.send("q", ttl_seconds=5)
    clock.advance(6)
    engine.maintain()
    assert {row.reason for row in engine.rows("list_dlq_messages", "q")} == {
        "failed",
        "no_attempts_left",
        "expired",
    }
    assert engine.value("requeue_dlq_messages", "q") == 3
    assert {m.message_id for m in engine.take_many("q", 10)} == {failed, exhausted, expired}


def test_a_requeued_message_has_its_time_to_live_again(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    message_id = engine.send("q", ttl_seconds=60)
    clock.advance(61)
    engine.maintain()
    assert engine.state("q", message_id) == "dead"
    engine.value("requeue_dlq_messages", "q")
    clock.advance(50)
    engine.maintain()
    assert engine.state("q", message_id) == "ready"
    clock.advance(20)
    engine.maintain()
    assert engine.state("q", message_id) == "dead"


def test_requeued_messages_come_behind_what_waits(engine: Engine) -> None:
    engine.queue("q")
    dead = bury(engine, "q")
    waiting = engine.send_many("q", [1, 2, 3])
    engine.value("requeue_dlq_messages", "q")
    assert [m.message_id for m in engine.take_many("q", 10)] == [*waiting, dead]


def test_requeue_touches_no_other_queue(engine: Engine) -> None:
    for queue in ("a", "b"):
        engine.queue(queue)
        bury(engine, queue)
    assert engine.value("requeue_dlq_messages", "a") == 1
    assert len(engine.rows("list_dlq_messages", "b")) == 1


@pytest.mark.parametrize("more", [1, 2, 5])
def test_add_retries_gives_that_many_attempts_more(engine: Engine, more: int) -> None:
    engine.queue("q", max_delivery_attempts=2)
    message_id = exhaust(engine, "q")
    assert engine.value("add_retries", "q", more) == 1
    delivered = []
    while engine.state("q", message_id) == "ready":
        message = engine.take("q")
        delivered.append(message.delivery_attempts)
        engine.nack(message)
    assert delivered == list(range(3, 3 + more))
    assert engine.message("q", message_id).reason == "no_attempts_left"


def test_add_retries_can_be_repeated(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=1)
    message_id = exhaust(engine, "q")
    for attempt in (2, 3):
        assert engine.value("add_retries", "q", 1) == 1
        message = engine.take("q")
        assert message.delivery_attempts == attempt
        engine.nack(message)
        assert engine.state("q", message_id) == "dead"


def test_add_retries_brings_back_the_expired_and_not_the_rejected(engine: Engine, clock: Clock) -> None:
    engine.queue("q", max_delivery_attempts=1)
    failed, exhausted = bury(engine, "q"), exhaust(engine, "q")
    expired = engine.send("q", ttl_seconds=5)
    clock.advance(6)
    engine.maintain()
    assert engine.value("add_retries", "q", 2) == 2
    assert {m.message_id for m in engine.take_many("q", 10)} == {exhausted, expired}
    assert engine.state("q", failed) == "dead"


def test_add_retries_gives_the_expired_a_new_time_to_live_and_the_attempts(
    engine: Engine, clock: Clock
) -> None:
    engine.queue("q", max_delivery_attempts=3)
    message_id = engine.send("q", ttl_seconds=60)
    engine.nack(engine.take("q"))
    clock.advance(61)
    engine.maintain()
    assert engine.message("q", message_id).reason == "expired"
    assert engine.value("add_retries", "q", 4) == 1
    for _ in range(3):
        engine.nack(engine.take("q"))
    assert engine.take("q").message_id == message_id


def test_add_retries_where_there_is_no_limit(engine: Engine, clock: Clock) -> None:
    """So many and no more, though the queue would go on for ever."""
    engine.queue("q", max_delivery_attempts=0)
    message_id = engine.send("q", ttl_seconds=60)
    engine.nack(engine.take("q"))
    clock.advance(61)
    engine.maintain()
    assert engine.value("add_retries", "q", 2) == 1
    for attempt in (2, 3):
        message = engine.take("q")
        assert (message.delivery_attempts, message.attempts_limit) == (attempt, 3)
        engine.nack(message)
    assert engine.message("q", message_id).reason == "no_attempts_left"


def test_add_retries_to_those_with_certain_headers(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=1)
    headers = [{"task": "a", "n": 1}, {"task": "a"}, {"task": "b"}, None]
    ids = [engine.send("q", headers=each) for each in headers]
    for _ in ids:
        engine.nack(engine.take("q"))
    assert engine.value("add_retries", "q", 1, {"task": "c"}) == 0
    assert engine.value("add_retries", "q", 1, {"task": "a"}) == 2
    assert {m.message_id for m in engine.take_many("q", 10)} == set(ids[:2])
    assert engine.value("add_retries", "q", 1, {}) == 1
    assert engine.take("q").message_id == ids[2]


def test_add_retries_with_nothing_to_add_to(house: Engine) -> None:
    with house.unchanged():
        assert house.value("add_retries", "mail", 3) == 0


def test_purge_removes_dead_letters_of_one_queue_or_of_all(engine: Engine) -> None:
    for queue in ("a", "b", "c"):
        engine.queue(queue)
        bury(engine, queue)
        bury(engine, queue, "x" * 5000)
    waiting = engine.send("a")
    assert engine.value("purge_dlq", "a") == 2
    assert engine.value("purge_dlq", "a") == 0
    assert len(engine.rows("list_dlq_messages")) == 4
    assert engine.value("purge_dlq") == 4
    assert engine.count("payloads") == 0
    assert engine.states("a") == {waiting: "ready"}


def test_all_of_it_is_part_of_the_callers_transaction(engine: Engine, sql: psycopg.Connection[Any]) -> None:
    engine.queue("q", max_delivery_attempts=1)
    exhaust(engine, "q", dedup_key="k")
    for function, arguments in (("requeue_dlq_messages", []), ("add_retries", [1]), ("purge_dlq", [])):
        with engine.unchanged(), sql.transaction(force_rollback=True):
            assert engine.value(function, "q", *arguments) == 1


def test_dead_letters_are_kept_for_retain_dead_seconds(engine: Engine, clock: Clock) -> None:
    engine.queue("short", retain_dead_seconds=3600)
    engine.queue("long")
    for queue in ("short", "long"):
        bury(engine, queue, "x" * 5000)
    clock.advance(3500)
    engine.maintain()
    assert len(engine.rows("list_dlq_messages")) == 2
    clock.advance(200)
    assert engine.maintain()["dead letters removed"] == 1
    assert [row.queue_name for row in engine.rows("list_dlq_messages")] == ["long"]
    assert engine.count("payloads") == 1
    clock.advance(timedelta(days=30).total_seconds())
    engine.maintain()
    assert engine.count("dead") == engine.count("payloads") == 0


def test_named_letters_that_are_not_dead_stay_where_they_are(house: Engine) -> None:
    with house.unchanged():
        assert house.value("requeue_dlq_messages", "billing", [ACTIVE, READY]) == 0
        assert house.value("requeue_dlq_messages", "billing", []) == 0
        assert house.value("requeue_dlq_messages", "audit", [DEAD]) == 0


@pytest.mark.parametrize(
    "bad",
    [
        *(
            expect("PN001", '"nope"').of(function, "nope", *arguments)
            for function, arguments in (
                ("list_dlq_messages", []),
                ("requeue_dlq_messages", []),
                ("requeue_dlq_messages", [[DEAD]]),
                ("add_retries", [1]),
                ("purge_dlq", []),
            )
        ),
        expect("PN001", "queue").of("requeue_dlq_messages", None),
        expect("PN001", "queue").of("add_retries", None, 1),
        *(
            expect("PN004", "attempts", shown).of("add_retries", "billing", value)
            for value, shown in ((0, "0"), (-1, "-1"), (2147483647, "2147483647"), (None, "null"))
        ),
        *(
            expect("PN004", "page_size", shown).of("list_dlq_messages", "billing", page_size=value)
            for value, shown in ((0, "0"), (-1, "-1"), (2147483647, "2147483647"))
        ),
        *(
            expect("PN004", "after", cursor).of("list_dlq_messages", page_size=1, after=cursor)
            for cursor in (
                "junk",
                "",
                "1",
                "1:",
                ":1",
                "a:b",
                "1:2:3",
                "99999999999:1",
                "1:9223372036854775808",
                "newest 1 2 3",
            )
        ),
        *(
            expect("PN004", "after", cursor).of("list_dlq_messages", after=cursor, newest_first=True)
            for cursor in ("1:2", "newest", "newest 1 2", "newest 9999999999999999999 1 1", "newest a 1 1")
        ),
    ],
)
def test_bad_input(house: Engine, bad: Bad) -> None:
    bad.check(house)


def test_those_that_died_last_come_first(engine: Engine, clock: Clock) -> None:
    engine.topic("t", "a", "b")
    ids = [engine.publish("t") for _ in range(4)]
    for queue, number in (("a", 2), ("b", 2), ("b", 0), ("a", 1), ("a", 3), ("b", 3)):
        message = next(row for row in engine.take_many(queue, 4) if row.message_id == ids[number])
        engine.reject(message, error=f"{queue}{number}")
        clock.advance(60)
    newest = ["b3", "a3", "a1", "b0", "b2", "a2"]
    assert [row.last_error for row in engine.rows("list_dlq_messages", newest_first=True)] == newest
    of_a = engine.rows("list_dlq_messages", "a", newest_first=True)
    assert [row.last_error for row in of_a] == ["a3", "a1", "a2"]
    pages, after = list[str](), None
    while rows := engine.rows("list_dlq_messages", page_size=2, after=after, newest_first=True):
        pages += [row.last_error for row in rows]
        after = rows[-1].cursor
    assert pages == newest


def test_pages_of_those_that_died_at_once(engine: Engine) -> None:
    """A message that dies in two queues at the same moment is on a page each time."""
    engine.topic("t", "a", "b")
    for _ in range(3):
        engine.publish("t")
    for queue in ("a", "b"):
        for message in engine.take_many(queue, 3):
            engine.reject(message)
    engine.query("update penstock.dead set moved_at = '2030-01-01' returning id")
    seen, after = list[tuple[str, int]](), None
    while rows := engine.rows("list_dlq_messages", page_size=1, after=after, newest_first=True):
        seen += [(row.queue_name, row.message_id) for row in rows]
        after = rows[-1].cursor
    assert len(seen) == len(set(seen)) == 6


@pytest.mark.parametrize("retries", [False, True])
def test_many_at_once_come_back_in_time(engine: Engine, retries: bool) -> None:
    """Some 0.2 s; a minute where each was looked for in a list of all."""
    engine.queue("q")
    engine.query(
        """insert into penstock.dead
            (queue_id, sweep_queue_id, id, priority, attempts, large, reason, moved_at, published_at, tenant,
            payload)
        select q.id, q.id, nextval('penstock.message_ids'), 2, 3, false, 'expired', now(), now(), '', '1'
        from penstock.queues q, generate_series(1, 20000) returning id"""
    )
    begun = time.monotonic()
    revived = engine.value("add_retries", "q", 1) if retries else engine.value("requeue_dlq_messages", "q")
    assert revived == 20_000
    assert time.monotonic() - begun < 10
    assert engine.statistics("q").pending_count == 20_000
