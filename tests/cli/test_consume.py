"""`penstock consume`: what is printed, what is acked, and what comes back."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

import psycopg
import pytest

import penstock
from penstock.cli.interrupts import Interrupts
from penstock.cli.output.messages import Acks, Stdout, line
from penstock.models import MessageDetails

from .command import PATIENCE, PROGRAM, Answer, Command


@pytest.fixture
def orders(queue: penstock.Client) -> penstock.Client:
    """A client of a database with a queue `orders`."""
    queue.create_queue("orders")
    return queue


def counts(client: penstock.Client) -> tuple[int, int, int]:
    """How many messages of `orders` are pending, held and done."""
    found = client.get_queue_statistics("orders")[0]
    return found.pending_count, found.processing_count, found.completed_count or 0


def details(client: penstock.Client, message_id: int) -> MessageDetails:
    found = client.get_message("orders", message_id)
    assert found is not None
    return found


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def leases(client: penstock.Client) -> dict[int, datetime]:
    """When the leases of active messages end."""
    found = client.list_messages("orders", state="active")
    return {each.message_id: each.leased_until for each in found if each.leased_until is not None}


def wait_for_extension(client: penstock.Client, number: int) -> None:
    """Wait until each of so many leases has been made longer."""
    until(lambda: len(leases(client)) == number)
    before = leases(client)
    until(lambda: all(leases(client)[held] > end for held, end in before.items()))


@contextmanager
def started(command: Command, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, running; killed at the end of a test that failed."""
    with command.start(*arguments) as process:
        try:
            yield process
        finally:
            process.kill()


def shell(command: Command, text: str) -> Answer:
    """Run a line of shell, in which P is the command."""
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail; P() {{ {shlex.quote(PROGRAM)} "$@"; }}; {text}'],
        capture_output=True,
        check=False,
        env=command.environment(),
        cwd=command.folder,
        timeout=PATIENCE,
    )
    return Answer(done)


def test_without_ack_it_is_a_look(command: Command, orders: penstock.Client) -> None:
    ids = orders.send_many("orders", [{"a": 1}, "zwei", 3.5])
    assert command("consume", "orders").ok().out == '{"a": 1}\n'
    assert command("consume", "orders", "-n", "9").ok().lines == [{"a": 1}, "zwei", 3.5]
    assert counts(orders) == (3, 0, 0)
    # In the same order as before, and without an attempt.
    messages = list(orders.consume("orders", wait=0))
    assert [(message.id, message.attempt) for message in messages] == [(one, 1) for one in ids]
    nothing = command("consume", "orders")
    nothing.failed(4, "no message in queue orders")
    for options in (["--follow"], ["-n", "0"]):
        command("consume", "orders", *options).failed(2, "without --ack or --exec")
    command("consume", "nosuch").failed(3, 'queue "nosuch" does not exist')
    command("consume", "orders", "--timeout", "1s").failed(2, "for --exec")


def test_ack_takes_them_away(command: Command, orders: penstock.Client) -> None:
    orders.send_many("orders", range(250))
    assert command("consume", "orders", "--ack", "-n", "3").ok().lines == [0, 1, 2]
    assert counts(orders) == (247, 0, 3)
    assert command("consume", "orders", "--ack", "-n", "0").ok().lines == list(range(3, 250))
    assert counts(orders) == (0, 0, 250)
    command("consume", "orders", "--ack", "-n", "0").failed(4)


