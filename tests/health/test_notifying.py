"""What is reported to systemd, and when; a socket that is removed does no harm."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.health import Health, reporting
from tests.embedded.processes import eventually
from tests.health.listening import Systemd, systemd

SHOW = "import os; print(sorted(name for name in os.environ if name.startswith(('NOTIFY_', 'WATCHDOG_'))))"


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Systemd]:
    """systemd, with a socket of either kind."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@penstock-test-{os.getpid()}"
    with systemd(name) as one:
        yield one


def surround(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told in time is told because of the change, and not because a step is over."""
    # Not by its name: that is the function's, too.
    monkeypatch.setattr(sys.modules["penstock.health.reporting"], "STEP_SECONDS", 60.0)


@pytest.mark.usefixtures("waits_long")
def test_every_change_is_reported_to_systemd(manager: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    surround(monkeypatch, manager.variables())
    health = Health()
    with reporting(health) as told:
        assert told.port is None
        manager.hears("STATUS=starting")
        assert "READY=1" not in manager.lines
        health.set_ready(True, "working on\nmail")
        manager.hears("STATUS=working on mail")
        health.set_ready(False, "the database is away")
        manager.hears("STATUS=the database is away")
        health.set_ready(True, "working")
        manager.hears("STATUS=working")
        began = time.monotonic()
    # Less than a thread that does not end is waited for.
    assert time.monotonic() - began < 4
    manager.hears("STOPPING=1")
    assert (manager.lines.count("READY=1"), manager.lines.count("STOPPING=1")) == (1, 1)
    assert manager.messages[-1][1][:2] == ["STOPPING=1", "STATUS=stopping"]
    # No watchdog was asked for.
    assert "WATCHDOG=1" not in manager.lines


@pytest.mark.usefixtures("waits_long")
def test_stopping_is_reported_at_once_and_not_twice(
    manager: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    surround(monkeypatch, manager.variables())
    health = Health()
    with reporting(health):
        health.set_ready(True)
        manager.hears("READY=1")
        health.set_stopping()
        manager.hears("STOPPING=1", seconds=20)
    assert manager.lines.count("STOPPING=1") == 1
    assert manager.lines.count("READY=1") == 1


def test_signs_of_life_come_at_half_of_the_time_while_the_loop_turns(
    manager: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    surround(monkeypatch, {**manager.variables(watchdog=0.4), "WATCHDOG_PID": str(os.getpid())})
    health = Health(beat_limit=0.5)
    with reporting(health):

        def has_signs(number: int) -> bool:
            health.beat()
            return len(manager.times("WATCHDOG=1")) >= number

        eventually(lambda: has_signs(6), "there are signs of life", 25)
        signs = manager.times("WATCHDOG=1")
        gaps = sorted(later - earlier for earlier, later in pairwise(signs))
        # Any of them may be late, but not all.
        assert gaps[0] < 0.3, signs
        assert gaps[len(gaps) // 2] > 0.15, signs
        # The loop hangs: after the limit there is no sign any more, and the status says why.
        eventually(lambda: not health.liveness()[0], "it hangs", 5)
        before = len(manager.times("WATCHDOG=1"))
        time.sleep(1.2)
        assert len(manager.times("WATCHDOG=1")) <= before + 2, "some may have been under way"
        eventually(lambda: "has not turned for" in "".join(manager.lines), "it is told why", 5)
        before = len(manager.times("WATCHDOG=1"))
        eventually(lambda: has_signs(before + 1), "there are signs of life again", 5)


def test_the_watchdog_of_another_process_is_not_fed(
    manager: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    surround(monkeypatch, {**manager.variables(watchdog=0.1), "WATCHDOG_PID": str(os.getppid())})
    health = Health()
    with reporting(health):
        health.beat()
        health.set_ready(True)
        manager.hears("READY=1")
        time.sleep(0.3)
    assert "WATCHDOG=1" not in manager.lines


@pytest.mark.parametrize("microseconds", ["", "0", "soon"])
def test_a_watchdog_that_makes_no_sense_is_none(
    manager: Systemd, monkeypatch: pytest.MonkeyPatch, microseconds: str
) -> None:
    surround(monkeypatch, {**manager.variables(), "WATCHDOG_USEC": microseconds})
    with reporting(Health()):
        manager.hears("STATUS=starting")
    manager.hears("STOPPING=1")
    assert "WATCHDOG=1" not in manager.lines


def test_children_do_not_inherit_it(manager: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    surround(monkeypatch, {**manager.variables(watchdog=1), "WATCHDOG_PID": str(os.getpid())})
    with reporting(Health()):
        seen = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
    assert seen.stdout == "[]\n"


def test_a_socket_that_is_removed_or_comes_back_fails_no_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    health = Health()
    with reporting(health):
        health.set_ready(True, "one")
        eventually(lambda: "NOTIFY_SOCKET" in caplog.text, "it is said", 5)
        health.set_ready(True, "two")
        time.sleep(0.1)
        with systemd(str(path)) as manager:
            # What could not be told is told as soon as it can be.
            manager.hears("READY=1", seconds=5)
            manager.hears("STATUS=two")
        health.set_ready(False, "three")
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2, caplog.text


def test_one_that_does_not_listen_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with systemd(str(tmp_path / "notify")) as manager:
        # systemd does not read any more, and the queue of the socket is full.
        manager.listen_no_more()
        surround(monkeypatch, manager.variables(watchdog=0.02))
        health = Health()
        began = time.monotonic()
        with reporting(health):
            health.set_ready(True)
            time.sleep(1)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("name", ["vsock:2:1234", "relative/path"])
def test_an_address_of_another_kind_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with reporting(Health()):
        assert "NOTIFY_SOCKET" not in os.environ
    assert name in caplog.text
