"""The connections of a worker fall silent: it goes on over new ones, and says so once."""

from __future__ import annotations

import time

import pytest

from tests.failures.proxy import Cut, Proxy
from tests.worker.stage import Stage

TIMEOUT = 2
# How much later a busy machine may notice.
SLACK = 8.0

SAID = "makes a new one"

TASKS = """
@app.task
async def note(number: int):
    say("note", number)

@app.task
async def hold(gate: str):
    say("begins", gate)
    await passed(gate)
    say("ends", gate)

@app.task(max_attempts=1)
async def fail(gate: str):
    say("begins", gate)
    await passed(gate)
    raise ValueError(gate)

@app.periodic(every=1)
async def tick():
    say("tick")
"""


def ticks(stage: Stage) -> int:
    """How often the periodic task has run."""
    return stage.said.count("tick")


def test_claims_acks_and_periodic_tasks_go_on(stage: Stage, proxy: Proxy, proxied: str) -> None:
    stage.write(TASKS)
    worker = stage.start("--call-timeout", str(TIMEOUT), "--lease", "30", dsn=proxied).begun()
    stage.heard("tick")
    held, failing = stage.enqueue("hold", "gate"), stage.enqueue("fail", "gate")
    stage.until(lambda: stage.said.count("begins gate") == 2, "they run")
    proxy.silence()
    before, began = ticks(stage), time.monotonic()
    stage.open("gate")
    later = [stage.enqueue("note", number) for number in range(5)]
    stage.done("hold", held, seconds=TIMEOUT + SLACK)
    stage.dead("fail", failing, seconds=TIMEOUT + SLACK)
    stage.done("note", *later, seconds=TIMEOUT + SLACK)
    stage.until(lambda: ticks(stage) > before + 2, "periodic tasks go on", TIMEOUT + SLACK)
    assert time.monotonic() - began < TIMEOUT + SLACK
    assert worker.stop() == 0
    assert worker.log.count(SAID) == 1, worker.log
    assert "lease was lost" not in worker.log
    assert sorted(line for line in stage.said if line != "tick") == sorted(
        ["begins gate", "begins gate", "ends gate", *(f"note {number}" for number in range(5))]
    )


@pytest.mark.slow
def test_a_pulse_over_a_silent_connection_costs_no_lease(stage: Stage, proxy: Proxy, proxied: str) -> None:
    """Also where other calls may take longer than a lease: a claim and a pulse have a third of it."""
    stage.write(TASKS)
    worker = stage.start("--lease", "15", dsn=proxied).begun()
    held = stage.enqueue("hold", "gate")
    stage.heard("begins gate")
    proxy.silence_at("penstock.pulse(", Cut.BEFORE)
    worker.says("did not answer pulse for 5 seconds", 25)
    found = stage.details("hold", held)
    assert found is not None
    before = found.leased_until
    assert before is not None

    def is_extended() -> bool:
        found = stage.details("hold", held)
        return found is not None and found.leased_until is not None and found.leased_until > before

    stage.until(is_extended, "the lease is kept over a new connection", 10)
    stage.open("gate")
    stage.done("hold", held)
    assert worker.stop() == 0
    assert "lease was lost" not in worker.log
    assert stage.said.count("begins gate") == 1


def test_a_worker_that_begins_over_a_silent_connection(stage: Stage, proxy: Proxy, proxied: str) -> None:
    stage.write(TASKS)
    proxy.silence_at("pg_backend_pid", Cut.BEFORE)
    worker = stage.start("--call-timeout", str(TIMEOUT), dsn=proxied).begun()
    assert worker.log.count(SAID) == 1, worker.log
    stage.done("note", stage.enqueue("note", 1))
