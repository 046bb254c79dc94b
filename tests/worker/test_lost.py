"""Workers that are lost: killed, or stopped for longer than a lease."""

from __future__ import annotations

import signal
import time
from typing import Any

import psycopg
import pytest

from tests.failures.proxy import Cut, Proxy
from tests.worker.stage import Process, Stage, one

LEASE = 2
# Beyond the lease: until it is noticed, on a machine that has other things to do.
SLACK = 3.0
MANY = 1_000_000

HOLD = """
@app.task
async def hold(gate: str):
    say("begins", gate, os.getpid())
    await passed(gate)
    say("ends", gate, os.getpid())
"""


def begun(stage: Stage, gate: str) -> list[int]:
    """The processes in which a task began, in order."""
    lines = [line.split() for line in stage.said]
    return [int(pid) for what, name, pid in lines if (what, name) == ("begins", gate)]


def lose(stage: Stage, worker: Process, task_name: str, *ids: int) -> None:
    """Stop a worker until its leases of these are over."""
    worker.signal(signal.SIGSTOP)
    stage.until(lambda: not any(is_leased(stage, task_name, one) for one in ids), "the leases are over")


def is_leased(stage: Stage, task_name: str, message_id: int) -> bool:
    found = stage.details(task_name, message_id)
    assert found is not None
    return found.leased_until is not None and found.leased_until > stage.app.client.clock()


@pytest.mark.slow
def test_tasks_of_a_killed_worker_run_elsewhere_though_they_have_one_attempt(stage: Stage) -> None:
    stage.write(HOLD)
    first = stage.worker("--lease", str(LEASE))
    ids = [stage.enqueue("hold", f"gate{number}") for number in range(3)]
    stage.until(lambda: len(stage.said) == 3, "all have begun")
    second = stage.worker("--lease", str(LEASE))
    first.kill()
    killed_at = time.monotonic()
    stage.until(lambda: len(stage.said) == 6, "all have begun again")
    assert time.monotonic() - killed_at < LEASE + SLACK
    for number, message_id in enumerate(ids):
        assert begun(stage, f"gate{number}") == [first.pid, second.pid]
        found = stage.details("hold", message_id)
        assert found is not None
        assert (found.state, found.delivery_attempts) == ("active", 2)
        stage.open(f"gate{number}")
    stage.done("hold", *ids)
    assert second.stop() == 0