def test_what_is_stored_is_printed_as_it_is(
    command: Command, orders: penstock.Client, sql18: psycopg.Connection[Any]
) -> None:
    # More digits than a float of Python has, and bytes that are no text.
    sql18.execute("select penstock.send_message('orders', '{\"pi\": 3.14159265358979323846264338327950288}')")
    orders.send("orders", b"\x00\xff\n", priority=3, headers={"n": 1}, tenant="acme")
    assert command("consume", "orders", "-n", "2").ok().out.splitlines() == [
        '{"pi": 3.14159265358979323846264338327950288}',
        '{"body":"AP8K"}',
    ]
    pi, raw = command("consume", "orders", "--json", "-n", "2").ok().lines
    assert (pi["payload"], pi["headers"], pi["tenant"], "body" in pi) == (
        {"pi": 3.141592653589793},
        {},
        None,
        False,
    )
    assert (raw["payload"], raw["body"], raw["headers"]) == (None, "AP8K", {"n": 1})
    assert (raw["tenant"], raw["priority"], raw["attempt"], raw["queue_name"]) == ("acme", 3, 1, "orders")
    assert {"id", "token", "published_at", "leased_until"} <= raw.keys()
    command("consume", "orders", "--ack").ok()
    assert command("consume", "orders", "--raw").ok().raw == b"\x00\xff\n"
    command("consume", "orders", "--raw", "--json").failed(2, "either")


def test_messages_move_to_another_queue(command: Command, orders: penstock.Client) -> None:
    orders.create_queue("other")
    orders.send_many("orders", [penstock.NewMessage(number, priority=number % 4) for number in range(8)])
    orders.send("orders", b"\x00", headers={"kind": "bytes"}, priority=3)
    moved = shell(command, "P consume orders --json --ack -n 0 | P send other --envelope").ok()
    assert "9 messages sent" in moved.err
    found = [(message.payload, message.priority) for message in orders.consume("other", wait=0)]
    assert sorted(found[:8]) == [(number, number % 4) for number in range(8)]
    assert found[8] == (b"\x00", 3)
    # Where they cannot go they stay.
    orders.send("orders", 1)
    stuck = shell(command, "P consume orders --json --ack -n 0 | P send nosuch --envelope")
    stuck.failed(3, 'queue "nosuch" does not exist')
    assert counts(orders) == (1, 0, 9)


def test_messages_that_were_not_read_are_not_acked(command: Command, orders: penstock.Client) -> None:
    orders.send_many("orders", range(50))
    first = shell(command, "P consume orders --ack -n 0 | head -1")
    assert (first.out, first.err) == ("0\n", "")
    assert counts(orders) == (49, 0, 1)
    full = shell(command, "P consume orders --ack > /dev/full")
    full.failed(1, "cannot write to stdout: No space left")
    shell(command, "P consume orders --ack >&-").failed(1, "stdout is closed")
    assert counts(orders) == (49, 0, 1)
    assert [message.attempt for message in orders.consume_batch("orders", batch_size=49)] == [1] * 49


def test_what_was_written_is_acked_when_it_is_read(orders: penstock.Client) -> None:
    orders.send_many("orders", range(4))
    reading, writing = os.pipe()
    stdout = Stdout(writing, Interrupts())
    acks = Acks(orders, stdout, pytest.fail)
    # It stays with a reader that reads late, or at the end only.
    for message in orders.consume("orders", wait=0, auto_extend=True):
        message.__enter__()
        acks.put(message, stdout.write(line(message)))
    assert counts(orders) == (0, 4, 0)
    assert os.read(reading, 4) == b"0\n1\n"
    until(lambda: counts(orders) == (0, 2, 2))
    assert os.read(reading, 1) == b"2"
    acks.close(patience=0.1)
    assert counts(orders) == (0, 0, 4)
    # A message that the reader does not read is not acked.
    for patience in (0.0, 60.0):
        orders.send_many("orders", range(2))
        acks = Acks(orders, stdout, pytest.fail)
        for message in orders.consume("orders", wait=0, auto_extend=True):
            message.__enter__()
            acks.put(message, stdout.write(line(message)))
        if patience:
            os.close(reading)
        acks.close(patience=patience)
        assert acks.unread == 2
        assert [message.attempt for message in orders.consume_batch("orders")] == [1, 1]
        orders.purge_queue("orders")
    os.close(writing)


