"""Workers: which ones live, and what each last reported."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from .bad_input import Bad, expect
from .conftest import Clock
from .engine import Engine, fingerprint

WORKER = "w"


def register(engine: Engine, token: str = WORKER, **changes: Any) -> None:
    values: dict[str, Any] = {
        **{"hostname": "host", "pid": 7, "version": "1.0", "queues": ["q"], "tasks": ["a", "b"]},
        "concurrency": 4,
    }
    engine.value("register_worker", token, **(values | changes))


def beat(engine: Engine, token: str = WORKER, *, held: int = 0, stopping: bool = False) -> bool:
    told = engine.value("beat_worker", token, held, {"running": held}, stopping)
    assert isinstance(told, bool)
    return told


def listed(engine: Engine) -> list[str]:
    """The workers of list_workers(), in its order, by their tokens."""
    tokens = {fingerprint(token): token for (token,) in engine.query("select token from penstock.workers")}
    return [tokens[worker.consumer] for worker in engine.rows("list_workers")]


def test_a_worker_is_listed(engine: Engine, clock: Clock) -> None:
    register(engine)
    worker = engine.row("list_workers")
    now = clock.now()
    assert abs(worker.started_at - now) < timedelta(minutes=1)
    assert vars(worker) == {
        **{
            "consumer": fingerprint(WORKER),
            "hostname": "host",
            "pid": 7,
            "version": "1.0",
            "queues": ["q"],
            "tasks": ["a", "b"],
        },
        **{"concurrency": 4, "started_at": worker.started_at, "seen_at": worker.started_at},
        **{"is_alive": True, "stopping": False, "held": 0, "running": []},
    }


def test_it_tells_what_it_does(engine: Engine, clock: Clock) -> None:
    register(engine)
    started_at = engine.row("list_workers").started_at
    clock.advance(10)
    assert beat(engine, held=3, stopping=True)
    worker = engine.row("list_workers")
    assert (worker.held, worker.running, worker.stopping) == (3, {"running": 3}, True)
    assert worker.started_at == started_at
    assert timedelta(seconds=9) < worker.seen_at - started_at < timedelta(seconds=60)


def test_one_that_is_silent_is_taken_for_dead(engine: Engine, clock: Clock) -> None:
    register(engine, "silent")
    register(engine, "other")
    clock.advance(25)
    assert beat(engine, "other")
    assert [worker.is_alive for worker in engine.rows("list_workers")] == [True, True]
    clock.advance(6)
    alive = {w.consumer: w.is_alive for w in engine.rows("list_workers")}
    assert alive == {fingerprint("silent"): False, fingerprint("other"): True}
    assert beat(engine, "silent")
    assert [worker.is_alive for worker in engine.rows("list_workers")] == [True, True]


def test_registered_again_it_is_the_same(engine: Engine, clock: Clock) -> None:
    register(engine)
    beat(engine, held=3, stopping=True)
    before = vars(engine.row("list_workers"))
    clock.advance(10)
    register(engine, hostname="moved", tasks=[], concurrency=1)
    after = vars(engine.row("list_workers"))
    assert after["seen_at"] > before["seen_at"]
    changes = {"hostname": "moved", "tasks": [], "concurrency": 1, "stopping": False}
    assert after | {"seen_at": None} == before | changes | {"seen_at": None}


def test_forgotten(engine: Engine) -> None:
    register(engine)
    assert engine.value("forget_worker", "w") is True
    assert engine.value("forget_worker", "w") is False
    assert not beat(engine)
    assert engine.rows("list_workers") == []
    register(engine)
    assert beat(engine)


def test_the_oldest_first(engine: Engine) -> None:
    for token in ("c", "a", "b"):
        register(engine, token)
    assert listed(engine) == ["c", "a", "b"]


def test_maintain_forgets_those_that_were_not_seen_for_a_day(engine: Engine, clock: Clock) -> None:
    register(engine, "gone")
    clock.advance(3600)
    register(engine, "silent")
    clock.advance(82000)
    engine.maintain()
    assert listed(engine) == ["gone", "silent"]
    clock.advance(1000)
    assert engine.maintain()["workers removed"] == 1
    assert listed(engine) == ["silent"]
    assert not beat(engine, "gone")


NULL: Any = None
GOOD: dict[str, Any] = {
    **{"token": "w", "hostname": "h", "pid": 1, "version": "1", "queues": [], "tasks": []},
    "concurrency": 1,
}


def of_register(*names: str, **changes: Any) -> Any:
    return expect("PN004", *names).of("register_worker", **(GOOD | changes))


@pytest.mark.parametrize(
    "bad",
    [
        of_register("token", "null", token=None),
        of_register("token", "256", token="x" * 256),
        of_register("hostname", "0", hostname=""),
        of_register("version", "null", version=None),
        of_register("pid", "-1", pid=-1),
        of_register("concurrency", "0", concurrency=0),
        of_register("concurrency", "null", concurrency=None),
        of_register("queues", "null", queues=None),
        of_register("queues", "10001", queues=["q"] * 10001),
        of_register("tasks", "256", tasks=["a", "x" * 256]),
        of_register("tasks", tasks=["a", None]),
        expect("PN004", "held", "-1").of("beat_worker", "w", -1, {}, False),
        expect("PN004", "held", "null").of("beat_worker", "w", NULL, {}, False),
        expect("PN004", "running", "null").of("beat_worker", "w", 0, NULL, False),
        expect("PN004", "running", "1000000").of("beat_worker", "w", 0, {"x": "y" * 1000001}, False),
        expect("PN004", "stopping", "null").of("beat_worker", "w", 0, {}, NULL),
    ],
)
def test_bad_input_is_refused(house: Engine, bad: Bad) -> None:
    bad.check(house)
