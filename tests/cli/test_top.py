"""`penstock top`, in a real terminal and without one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock import schema
from penstock.embedded import throwaway

from .command import PROGRAM, Command, Terminal

DOWN, UP, END, ESCAPE, ENTER = "\x1b[B", "\x1bOA", "\x1b[F", "\x1b", "\r"

COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3|4|9)[0-7](?:;\d+)*m")


def row(text: str, name: str) -> list[str]:
    """The cells of a line of the table, the mark of what is selected left out."""
    for line in text.splitlines():
        cells = line.lstrip(" >").split()
        if cells and cells[0] == name:
            return cells
    return []


def order(text: str) -> list[str]:
    """The names of queues as they are listed."""
    lines = text.splitlines()
    return [line.lstrip(" >").split()[0] for line in lines if re.match(r"[ >]q", line)]


def has(name: str, *cells: str) -> Callable[[str], bool]:
    """Whether a queue has these in its line, one after the other."""
    return lambda text: " ".join(cells) in " ".join(row(text, name))


@contextmanager
def watching(command: Command, *arguments: str, columns: int = 120, lines: int = 30) -> Iterator[Terminal]:
    """`top` in a terminal, with a first picture; it is left by q, and has to leave all as it was."""
    with command.terminal("top", *arguments, columns=columns, lines=lines) as terminal:
        terminal.until("quit")
        yield terminal
        terminal.type("q")
        assert terminal.wait() == 0, terminal.text
        assert terminal.is_sane()
        assert not terminal.cursor_is_hidden
        assert terminal.raw.endswith(b"\x1b[?1049l")


def test_queues_and_workers_are_shown_with_their_numbers(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("qbilling", max_delivery_attempts=1)
    queue.create_queue("qquiet")
    queue.create_queue("q\x1b[2J\u202eevil")
    for number in range(5):
        queue.send("qbilling", {"n": number})
    queue.send("qbilling", {}, delay=60)
    with closing(queue.consume("qbilling", batch_size=2, wait=0)) as taken:
        messages = iter(taken)
        next(messages).nack(error="card declined")  # and so it is dead
        next(messages)  # and so it is in flight
        queue.register_worker(
            "w1", hostname="box", pid=77, version="1", queues=["qbilling"], tasks=["pay"], concurrency=8
        )
        queue.beat_worker("w1", held=1, running=[{"task": "pay", "since": "x"}, "?"], stopping=False)
        with watching(command, "-i", "200ms") as terminal:
            text = terminal.until(lambda text: "0" in row(text, "qbilling")[6:])
            _, pending, active, delayed, waiting, age, came, went, dead, state = row(text, "qbilling")
            assert (pending, active, delayed, waiting, dead, state) == ("4", "1", "1", "0", "1", "busy")
            assert (came, went) == ("0", "0")
            assert re.fullmatch(r"\d+(ms|s)", age)
            assert row(text, "qquiet")[-1] == "idle"
            assert "\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}evil" in text
            assert "PostgreSQL 18" in text
            assert "pending 4   active 1   dead 1" in text
            assert "workers 1" in text
            assert re.search(r"box:77 +qbilling +1/8 +1 +\d+s +up +pay 0s", text)


def test_keys_sort_select_and_filter(command: Command, queue: penstock.Client) -> None:
    for name, number in (("qa", 2), ("qb", 3), ("qc", 1)):
        queue.create_queue(name)
        queue.send_many(name, [{}] * number)
    queue.send("qc", {}, delay=60)
    queue.send("qc", {}, delay=60)
    with watching(command) as terminal:
        terminal.until(lambda text: order(text) == ["qb", "qc", "qa"])  # 3, 3, 2
        terminal.type("r")
        terminal.until(lambda text: order(text) == ["qa", "qb", "qc"])
        terminal.type("<")
        terminal.until(lambda text: "QUEUE▲" in text)
        terminal.type("s>>")
        terminal.until(lambda text: "▼DELAYED" in text and order(text) == ["qc", "qa", "qb"])
        terminal.until(">qb")  # stays selected wherever it goes
        terminal.type(UP)
        terminal.until(">qa")
        terminal.type(END)
        terminal.until(">qb")
        terminal.type("/C")
        terminal.until(lambda text: order(text) == ["qc"] and "/C" in text)
        terminal.type("x\r")
        terminal.until("no queue matches Cx")
        terminal.type(ESCAPE)
        terminal.until(lambda text: len(order(text)) == 3)
        terminal.type("/q?\x15*a" + ENTER)
        terminal.until(lambda text: order(text) == ["qa"] and "1 of 3 queues" in text)
        terminal.type(ESCAPE + "?")
        terminal.until("any key back")
        terminal.type("xw")
        terminal.until("no workers")
        terminal.type(ESCAPE)
        terminal.until("QUEUE")
        terminal.type(" ")
        terminal.until("frozen")
        queue.send("qa", {})
        terminal.type(" ")
        terminal.until(has("qa", "3"))
        terminal.type("+")
        terminal.until("every 5s")
        terminal.type("---")
        terminal.until("every 500ms")


def test_a_queue_is_paused_by_a_key_after_a_question(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("qbilling")
    queue.create_queue("qother")

    def paused() -> list[str]:
        return [each.name for each in queue.list_queues() if each.paused_at is not None]

    with watching(command, "-i", "30s", "-s", "name") as terminal:
        terminal.until("qother")
        terminal.type(DOWN + "p")
        terminal.until("pause qother? y/n")
        terminal.type(ENTER)  # is no yes
        terminal.until(lambda text: "y/n" not in text)
        assert paused() == []
        terminal.type("p")
        terminal.until("y/n")
        terminal.type("y")
        terminal.until("queue qother is paused")
        terminal.until(has("qother", "paused"))  # long before the interval is over
        assert paused() == ["qother"]
        terminal.type("p")
        terminal.until("resume qother? y/n")
        terminal.type("y")
        terminal.until(has("qother", "idle"))
        assert paused() == []
        queue.delete_queue("qother")
        terminal.type("p")
        terminal.until("y/n")
        terminal.type("y")
        terminal.until('queue "qother" does not exist')


def test_enter_looks_into_a_queue(command: Command, queue: penstock.Client) -> None:
    queue.create_topic("orders")
    queue.create_queue("qbilling", topic="orders", max_delivery_attempts=1, max_active=7)
    for tenant in ("acme", "acme", "emca"):
        queue.send("qbilling", {}, tenant=tenant, priority=1)
    queue.send("qbilling", {}, priority=3, delay=600)
    dead = next(iter(queue.consume("qbilling", batch_size=1, wait=0)))
    dead.nack(error="card\x1b[2J declined")
    with watching(command, lines=45) as terminal:
        terminal.until("qbilling")
        terminal.type(ENTER)
        text = terminal.until("DEAD LETTERS")
        assert re.search(r"qbilling  (ready|no consumer)  topic orders", text)
        assert "max active 7" in text
        assert re.search(r"high +2 +0 +0 +0 ", text)
        assert re.search(r"low +1 +0 +1 +0 ", text)
        assert re.search(r"acme +1 +0 ", text)
        assert re.search(rf"{dead.id} +\d+(ms|s) ago +1 +no attempts left +card\ufffd\[2J declined", text)
        assert re.search(r"scheduled +low +0 +\d+(s|ms) +- +due in (9m5\ds|10m)", text)
        queue.send("qbilling", {}, tenant="new one")
        terminal.until("new one")  # it goes on reading
        terminal.resize(100, 12)
        terminal.until(lambda text: "qbilling" in text and "scheduled" not in text)
        terminal.type(END)
        terminal.until("scheduled")
        queue.delete_queue("qbilling")
        terminal.until("queue qbilling is not there any more")
        terminal.until("There are no queues yet: penstock queue create NAME")


def test_rates_are_what_came_and_what_was_done(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("q")
    queue.create_queue("qforgets", retain_completed=0)
    queue.send_many("q", [{}] * 30)
    with command.start("top", "--json", "--interval", "300ms") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["database"].startswith("test_")
        assert {each["name"]: each["in_per_second"] for each in first["queues"]} == {"q": 0, "qforgets": None}
        queue.send_many("q", [{}] * 60)
        for message in islice(queue.consume("q", batch_size=40, wait=0), 40):
            message.ack()
        came = went = 0.0
        at = datetime.fromisoformat(first["at"])
        deadline = time.monotonic() + 30
        while (round(came), round(went)) != (60, 40):
            assert time.monotonic() < deadline, (came, went)
            found = json.loads(process.stdout.readline())
            (line,) = (each for each in found["queues"] if each["name"] == "q")
            before, at = at, datetime.fromisoformat(found["at"])
            assert found["interval_seconds"] == pytest.approx((at - before).total_seconds(), abs=0.001)
            assert found["interval_seconds"] > 0
            came += line["in_per_second"] * found["interval_seconds"]
            went += line["out_per_second"] * found["interval_seconds"]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_the_bars_move(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("q")
    with watching(command, "-i", "300ms") as terminal:
        terminal.until(has("q", "0", "0"))

        def bar(text: str) -> int:
            line = next(line for line in text.splitlines() if line.startswith(">q"))
            return line.find("█")

        assert bar(terminal.text) == -1
        queue.send_many("q", [{}] * 5)
        was = bar(terminal.until(lambda text: bar(text) > 0))
        terminal.until(lambda text: 0 < bar(text) < was)
    with command.terminal("top", environ={"PYTHONIOENCODING": "ascii"}) as terminal:
        terminal.until("vPENDING")
        assert terminal.raw.isascii()


def test_a_terminal_of_any_size(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("qbilling")
    with watching(command) as terminal:
        terminal.until("OUT/s")
        terminal.resize(80, 24)
        terminal.until(lambda text: "OUT/s" in text and "WAITING" not in text)
        terminal.resize(40, 10)
        text = terminal.until(lambda text: "STATE" in text and "OUT/s" not in text)
        assert max(map(len, text.splitlines())) <= 40
        terminal.resize(9, 3)
        terminal.until(lambda text: text.startswith("pending 0"))
        terminal.resize(1, 1)
        terminal.until(lambda text: text == "p")
        terminal.resize(200, 50)
        terminal.until(lambda text: "WAITING" in text and "PostgreSQL" in text)


def test_without_a_terminal_it_prints_one_table(command: Command, queue: penstock.Client) -> None:
    found = command("top", "-i", "100ms").ok()
    assert "pending 0, active 0, dead 0" in found.out
    assert found.err == "There are no queues yet: penstock queue create NAME\n"
    for name in ("qa", "qb"):
        queue.create_queue(name)
    queue.send("qb", {})
    found = command("top", "--once", "-i", "100ms").ok()
    lines = [line.split() for line in found.out.splitlines()]
    assert lines[2][:3] == ["QUEUE", "PENDING", "ACTIVE"]
    assert [line[:2] for line in lines[3:]] == [["qb", "1"], ["qa", "0"]]
    once = command("top", "--once", "--json", "-i", "100ms", "--sort", "name", "--filter", "b").ok().json
    assert [(each["name"], each["pending_count"]) for each in once["queues"]] == [("qb", 1)]
    command("top", "--interval", "1ms").failed(2, "between 100ms and 1h")
    command("top", "--sort", "x").failed(2, "'pending'")
    # A terminal that has no screen, and one without a keyboard.
    shell = ["/bin/sh", "-c", f"TERM=dumb {PROGRAM} top -i 100ms; {PROGRAM} top -i 100ms </dev/null; stty -a"]
    with Terminal(shell, command.environment(), command.folder, 120, 40) as terminal:
        text = terminal.until(" icanon")
        assert text.count("PENDING") == 2
        assert b"\x1b[?1049h" not in terminal.raw


def test_no_color(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("q")
    with command.terminal("top", environ={"NO_COLOR": "1"}) as terminal:
        terminal.until("idle")
        assert not COLOUR.search(terminal.raw)
        terminal.type("q")
        assert terminal.wait() == 0
    with command.terminal("top") as terminal:
        terminal.until("idle")
        assert COLOUR.search(terminal.raw)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_leaves_the_terminal_as_it_was(command: Command, number: int, code: int) -> None:
    with command.terminal("top") as terminal:
        terminal.until("There are no queues")
        assert not terminal.is_sane()
        terminal.signal(number)
        assert terminal.wait() == code
        assert terminal.is_sane()
        assert not terminal.cursor_is_hidden
        assert terminal.raw.endswith(b"\x1b[?1049l")


def test_it_can_be_stopped_and_goes_on(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("qbilling")
    shell = ["/bin/bash", "--norc", "--noprofile", "-i"]
    environ = command.environment({"PS1": "READY> ", "HISTFILE": ""})
    with Terminal(shell, environ, command.folder, 100, 20) as terminal:
        terminal.until("READY>")
        terminal.type(f"{PROGRAM} top\n")
        terminal.until("idle")
        terminal.type("\x1a")
        terminal.until("Stopped")
        terminal.type("stty -a | grep -o '.icanon'; stty -a | grep -o '.echo '\n")
        terminal.until(" icanon")
        terminal.type("clear; fg\n")
        terminal.until(lambda text: terminal.raw.count(b"\x1b[?1049h") == 2 and "idle" in text)
        terminal.type("\x03")
        terminal.until("READY>")
        terminal.type("echo code $?\n")
        terminal.until("code 0")


@pytest.mark.slow
def test_keys_are_answered_while_the_database_is_not(
    command: Command, queue: penstock.Client, database18: str
) -> None:
    for name in ("qa", "qb"):
        queue.create_queue(name)
    with watching(command, "-i", "200ms") as terminal, psycopg.connect(database18) as blocker:
        terminal.until(">qa")
        blocker.execute("lock table penstock.queues in access exclusive mode")
        terminal.until("the database has not answered for")
        took = []
        for key, name in ((DOWN, ">qb"), (UP, ">qa")) * 5:
            began = time.monotonic()
            terminal.type(key)
            terminal.until(name)
            took.append(time.monotonic() - began)
        assert min(took) < 0.2
        blocker.rollback()
        terminal.until(lambda text: "has not answered" not in text)
        blocker.execute("lock table penstock.queues in access exclusive mode")
        while not blocker.execute("select from pg_locks where not granted").fetchall():
            terminal.read(0.05)
        # And it is left in the middle of a query.


def test_the_database_goes_and_comes_back(tmp_path: Path) -> None:
    with throwaway(settings={"fsync": "off"}) as server:
        with psycopg.connect(server.dsn()) as connection:
            schema.install(connection)
        with penstock.connect(server.dsn()) as client:
            client.create_queue("qbilling")
        with watching(Command(server.dsn(), tmp_path), "-i", "200ms") as terminal:
            terminal.until("qbilling")
            server.stop()
            terminal.until("trying again: ")
            assert row(terminal.text, "qbilling")  # what was known stays
            server.start()
            terminal.until(lambda text: "trying again" not in text)
            with penstock.connect(server.dsn()) as client:
                client.send("qbilling", {})
            terminal.until(has("qbilling", "1"))
    Command(server.dsn(), tmp_path)("top").failed(1, "Error:")


def test_a_thousand_queues(command: Command, database18: str) -> None:
    with psycopg.connect(database18) as connection:
        connection.execute(
            "select penstock.create_queue('q' || to_char(n, 'FM0000')) from generate_series(1, 1000) n"
        )
    with watching(command, "-s", "name") as terminal:
        text = terminal.until("of 1,000")
        rows = len(order(text))
        assert f"1-{rows} of 1,000" in text
        terminal.type(END)
        terminal.until(lambda text: ">q1000" in text and order(text)[0] == f"q{1001 - rows:04}")
        terminal.type("\x1b[5~")
        terminal.until(f">q{1000 - rows:04}")
        before = cpu_seconds(terminal.pid)
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            terminal.read(0.1)
        assert cpu_seconds(terminal.pid) - before < 1.0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_help_is_quick_and_says_what_quits(command: Command) -> None:
    began = time.monotonic()
    found = subprocess.run(
        [PROGRAM, "top", "--help"], capture_output=True, check=True, env=command.environment()
    )
    assert b"the exit code is 0 for both" in b" ".join(found.stdout.split())
    assert time.monotonic() - began < 5
