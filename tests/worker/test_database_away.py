"""The database is away: the worker waits, says so once, and no task is lost or run twice for it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock import schema
from penstock.embedded import Server, throwaway
from tests.conftest import SETTINGS
from tests.failures.conftest import terminate
from tests.failures.proxy import Cut, Proxy
from tests.worker.stage import Stage

Sql = psycopg.Connection[Any]

AWAY = "the database cannot be reached"
BACK = "the database is there again"

TASKS = """
@app.task
async def hold(gate: str):
    say("begins", gate)
    await passed(gate)
    say("ends", gate)

@app.task(queue="kept", result=True, max_attempts=3)
async def kept(gate: str):
    say("begins", gate)
    await passed(gate)
    say("ends", gate)
    return gate

@app.task
async def note(number: int):
    say("note", number)

@app.task(max_attempts=2, retry_delays=0)
async def fail(gate: str, context: TaskContext):
    say("fails", context.attempt)
    await passed(gate)
    raise ValueError(context.attempt)
"""


def memory(pid: int) -> int:
    """What a process has in memory, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS")]
    return int(line.split()[1]) // 1024


def test_a_worker_waits_for_the_network_and_tells_what_ended_meanwhile(
    stage: Stage, proxy: Proxy, proxied: str
) -> None:
    stage.write(TASKS)
    worker = stage.start("--lease", "60", dsn=proxied).begun()
    ids = {gate: stage.enqueue("hold", gate) for gate in ("during", "after")}
    handle = stage.app.tasks["kept"].enqueue("during")
    failing = stage.enqueue("fail", "during")
    stage.heard("begins during", "begins after", "fails 1")
    before = memory(worker.pid)
    proxy.refuse()
    proxy.cut()
    worker.says(AWAY)
    stage.open("during")
    stage.heard("ends during")
    later = [stage.enqueue("note", number) for number in range(20)]
    time.sleep(3)
    assert stage.state("hold", ids["during"]) == "active"
    assert memory(worker.pid) - before < 15
    proxy.admit()
    worker.says(BACK, 10)
    stage.done("hold", ids["during"])
    assert handle.result(timeout=20) == "during"
    stage.dead("fail", failing)
    stage.done("note", *later)
    stage.open("after")
    stage.done("hold", ids["after"])
    assert worker.stop() == 0
    assert (worker.log.count(AWAY), worker.log.count(BACK)) == (1, 1), worker.log
    assert "lease was lost" not in worker.log
    assert sorted(stage.said) == sorted(
        [f"{what} {gate}" for what in ("begins", "ends") for gate in ("after", "during", "during")]
        + ["fails 1", "fails 2", *(f"note {number}" for number in range(20))]
    )


def test_a_handler_runs_through_an_outage_that_is_longer_than_a_lease(
    stage: Stage, proxy: Proxy, proxied: str
) -> None:
    """No other worker was there to take the message over."""
    stage.write(TASKS)
    worker = stage.start("--lease", "2", dsn=proxied).begun()
    message_id = stage.enqueue("hold", "gate")
    stage.heard("begins gate")
    proxy.refuse()
    proxy.cut()
    time.sleep(2.5)
    # The first attempt to keep the lease fails: no claim may come before the second.
    for text in ("pulse", "batch_extend"):
        proxy.cut_at(text, Cut.BEFORE)
    proxy.admit()
    worker.says(BACK)
    note = stage.enqueue("note", 1)
    stage.done("note", note)
    stage.open("gate")
    stage.done("hold", message_id)
    assert worker.stop() == 0
    assert sorted(stage.said) == ["begins gate", "ends gate", "note 1"], worker.log


def test_sessions_that_the_server_ends_cost_nothing(stage: Stage, sql18: Sql) -> None:
    """Over and over, while tasks run: each is done, and each runs once."""
    stage.write(TASKS)
    worker = stage.worker("--lease", "2", "-c", "10")
    held = stage.enqueue("hold", "gate")
    stage.heard("begins gate")
    ended = 0
    for round_ in range(5):
        stage.app.tasks["note"].enqueue_many([(100 * round_ + number,) for number in range(100)])
        stage.heard(f"note {100 * round_ + 20}")
        ended += terminate(sql18)
    assert ended >= 5
    stage.app.close()
    stage.until(lambda: len(stage.said) >= 501, "all have run")
    stage.open("gate")
    stage.done("hold", held)
    assert worker.stop() == 0
    numbers = sorted(int(line.split()[1]) for line in stage.said if line.startswith("note"))
    assert numbers == list(range(500))
    assert stage.said.count("begins gate") == 1
    assert worker.log.count("Traceback") == 0, worker.log


def test_results_of_before_and_after_an_outage_are_reported_together(
    stage: Stage, proxy: Proxy, proxied: str
) -> None:
    stage.write(TASKS)
    worker = stage.start("--lease", "30", dsn=proxied).begun()
    before = stage.app.tasks["kept"].enqueue("gate")
    stage.heard("begins gate")
    proxy.cut()
    stage.until(lambda: proxy.connections > 2, "it is connected again")
    after = [stage.app.tasks["kept"].enqueue("gate") for _ in range(3)]
    stage.until(lambda: stage.said.count("begins gate") == 4, "all have begun")
    stage.open("gate")
    for handle in (before, *after):
        assert handle.result(timeout=20) == "gate"
    assert worker.stop() == 0
    assert sorted(stage.said) == ["begins gate"] * 4 + ["ends gate"] * 4


