"""`penstock completion`, and what shells get from it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

import penstock

from .command import PROGRAM, Command

# Does what bash does when TAB is pressed at the end of each line that it reads.
PRESS = """
source <("$0" completion bash)
while IFS=$'\\t' read -r -a COMP_WORDS; do
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    _penstock_completion "$0"
    (IFS=$'\\t'; echo "${COMPREPLY[*]}")
done
"""

# Has the embedded server up until its stdin ends.
USER = """
import sys
import penstock

with penstock.connect() as queue:
    queue.create_queue("billing")
    print("up", flush=True)
    sys.stdin.read()
"""


def press(command: Command, *lines: str) -> list[list[str]]:
    """What bash offers at the end of each line, with the script of the command; stderr stays empty."""
    words = "".join("\t".join([PROGRAM, *line.split(" ")]) + "\n" for line in lines)
    done = subprocess.run(
        ["bash", "-c", PRESS, PROGRAM],
        input=words,
        capture_output=True,
        check=True,
        text=True,
        env=command.environment(),
        cwd=command.folder,
    )
    assert done.stderr == ""
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_bash_completes_commands_and_names(command: Command, queue: penstock.Client) -> None:
    queue.create_topic("bookings")
    for name in ("billing", "bills", "mail", "two words"):
        queue.create_queue(name)
    queue.put_schedule("backup", "mail", {}, definition={"every": 60}, next_at=datetime.now(UTC))
    expected = {
        "q": ["queue"],
        "queue p": ["pause", "purge"],
        "queue show bi": ["billing", "bills"],
        # A shell would take this one apart.
        "queue show tw": [],
        "queue create new --topic b": ["bookings"],
        "topic show b": ["bookings"],
        "schedule run b": ["backup"],
        "worker tasks:app --queue m": ["mail"],
        "bench --only send-": ["send-batch", "send-concurrent", "send-many"],
    }
    assert press(command, *expected) == list(expected.values())


def test_names_come_from_the_database_that_is_given(
    command: Command, queue: penstock.Client, database18: str
) -> None:
    queue.create_queue("billing")
    elsewhere = Command(None, command.folder)
    assert press(elsewhere, f"queue show --dsn {database18} b") == [["billing"]]


def test_nothing_is_started_for_a_completion(tmp_path: Path) -> None:
    assert press(Command(None, tmp_path), "queue show nothing_of_this_name") == [[]]
    assert list(tmp_path.rglob("PG_VERSION")) == []


@pytest.mark.slow
def test_names_come_from_the_embedded_server_while_it_is_up(tmp_path: Path) -> None:
    command = Command(None, tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", USER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=command.environment(),
    ) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == b"up\n"
        assert press(command, "queue show billin") == [["billing"]]
        user.communicate()
    assert user.returncode == 0


def test_a_database_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = Command(f"postgresql://127.0.0.1:{port}/app", tmp_path)
        started = time.monotonic()
        assert press(command, "queue show b") == [[]]
        assert time.monotonic() < started + 15
    assert press(Command("postgresql://127.0.0.1:1/app", tmp_path), "queue show b") == [[]]
    assert press(Command("not a dsn", tmp_path), "queue show b") == [[]]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_and_gets_names(shell: str, command: Command, queue: penstock.Client) -> None:
    queue.create_queue("billing")
    script = command("completion", shell).ok().out
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in script
    assert command("completion", environ={"SHELL": f"/usr/bin/{shell}"}).ok().out == script
    words = {"COMP_WORDS": "penstock queue show b", "COMP_CWORD": "b" if shell == "fish" else "3"}
    asked = command(environ={**words, "_PENSTOCK_COMPLETE": f"{shell}_complete"})
    assert "billing" in asked.out
    assert asked.err == ""


def test_another_shell_has_none(command: Command) -> None:
    command("completion", environ={"SHELL": "/bin/tcsh"}).failed(2, "bash, zsh, fish")
    command("completion", "tcsh").failed(2, "bash")
