"""Tasks: queues that are declared, acks of one worker, limits of a judgement, notifications."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from .bad_input import Bad, expect
from .conftest import Clock
from .engine import Engine, Row

Sql = psycopg.Connection[Any]

WORKER = "w"


def heard(sql: Sql) -> list[tuple[str, str]]:
    """What was notified on this connection: channel and payload."""
    sql.execute("select 1")
    return [(n.channel, n.payload) for n in sql.notifies(timeout=0)]


# Queues


def test_a_declared_queue_has_no_limit_of_attempts(engine: Engine) -> None:
    queue_id = engine.value("declare_queue", "q")
    settings = engine.settings("q")
    assert settings.id == queue_id
    assert (settings.max_delivery_attempts, settings.max_active) == (0, None)
    assert settings.retain_completed_seconds == 86400


def test_a_declared_queue_has_what_was_asked_for(engine: Engine) -> None:
    engine.value("declare_queue", "q", 7, 0)
    settings = engine.settings("q")
    assert (settings.max_active, settings.retain_completed_seconds) == (7, 0)


def test_to_declare_again_writes_nothing(engine: Engine) -> None:
    queue_id = engine.value("declare_queue", "q", 7, 100)
    version = engine.query("select xmin::text, ctid::text from penstock.queues")
    for arguments in ([], [7], [None, 100], [7, 99], [7, 0]):
        assert engine.value("declare_queue", "q", *arguments) == queue_id
    assert engine.query("select xmin::text, ctid::text from penstock.queues") == version


def test_to_declare_changes_the_cap_and_keeps_results_for_longer(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=5, retry_delays=[3], retain_completed_seconds=60, notify=False)
    before = vars(engine.settings("q"))
    engine.value("declare_queue", "q")
    assert vars(engine.settings("q")) == before
    engine.value("declare_queue", "q", 3, 120)
    assert vars(engine.settings("q")) == before | {"max_active": 3, "retain_completed_seconds": 120}
    engine.value("declare_queue", "q", 2, 60)
    assert vars(engine.settings("q")) == before | {"max_active": 2, "retain_completed_seconds": 120}
    engine.value("declare_queue", "q", 0)
    assert engine.settings("q").max_active is None


def test_priorities_share_the_permits_of_a_declared_queue(engine: Engine) -> None:
    """All of them, not the fifth that max_active would give to priority 2 by default."""
    engine.value("declare_queue", "q", 10)
    engine.send_many("q", list(range(12)))
    urgent = engine.send("q", priority=0)
    first, second = engine.take_many("q", 10), engine.take_many("q", 10)
    assert (len(first), len(second)) == (5, 5)
    assert first[0].message_id == urgent
    assert engine.nothing_to_take("q")
    assert "all 10 permits are taken" in engine.explain("q", engine.send("q"))
    engine.ack(first[0])
    assert engine.take("q").priority == 2


@pytest.mark.parametrize("max_active", [1, 2, 3, 4, 5, 25])
def test_a_cap_of_a_declared_queue_is_exact(engine: Engine, max_active: int) -> None:
    engine.value("declare_queue", "q", max_active)
    engine.send_many("q", list(range(30)), priorities=[i % 4 for i in range(30)])
    taken: list[Row] = []
    while batch := engine.take_many("q", 30):
        taken += batch
    assert len(taken) == max_active


def test_shares_and_a_shared_pool_follow_each_other(engine: Engine) -> None:
    engine.queue("q", max_active=10)
    engine.send_many("q", list(range(20)))
    assert len(engine.take_many("q", 10)) < 5
    engine.value("alter_queue", "q", priority_shares=[0, 0, 0, 0])
    taken = 0
    while batch := engine.take_many("q", 10):
        taken += len(batch)
    assert engine.statistics("q").processing_count == 10
    engine.value("alter_queue", "q", priority_shares=[40, 30, 20, 10])
    assert engine.nothing_to_take("q")


def test_a_queue_that_ended_is_declared_anew(engine: Engine, clock: Clock) -> None:
    engine.queue("q", exclusive=True, keep_alive_seconds=60)
    first = engine.value("declare_queue", "q")
    assert engine.settings("q").exclusive
    clock.advance(61)
    assert engine.value("declare_queue", "q") != first
    assert not engine.settings("q").exclusive


# How an attempt ends


def test_a_nack_may_say_which_attempt_is_the_last(engine: Engine) -> None:
    engine.value("declare_queue", "q")
    message_id = engine.send("q")
    assert engine.nack(engine.take("q"), max_attempts=2)
    assert engine.state("q", message_id) == "ready"
    assert engine.nack(engine.take("q"), max_attempts=2, error="e")
    letter = engine.message("q", message_id)
    assert (letter.reason, letter.last_error) == ("no_attempts_left", "e")


@pytest.mark.parametrize(("max_attempts", "state"), [(None, "dead"), (1, "dead"), (2, "ready")])
def test_it_counts_more_than_what_the_queue_says(
    engine: Engine, max_attempts: int | None, state: str
) -> None:
    engine.queue("q", max_delivery_attempts=1)
    message_id = engine.send("q")
    engine.nack(engine.take("q"), max_attempts=max_attempts)
    assert engine.state("q", message_id) == state


def test_a_limit_of_the_message_counts_more(engine: Engine) -> None:
    engine.value("declare_queue", "q")
    message_id = engine.send("q")
    engine.nack(engine.take("q"), max_attempts=1)
    assert engine.value("add_retries", "q", 2) == 1
    for attempt, state in ((2, "ready"), (3, "dead")):
        message = engine.take("q")
        assert (message.delivery_attempts, message.attempts_limit) == (attempt, 3)
        engine.nack(message, max_attempts=100 if attempt == 3 else 1)
        assert engine.state("q", message_id) == state


def test_a_message_without_a_limit_shows_none(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=3)
    engine.send("q")
    assert engine.take("q").attempts_limit is None


def test_release_with_a_delay_counts_no_attempt(engine: Engine, clock: Clock) -> None:
    engine.queue("q", max_delivery_attempts=1)
    message_id = engine.send("q", tenant="acme", headers={"h": 1}, dedup_key="k")
    for _ in range(3):
        message = engine.take("q")
        assert message.delivery_attempts == 1
        assert engine.release(message, delay_seconds=10)
        assert engine.state("q", message_id) == "scheduled"
        assert engine.nothing_to_take("q")
        assert engine.send("q", dedup_key="k") == message_id
        clock.advance(11)
    message = engine.take("q")
    assert (message.message_id, message.tenant, message.headers) == (message_id, "acme", {"h": 1})


def test_release_with_a_delay_gives_its_permits_back(engine: Engine) -> None:
    engine.queue("q", max_active=1, tenant_max_active=1)
    first, second = engine.send_many("q", [1, 2], tenant="acme")
    message = engine.take("q")
    assert (message.message_id, engine.nothing_to_take("q")) == (first, True)
    assert engine.release(message, delay_seconds=10)
    assert engine.take("q").message_id == second


def test_release_with_a_delay_wakes_no_session(engine: Engine, sql: Sql) -> None:
    engine.queue("q")
    engine.send("q")
    message = engine.take("q")
    sql.execute('listen "queue:q"')
    engine.release(message, delay_seconds=1)
    assert heard(sql) == []


def test_a_stale_token_releases_nothing(engine: Engine) -> None:
    engine.queue("q")
    message_id = engine.send("q")
    engine.take("q", "holder")
    with engine.unchanged():
        assert not engine.value("release_message", "q", message_id, "other", 5)


# Acks of one worker


def take_all(engine: Engine, n: int, token: str = WORKER) -> list[int]:
    engine.send_many("q", list(range(n)))
    return [message.message_id for message in engine.take_many("q", n, token)]


def test_acked_tasks_are_done_with_their_results(engine: Engine) -> None:
    engine.value("declare_queue", "q")
    ids = take_all(engine, 3)
    acked = engine.values("ack_tasks", "q", ids, "w", [{"r": 1}, None, {"r": 3}])
    assert sorted(acked) == ids
    assert [engine.message("q", i).result for i in ids] == [{"r": 1}, None, {"r": 3}]
    with engine.unchanged():
        assert engine.values("ack_tasks", "q", ids, "w") == []


def test_what_the_token_does_not_hold_is_left_alone(engine: Engine, sql: Sql) -> None:
    engine.value("declare_queue", "q")
    engine.value("declare_queue", "then")
    group = engine.value("create_group", 3, "then", {}, None)
    mine, other = take_all(engine, 1, "w"), take_all(engine, 1, "v")
    sql.execute('listen "done:q"')
    groups = [group] * 3
    acked = engine.values("ack_tasks", "q", [*other, *mine, 999], "w", None, groups, [0, 1, 2])
    assert acked == mine
    assert engine.query("select position, message_id from penstock.group_results") == [(1, mine[0])]
    assert heard(sql) == [("done:q", str(mine[0]))]
    assert engine.state("q", other[0]) == "active"


def test_nothing_is_notified_where_nothing_changed(engine: Engine, sql: Sql) -> None:
    engine.value("declare_queue", "q")
    sql.execute('listen "done:q"')
    for ids in ([], [1, 2]):
        assert engine.values("ack_tasks", "q", ids, "w") == []
    assert engine.values("ack_tasks", "q", take_all(engine, 1), None) == []
    engine.value("announce_done", "q", [])
    assert heard(sql) == []


@pytest.mark.parametrize("n", [1, 390, 391, 2000])
def test_word_of_many_comes_in_parts(engine: Engine, sql: Sql, n: int) -> None:
    """A notification takes less than 8000 bytes; ids may have 18 digits."""
    sql.execute("select setval('penstock.message_ids', %s)", (10**17,))
    engine.value("declare_queue", "q")
    ids = take_all(engine, n)
    sql.execute('listen "done:q"')
    assert len(engine.values("ack_tasks", "q", ids, "w")) == n
    told = [int(part) for _, payload in heard(sql) for part in payload.split(",")]
    assert sorted(told) == ids
    engine.value("announce_done", "q", ids)
    assert [int(part) for _, payload in heard(sql) for part in payload.split(",")] == ids


def test_word_comes_with_the_commit(engine: Engine, sql: Sql) -> None:
    engine.value("declare_queue", "q")
    ids = take_all(engine, 1)
    sql.execute('listen "done:q"')
    with sql.transaction(force_rollback=True):
        engine.values("ack_tasks", "q", ids, "w")
    assert heard(sql) == []
    assert engine.state("q", ids[0]) == "active"


@pytest.mark.parametrize("length", [58, 59, 255])
def test_the_channel_of_a_long_name(engine: Engine, sql: Sql, length: int) -> None:
    name = "n" * length
    engine.value("declare_queue", name)
    channel = engine.value("done_channel", name)
    assert (channel == f"done:{name}") is (length == 58)
    assert channel != engine.value("channel", name)
    sql.execute(f'listen "{channel}"'.encode())
    engine.value("announce_done", name, [5, 6])
    assert heard(sql) == [(channel, "5,6")]


NULL_IDS: Any = None


@pytest.mark.parametrize(
    "bad",
    [
        expect("PN001", "nope").of("ack_tasks", "nope", [1], "w"),
        expect("PN001", "nope").of("announce_done", "nope", [1]),
        expect("PN004", "null ids").of("ack_tasks", "billing", NULL_IDS, "w"),
        expect("PN004", "2 results").of("ack_tasks", "billing", [1], "w", [{}, {}]),
        expect("PN004", "1 groups", "no positions").of("ack_tasks", "billing", [1], "w", None, [1]),
        expect("PN004", "no groups", "1 positions").of("ack_tasks", "billing", [1], "w", None, None, [1]),
        expect("PN004", "2 groups").of("ack_tasks", "billing", [1], "w", None, [1, 2], [1]),
        expect("PN004", "2 positions").of("ack_tasks", "billing", [1], "w", None, [1], [1, 2]),
        expect("PN004", "message_ids", "null").of("announce_done", "billing", NULL_IDS),
        expect("PN004", "message_ids", "100001").of("announce_done", "billing", [1] * 100001),
        expect("PN004", "max_attempts", "0").of("nack_message", "billing", 1, "w", max_attempts=0),
        expect("PN004", "max_attempts", "1000001").of("nack_message", "billing", 1, "w", None, None, 1000001),
        expect("PN004", "delay_seconds", "-1").of("release_message", "billing", 1, "w", -1),
        expect("PN004", "delay_seconds", "31536001").of("release_message", "billing", 1, "w", 31536001),
        expect("PN004", "delay_seconds", "null").of("release_message", "billing", 1, "w", None),
        expect("PN004", "queue_name", "null").of("declare_queue", None),
        expect("PN004", "queue_name", "0").of("declare_queue", ""),
        expect("PN004", "max_active", "-1").of("declare_queue", "billing", -1),
        expect("PN004", "max_active", "100001").of("declare_queue", "new", 100001),
        expect("PN004", "retain_completed_seconds", "-1").of("declare_queue", "billing", None, -1),
        expect("PN004", "retain_completed_seconds", "-1").of("declare_queue", "new", None, -1),
    ],
)
def test_bad_input_is_refused(house: Engine, bad: Bad) -> None:
    bad.check(house)