@pytest.mark.parametrize("cut", list(Cut), ids=["before", "after"])
@pytest.mark.parametrize("function", ["ack_messages", "ack_tasks", "nack_messages", "consume_messages_batch"])
def test_a_connection_that_ends_in_a_statement_costs_nothing(
    stage: Stage, proxy: Proxy, proxied: str, function: str, cut: Cut
) -> None:
    stage.write(TASKS)
    worker = stage.start("--lease", "2", dsn=proxied).begun()
    task = {"ack_tasks": "kept", "nack_messages": "fail"}.get(function, "hold")
    proxy.cut_at(function, cut)
    message_id = stage.enqueue(task, "gate")
    stage.open("gate")
    final = "dead" if task == "fail" else "done"
    stage.until(lambda: stage.state(task, message_id) in (None, final), "it has ended")
    assert worker.stop() == 0
    expected = ["fails 1", "fails 2"] if task == "fail" else ["begins gate", "ends gate"]
    assert stage.said == expected, worker.log


def test_a_network_that_hangs_does_not_keep_a_worker_from_stopping(
    stage: Stage, proxy: Proxy, proxied: str
) -> None:
    stage.write(TASKS)
    worker = stage.start("--lease", "30", "--grace", "1", dsn=proxied).begun()
    stage.enqueue("hold", "never")
    stage.heard("begins never")
    proxy.freeze()
    begun_at = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert time.monotonic() - begun_at < 15


def test_a_worker_stops_while_the_database_is_away(stage: Stage, proxy: Proxy, proxied: str) -> None:
    stage.write(TASKS)
    worker = stage.start("--grace", "1", dsn=proxied).begun()
    stage.enqueue("hold", "gate")
    stage.heard("begins gate")
    proxy.refuse()
    proxy.cut()
    worker.says(AWAY)
    stage.open("gate")
    stage.heard("ends gate")
    begun_at = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - begun_at < 12
    worker.says("could not be recorded")


def test_without_a_database_at_the_start_it_waits(stage: Stage, proxy: Proxy, proxied: str) -> None:
    stage.write(TASKS)
    proxy.refuse()
    early, patient = stage.start(dsn=proxied), stage.start(dsn=proxied)
    early.says(AWAY)
    patient.says(AWAY)
    begun_at = time.monotonic()
    assert early.stop() == 0
    assert time.monotonic() - begun_at < 6
    time.sleep(1)
    proxy.admit()
    patient.begun()
    message_id = stage.enqueue("note", 1)
    stage.done("note", message_id)
    assert patient.log.count(AWAY) == 1
    assert patient.stop() == 0


@pytest.fixture(scope="module")
def frail() -> Iterator[Server]:
    """A server of our own, with the schema, that a test may stop."""
    with throwaway(settings=SETTINGS) as server:
        with psycopg.connect(server.dsn()) as connection:
            schema.install(connection)
        yield server


def test_a_server_that_is_started_again_finds_its_worker(tmp_path: Path, frail: Server) -> None:
    stage = Stage(tmp_path, frail.dsn()).write(TASKS)
    with closing(stage):
        worker = stage.worker("--lease", "60")
        message_id = stage.enqueue("hold", "gate")
        stage.heard("begins gate")
        frail.stop()
        worker.says(AWAY)
        stage.open("gate")
        stage.heard("ends gate")
        frail.start()
        worker.says(BACK)
        stage.done("hold", message_id)
        note = stage.enqueue("note", 1)
        stage.done("note", note)
        assert worker.stop() == 0
        assert worker.log.count(AWAY) == 1
        assert stage.said == ["begins gate", "ends gate", "note 1"]


def test_a_server_that_crashes_or_takes_no_changes_finds_its_worker_again(
    tmp_path: Path, frail: Server
) -> None:
    stage = Stage(tmp_path, frail.dsn()).write(TASKS)
    with closing(stage):
        worker = stage.worker("--lease", "3")
        handles = stage.app.tasks["note"].enqueue_many([(number,) for number in range(2000)])
        stage.heard("note 300")
        frail.stop("immediate")
        worker.says(AWAY)
        frail.start()
        stage.done("note", *(handle.id for handle in handles[::100]))
        worker.says(BACK)
        with psycopg.connect(frail.dsn(), autocommit=True) as sql:
            sql.execute("alter system set default_transaction_read_only = on")
            sql.execute("select pg_reload_conf()")
            stage.until(lambda: worker.log.count(AWAY) == 2, "it takes no changes")
            sql.execute("set default_transaction_read_only = off")
            sql.execute("alter system reset all")
            sql.execute("select pg_reload_conf()")
        stage.until(lambda: worker.log.count(BACK) == 2, "it does again")
        note = stage.enqueue("note", 2000)
        stage.done("note", note)
        assert worker.stop() == 0
        assert {int(line.split()[1]) for line in stage.said} == set(range(2001))
        assert "Traceback" not in worker.log


def test_a_queue_that_is_deleted_is_made_again(stage: Stage, sql18: Sql) -> None:
    stage.write(TASKS)
    worker = stage.worker()
    stage.enqueue("hold", "gate")
    stage.heard("begins gate")
    sql18.execute("select penstock.delete_queue('default')")
    stage.open("gate")
    stage.heard("ends gate")
    stage.app.declared.forget(stage.app.needs("default"))
    note = stage.enqueue("note", 1)
    stage.done("note", note)
    assert worker.stop() == 0
    assert "Traceback" not in worker.log