@pytest.mark.slow
def test_a_task_that_kills_its_workers_is_given_up(stage: Stage) -> None:
    stage.write(
        """
        @app.task(result=True)
        async def deadly(context: TaskContext):
            say("attempt", context.attempt)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    message_id = stage.enqueue("deadly")
    worker = stage.start("--lease", "1")
    while stage.state("deadly", message_id) != "dead":
        if not worker.is_running:
            assert len(stage.said) < 10
            worker = stage.start("--lease", "1")
        time.sleep(0.05)
    assert worker.begun().stop() == 0
    found = stage.details("deadly", message_id)
    assert found is not None
    assert (found.state, found.reason) == ("dead", "no_attempts_left")
    assert "lost" in (found.last_error or "")
    assert stage.said == [f"attempt {number + 1}" for number in range(len(stage.said))]
    assert 2 <= len(stage.said) <= 5


@pytest.mark.slow
def test_the_late_end_of_a_stopped_worker_changes_nothing(stage: Stage) -> None:
    """The stopped handler ends as soon as it goes on, before the worker reports its message as lost."""
    stage.write(
        """
        @app.task(queue="q", result=True)
        async def slow():
            say("begins", os.getpid())
            await passed("gate")
            return os.getpid()
        """
    )
    first = stage.worker("--lease", str(LEASE))
    message_id = stage.enqueue("slow")
    stage.heard(f"begins {first.pid}")
    lose(stage, first, "slow", message_id)
    second = stage.worker("--lease", str(LEASE))
    stage.heard(f"begins {second.pid}")
    stage.open("gate")
    stage.done("slow", message_id)
    first.signal(signal.SIGCONT)
    first.says("lost")
    assert first.stop() == 0
    assert second.stop() == 0
    found = stage.details("slow", message_id)
    assert found is not None
    assert (found.state, found.result, found.delivery_attempts) == ("done", second.pid, 2)


def test_the_handler_of_a_stopped_worker_is_cancelled_while_another_one_runs(stage: Stage) -> None:
    stage.write(
        """
        @app.task(queue="q")
        async def coroutine():
            say("begins", os.getpid())
            try:
                await passed("gate")
            except asyncio.CancelledError:
                say("cancelled", os.getpid())
                raise
            say("ends", os.getpid())

        @app.task(queue="q", max_attempts=3)
        def thread(context: TaskContext):
            say("runs", os.getpid())
            while not (HERE / "gate").exists():
                if context.cancelled.wait(0.02):
                    say("told", os.getpid())
                    raise ValueError("this error is not reported")
            say("returns", os.getpid())
        """
    )
    first = stage.worker("--lease", str(LEASE))
    ids = {name: stage.enqueue(name) for name in ("coroutine", "thread")}
    stage.heard(f"begins {first.pid}", f"runs {first.pid}")
    lose(stage, first, "coroutine", *ids.values())
    second = stage.worker("--lease", str(LEASE))
    stage.heard(f"begins {second.pid}", f"runs {second.pid}")
    first.signal(signal.SIGCONT)
    stage.heard(f"cancelled {first.pid}", f"told {first.pid}", seconds=LEASE + SLACK)
    first.says("the lease was lost")
    for name, message_id in ids.items():
        found = stage.details(name, message_id)
        assert found is not None
        assert (found.state, found.delivery_attempts) == ("active", 2)
        assert [entry.error for entry in found.errors] == ["the lease ran out"]
    stage.open("gate")
    stage.heard(f"ends {second.pid}", f"returns {second.pid}")
    assert first.stop() == 0
    assert second.stop() == 0
    assert len(stage.said) == 8
    assert "lease was lost" not in second.log


def test_a_worker_that_gets_its_own_lost_tasks_back_runs_each_to_its_end(
    stage: Stage, sql18: psycopg.Connection[Any]
) -> None:
    stage.write(HOLD)
    worker = stage.worker("--lease", "3")
    ids = [stage.enqueue("hold", f"gate{number}") for number in range(3)]

    def have_begun(*times: int) -> bool:
        return all(len(begun(stage, f"gate{number}")) >= least for number, least in enumerate(times))

    stage.until(lambda: have_begun(1, 1, 1), "all have begun")
    lose(stage, worker, "hold", *ids)
    # What is lost is swept back into the queue, so that the worker finds it there.
    sql18.execute("select * from penstock.maintain()")
    worker.signal(signal.SIGCONT)
    stage.enqueue("hold", "gate0")
    stage.until(lambda: have_begun(3, 2, 2), "all have begun again")
    # A pulse finds all that runs, and leaves it alone.
    held_until = one(sql18, "select max(vt) from penstock.active")
    pulsed = "select count(*) from penstock.active where vt > %s"
    stage.until(lambda: one(sql18, pulsed, held_until) == 4, "all are kept")
    for number in range(3):
        stage.open(f"gate{number}")
    stage.done("hold", *ids)
    stage.until(lambda: one(sql18, "select count(*) from penstock.active") == 0, "nothing is held")
    ends = [line.split()[1] for line in stage.said if line.startswith("ends")]
    assert sorted(ends) == ["gate0", "gate0", "gate1", "gate2"], (
        "whichever began again, one of them has ended"
    )
    assert worker.stop() == 0


def test_what_was_lost_while_it_waited_for_a_slot_does_not_begin(stage: Stage) -> None:
    stage.write(
        """
        @app.task(queue="q", concurrency=1)
        async def one_by_one(number: int):
            if number >= 0:
                say("begins", number, os.getpid())
                await passed("gate")
        """
    )
    # Many that take no time: the worker claims ahead what it gets done soon.
    handles = stage.app.tasks["one_by_one"].enqueue_many([(-1,)] * 1000 + [(0,), (1,)])
    ids = [handle.id for handle in handles[-2:]]
    first = stage.worker("--lease", str(LEASE))
    stage.heard(f"begins 0 {first.pid}")
    stage.until(lambda: stage.state("one_by_one", ids[1]) == "active", "it is claimed, and waits")
    lose(stage, first, "one_by_one", *ids)
    second = stage.worker("--lease", str(LEASE))
    stage.heard(f"begins 0 {second.pid}")
    stage.until(lambda: stage.state("one_by_one", ids[1]) != "active", "the lease on the other one is gone")
    # The first worker has a free slot then, and must not claim anything again.
    stage.app.client.pause_queue("q")
    first.signal(signal.SIGCONT)
    first.says("the lease was lost")
    assert first.stop() == 0
    assert f"begins 1 {first.pid}" not in stage.said
    stage.app.client.resume_queue("q")
    stage.open("gate")
    stage.done("one_by_one", *ids)
    assert second.stop() == 0
    assert f"begins 1 {second.pid}" in stage.said


def test_leases_are_kept_for_handlers_that_take_longer_by_one_pulse_for_all(
    stage: Stage, proxy: Proxy, proxied: str
) -> None:
    lease = 3
    stage.write(
        """
        @app.task
        async def hold(gate: str):
            say("begins", gate, os.getpid())
            # Not all the time: there are a hundred of it.
            while not (HERE / gate).exists():
                await asyncio.sleep(0.2)
            say("ends", gate, os.getpid())
        """
    )
    # It cuts nothing: it counts.
    pulses, others = (proxy.cut_at(text, Cut.BEFORE, skip=MANY) for text in ("pulse", "extend_message"))
    first = stage.start("--lease", str(lease), dsn=proxied).begun()
    handles = stage.app.tasks["hold"].enqueue_many([("gate",)] * 100)
    stage.until(lambda: len(stage.said) == 100, "all have begun")
    begun_at = time.monotonic()
    second = stage.worker("--lease", str(lease))
    # Long enough for the other one to take what is not kept.
    time.sleep(max(0.0, begun_at + 1.4 * lease - time.monotonic()))
    sent, held_for = MANY - pulses.skip, time.monotonic() - begun_at
    assert 2 <= sent <= 2 + held_for / (lease / 4), "about three in the time of a lease"
    assert others.skip == MANY
    for handle in handles[::10]:
        found = handle.details()
        assert found is not None
        assert (found.state, found.delivery_attempts) == ("active", 1)
        assert is_leased(stage, "hold", handle.id)
    stage.open("gate")
    stage.until(lambda: len(stage.said) == 200, "all have ended")
    assert second.stop() == 0
    assert first.stop() == 0
    assert {line.split()[2] for line in stage.said} == {str(first.pid)}
    assert len(stage.said) == 200
