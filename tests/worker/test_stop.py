"""The end of a worker: what runs may end, what does not is given back, and nothing keeps the process."""

from __future__ import annotations

import signal
import time

import pytest

from tests.worker.stage import PATIENCE, Stage

KINDS = """
@app.task
async def coroutine(gate: str):
    say("begins", "coroutine")
    await passed(gate)
    say("ends", "coroutine")

@app.task
def thread(gate: str):
    say("begins", "thread")
    waits(gate)
    say("ends", "thread")

@app.task(process=True)
def process(gate: str):
    say("begins", "process")
    waits(gate)
    say("ends", "process")
"""
ALL_KINDS = ("coroutine", "thread", "process")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_a_signal_lets_what_runs_end(stage: Stage, number: int) -> None:
    stage.write(KINDS)
    worker = stage.worker("--grace", "20")
    ids = {kind: stage.enqueue(kind, "gate") for kind in ALL_KINDS}
    stage.heard(*(f"begins {kind}" for kind in ALL_KINDS))
    worker.signal(number)
    worker.says("ending what runs")
    later = stage.enqueue("coroutine", "gate")
    assert worker.is_running
    stage.open("gate")
    assert worker.wait() == 0
    assert sorted(stage.said) == sorted(f"{step} {kind}" for step in ("begins", "ends") for kind in ALL_KINDS)
    for kind, message_id in ids.items():
        assert stage.state(kind, message_id) in (None, "done"), kind
    assert stage.state("coroutine", later) == "ready", "it came after the signal"
    assert stage.app.client.list_workers() == []


def test_what_never_began_is_given_back_at_once_and_uncounted(stage: Stage) -> None:
    stage.write(
        """
        @app.task
        async def quick():
            pass

        @app.task
        async def slow(number: int):
            say(number)
            await passed("gate")
        """
    )
    # Where tasks are short, it claims ahead: slow ones are claimed with them.
    stage.app.tasks["quick"].enqueue_many([{}] * 3000)
    handles = stage.app.tasks["slow"].enqueue_many([{"number": number} for number in range(1000)])
    worker = stage.worker("-c", "2", "--grace", "20", "--lease", "60")
    stage.heard("0", "1")
    statistics = stage.app.client.get_queue_statistics
    stage.until(lambda: statistics("default")[0].processing_count > 2, "it has claimed ahead")
    worker.signal(signal.SIGTERM)
    stage.until(lambda: statistics("default")[0].processing_count == 2, "what did not begin is given back")
    assert worker.is_running
    for handle in handles[2:40]:
        found = handle.details()
        assert found is not None
        assert (found.state, found.delivery_attempts) == ("ready", 0)
    other = stage.worker("-c", "2", "--lease", "60")
    stage.heard("2", "3", seconds=15)
    stage.open("gate")
    assert worker.wait() == 0
    stage.until(lambda: len(stage.said) == 1000, "all have run")
    assert other.stop() == 0
    assert sorted(map(int, stage.said)) == list(range(1000)), "each of them once"


def test_what_waits_for_a_slot_of_its_task_is_given_back_too(stage: Stage) -> None:
    stage.write(
        """
        @app.task(queue="q", concurrency=1)
        async def one_by_one(number: int):
            if number >= 0:
                say(number)
                await passed("gate")
        """
    )
    # Many that take no time: the worker claims ahead what it gets done soon.
    handles = stage.app.tasks["one_by_one"].enqueue_many([(-1,)] * 1000 + [(0,), (1,)])
    ids = [handle.id for handle in handles[-2:]]
    worker = stage.worker("--grace", "20", "--lease", "60")
    stage.heard("0")
    stage.until(lambda: stage.state("one_by_one", ids[1]) == "active", "it is claimed, and waits")
    worker.signal(signal.SIGTERM)
    stage.until(lambda: stage.state("one_by_one", ids[1]) == "ready", "it is given back", 15)
    stage.open("gate")
    assert worker.wait() == 0
    assert stage.said == ["0"]


def test_what_does_not_end_in_time_is_given_back(stage: Stage) -> None:
    stage.write(KINDS)
    worker = stage.worker("--grace", "1", "--lease", "60")
    ids = {kind: stage.enqueue(kind, "never") for kind in ALL_KINDS}
    stage.heard(*(f"begins {kind}" for kind in ALL_KINDS))
    begun_at = time.monotonic()
    assert worker.stop() == 0
    assert 1 <= time.monotonic() - begun_at < 15
    for kind, message_id in ids.items():
        found = stage.details(kind, message_id)
        assert found is not None
        assert (found.state, found.delivery_attempts, found.errors) == ("ready", 0, ()), kind
    stage.until(lambda: not stage.leftovers(), "no process is left behind")


