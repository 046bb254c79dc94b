# Written by tools/unasync.py from tests/client/asynchronous/test_maintenance.py:
# change that, run `make generate`.

"""The maintenance loop, which clients, workers and `penstock up` share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock import Client, DatabaseUnavailable, MaintenanceResult
from penstock._sync.maintenance import LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS, MaintenanceLoop
from penstock.concurrency import now, sleep
from tests.client.both import until
from tests.client.conftest import Clock
from tests.sql.engine import Engine

DONE = MaintenanceResult("made_ready", "q", 1)
UNFINISHED = MaintenanceResult("unfinished", None, 1)
SOON = 0.01
NEVER = 3600.0


class Script:
    """Plays maintain(): each call takes the next answer, which may be an error, and notes the time."""

    def __init__(self, *answers: list[MaintenanceResult] | Exception) -> None:
        self._answers = list(answers)
        self.called_at: list[float] = []

    def maintain(self) -> list[MaintenanceResult]:
        self.called_at.append(now())
        answer = self._answers.pop(0) if self._answers else []
        if isinstance(answer, Exception):
            raise answer
        return answer

    def called(self, times: int) -> None:
        until(lambda: len(self.called_at) >= times)


@contextmanager
def running(loop: MaintenanceLoop) -> Iterator[None]:
    loop.start()
    try:
        yield
    finally:
        loop.close()


def test_the_loop_makes_due_messages_ready(client: Client, engine18: Engine, clock18: Clock) -> None:
    engine18.queue("q")
    message_id = client.send("q", 1, delay=3600)
    clock18.advance(3601)

    loop = MaintenanceLoop(client.maintain, first_pause=SOON)
    with running(loop):
        until(lambda: engine18.state("q", message_id) == "ready")


def test_no_pause_while_maintain_is_unfinished() -> None:
    script = Script([UNFINISHED], [DONE, UNFINISHED], [UNFINISHED])
    loop = MaintenanceLoop(script.maintain, first_pause=0.5)
    with running(loop):
        script.called(4)
    first, *_, fourth = script.called_at[:4]
    assert fourth - first < 0.3


def test_the_loop_goes_on_after_an_error() -> None:
    script = Script(DatabaseUnavailable("the server is away"), [DONE])
    with running(MaintenanceLoop(script.maintain, first_pause=SOON)):
        script.called(3)


def test_pauses_grow_while_there_is_nothing_to_do() -> None:
    script = Script()
    with running(MaintenanceLoop(script.maintain, first_pause=0.05)):
        script.called(4)
    pauses = [later - earlier for earlier, later in zip(script.called_at, script.called_at[1:], strict=False)]
    assert 0.05 < pauses[0] < pauses[1] < pauses[2] < LONGEST_PAUSE_SECONDS


def test_wake_ends_the_pause_but_not_more_often_than_allowed() -> None:
    script = Script()
    loop = MaintenanceLoop(script.maintain, first_pause=NEVER)
    with running(loop):
        sleep(0.05)
        for number in (1, 2, 3):
            loop.wake()
            script.called(number)
    first, second, third = script.called_at
    assert second - first >= SHORTEST_PAUSE_SECONDS
    assert third - second >= SHORTEST_PAUSE_SECONDS


def test_stopped_and_started_again_it_runs_once() -> None:
    script = Script()
    loop = MaintenanceLoop(script.maintain, first_pause=0.05)
    with running(loop):
        for _ in range(20):
            loop.stop()
            loop.start()
        script.called(2)
        first, second = script.called_at[:2]
        assert second - first > 0.05
        loop.stop()
        sleep(0.3)
        count = len(script.called_at)
        sleep(0.5)
        assert len(script.called_at) == count


def test_run_once_swallows_errors_of_the_database() -> None:
    script = Script(DatabaseUnavailable("the server is away"), [DONE])
    loop = MaintenanceLoop(script.maintain)
    assert loop.run_once() == []
    assert loop.run_once() == [DONE]
