"""The audit: rows in the transaction of their action, lists by key, and their end."""

from __future__ import annotations

import psycopg
import pytest

from .conftest import Clock
from .engine import Engine


def test_an_entry(engine: Engine) -> None:
    engine.connection.execute("set role penstock_admin")
    entry = engine.value("record_action", "purge", "q", {"purged": 3}, who="ann@example.org")
    (row,) = engine.rows("list_actions")
    assert (row.id, row.who, row.role_name) == (entry, "ann@example.org", "penstock_admin")
    assert (row.action, row.queue_name, row.details, row.outcome) == ("purge", "q", {"purged": 3}, "done")
    assert abs((row.at - engine.now()).total_seconds()) < 60


def test_it_ends_with_its_transaction(engine: Engine) -> None:
    engine.queue("q")
    with engine.unchanged(), engine.connection.transaction(force_rollback=True):
        engine.value("pause_queue", "q")
        engine.value("record_action", "pause", "q")
    assert engine.rows("list_actions") == []


def test_pages(engine: Engine) -> None:
    ids = [engine.value("record_action", f"a{n}", "x" if n % 2 else "y") for n in range(6)]
    assert [row.id for row in engine.rows("list_actions")] == ids[::-1]
    assert [row.id for row in engine.rows("list_actions", page_size=2, before_id=ids[4])] == [ids[3], ids[2]]
    assert [row.id for row in engine.rows("list_actions", "x", page_size=2)] == [ids[5], ids[3]]
    assert [row.id for row in engine.rows("list_actions", "x", before_id=ids[3])] == [ids[1]]


def test_rows_are_kept_for_90_days(engine: Engine, clock: Clock) -> None:
    engine.value("record_action", "old")
    clock.advance(50 * 86400)
    engine.value("record_action", "new")
    clock.advance(39 * 86400)
    engine.maintain_all()
    assert len(engine.rows("list_actions")) == 2
    clock.advance(2 * 86400)
    assert engine.maintain_all()["actions removed"] == 1
    assert [row.action for row in engine.rows("list_actions")] == ["new"]


def test_rights_are_looked_up_once_for_a_queue(engine: Engine) -> None:
    """There may be millions of rows that the caller may not view before a page is full."""
    for name in ("open", "shut"):
        engine.queue(name)
    engine.value("grant_queue", "penstock_publisher", "shut", "view")
    for queue in ("open", "shut", "deleted", None):
        engine.value("record_action", "a", queue)
    engine.connection.execute(
        """insert into penstock.audit (at, role_name, action, queue_name, outcome)
        select now(), 'r', 'a', 'shut', 'done' from generate_series(1, 500)"""
    )
    calls = "select coalesce(sum(calls), 0) from pg_stat_xact_user_functions where funcname = '_may'"
    with engine.connection.transaction(force_rollback=True):
        engine.query("select set_config('track_functions', 'all', true)")
        engine.connection.execute("set local role penstock_viewer")
        assert [row.queue_name for row in engine.rows("list_actions")] == [None, "deleted", "open"]
        assert engine.query(calls) == [(1,)]


def test_refused(engine: Engine) -> None:
    for arguments in ((None,), ("",), ("x" * 256,), ("a", ""), ("a", "q", {"a": "x" * 100_001})):
        with pytest.raises(psycopg.errors.Error, match="must have"):
            engine.value("record_action", *arguments)
    assert engine.rows("list_actions") == []


def test_a_long_outcome_is_cut(engine: Engine) -> None:
    """An action that fails must be recorded."""
    engine.value("record_action", "a", outcome="x" * 5000)
    assert [len(row.outcome) for row in engine.rows("list_actions")] == [1000]