def test_a_second_signal_aborts(stage: Stage) -> None:
    stage.write(KINDS)
    worker = stage.worker("--grace", "60", "--lease", "60")
    ids = {kind: stage.enqueue(kind, "never") for kind in ALL_KINDS}
    stage.heard(*(f"begins {kind}" for kind in ALL_KINDS))
    worker.signal(signal.SIGTERM)
    worker.says("ending what runs")
    begun_at = time.monotonic()
    worker.signal(signal.SIGINT)
    assert worker.wait() == 1
    assert time.monotonic() - begun_at < 15
    for kind, message_id in ids.items():
        assert stage.state(kind, message_id) == "ready", kind
    stage.until(lambda: not stage.leftovers(), "no process is left behind")


@pytest.mark.parametrize("task", ["stubborn", "sleeper", "busy"])
def test_a_handler_that_will_not_end_does_not_keep_the_process(stage: Stage, task: str) -> None:
    stage.write(
        """
        @app.task
        async def stubborn():
            say("begins")
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    say("not now")

        @app.task
        async def sleeper():
            say("begins")
            await asyncio.to_thread(time.sleep, 60)

        @app.task
        def busy():
            say("begins")
            while True:
                try:
                    time.sleep(60)
                except BaseException:
                    pass
        """
    )
    worker = stage.worker("--grace", "0.5", "--lease", "60")
    message_id = stage.enqueue(task)
    stage.heard("begins")
    begun_at = time.monotonic()
    assert worker.stop(15) == 0
    assert time.monotonic() - begun_at < 15
    assert stage.state(task, message_id) == "ready", "given back, whatever it does"


def test_a_busy_worker_leaves_nothing_behind(stage: Stage) -> None:
    """Signals that come while claims and acks are under way: nothing stays with a worker that is gone."""
    stage.write(
        """
        @app.task
        async def quick():
            pass

        @app.task
        def threaded():
            pass
        """
    )
    client = stage.app.client
    for _ in range(3):
        stage.app.tasks["quick"].enqueue_many([{}] * 4000)
        stage.app.tasks["threaded"].enqueue_many([{}] * 500)
        worker = stage.worker("--lease", "60", "-c", "10")
        stage.until(lambda: client.get_queue_statistics("default")[0].processing_count > 0, "it works")
        assert worker.stop() == 0
        assert client.get_queue_statistics("default")[0].processing_count == 0, worker.log
        assert "could not be recorded" not in worker.log
        client.purge_queue("default")


def test_several_processes_end_together(stage: Stage) -> None:
    stage.write(KINDS)
    both = stage.start("--processes", "2", "--grace", "20").begun(2)
    ids = [stage.enqueue("coroutine", "gate") for _ in range(4)]
    stage.until(lambda: len(stage.said) == 4, "all have begun")
    both.signal(signal.SIGTERM)
    both.says("ending what runs")
    assert both.is_running
    stage.open("gate")
    assert both.wait() == 0
    for message_id in ids:
        assert stage.state("coroutine", message_id) in (None, "done")
    stage.until(lambda: not stage.leftovers(), "no process is left behind")


def test_a_second_signal_aborts_all_of_several_processes(stage: Stage) -> None:
    stage.write(KINDS)
    both = stage.start("--processes", "2", "--grace", "60", "--lease", "60").begun(2)
    message_id = stage.enqueue("thread", "never")
    stage.heard("begins thread")
    both.signal(signal.SIGINT)
    stage.until(lambda: both.log.count("ending what runs") == 2, "both have heard it")
    both.signal(signal.SIGINT)
    assert both.wait(PATIENCE) == 1
    assert stage.state("thread", message_id) == "ready"
    stage.until(lambda: not stage.leftovers(), "no process is left behind")


def test_a_process_of_several_that_dies_is_started_again(stage: Stage) -> None:
    stage.write(
        """
        @app.task
        async def die():
            os.kill(os.getpid(), signal.SIGKILL)

        @app.task
        async def fine():
            say("fine")
        """
    )
    both = stage.start("--processes", "2").begun(2)
    before = {one.pid for one in stage.app.client.list_workers()}
    stage.enqueue("die")
    both.begun(3)
    both.says("started again")
    stage.enqueue("fine")
    stage.heard("fine")
    stage.until(
        lambda: len({one.pid for one in stage.app.client.list_workers()} - before) == 1, "there is a new one"
    )
    assert both.stop() == 0
    stage.until(lambda: not stage.leftovers(), "no process is left behind")


def test_workers_end_when_their_supervisor_is_killed(stage: Stage) -> None:
    stage.write(KINDS)
    both = stage.start("--processes", "2", "--grace", "20").begun(2)
    message_id = stage.enqueue("coroutine", "gate")
    stage.heard("begins coroutine")
    both.kill()
    both.says("stopped")
    stage.open("gate")
    stage.until(lambda: not stage.leftovers(), "no process is left behind")
    assert stage.state("coroutine", message_id) in (None, "done")