def test_the_writer_and_the_acker_ask_for_the_reader_at_once() -> None:
    reading, writing = os.pipe()
    stdout = Stdout(writing, Interrupts())

    def ask() -> set[bool]:
        return {stdout.has_reader for _ in range(20_000)}

    with ThreadPoolExecutor(3) as threads:
        assert [future.result() for future in [threads.submit(ask) for _ in range(3)]] == [{True}] * 3
        os.close(reading)
        assert [future.result() for future in [threads.submit(ask) for _ in range(3)]] == [{False}] * 3
    os.close(writing)


def test_what_acks_make_room_for_is_taken_too(command: Command, queue: penstock.Client) -> None:
    """A tenant has two at once: the others come in when those are done."""
    queue.create_queue("capped", tenant_max_active=2)
    queue.send_many("capped", range(7), tenant="acme")
    assert command("consume", "capped", "-n", "0", "--ack").ok().out == "".join(f"{n}\n" for n in range(7))
    assert queue.get_queue_statistics("capped")[0].pending_count == 0


def test_it_waits_for_messages(command: Command, orders: penstock.Client) -> None:
    command("consume", "orders", "--wait", "200ms").failed(4)
    with started(command, "consume", "orders", "--follow", "--ack") as process:
        assert process.stdout is not None
        for number in range(3):
            orders.send("orders", number)
            assert process.stdout.readline() == f"{number}\n".encode()
        # Due after a while: maintenance has to run for that.
        orders.send("orders", "later", delay=1)
        assert process.stdout.readline() == b'"later"\n'
        until(lambda: counts(orders) == (0, 0, 4))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert counts(orders) == (0, 0, 4)


def test_what_is_due_is_there(command: Command, orders: penstock.Client) -> None:
    due_at = details(orders, orders.send("orders", 1, delay=0.1)).due_at
    assert due_at is not None
    until(lambda: due_at < orders.clock())
    assert command("consume", "orders").ok().out == "1\n"


def test_ctrl_c_gives_back_what_was_not_printed(command: Command, orders: penstock.Client) -> None:
    # More than a pipe takes: it stands still in the middle of the second one.
    orders.send_many("orders", ["x" * 50_000, "y" * 100_000, "z"])
    for options in (["--ack"], []):
        with started(command, "consume", "orders", "-n", "3", *options) as process:
            assert process.stdout is not None
            if options:
                assert len(process.stdout.readline()) == 50_003
                until(lambda: counts(orders) == (0, 2, 1))
            until(partial(_is_full, process.stdout))
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130
        assert counts(orders) == (2, 0, 1)
    assert [message.attempt for message in orders.consume_batch("orders")] == [1, 1]


def _is_full(pipe: IO[bytes]) -> bool:
    return _unread(pipe) > 60_000


def _unread(pipe: IO[bytes]) -> int:
    (unread,) = struct.unpack("i", fcntl.ioctl(pipe.fileno(), termios.FIONREAD, bytes(4)))
    return int(unread)


def test_a_signal_before_it_consumes_is_not_forgotten(
    command: Command, orders: penstock.Client, sql18: psycopg.Connection[Any]
) -> None:
    with started(command, "consume", "orders", "-n", "0", "--ack", "--wait", "600s") as process:
        with sql18.transaction():
            sql18.execute("lock table penstock.queues in access exclusive mode")
            until(lambda: bool(sql18.execute("select from pg_locks where not granted").fetchall()))
            process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 130


def test_what_a_reader_read_before_it_left_counts_as_read() -> None:
    reading, writing = os.pipe()

    class Looked(Stdout):
        """At the wrong moment: the reader takes it all and leaves right after the count."""

        looks = 0

        @property
        def read(self) -> int:
            found = super().read
            if self.looks == 0:
                assert os.read(reading, 10) == b"1\n"
                os.close(reading)
            self.looks += 1
            return found

    stdout = Looked(writing, Interrupts())
    assert stdout.write(b"1\n") == 2
    assert stdout.looks == 2
    os.close(writing)


