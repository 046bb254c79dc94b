"""A line to a child process: what the parent knows of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from penstock.health.lines import Line
from tests.embedded.processes import eventually

# Does what it is told on stdin.
CHILD = """
import os, subprocess, sys, threading, time
from penstock.health import Health, reporting

health = Health(beat_limit=1)
beating = True

def beat():
    while True:
        if beating:
            health.beat()
        time.sleep(0.05)

with reporting(health):
    threading.Thread(target=beat, daemon=True).start()
    for line in sys.stdin:
        match line.strip():
            case "ready": health.set_ready(True, "working")
            case "away": health.set_ready(False, "the database is away")
            case "hang": beating = False
            case "turn": beating = True
            case "stop": break
            case "inherit":
                numbers = subprocess.check_output(["ls", "-l", "/proc/self/fd"], text=True, close_fds=False)
                left = "PENSTOCK_HEALTH_LINE" in os.environ or "socket" in numbers
                health.set_ready(True, "inherited" if left else "not inherited")
"""


@contextmanager
def child(line: Line) -> Iterator[subprocess.Popen[str]]:
    with closing(line):
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, **line.environ},
            pass_fds=(line.number,),
        )
        line.begin()
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def hears(line: Line, text: str) -> None:
    def heard() -> bool:
        line.listen()
        return text in line.text

    eventually(heard, f"it says {text!r}, not {line.text!r}", 15)


def test_a_child_tells_what_it_does_and_what_ails_it() -> None:
    line = Line()
    assert (line.is_ready, line.text) == (False, "starting")
    with child(line) as process:
        tell(process, "ready")
        hears(line, "working")
        assert line.is_ready
        tell(process, "away")
        hears(line, "the database is away")
        assert (line.is_ready, line.hangs_for) == (False, 0)
        tell(process, "ready")
        tell(process, "hang")
        hears(line, "has not turned")
        time.sleep(0.1)
        line.listen()
        assert not line.is_ready
        assert line.hangs_for > 0
        tell(process, "turn")
        hears(line, "working")
        assert (line.is_ready, line.hangs_for) == (True, 0)
        tell(process, "inherit")
        hears(line, "inherited")
        assert line.text == "not inherited"
        tell(process, "stop")
        hears(line, "stopping")
        assert not line.is_ready
        assert process.wait(10) == 0


def test_one_that_is_silent_hangs_and_its_first_words_may_take_long() -> None:
    line = Line(silence_limit=1.5)
    with child(line) as process:
        time.sleep(0.01)
        assert line.hangs_for == 0
        tell(process, "ready")
        hears(line, "working")
        process.send_signal(signal.SIGSTOP)
        hears(line, "nothing was heard of it for")
        assert not line.is_ready
        process.send_signal(signal.SIGCONT)

        def is_heard() -> bool:
            line.listen()
            return line.hangs_for == 0

        eventually(is_heard, "it is heard again", 10)


def test_a_parent_that_was_stopped_itself_does_not_blame_the_child() -> None:
    """Both are frozen, and the parent is the first to go on."""
    line = Line(silence_limit=1.5)
    with child(line) as process:
        tell(process, "ready")
        hears(line, "working")
        process.send_signal(signal.SIGSTOP)
        line.listen()
        time.sleep(2)
        line.listen()
        assert line.hangs_for == 0
