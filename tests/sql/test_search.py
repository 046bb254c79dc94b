"""search_messages: by id, key, tenant, task and payload, in all states. It ends in time and says so."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ..isolation.rewriting import anchoring
from .conftest import ACTIVE, DEAD, DONE, READY, SCHEDULED, Clock
from .engine import Engine, Row


def search(engine: Engine, **criteria: Any) -> Row:
    return engine.row("search_messages", **criteria)


def ids(result: Row) -> list[int]:
    return sorted(match["message_id"] for match in result.matches)


def states(result: Row) -> set[tuple[str, int, str]]:
    return {(match["queue_name"], match["message_id"], match["state"]) for match in result.matches}


@pytest.mark.parametrize(
    ("message_id", "state"),
    [(ACTIVE, "active"), (DEAD, "dead"), (DONE, "done"), (SCHEDULED, "scheduled"), (READY, "ready")],
)
def test_an_id_in_every_queue_and_state(house: Engine, message_id: int, state: str) -> None:
    found = search(house, message_id=message_id)
    other = "scheduled" if state == "scheduled" else "ready"
    assert states(found) == {("billing", message_id, state), ("audit", message_id, other)}
    assert found.is_complete
    assert states(search(house, message_id=message_id, queue_name="audit")) == {("audit", message_id, other)}
    assert ids(search(house, message_id=message_id, state="waiting")) == []


def test_what_a_match_tells(engine: Engine) -> None:
    engine.queue("q")
    message_id = engine.send("q", tenant="a", priority=1)
    engine.take("q")
    details = engine.message("q", message_id)
    (match,) = search(engine, message_id=message_id).matches
    assert datetime.fromisoformat(match.pop("published_at")) == details.published_at
    assert match == {
        "queue_name": "q",
        "message_id": message_id,
        "state": "active",
        "priority": 1,
        "tenant": "a",
        "delivery_attempts": 1,
    }


def of_each_state(engine: Engine, clock: Clock, **options: Any) -> dict[str, int]:
    """A message in each state, and one of the queue that does not fit in each."""
    found: dict[str, int] = {}
    engine.queue("q", tenant_max_active=1)

    def send(**more: Any) -> int:
        engine.send("q", {"a": {"b": [1, "no"]}}, tenant="other", **more)
        return engine.send("q", {"a": {"b": [5, "yes"]}}, **{**options, **more})

    def take() -> Row:
        (message,) = [m for m in engine.take_many("q", 2) if m.tenant != "other" or engine.ack(m) is None]
        return message

    found["done"] = send()
    engine.ack(take())
    found["dead"] = send()
    engine.reject(take())
    found["active"] = send()
    take()
    found["waiting"] = send()
    found["scheduled"] = send(deliver_after=engine.now() + timedelta(hours=1))
    engine.queue("r")
    found["ready"] = engine.send("r", {"a": {"b": [5, "yes"]}}, **options)
    return found


@pytest.mark.parametrize(
    "criteria",
    [
        {"tenant": "wanted"},
        {"task_name": "mail"},
        {"payload_path": ["a", "b", "1"], "payload_value": "yes"},
        {"payload_path": ["a", "b", "0"], "payload_value": "5"},
        {"tenant": "wanted", "task_name": "mail", "payload_path": ["a", "b", "1"], "payload_value": "yes"},
    ],
)
def test_messages_that_fit_in_every_state(engine: Engine, clock: Clock, criteria: dict[str, Any]) -> None:
    options = {"tenant": "wanted", "headers": {"task": "mail"}}
    wanted = of_each_state(engine, clock, **options)
    found = search(engine, **criteria)
    assert {(match["state"], match["message_id"]) for match in found.matches} == set(wanted.items())
    assert found.is_complete
    assert found.stopped_at is None
    for state, message_id in wanted.items():
        assert ids(search(engine, state=state, **criteria)) == [message_id]
        assert ids(search(engine, queue_name="r", state=state, **criteria)) == (
            [message_id] if state == "ready" else []
        )


def test_an_id_with_other_criteria(engine: Engine) -> None:
    engine.queue("q")
    message_id = engine.send("q", {"a": 1}, dedup_key="k", tenant="t")
    right = {"dedup_key": "k", "tenant": "t", "payload_path": ["a"], "payload_value": "1"}
    assert ids(search(engine, message_id=message_id, **right)) == [message_id]
    for wrong in ({"dedup_key": "x"}, {"tenant": "x"}, {"payload_value": "2"}, {"task_name": "x"}):
        assert ids(search(engine, message_id=message_id, **{**right, **wrong})) == []


@pytest.mark.parametrize("is_anchored", [False, True])
def test_a_dedup_key(engine: Engine, sql: psycopg.Connection[Any], is_anchored: bool) -> None:
    engine.queue("a")
    engine.queue("b")
    with anchoring(sql, always=is_anchored):
        first, second = engine.send("a", dedup_key="k"), engine.send("b", dedup_key="k")
        engine.send("a", dedup_key="other")
    assert ids(search(engine, dedup_key="k")) == [first, second]
    engine.reject(engine.take("b"))
    assert states(search(engine, dedup_key="k")) == {("a", first, "ready"), ("b", second, "dead")}


def test_a_large_payload(engine: Engine) -> None:
    engine.queue("q")
    large = engine.send("q", {"a": 1, "b": "x" * 50_000})
    engine.send("q", {"a": 2, "b": "x" * 50_000})
    assert ids(search(engine, payload_path=["a"], payload_value="1")) == [large]
    engine.take_many("q", 2)
    assert ids(search(engine, payload_path=["a"], payload_value="1")) == [large]


def test_enough_is_enough(engine: Engine) -> None:
    engine.queue("q")
    engine.send_many("q", list(range(100)), tenant="a")
    found = search(engine, tenant="a", page_size=10)
    assert len(found.matches) == 10
    assert not found.is_complete
    assert found.stopped_at == "ready messages of queue q"


def test_large_payloads_are_not_unpacked_after_the_deadline(engine: Engine) -> None:
    """Compressed, many megabytes are few enough to be read."""
    engine.queue("q")
    payload = {"a": "x" * 4_000_000, "b": "yes"}
    for _ in range(3):
        engine.send("q", payload, priority=0)
    criteria = {"payload_path": ["b"], "payload_value": "yes", "state": "ready"}
    found = search(engine, **criteria, deadline_ms=1)
    assert len(ids(found)) < 3
    assert found.is_complete is False
    found = search(engine, **criteria, deadline_ms=60_000)
    assert (len(ids(found)), found.is_complete) == (3, True)


def test_it_ends_in_time_and_says_so(engine18: Engine) -> None:
    for queue in ("a", "b"):
        engine18.queue(queue)
        engine18.query(
            """
            insert into penstock.dead (queue_id, sweep_queue_id, id, priority, attempts, large, reason,
                moved_at, published_at, tenant, payload)
            select q.id, q.id, nextval('penstock.message_ids'), 2, 1, false, 'failed', now(), now(), '',
                jsonb_build_object('n', n)
            from penstock.queues q, generate_series(1, 50000) n where q.name = %s returning 1
            """,
            queue,
        )
    started = time.monotonic()
    found = search(engine18, payload_path=["n"], payload_value="none", deadline_ms=50)
    assert time.monotonic() - started < 1
    assert not found.is_complete
    assert found.stopped_at.startswith("dead messages of queue ")
    assert 0 < found.examined_count < 100_000
    whole = search(engine18, payload_path=["n"], payload_value="7", deadline_ms=60_000)
    assert (len(whole.matches), whole.is_complete, whole.examined_count) == (2, True, 100_000)


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ({}, "a search needs"),
        ({"queue_name": "q"}, "a search needs"),
        ({"tenant": "a", "state": "lost"}, "state must be one of"),
        ({"payload_path": ["a"]}, "payload_path must be"),
        ({"tenant": "a", "payload_value": "a"}, "payload_path must be"),
        ({"tenant": "a", "page_size": 0}, "page_size must be"),
        ({"tenant": "a", "deadline_ms": 0}, "deadline_ms must be"),
        ({"tenant": "a", "queue_name": "none"}, "none"),
    ],
)
def test_refused(engine: Engine, criteria: dict[str, Any], message: str) -> None:
    engine.queue("q")
    with pytest.raises(psycopg.errors.Error, match=message):
        search(engine, **criteria)


def test_a_look_up_by_id_is_planned_once_for_all_queues(engine: Engine) -> None:
    """Not for each queue anew, even where the server would choose a plan for the values of each call."""
    for number in range(100):
        engine.queue(f"q{number}")

    def cost(mode: str) -> float:
        engine.connection.execute(f"set plan_cache_mode = {mode}".encode())
        times = []
        for _ in range(8):
            started = server_time(engine)
            search(engine, message_id=1)
            times.append(server_time(engine) - started)
        return min(times)

    cost("force_generic_plan")
    assert cost("force_custom_plan") < 1.7 * cost("force_generic_plan")


def server_time(engine: Engine) -> float:
    """Processor time of the session, because other tests run meanwhile."""
    schedstat = Path(f"/proc/{engine.connection.info.backend_pid}/schedstat")
    return int(schedstat.read_text().split()[0]) / 1e9 if schedstat.exists() else time.perf_counter()
