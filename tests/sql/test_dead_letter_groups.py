"""Dead letters by the kind of their error: error_key, list_dlq_groups, the filter of other functions."""

from __future__ import annotations

import psycopg
import pytest

from .conftest import Clock
from .engine import Engine

TRACEBACK = """Traceback (most recent call last):
  File "tasks.py", line 3, in load
    raise KeyError(name)
KeyError: 'customer 17'
"""
CHAINED = """Traceback (most recent call last):
  File "a.py", line 1, in f
OSError: [Errno 2] no such file

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in g
app.errors.ImportFailed: row 12 of 'orders.csv'
  in column 3
the rest of the message
"""


def die(engine: Engine, queue: str, error: str | None = None) -> int:
    message_id = engine.send(queue)
    engine.reject(engine.take(queue), error=error)
    return message_id


@pytest.mark.parametrize(
    ("error", "key"),
    [
        ("ValueError: bad id 42", "ValueError: bad id <n>"),
        ("timeout after 1.5 s at 10:30:00 on 2024-05-06", "timeout after <n> s at <n> on <n>-<n>-<n>"),
        ("no user 550e8400-e29b-41d4-a716-446655440000!", "no user <uuid>!"),
        ("object at 0x7F3a, commit deadbeef01, a facade", "object at <hex>, commit <hex>, a facade"),
        ("duplicate key \"users_mail\" of 'Ann'", "duplicate key <text> of <text>"),
        ("can't reach 10.0.0.1:5432, won't retry", "can't reach <n>, won't retry"),
        ("  \n\tfirst \t line\nsecond 1", "first line"),
        ("ValueError: x\n" + TRACEBACK, "ValueError: x"),
        (TRACEBACK, "KeyError: <text>"),
        (CHAINED, "app.errors.ImportFailed: row <n> of <text>"),
        ("Traceback (most recent call last):\n  cut off", "Traceback (most recent call last):"),
        ("", "(failed)"),
        (None, "(failed)"),
        ("größer als 3 €", "größer als <n> €"),
        ("x" * 5000, "x" * 200),
    ],
)
def test_the_key_of_an_error(engine: Engine, error: str | None, key: str) -> None:
    engine.queue("q")
    message_id = die(engine, "q", error)
    assert engine.message("q", message_id).error_key == key
    assert [row.error_key for row in engine.rows("list_dlq_messages", "q")] == [key]
    assert [row.error_key for row in engine.rows("list_dlq_groups", "q")] == [key]


def test_a_long_traceback_that_was_cut(engine: Engine) -> None:
    engine.queue("q")
    frames = "".join(f'  File "a.py", line {n}, in f\n    call()\n' for n in range(5000))
    message_id = die(engine, "q", f"Traceback (most recent call last):\n{frames}RecursionError: 1 too deep\n")
    assert engine.message("q", message_id).error_key == "RecursionError: <n> too deep"


def test_every_way_to_die_has_a_key(engine: Engine, clock: Clock) -> None:
    engine.queue("q", max_delivery_attempts=1)
    rejected = die(engine, "q", "rejected 1")
    nacked = engine.send("q")
    engine.nack(engine.take("q"), error="nacked 1")
    lost = engine.send("q")
    engine.take("q", vt_seconds=1)
    clock.advance(2)
    engine.maintain_all()
    expired = engine.send("q", ttl_seconds=1)
    clock.advance(2)
    engine.maintain_all()
    keys = {row.message_id: row.error_key for row in engine.rows("list_dlq_messages", "q")}
    assert keys == {
        rejected: "rejected <n>",
        nacked: "nacked <n>",
        lost: "the lease ran out",
        expired: "(expired)",
    }


def test_a_key_belongs_to_the_last_death(engine: Engine) -> None:
    engine.queue("q")
    message_id = die(engine, "q", "first")
    engine.value("requeue_dlq_messages", "q")
    engine.reject(engine.take("q"), error="second")
    assert [row.error_key for row in engine.rows("list_dlq_groups", "q")] == ["second"]
    assert engine.message("q", message_id).error_key == "second"


def test_strings_with_backslashes_do_not_change_the_key(engine: Engine) -> None:
    engine.queue("q")
    engine.connection.execute("set standard_conforming_strings = off")
    message_id = die(engine, "q", TRACEBACK)
    assert engine.message("q", message_id).error_key == "KeyError: <text>"


def test_groups_with_their_counts_times_and_samples(engine: Engine, clock: Clock) -> None:
    engine.queue("b")
    engine.queue("a")
    ids = []
    for n in range(7):
        ids.append(die(engine, "b", f"error {n}"))
        clock.advance(1)
    other = die(engine, "b", "another")
    single = die(engine, "a", "error 1")
    groups = engine.rows("list_dlq_groups")
    assert [(row.queue_name, row.error_key, row.dead_count) for row in groups] == [
        ("b", "error <n>", 7),
        ("b", "another", 1),
        ("a", "error <n>", 1),
    ]
    assert not any(row.is_estimate for row in groups)
    assert [row.sample_ids for row in groups] == [ids[:1:-1], [other], [single]]
    moved = {row.message_id: row.moved_at for row in engine.rows("list_dlq_messages", "b")}
    assert (groups[0].first_at, groups[0].last_at) == (moved[ids[0]], moved[ids[-1]])