def test_an_ack_that_fails_ends_it_and_nothing_stays_held(
    command: Command, orders: penstock.Client, sql18: psycopg.Connection[Any]
) -> None:
    with started(command, "consume", "orders", "--follow", "--ack") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        orders.send("orders", 1)
        assert process.stdout.readline() == b"1\n"
        until(lambda: counts(orders) == (0, 0, 1))
        sql18.execute("alter function penstock.ack_messages rename to ack_messages_elsewhere")
        orders.send("orders", 2)
        assert process.stdout.readline() == b"2\n"
        assert process.wait(PATIENCE) == 1
        assert b"ack_messages" in process.stderr.read()
    assert counts(orders) == (1, 0, 1)


def test_a_lease_is_kept_until_a_late_reader_has_read(command: Command, orders: penstock.Client) -> None:
    orders.send_many("orders", [1, 2])
    with started(command, "consume", "orders", "-n", "2", "--ack", "--visibility-timeout", "3s") as process:
        assert process.stdout is not None
        # All is in the pipe, and the command no longer consumes.
        wait_for_extension(orders, 2)
        assert process.stdout.read() == b"1\n2\n"
        assert process.wait(PATIENCE) == 0
    assert counts(orders) == (0, 0, 2)


def test_a_lease_is_kept_while_the_output_is_not_read(command: Command, orders: penstock.Client) -> None:
    orders.send_many("orders", ["x" * 100_000, "y"])
    with started(command, "consume", "orders", "-n", "2", "--ack", "--visibility-timeout", "3s") as process:
        assert process.stdout is not None
        wait_for_extension(orders, 2)
        assert counts(orders) == (0, 2, 0)
        assert len(process.stdout.read().splitlines()) == 2
        assert process.wait(PATIENCE) == 0
    assert counts(orders) == (0, 0, 2)


# --exec


def test_a_command_for_each_message(command: Command, orders: penstock.Client) -> None:
    orders.send("orders", {"a": 1}, headers={"n": 1}, tenant="acme", priority=1)
    orders.send("orders", b"\x00\xff")
    shown = (
        "cat; echo $PENSTOCK_QUEUE $PENSTOCK_ATTEMPT $PENSTOCK_PRIORITY [$PENSTOCK_TENANT] $PENSTOCK_HEADERS"
    )
    done = command("consume", "orders", "-n", "0", "--exec", shown).ok()
    assert done.raw == b'{"a": 1}\norders 1 1 [acme] {"n": 1}\n\x00\xfforders 1 2 [] {}\n'
    assert done.err == "2 done, 0 failed\n"
    assert counts(orders) == (0, 0, 2)
    command("consume", "orders", "--exec", "true").failed(4, "no message")
    command("consume", "nosuch", "--exec", "true").failed(3, "nosuch")


def test_a_command_that_fails_is_a_nack(command: Command, orders: penstock.Client) -> None:
    message_id = orders.send("orders", 1)
    failing = "echo one >&2; printf 'two\\377\\0' >&2; echo data; exit 7"
    failed = shell(command, f"P consume orders --exec {shlex.quote(failing)} 2>errors")
    assert (failed.code, failed.out) == (1, "data\n")
    told = (command.folder / "errors").read_bytes()
    assert told.startswith(b"one\ntwo\xff\0")
    assert told.endswith(
        f"message {message_id}, attempt 1: exit code 7: one (nacked)\n0 done, 1 failed\n".encode()
    )
    found = details(orders, message_id)
    assert (found.state, found.last_error) == ("ready", "exit code 7: one\ntwo\ufffd\ufffd")
    answer = command("consume", "orders", "--json", "--exec", "echo to stderr; kill -9 $$")
    killed = answer.json
    assert (answer.code, answer.err.startswith("to stderr\n")) == (1, True)
    assert (killed["outcome"], killed["exit_code"], killed["attempt"]) == ("nacked", -9, 2)
    assert details(orders, message_id).last_error == "killed by SIGKILL"


