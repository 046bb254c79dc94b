"""The tour of the queue, `make run-tour`, as a person takes it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

TOUR = Path(__file__).parents[2] / "examples" / "tour.py"


def test_the_tour_runs_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, str(TOUR)], env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as tour:
        assert tour.stdout is not None
        lines: list[str] = []
        for line in tour.stdout:
            lines.append(line)
            if "queue.send" in line:
                break
        os.killpg(tour.pid, signal.SIGINT)
        lines += tour.stdout.readlines()
        assert tour.wait(30) == 0
    output = "".join(lines)
    assert "billing: message 2 fails, attempt 2" in output
    assert "dead letter: message 2, no_attempts_left: ValueError: cannot bill -1" in output
    assert "The server runs until Ctrl-C" in output
    assert output.endswith("Stopping the server.\n")


def test_the_tour_can_be_taken_again(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    for _ in range(2):
        subprocess.run([sys.executable, str(TOUR), "--once"], env=environ, check=True, capture_output=True)
