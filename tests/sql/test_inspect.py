"""Inspection: get_message, list_messages and the statistics, in each state."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from .bad_input import Bad, expect
from .conftest import ACTIVE, DEAD, DONE, READY, SCHEDULED, Clock
from .engine import Engine, Row
from .occupancy import let_in

ALL = {ACTIVE: "active", DEAD: "dead", DONE: "done", SCHEDULED: "scheduled", READY: "ready"}


def known(row: Row) -> set[str]:
    """The columns that a row has a value in."""
    return {name for name, value in vars(row).items() if value is not None}


ALWAYS = {
    "message_id",
    "queue_name",
    "state",
    "priority",
    "delivery_attempts",
    "published_at",
    "errors",
    "payload",
}


@pytest.mark.parametrize(
    ("message_id", "also"),
    [
        (READY, {"tenant", "dedup_key"}),
        (SCHEDULED, {"due_at"}),
        (ACTIVE, {"vt", "claimed_at", "consumer"}),
        (DEAD, {"reason", "last_error", "error_key", "moved_at"}),
        (DONE, {"claimed_at", "consumer", "completed_at"}),
    ],
)
def test_get_message_knows_what_its_state_knows(house: Engine, message_id: int, also: set[str]) -> None:
    row = house.message("billing", message_id)
    assert (row.message_id, row.queue_name, row.state) == (message_id, "billing", ALL[message_id])
    assert row.payload == {ALL[message_id]: True}
    assert known(row) == ALWAYS | also


def test_get_message_shows_everything_that_a_message_can_have(engine: Engine) -> None:
    engine.queue("q")
    options = {"headers": {"h": 1}, "tenant": "acme", "dedup_key": "k", "ttl_seconds": 3600, "priority": 0}
    message_id = engine.send("q", [1], **options)
    engine.nack(engine.take("q"), error="first")
    row = engine.message("q", message_id)
    assert (row.headers, row.tenant, row.dedup_key, row.priority) == ({"h": 1}, "acme", "k", 0)
    assert row.expires_at == row.published_at + timedelta(hours=1)
    assert (row.delivery_attempts, row.last_error) == (1, "first")
    (error,) = row.errors
    assert (error["attempt"], error["error"]) == (1, "first")
    assert error["at"]


@pytest.mark.parametrize("message_id", [999999, 0, -1, 2**63 - 1, None])
def test_get_message_of_an_unknown_id_gives_no_row(house: Engine, message_id: int | None) -> None:
    assert house.rows("get_message", "billing", message_id) == []


def waits(engine: Engine, **options: Any) -> int:
    """A message that waits for the tenant permit that another message holds."""
    engine.queue("q", tenant_max_active=1)
    engine.send("q", tenant="acme")
    let_in(engine)
    return engine.send("q", tenant="acme", **options)


def test_get_message_of_one_that_waits(engine: Engine) -> None:
    message_id = waits(engine)
    row = engine.message("q", message_id)
    assert (row.message_id, row.queue_name, row.state, row.payload) == (message_id, "q", "waiting", 1)
    assert known(row) == ALWAYS | {"tenant"}
    engine.queue("other")
    assert engine.rows("get_message", "other", message_id) == []


def test_get_message_shows_everything_of_one_that_waits(engine: Engine) -> None:
    options = {"headers": {"h": 1}, "dedup_key": "k", "ttl_seconds": 3600, "priority": 0}
    message_id = waits(engine, payload="x" * 5000, **options)
    row = engine.message("q", message_id)
    assert (row.headers, row.tenant, row.dedup_key, row.priority) == ({"h": 1}, "acme", "k", 0)
    assert (row.state, row.payload, row.delivery_attempts) == ("waiting", "x" * 5000, 0)
    assert row.expires_at == row.published_at + timedelta(hours=1)


def test_get_message_leaves_out_a_long_payload(engine: Engine) -> None:
    engine.queue("q")
    # This one is compressed, so its bytes as text are more than those that are stored.
    text = "x" * 5000
    message_id = engine.send("q", text)
    for most, payload in [(5002, text), (5001, None)]:
        row = engine.row("get_message", "q", message_id, most)
        assert (row.payload, row.payload_bytes, row.body, row.state) == (payload, 5002, None, "ready")
    row = engine.row("get_message", "q", message_id, 1)
    assert row.payload is None
    assert 1 < row.payload_bytes < 1000
    row = engine.row("get_message", "q", message_id)
    assert (row.payload, row.payload_bytes) == (text, None)
    # Small numbers are stored in more bytes than they have as text.
    numbers = [1] * 20
    message_id = engine.send("q", numbers)
    row = engine.row("get_message", "q", message_id, 100)
    assert row.payload is None
    assert row.payload_bytes > 100
    assert engine.row("get_message", "q", message_id, row.payload_bytes).payload == numbers


@pytest.mark.parametrize("size", [10, 5000])
def test_get_message_cuts_a_long_body(engine: Engine, size: int) -> None:
    engine.queue("q")
    message_id = engine.send_body("q", b"x" * size)
    for most, length in [(1, 1), (size - 1, size - 1), (size, size), (size + 1, size), (0, 0)]:
        row = engine.row("get_message", "q", message_id, most)
        assert (row.body, row.payload_bytes, row.payload) == (b"x" * length, size, None)


def test_get_message_of_a_negative_number_of_bytes(engine: Engine) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    with engine.refused("PN004", "most_payload_bytes", "-1"):
        engine.row("get_message", "q", message_id, -1)


def test_a_message_of_another_queue_is_unknown(house: Engine) -> None:
    assert house.rows("get_message", "mail", READY) == []


@pytest.mark.parametrize(
    ("state", "message_id", "also"),
    [
        ("ready", READY, {"tenant"}),
        ("scheduled", SCHEDULED, {"due_at"}),
        ("active", ACTIVE, {"vt", "consumer"}),
        ("dead", DEAD, {"reason", "moved_at"}),
        ("done", DONE, {"completed_at", "consumer"}),
    ],
)
def test_list_messages_of_one_state(house: Engine, state: str, message_id: int, also: set[str]) -> None:
    (row,) = house.rows("list_messages", "billing", state)
    assert (row.message_id, row.state) == (message_id, state)
    common = {"message_id", "state", "priority", "delivery_attempts", "published_at", "cursor"}
    assert known(row) == common | also


def test_list_messages_that_wait(engine: Engine) -> None:
    message_id = waits(engine, priority=1)
    (row,) = engine.rows("list_messages", "q", "waiting")
    assert (row.message_id, row.state, row.priority, row.tenant) == (message_id, "waiting", 1, "acme")
    common = {"message_id", "state", "priority", "delivery_attempts", "published_at", "cursor"}
    assert known(row) == common | {"tenant"}
    engine.queue("other", tenant_max_active=1)
    assert engine.rows("list_messages", "other", "waiting") == []


def test_states_are_listed_in_a_fixed_order(engine: Engine) -> None:
    populate(engine)
    states = [row.state for row in engine.rows("list_messages", "q", page_size=1000)]
    order = ["active", "ready", "waiting", "scheduled", "dead", "done"]
    assert states == sorted(states, key=order.index)
    assert set(states) == set(order)


def test_list_messages_of_all_states(house: Engine) -> None:
    assert house.states("billing") == ALL
    assert house.rows("list_messages", "session") == []


def test_ready_messages_are_listed_in_the_order_of_delivery(engine: Engine) -> None:
    engine.queue("q")
    engine.send_many("q", list(range(12)), priorities=[3, 0, 2, 1] * 3, tenants=list("aaabbbaaaccc"))
    engine.nack(engine.take("q"))
    listed = [row.message_id for row in engine.rows("list_messages", "q", "ready")]
    assert [m.message_id for m in engine.take_many("q", 20)] == listed


def populate(engine: Engine) -> set[tuple[str, int]]:
    """Several messages in each state, over all priorities and tenants."""
    engine.queue("q")
    ids = engine.send_many("q", list(range(40)), priorities=[0, 1, 2, 3] * 10, tenants=list("abacd") * 8)
    for n, message in enumerate(engine.take_many("q", 24)):
        if n % 3 == 0:
            engine.ack(message)
        elif n % 3 == 1:
            engine.reject(message)
    ids += engine.send_many("q", list(range(8)), deliver_after="2999-01-01")
    # Of each tenant some have to wait from now on.
    engine.value("alter_queue", "q", tenant_max_active=4)
    let_in(engine)
    states = engine.query(
        "select 'ready', id from penstock.ready union all select 'scheduled', id from penstock.scheduled"
        " union all select 'active', id from penstock.active union all select 'dead', id from penstock.dead"
        " union all select 'done', id from penstock.done union all select 'waiting', id from penstock.waiting"
    )
    assert sorted(message_id for _, message_id in states) == ids
    return set(states)


@pytest.mark.parametrize("page_size", [1, 3, 5, 8, 47, 48, 49])
def test_pages_have_no_gap_and_no_repeat(engine: Engine, page_size: int) -> None:
    expected = populate(engine)
    seen: list[tuple[str, int]] = []
    after = None
    while rows := engine.rows("list_messages", "q", page_size=page_size, after=after):
        assert len(rows) == min(page_size, len(expected) - len(seen))
        seen += [(row.state, row.message_id) for row in rows]
        after = rows[-1].cursor
    assert len(seen) == len(expected)
    assert set(seen) == expected


@pytest.mark.parametrize("state", ["active", "ready", "waiting", "scheduled", "dead", "done"])
def test_pages_of_one_state_have_no_gap_and_no_repeat(engine: Engine, state: str) -> None:
    expected = {message_id for s, message_id in populate(engine) if s == state}
    seen: list[int] = []
    after = None
    while rows := engine.rows("list_messages", "q", state, page_size=3, after=after):
        seen += [row.message_id for row in rows]
        after = rows[-1].cursor
    assert len(seen) == len(expected)
    assert set(seen) == expected


def test_pages_go_on_where_rows_went_away(engine: Engine) -> None:
    engine.queue("q")
    ids = engine.send_many("q", list(range(10)))
    page = engine.rows("list_messages", "q", "ready", page_size=4)
    for message in engine.take_many("q", 6):
        engine.ack(message)
    engine.value("raise_floor", "q")
    rest = engine.rows("list_messages", "q", "ready", after=page[-1].cursor)
    assert [row.message_id for row in rest] == ids[6:]


def test_pages_of_what_waits_go_on_where_rows_went_away(engine: Engine) -> None:
    engine.queue("q", tenant_max_active=1)
    ids = engine.send_many("q", list(range(10)), tenant="acme")
    let_in(engine)
    page = engine.rows("list_messages", "q", "waiting", page_size=4)
    assert [row.message_id for row in page] == ids[1:5]
    for _ in range(6):
        engine.ack(engine.take("q"))
    engine.value("raise_floor", "q")
    rest = engine.rows("list_messages", "q", "waiting", after=page[-1].cursor)
    assert [row.message_id for row in rest] == ids[7:]
    assert [row.message_id for row in engine.rows("list_messages", "q", "waiting")] == ids[7:]


def test_a_page_has_a_hundred_rows_where_nothing_is_said(engine: Engine) -> None:
    engine.queue("q")
    engine.send_many("q", list(range(101)))
    assert len(engine.rows("list_messages", "q")) == 100


def test_statistics_count_each_state(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    assert vars(engine.statistics("q")) == {
        "queue_name": "q",
        "pending_count": 0,
        "processing_count": 0,
        "completed_count": 0,
        "total_count": 0,
        "delayed_count": 0,
        "dead_count": 0,
        "oldest_pending_seconds": None,
        "waiting_count": 0,
        "priority": None,
        "tenant": None,
        "is_estimate": False,
    }
    engine.send_many("q", list(range(10)), priorities=[0, 1, 2, 3, 2] * 2)
    engine.send_many("q", [1, 2], deliver_after=engine.now() + timedelta(hours=1))
    for n, message in enumerate(engine.take_many("q", 6)):
        if n < 2:
            engine.ack(message)
        elif n < 3:
            engine.reject(message)
    clock.advance(100)
    row = engine.statistics("q")
    assert (row.pending_count, row.delayed_count, row.processing_count) == (6, 2, 3)
    assert (row.completed_count, row.dead_count, row.total_count) == (2, 1, 11)
    assert 100 <= row.oldest_pending_seconds < 160


@pytest.mark.parametrize("state", ["ready", "scheduled", "active", "dead", "done"])
def test_statistics_see_the_same_after_maintain(engine: Engine, clock: Clock, state: str) -> None:
    engine.queue("q")
    due = engine.now() + timedelta(days=1) if state == "scheduled" else None
    engine.send("q", deliver_after=due)
    if state in ("active", "dead", "done"):
        message = engine.take("q", vt_seconds=86400)
        if state != "active":
            engine.reject(message) if state == "dead" else engine.ack(message)
    before = vars(engine.statistics("q")) | {"oldest_pending_seconds": None}
    for _ in range(3):
        clock.advance(100)
        engine.maintain()
        assert vars(engine.statistics("q")) | {"oldest_pending_seconds": None} == before


def test_a_lease_that_ran_out_counts_as_processing_until_it_is_taken_back(
    engine: Engine, clock: Clock
) -> None:
    engine.queue("q")
    engine.send("q")
    engine.take("q", vt_seconds=5)
    clock.advance(10)
    assert engine.statistics("q").processing_count == 1
    engine.maintain()
    row = engine.statistics("q")
    assert (row.processing_count, row.pending_count) == (0, 1)


def test_statistics_of_all_queues_have_a_row_for_each(engine: Engine) -> None:
    for queue in ("b", "a"):
        engine.queue(queue)
    engine.send("b")
    rows = engine.rows("get_queue_statistics")
    assert [(row.queue_name, row.pending_count) for row in rows] == [("a", 0), ("b", 1)]


def test_no_queues_no_statistics(engine: Engine) -> None:
    assert engine.rows("get_queue_statistics") == []


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("list_topics", []),
        ("list_queues", []),
        ("get_queue_statistics", []),
        ("get_queue_statistics", ["billing"]),
        ("list_messages", ["billing"]),
        ("list_dlq_messages", []),
        ("get_message", ["billing", READY]),
        ("explain_delivery", ["billing", READY]),
    ],
)
def test_looking_works_in_a_read_only_transaction(
    engine: Engine, sql: psycopg.Connection[Any], function: str, arguments: list[Any]
) -> None:
    engine.topic("orders", "billing")
    engine.send("billing")
    with engine.unchanged(), sql.transaction():
        sql.execute("set transaction read only")
        assert engine.rows(function, *arguments) is not None


@pytest.mark.parametrize(
    "bad",
    [
        expect("PN001", '"nope"').of("get_message", "nope", READY),
        expect("PN001", "queue").of("get_message", None, READY),
        expect("PN001", '"nope"').of("explain_delivery", "nope", READY),
        expect("PN001", "queue").of("explain_delivery", None, READY),
        expect("PN001", '"nope"').of("list_messages", "nope"),
        expect("PN001", "queue").of("list_messages", None),
        expect("PN001", '"nope"').of("get_queue_statistics", "nope"),
        expect("PN001", '""').of("get_queue_statistics", ""),
        *(
            expect("PN004", "state", f'"{state}"', "active, ready, waiting, scheduled, dead, done").of(
                "list_messages", "billing", state
            )
            for state in ("pending", "", "READY")
        ),
        *(
            expect("PN004", "page_size", shown).of("list_messages", "billing", page_size=value)
            for value, shown in ((0, "0"), (-1, "-1"), (None, "null"), (2147483647, "2147483647"))
        ),
        *(
            expect("PN004", "after", cursor).of("list_messages", "billing", after=cursor)
            for cursor in (
                "junk",
                "",
                "5",
                "active",
                "active x",
                "active 99999999999999999999",
                "ready",
                "ready 2",
                "ready 2 5",
                "ready x y z",
                "dead 1; drop",
                "waiting",
                "waiting x",
                "waiting 1 2",
            )
        ),
    ],
)
def test_bad_input(house: Engine, bad: Bad) -> None:
    bad.check(house)