def test_a_command_that_cannot_be_run_costs_no_attempt(command: Command, orders: penstock.Client) -> None:
    orders.send_many("orders", range(3))
    typing_error = command("consume", "orders", "-n", "0", "--exec", "nosuchcommand")
    typing_error.failed(1, "the command cannot be run: exit code 127", "not found")
    assert [message.attempt for message in orders.consume_batch("orders")] == [1, 1, 1]


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(
    command: Command, orders: penstock.Client, tmp_path: Path
) -> None:
    message_id = orders.send("orders", 1)
    text = "trap '' TERM; sleep 600 & echo $! > child; wait; sleep 600"
    command("consume", "orders", "--timeout", "500ms", "--exec", text).failed(1, "ended after 500 ms")
    assert details(orders, message_id).last_error == "the command was ended after 500 ms"
    child = int((tmp_path / "child").read_text())
    until(lambda: _is_gone(child))


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


# In the second one the other place finds nothing more, while the command runs.
@pytest.mark.parametrize("options", [(), ("-n", "0", "-c", "2")])
def test_a_lease_is_kept_while_a_command_runs(
    command: Command, orders: penstock.Client, tmp_path: Path, options: tuple[str, ...]
) -> None:
    os.mkfifo(tmp_path / "go")
    orders.send("orders", 1)
    options = (*options, "--visibility-timeout", "3s", "--exec", "cat go")
    with started(command, "consume", "orders", *options) as process:
        wait_for_extension(orders, 1)
        assert counts(orders) == (0, 1, 0)
        (tmp_path / "go").write_text("")
        assert process.wait(PATIENCE) == 0
    assert counts(orders) == (0, 0, 1)


def test_stderr_that_is_not_read_stops_the_command_alone(
    command: Command, orders: penstock.Client, tmp_path: Path
) -> None:
    orders.send_many("orders", range(3))
    noise = "head -c 3000000 /dev/zero | tr '\\0' x >&2; touch through"
    options = ("--follow", "--visibility-timeout", "3s", "--exec", noise)
    with started(command, "consume", "orders", *options) as process:
        wait_for_extension(orders, 1)
        assert not (tmp_path / "through").exists()
        # The first one waits for the command.
        while counts(orders)[1]:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
        assert process.wait(PATIENCE) == 130
    assert counts(orders) == (3, 0, 0)
    done = command("consume", "orders", "-n", "3", "--exec", noise).ok()
    assert done.err.count("x") == 9_000_000
    assert counts(orders) == (0, 0, 3)


def test_an_ack_that_was_not_waited_for_is_not_reported_as_done(
    command: Command, orders: penstock.Client, sql18: psycopg.Connection[Any], tmp_path: Path
) -> None:
    orders.send("orders", 1)
    os.mkfifo(tmp_path / "go")
    with started(command, "consume", "orders", "--json", "--exec", "cat go") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        until(lambda: counts(orders)[1] == 1)
        with sql18.transaction():
            sql18.execute("lock table penstock.queues in access exclusive mode")
            (tmp_path / "go").write_text("")
            until(lambda: bool(sql18.execute("select from pg_locks where not granted").fetchall()))
            process.send_signal(signal.SIGTERM)
            assert b"Waiting for 1 command" in process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            found = json.loads(process.stdout.readline())
        assert process.wait(PATIENCE) == 130
    assert (found["outcome"], found["exit_code"]) == ("unknown", 0)


def test_a_command_that_is_killed_by_a_signal_without_a_name(
    command: Command, orders: penstock.Client
) -> None:
    orders.send("orders", 1)
    command("consume", "orders", "--exec", "kill -35 $$").failed(1, "killed by signal 35", "1 failed")


def test_a_command_whose_lease_is_lost_is_ended(
    command: Command, orders: penstock.Client, tmp_path: Path
) -> None:
    orders.send("orders", 1)
    running = "echo $$ > pid; exec sleep 600"
    with started(command, "consume", "orders", "--visibility-timeout", "1s", "--exec", running) as process:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        orders.purge_queue("orders")
        assert process.wait(PATIENCE) == 1
        assert process.stderr is not None
        assert b"lost" in process.stderr.read()
    until(lambda: _is_gone(int((tmp_path / "pid").read_text())))


