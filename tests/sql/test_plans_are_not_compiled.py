"""No call is slow enough to be worth compiling: PostgreSQL must not try.

Up to 17 a step of a plan that is turned off (enable_sort and the like) but cannot be avoided makes the plan
look expensive beyond measure, and JIT, where it is built in, compiles it: for half a second, at each call.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from .engine import Engine


@pytest.fixture
def plans(sql: psycopg.Connection[Any]) -> list[str]:
    """The plans of all statements that run from here on, those inside of functions, too."""
    seen: list[str] = []
    sql.add_notice_handler(lambda notice: seen.append(notice.message_primary or ""))
    try:
        sql.execute("load 'auto_explain'")
    except psycopg.Error:
        pytest.skip("auto_explain is not installed")
    sql.execute(
        "set auto_explain.log_min_duration = 0; set auto_explain.log_analyze = on;"
        " set auto_explain.log_timing = off; set auto_explain.log_nested_statements = on;"
        " set client_min_messages = log; set jit = on"
    )
    return seen


def test_no_call_is_compiled(engine: Engine, plans: list[str]) -> None:
    engine.topic("t", "q", "other", retry_delays=[0], max_delivery_attempts=2)
    engine.send_many("q", list(range(20)), tenants=list("abcde") * 4, ttls=[60] * 20)
    engine.publish("t", "x" * 5000, dedup_key="k")
    engine.send("q", deliver_after=engine.now() + timedelta(hours=1))
    first, second, third, *_ = engine.take_many("q", 10)
    engine.nack(first, delay_seconds=5)
    engine.release(second)
    engine.reject(third)
    engine.value("requeue_dlq_messages", "q")
    engine.take("q", "t", vt_seconds=0)
    engine.take_many("q", 100, "t")
    engine.value("pulse", "t", 60)
    ids = [row.message_id for row in engine.rows("list_messages", "q", "active")]
    engine.rows("batch_extend_message_vt", "q", ids, "t", 5)
    engine.values("ack_messages", "q", ids, ["t"] * len(ids))
    engine.rows("list_messages", "q")
    engine.explain("q", engine.send("q"))
    engine.statistics("q")
    engine.maintain()
    engine.value("cancel_message", "q", engine.send("q"))
    engine.value("purge_queue", "q")
    assert any("Query Text" in plan for plan in plans)
    compiled = [plan for plan in plans if "JIT:" in plan]
    assert [plan.splitlines()[1] for plan in compiled] == []
