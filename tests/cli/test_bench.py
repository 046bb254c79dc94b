"""`penstock bench`."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock.benchmark.figures import Figure, Outcome, figure, percentile
from penstock.benchmark.meaning import meaning
from penstock.benchmark.plan import MEASURES

from .command import PATIENCE, Answer, Command

LONG = ("bench", "--yes", "--messages", "10000000", "--seconds", "300")


def test_it_measures_everything_and_leaves_nothing(command: Command, queue: penstock.Client) -> None:
    queue.create_queue("billing")
    queue.send("billing", {"order": 17})
    amounts = ("--messages", "60", "--seconds", "5", "--senders", "3", "--consumers", "2")
    answer = command("bench", "--yes", "--json", *amounts).ok()
    assert "PostgreSQL 18" in answer.err
    found = {each["name"]: each for each in answer.json["figures"]}
    assert list(found) == list(MEASURES)
    assert answer.json["complete"] is True
    assert answer.json["plan"]["messages"] == 60
    assert [found[name]["clients"] for name in ("send", "send-concurrent", "drain")] == [1, 3, 2]
    for name, each in found.items():
        assert each["messages"] == 60, name
        assert (each["per_second"] is None) == (name == "latency")
        times = [each[f"{which}_ms"] for which in ("p50", "p95", "p99", "max")]
        if name in ("send-many", "tasks"):
            assert times == [None] * 4
        else:
            assert all(0 < less <= more for less, more in pairwise(times)), name
    assert any("round trip" in sentence or "disk" in sentence for sentence in answer.json["meaning"])
    assert [each.name for each in queue.list_queues()] == ["billing"]
    assert queue.get_queue_statistics("billing")[0].pending_count == 1
    assert queue.list_workers() == []


def test_one_measure_as_a_table(command: Command) -> None:
    answer = command("bench", "--yes", "--quick", "--only", "drain", "-n", "200", "--payload-bytes", "0").ok()
    heading, row = answer.out.splitlines()
    assert heading.split()[:4] == ["MEASURE", "CLIENTS", "MESSAGES", "PER"]
    assert row.split()[0] == "drain"
    assert row.split()[2] == "200"


def test_it_asks_before_it_puts_load_on_a_database(command: Command, queue: penstock.Client) -> None:
    command("bench").failed(2, "puts load on", "--yes")
    with command.terminal("bench", "--quick") as terminal:
        terminal.until("Go on? [y/N]")
        terminal.type("n\n")
        assert terminal.wait() == 1
    command("bench", "--only", "everything").failed(2, "round-trip")
    assert queue.list_queues() == []


def test_it_does_not_ask_for_the_embedded_server(tmp_path: Path) -> None:
    answer = Command(None, tmp_path)("bench", "--quick", "--only", "round-trip", "-n", "1").ok()
    assert "Measuring the embedded server" in answer.err
    assert answer.out.splitlines()[1].startswith("round-trip")


def test_ctrl_c_shows_what_was_measured_and_removes_the_queues(
    command: Command, queue: penstock.Client
) -> None:
    measures = ("--only", "round-trip", "--only", "send-concurrent")
    with command.terminal(*LONG, *measures) as terminal:
        terminal.until(_sends_some)
        assert "penstock_bench_" in queue.list_queues()[0].name
        terminal.type("\x03\x03")  # a user in a hurry
        assert terminal.wait() == 130
        assert "did not come to its end" in terminal.text
        assert "round-trip" in terminal.text
        assert "Traceback" not in terminal.text
        assert terminal.is_sane()
        assert not terminal.cursor_is_hidden
    assert queue.list_queues() == []


def _sends_some(screen: str) -> bool:
    """Whether the bar of the senders has begun to move."""
    return any(
        line.startswith("send-concurrent") and not line.split("/")[0].endswith(" 0")
        for line in screen.splitlines()
        if "/" in line
    )


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline


def test_sigterm_removes_the_queues(command: Command, queue: penstock.Client) -> None:
    process = command.start(*LONG, "--only", "send", "--json")
    _until(lambda: _sent(queue) > 0)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    assert queue.list_queues() == []


def _sent(queue: penstock.Client) -> int:
    return sum(each.pending_count for each in queue.get_queue_statistics())


def test_a_killed_run_leaves_no_process_and_queues_that_end(
    command: Command, queue: penstock.Client, database18: str
) -> None:
    process = command.start(*LONG, "--only", "send-concurrent")
    _until(lambda: _sent(queue) > 0)
    process.kill()
    process.communicate(timeout=60)
    with psycopg.connect(database18, autocommit=True) as connection:
        others = (
            "select from pg_stat_activity where datname = current_database() "
            "and pid <> pg_backend_pid() and application_name = 'penstock' and query like '%send_message%'"
        )
        _until(lambda: connection.execute(others).fetchone() is None)
    (left,) = queue.list_queues()
    assert left.exclusive
    assert left.keep_alive_until is not None


def test_what_goes_wrong_in_a_process_is_reported(command: Command, queue: penstock.Client) -> None:
    process = command.start(*LONG, "--only", "send")
    _until(lambda: _sent(queue) > 0)
    queue.delete_queue(queue.list_queues()[0].name)
    out, err = process.communicate(timeout=60)
    answer = Answer(_done(process.returncode, out, err))
    answer.failed(1, "penstock_bench_", "does not exist")


def _done(code: int, out: bytes, err: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.CompletedProcess([], code, out, err)


def test_what_killed_runs_left_is_removed(command: Command, queue: penstock.Client, database18: str) -> None:
    for name in ("penstock_bench_old_send", "penstock_bench_new_send"):
        queue.create_queue(name, exclusive=True, keep_alive=3600)
    queue.create_queue("penstock_bench_unrelated")
    with psycopg.connect(database18) as connection:
        connection.execute(
            "update penstock.queues set created_at = created_at - interval '61 minutes' "
            "where name <> 'penstock_bench_new_send'"
        )
    answer = command("bench", "--yes", "--quick", "--only", "round-trip", "-n", "1").ok()
    assert "penstock_bench_old_send" in answer.err
    left = {each.name for each in queue.list_queues()}
    assert left == {"penstock_bench_new_send", "penstock_bench_unrelated"}


# Figures


def test_percentiles_are_of_what_was_measured() -> None:
    assert [percentile([3, 1, 2, 4], share) for share in (0.5, 0.75, 0.99, 1.0)] == [2, 3, 4, 4]
    assert percentile([7], 0.5) == 7


def test_processes_side_by_side_are_one_figure() -> None:
    found = figure("send", [Outcome(10, 12, 30, [0.001]), Outcome(11, 13, 60, [0.002, 0.003])])
    assert (found.clients, found.messages, found.seconds, found.per_second) == (2, 90, 3, 30)
    assert (found.p50_ms, found.p95_ms, found.p99_ms, found.max_ms) == (2, 3, 3, 3)


@pytest.mark.parametrize(
    ("commit_ms", "sentence"),
    [(0.11, "A commit (0.11 ms) takes hardly longer"), (2.1, "2.00 ms of it on the disk (fsync)")],
)
def test_what_the_figures_mean(commit_ms: float, sentence: str) -> None:
    found = [
        Figure("round-trip", 1, 1, 1, 10_000, p50_ms=0.1),
        Figure("commit", 1, 1, 1, 400, p50_ms=commit_ms),
        Figure("send", 1, 1, 1, 400),
        Figure("send-concurrent", 4, 1, 1, 1200),
        Figure("drain", 2, 1, 1, 900),
    ]
    told = "\n".join(meaning(found))
    assert sentence in told
    assert "4 senders get in 3.0 times as many as one: their commits share the disk." in told
    assert "2 consumers (900/s) do not keep up with 4 senders (1,200/s)." in told
    assert meaning([]) == []
