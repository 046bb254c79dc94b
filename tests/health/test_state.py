"""Health: what a program says of itself, and what others are told."""

from __future__ import annotations

import threading
import time

from penstock.health import Health
from tests.embedded.processes import eventually


def test_it_is_live_and_not_ready_until_it_says_so() -> None:
    health = Health()
    assert health.liveness() == (True, "")
    assert health.readiness() == (False, "starting")
    health.set_ready(True, "working")
    assert health.readiness() == (True, "working")
    health.set_ready(False, "the database is away")
    assert health.readiness() == (False, "the database is away")
    assert health.liveness() == (True, "")


def test_a_loop_that_does_not_turn_is_neither_live_nor_ready() -> None:
    health = Health(beat_limit=0.5)
    health.set_ready(True)
    # Whatever the program imports first may take longer.
    time.sleep(0.6)
    assert health.liveness()[0]
    health.beat()
    assert health.readiness()[0]
    eventually(lambda: not health.liveness()[0], "the beat is too old", 5)
    live, why = health.liveness()
    assert not live
    assert "has not turned for" in why
    assert health.readiness() == (False, why)
    health.beat()
    assert health.liveness() == (True, "")
    assert health.readiness()[0]


def test_a_parent_is_not_live_while_one_of_its_children_hangs() -> None:
    health = Health()
    health.set_ready(True)
    health.beat()
    health.set_hanging("worker 7 hangs")
    assert health.liveness() == (False, "worker 7 hangs")
    assert health.readiness() == (False, "worker 7 hangs")
    health.set_hanging("")
    assert health.liveness() == (True, "")
    assert health.readiness()[0]


def test_one_that_stops_is_live_and_not_ready_whatever_comes() -> None:
    health = Health()
    health.set_ready(True)
    health.set_stopping()
    health.set_ready(True, "again")
    assert health.readiness() == (False, "stopping")
    assert health.liveness() == (True, "")


def test_a_waiter_is_woken_by_changes_only() -> None:
    health = Health()
    seen = health.wait(0, 0)
    health.set_ready(False, "starting")
    health.set_hanging("")
    health.beat()
    assert health.wait(seen, 0.05) == seen
    threading.Timer(0.05, health.set_ready, (True,)).start()
    began = time.monotonic()
    later = health.wait(seen, 20)
    assert later != seen
    assert time.monotonic() - began < 10
    # What came before the wait is not missed.
    health.set_stopping()
    assert health.wait(later, 20) != later
