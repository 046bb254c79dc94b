"""The examples run, as a person runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import ROOT

EXPECTED = [
    "A task with a result, and a group with one that follows:",
    "  words: 6",
    "  words of Richard III: 4 + 3 = 7",
    "  mail to ada@example.org, attempt 1 of 3",
    "  mail to nobody, attempt 3 of 3",
    "  dead letter: {'to': 'nobody'}, no_attempts_left",
]


@pytest.mark.slow
def test_the_tour_of_tasks_runs_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", ROOT / "examples" / "tasks.py"],
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as tour:
        assert tour.stdout is not None
        lines = []
        for line in tour.stdout:
            lines.append(line.rstrip("\n"))
            if "app.add_retries" in line:
                break
        os.killpg(tour.pid, signal.SIGINT)
        assert tour.stdout.read().endswith("Stopping the worker and the server.\n")
        assert tour.wait(60) == 0
    assert [line for line in lines if line in EXPECTED] == EXPECTED
    begun = [line for line in lines if line.startswith("  begun in process")]
    # Killed once, perhaps before it could say so: then another process had it.
    assert begun[-1].endswith("delivery 2")
    assert len({line.split()[3] for line in begun}) == len(begun)