def test_pages_of_groups(engine: Engine) -> None:
    engine.queue("a")
    engine.queue("b")
    for queue in ("a", "b"):
        for error in ("x:y", "ä", "z"):
            die(engine, queue, error)
    found, after = [], None
    for _ in range(10):
        page = engine.rows("list_dlq_groups", page_size=2, after=after)
        if not page:
            break
        found += [(row.queue_name, row.error_key) for row in page]
        after = page[-1].cursor
    assert found == [(queue, error) for queue in ("a", "b") for error in ("ä", "z", "x:y")]
    with pytest.raises(psycopg.errors.Error, match="after must be the cursor"):
        engine.rows("list_dlq_groups", after="x")


def test_a_large_group_is_estimated(engine: Engine) -> None:
    """Exact while the table is small, an estimate when it is not."""
    # The tests share a database. Blocks that a test before left empty would be sampled, too.
    engine.connection.execute("truncate penstock.dead")
    engine.queue("q")
    insert = """
        insert into penstock.dead (queue_id, sweep_queue_id, id, priority, attempts, large, reason, moved_at,
            published_at, tenant, payload, error_key)
        select q.id, q.id, nextval('penstock.message_ids'), 2, 1, false, 'failed', now(), now(), '',
            to_jsonb(repeat(md5(n::text), %s)), case when n %% 5 = 0 then 'rare' else 'common' end
        from penstock.queues q, generate_series(1, %s) n returning 1
    """
    engine.query(insert, 1, 4000)
    counts = {row.error_key: (row.dead_count, row.is_estimate) for row in engine.rows("list_dlq_groups")}
    assert counts == {"rare": (800, False), "common": (3200, False)}
    engine.query(insert, 30, 20000)
    rows = {row.error_key: row for row in engine.rows("list_dlq_groups")}
    assert rows["common"].is_estimate
    assert 19200 * 0.7 < rows["common"].dead_count < 19200 * 1.3


def test_letters_of_a_group_the_newest_first(engine: Engine, clock: Clock) -> None:
    engine.queue("a")
    engine.queue("b")
    ids = []
    for n in range(5):
        ids.append(die(engine, "ab"[n % 2], f"error {n}"))
        die(engine, "a", "another")
        clock.advance(1)
    found, after = [], None
    for _ in range(5):
        page = engine.rows("list_dlq_messages", page_size=2, after=after, error_key="error <n>")
        if not page:
            break
        found += [row.message_id for row in page]
        after = page[-1].cursor
    assert found == ids[::-1]
    assert [row.message_id for row in engine.rows("list_dlq_messages", "b", error_key="error <n>")] == ids[
        3::-2
    ]
    assert engine.rows("list_dlq_messages", "b", error_key="another") == []


def test_requeue_a_group(engine: Engine) -> None:
    engine.queue("q")
    ids = [die(engine, "q", f"error {n}") for n in range(3)]
    other = die(engine, "q", "another")
    assert engine.value("requeue_dlq_messages", "q", error_key="none") == 0
    assert engine.value("requeue_dlq_messages", "q", [ids[0], other], "error <n>") == 1
    assert engine.value("requeue_dlq_messages", "q", error_key="error <n>") == 2
    assert engine.states("q") == {**dict.fromkeys(ids, "ready"), other: "dead"}


def test_purge_a_group_of_a_queue_or_of_all(engine: Engine) -> None:
    for queue in ("a", "b", "c"):
        engine.queue(queue)
        die(engine, queue, "error 1")
        die(engine, queue, "another")
    assert engine.value("purge_dlq", "a", "error <n>") == 1
    assert engine.value("purge_dlq", error_key="error <n>") == 2
    assert {row.error_key for row in engine.rows("list_dlq_groups")} == {"another"}
    assert engine.count("dead") == 3


def test_delete_letters_by_their_ids(engine: Engine) -> None:
    engine.queue("q")
    large = engine.send("q", "x" * 5000)
    engine.reject(engine.take("q"))
    ids = [large, *(die(engine, "q") for _ in range(3))]
    ready = engine.send("q")
    assert engine.value("delete_dlq_messages", "q", [ids[0], ids[2], ids[2], ready, 999, None]) == 2
    assert engine.value("delete_dlq_messages", "q", []) == 0
    assert engine.states("q") == {ids[1]: "dead", ids[3]: "dead", ready: "ready"}
    assert engine.count("payload_references") == 0
