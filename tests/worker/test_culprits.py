"""A task that ends its process must not take its neighbours with it."""

from __future__ import annotations

import time

import pytest

from tests.worker.stage import Process, Stage

APP = """
import ctypes


def end(how):
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    ctypes.string_at(0)


@app.task(max_attempts=1)
async def healthy_async(number: int):
    await asyncio.sleep(0.1)
    say("ran", number)


@app.task(max_attempts=1)
async def deadly_async(how: str):
    await asyncio.sleep(0.05)
    end(how)


@app.task(max_attempts=1)
def healthy_thread(number: int):
    time.sleep(0.1)
    say("ran", number)


@app.task(max_attempts=1)
def deadly_thread(how: str):
    time.sleep(0.05)
    end(how)
"""

# A task with one attempt may be lost with its worker some times more. Each time costs a lease.
MOST_STARTS = 40
SECONDS = 90.0


def states(stage: Stage, task_name: str, ids: list[int]) -> list[str]:
    """Where messages are; those that are done are not kept."""
    return [stage.state(task_name, message_id) or "done" for message_id in ids]


def run_until_settled(stage: Stage, deadly: str, culprits: list[int], healthy: str, others: list[int]) -> int:
    """Start a worker again each time that it dies, until every message has ended; how many starts."""
    deadline = time.monotonic() + SECONDS
    worker: Process | None = None
    starts = 0

    def in_time() -> bool:
        return time.monotonic() < deadline

    while in_time():
        if worker is None or not worker.is_running:
            starts += 1
            assert starts <= MOST_STARTS, f"{starts} starts: {states(stage, healthy, others)}"
            worker = stage.start("--lease", "1", "--threads", "4", "--concurrency", "50")
        left = states(stage, deadly, culprits) + states(stage, healthy, others)
        if all(state in ("done", "dead") for state in left):
            return starts
        time.sleep(0.1)
    raise AssertionError(
        f"{starts} starts: {states(stage, healthy, others)} {states(stage, deadly, culprits)}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_only_the_task_that_ends_its_process_is_given_up(stage: Stage, kind: str) -> None:
    ways, number = ["exit", "kill", "segfault"], 50
    stage.write(APP)
    deadly, healthy = f"deadly_{kind}", f"healthy_{kind}"
    culprits: list[int] = []
    others: list[int] = []
    for n in range(number):
        # The culprits come first, and between others.
        if n % 10 == 0 and len(culprits) < len(ways):
            culprits.append(stage.enqueue(deadly, ways[len(culprits)]))
        others.append(stage.enqueue(healthy, n))
    starts = run_until_settled(stage, deadly, culprits, healthy, others)
    ended = states(stage, healthy, others)
    assert ended == ["done"] * number, f"{ended.count('dead')} of {number} healthy are dead, {starts} starts"
    assert set(stage.said) == {f"ran {n}" for n in range(number)}
    for culprit in culprits:
        found = stage.details(deadly, culprit)
        assert found is not None
        assert found.state == "dead"
        assert found.last_error is not None
        assert "worker" in found.last_error or "process" in found.last_error