def test_the_first_ctrl_c_waits_and_the_second_does_not(
    command: Command, orders: penstock.Client, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    orders.send_many("orders", [1, 2])
    # In a terminal, where Ctrl-C goes to every process in the foreground.
    with command.terminal("consume", "orders", "--follow", "--exec", "echo begun; cat go") as terminal:
        terminal.until("begun")
        terminal.type("\x03")
        terminal.until("Waiting for 1 command")
        (tmp_path / "go").write_text("")
        assert terminal.wait() == 130
        assert "1 done, 0 failed" in terminal.text
    assert counts(orders) == (1, 0, 1)
    with command.terminal("consume", "orders", "--follow", "--exec", "echo begun; cat go") as terminal:
        terminal.until("begun")
        terminal.type("\x03")
        terminal.until("Waiting for 1 command")
        terminal.signal(signal.SIGTERM)
        assert terminal.wait() == 130
        assert "0 done, 0 failed, 1 given back" in terminal.text
    assert counts(orders) == (1, 0, 1)
    assert [message.attempt for message in orders.consume_batch("orders")] == [1]


def test_commands_run_side_by_side(command: Command, orders: penstock.Client, tmp_path: Path) -> None:
    orders.send_many("orders", range(3))
    # Each waits until all three have begun.
    meet = 'touch begun.$PENSTOCK_MESSAGE_ID; until [ "$(ls begun.* | wc -l)" = 3 ]; do sleep 0.05; done'
    command("consume", "orders", "-n", "3", "-c", "3", "--timeout", "30s", "--exec", meet).ok()
    assert counts(orders) == (0, 0, 3)


def test_consumers_share_messages_and_get_each_once(
    command: Command, orders: penstock.Client, tmp_path: Path
) -> None:
    orders.send_many("orders", range(60))
    note = "cat >> taken"
    processes = [
        command.start("consume", "orders", "--follow", "--wait", "1s", "--exec", note),
        command.start("consume", "orders", "--follow", "--wait", "1s", "--exec", note, "-c", "2"),
        command.start("consume", "orders", "--follow", "--wait", "1s", "--ack"),
    ]
    printed = []
    for process in processes:
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode in (0, 4), err
        printed += out.split()
    taken = (tmp_path / "taken").read_bytes().split() if (tmp_path / "taken").exists() else []
    assert sorted(map(int, [*printed, *taken])) == list(range(60))
    assert counts(orders) == (0, 0, 60)


def test_a_consumer_that_is_killed_loses_nothing(
    command: Command, orders: penstock.Client, tmp_path: Path
) -> None:
    orders.send("orders", 1)
    running = "echo $PPID > parent; echo $$ > pid; exec sleep 600"
    with started(command, "consume", "orders", "--visibility-timeout", "1s", "--exec", running) as process:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        process.kill()
        process.wait(PATIENCE)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    again = command("consume", "orders", "--wait", "30s", "--json", "--ack").ok().json
    assert (again["payload"], again["attempt"]) == (1, 2)


def test_it_outlives_its_connections(
    command: Command, orders: penstock.Client, sql18: psycopg.Connection[Any]
) -> None:
    others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    with started(command, "consume", "orders", "--follow", "--ack") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        orders.send("orders", 1)
        assert process.stdout.readline() == b"1\n"
        until(lambda: counts(orders) == (0, 0, 1))
        until(lambda: bool(sql18.execute(f"select {others} and query like 'listen%'").fetchall()))
        sql18.execute(f"select pg_terminate_backend(pid, 10000) {others}")
        sql18.execute("select penstock.send_message('orders', '2')")
        assert process.stdout.readline() == b"2\n"
        until(lambda: counts(orders) == (0, 0, 2))
        # A claim that was under way waits for the database, too, and says so.
        assert any(b"polling meanwhile" in line for line in iter(process.stderr.readline, b""))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
