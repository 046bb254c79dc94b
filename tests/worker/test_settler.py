"""The settler: a group is as few statements as it has verdicts, and what fails costs no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
import pytest

from penstock import App, AsyncClient, QueueNotFound, calls
from penstock._async.internals import AsyncInternals
from penstock.calls import Claimed, claim_tasks
from penstock.sql_call import Call
from penstock.worker.context import WorkerContext
from penstock.worker.outcome import ACK, Outcome
from penstock.worker.run import Run, Unrunnable
from penstock.worker.settlement import MOST_SETTLED
from penstock.worker.settler import Settler
from tests.failures.proxy import Cut, Proxy
from tests.worker.stage import holds, one, working

Sql = psycopg.Connection[Any]

TOKEN = "the worker"  # noqa: S105
app = App()


@app.task(queue="q", name="plain")
async def plain() -> None: ...


@app.task(queue="q", name="kept", result=True)
async def kept() -> None: ...


class Bench:
    """A settler, with what it reports and the statements that it sends."""

    def __init__(self, client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = client
        self.sent: list[list[str]] = []
        self.settled: list[Run] = []
        self.doubts = 0
        self.delays: list[tuple[str, float]] = []
        self.settler = Settler(
            client,
            settled=self.settled.extend,
            in_doubt=self._doubt,
            delayed=lambda queue_name, delay: self.delays.append((queue_name, delay)),
        )
        run, run_together = AsyncInternals.run, AsyncInternals.run_together

        async def recorded_run(internals: AsyncInternals, call: Call[Any]) -> Any:
            self.sent.append([call.function])
            return await run(internals, call)

        async def recorded_run_together(internals: AsyncInternals, many: Sequence[Call[Any]]) -> list[Any]:
            self.sent.append([call.function for call in many])
            return await run_together(internals, many)

        monkeypatch.setattr(AsyncInternals, "run", recorded_run)
        monkeypatch.setattr(AsyncInternals, "run_together", recorded_run_together)

    def _doubt(self) -> None:
        self.doubts += 1

    async def claim(self, number: int, queue_name: str = "q") -> list[Claimed]:
        await self.client.send_many(queue_name, [{}] * number, headers={"task": "plain"})
        timed = await self.client.internals.attempt(claim_tasks(queue_name, TOKEN, 60, number))
        assert len(timed.result) == number
        return timed.result

    async def runs(self, number: int, task: Any = plain, queue_name: str = "q") -> list[Run]:
        claimed = await self.claim(number, queue_name)
        return [Run(task, row, {"task": task.name}, 5, WorkerContext.of) for row in claimed]

    async def states(self, runs: Sequence[Run | Unrunnable]) -> list[str | None]:
        found = [await self.client.get_message("q", run.claimed.message_id) for run in runs]
        return [None if details is None else details.state for details in found]


@pytest.fixture
async def bench(database18: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with AsyncClient(database18, maintain=False) as client:
        await client.create_queue("q", retain_completed=3600)
        yield Bench(client, monkeypatch)


async def test_a_mixed_group_is_one_statement_for_each_verdict_in_one_transaction(bench: Bench) -> None:
    runs = await bench.runs(10)
    with_results = await bench.runs(2, kept)
    (row,) = await bench.claim(1)
    for number, run in enumerate(runs):
        outcome = (
            ACK,
            Outcome.retried(number, f"failure {number}"),
            Outcome.retried(0, "again"),
            Outcome.released(60),
            Outcome.rejected(f"hopeless {number}"),
        )[number % 5]
        bench.settler.settle(run, outcome)
    for run in with_results:
        bench.settler.settle(run, Outcome.done({"id": run.message_id}))
    bench.settler.settle(Unrunnable(row), Outcome.rejected("unreadable"))
    await bench.settler.run_once()
    assert bench.sent == [
        ["release_messages", "nack_messages", "reject_messages", "ack_messages", "ack_tasks"]
    ]
    states: list[str | None] = ["done", "scheduled", "ready", "scheduled", "dead"]
    assert await bench.states(runs) == states * 2
    assert await bench.states(with_results) == ["done", "done"]
    assert await bench.states([Unrunnable(row)]) == ["dead"]
    assert set(bench.settled) == {*runs, *with_results}
    assert bench.delays == [("q", 1), ("q", 60), ("q", 6), ("q", 60)]
    for number, run in enumerate(runs):
        details = await bench.client.get_message("q", run.message_id)
        assert details is not None
        errors = {1: f"failure {number}", 2: "again", 4: f"hopeless {number}"}
        assert details.last_error == errors.get(number % 5)
        assert details.delivery_attempts == (0 if number % 5 == 3 else 1)
    for run in with_results:
        result = await bench.client.get_result("q", run.message_id)
        assert result is not None
        assert result.result == {"id": run.message_id}


async def test_acks_alone_are_lone_statements(bench: Bench) -> None:
    """No transaction around them: that would be two more round trips."""
    for run in await bench.runs(MOST_SETTLED) + await bench.runs(5):
        bench.settler.settle(run, ACK)
    await bench.settler.run_once()
    assert bench.sent == [["ack_messages"], ["ack_messages"]]
    assert len(bench.settled) == MOST_SETTLED + 5


async def test_two_acks_of_a_queue_share_a_transaction_only_after_its_lock(bench: Bench) -> None:
    """A purge between them would be a deadlock, unless a statement before them has locked the queue."""
    for has_reject in (False, True):
        (run,) = await bench.runs(1)
        bench.settler.settle(run, ACK)
        (run,) = await bench.runs(1, kept)
        bench.settler.settle(run, Outcome.done({"id": run.message_id}))
        if has_reject:
            (run,) = await bench.runs(1)
            bench.settler.settle(run, Outcome.rejected("no"))
        await bench.settler.run_once()
    assert bench.sent == [
        ["ack_messages"],
        ["ack_tasks"],
        ["reject_messages", "ack_messages", "ack_tasks"],
    ]


async def test_a_retry_has_the_limit_of_its_own_task(bench: Bench) -> None:
    first, second = await bench.runs(2)
    second.max_attempts = 1
    for run in (first, second):
        bench.settler.settle(run, Outcome.retried(0, "failed"))
    await bench.settler.run_once()
    assert bench.sent == [["nack_messages"]]
    assert await bench.states([first, second]) == ["ready", "dead"]


async def test_a_refused_result_costs_no_others_their_ack(bench: Bench) -> None:
    runs, others = await bench.runs(8, kept), await bench.runs(2)
    for run in runs:
        bench.settler.settle(run, Outcome.done(float("nan") if run is runs[5] else 1))
    bench.settler.settle(others[0], ACK)
    bench.settler.settle(others[1], Outcome.retried(0, "failed"))
    await bench.settler.run_once()
    assert await bench.states(runs) == ["done"] * 5 + ["dead"] + ["done"] * 2
    assert await bench.states(others) == ["done", "ready"]
    details = await bench.client.get_message("q", runs[5].message_id)
    assert details is not None
    assert details.last_error is not None
    assert details.last_error.startswith("it was done, but its result cannot be stored:")
    # Found by halves, not one by one.
    assert len([names for names in bench.sent if names == ["ack_tasks"]]) == 3
    assert bench.doubts == 0


async def test_an_error_of_one_message_costs_no_others_their_end(
    bench: Bench, sql18: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the server has against one message, the others are settled, and that one comes back."""
    sql18.execute(
        "create function refuse() returns trigger language plpgsql as "
        "$$ begin if new.last_error = 'bad' then raise 'refused'; end if; return new; end $$;"
        "create trigger refuse before insert on penstock.dead for each row execute function refuse()"
    )
    runs, acked = await bench.runs(5), await bench.runs(3)
    for run in runs:
        bench.settler.settle(run, Outcome.rejected("bad" if run is runs[2] else "good"))
    for run in acked:
        bench.settler.settle(run, ACK)
    await bench.settler.run_once()
    assert await bench.states(runs) == ["dead", "dead", "active", "dead", "dead"]
    assert await bench.states(acked) == ["done"] * 3
    assert bench.doubts == 1
    assert caplog.text.count("reject failed for") == 1


async def test_a_lost_lease_is_reported_and_costs_no_others(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    runs = await bench.runs(4)
    await bench.client.release(runs[0].receipt)
    bench.settler.settle(runs[0], Outcome.retried(0, "late"))
    bench.settler.settle(runs[1], Outcome.retried(0, "failed"))
    bench.settler.settle(runs[2], ACK)
    bench.settler.settle(runs[3], Outcome.rejected("hopeless"))
    await bench.settler.run_once()
    assert await bench.states(runs) == ["ready", "ready", "done", "dead"]
    assert caplog.text.count("the lease was lost before its end could be recorded") == 1
    assert set(bench.settled) == set(runs)


async def test_a_queue_that_is_deleted_costs_other_queues_nothing(bench: Bench) -> None:
    await bench.client.create_queue("other")
    lost, runs = await bench.runs(2, queue_name="other"), await bench.runs(2)
    await bench.client.delete_queue("other")
    for run in (*lost, *runs):
        bench.settler.settle(run, ACK if run in (lost[0], runs[0]) else Outcome.retried(0, "failed"))
    await bench.settler.run_once()
    assert await bench.states(runs) == ["done", "ready"]
    assert set(bench.settled) == {*lost, *runs}


@pytest.mark.parametrize("cut", list(Cut), ids=["before", "after"])
async def test_a_connection_that_ends_in_the_commit_leaves_a_doubt(
    proxy: Proxy, proxied: str, sql18: Sql, monkeypatch: pytest.MonkeyPatch, cut: Cut
) -> None:
    """The group may be settled, or not: in the end it is, and no pulse keeps what the token may hold."""
    async with AsyncClient(proxied, maintain=False) as client:
        await client.create_queue("q", retain_completed=3600)
        bench = Bench(client, monkeypatch)
        runs = await bench.runs(4)
        outcomes = [ACK, Outcome.retried(0, "failed"), Outcome.rejected("no"), Outcome.released(9)]
        for run, outcome in zip(runs, outcomes, strict=True):
            bench.settler.settle(run, outcome)
        proxy.cut_at("COMMIT", cut)
        await bench.settler.run_once()
        assert bench.doubts >= 1
        assert bench.sent[0] == ["release_messages", "nack_messages", "reject_messages", "ack_messages"]
        assert await bench.states(runs) == ["done", "ready", "dead", "scheduled"]
        assert set(bench.settled) == set(runs)
        assert one(sql18, "select count(*) from penstock.active") == 0


async def test_one_transaction_is_rolled_back_whole(bench: Bench) -> None:
    """run_together(): all of the calls or none of them."""
    runs = await bench.runs(2)
    client = bench.client

    good = calls.ack_messages_of("q", [runs[0].message_id], TOKEN)
    bad = calls.ack_messages_of("no such queue", [runs[1].message_id], TOKEN)
    for many in ([good, bad], [bad, good]):
        with pytest.raises(QueueNotFound):
            await client.internals.run_together(many)
    assert await bench.states(runs) == ["active", "active"]
    assert await client.internals.run_together([good, good]) == [[runs[0].message_id], []]


async def test_a_cancelled_transaction_leaves_no_connection_in_it(bench: Bench, sql18: Sql) -> None:
    (run,) = await bench.runs(1)
    sql18.autocommit = False
    sql18.execute("select from penstock.active for update")
    ack = calls.ack_messages_of("q", [run.message_id], TOKEN)
    waiting = asyncio.ensure_future(bench.client.internals.run_together([ack, ack]))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    sql18.rollback()
    sql18.autocommit = True
    await bench.client.ack(run.receipt)
    assert await bench.states([run]) == ["done"]


async def test_a_failing_queue_costs_few_statements(
    database18: str, sql18: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose tasks all fail sends a group at a time, not a message at a time."""
    failing, statements = App(), 0

    @failing.task(queue="q", max_attempts=2, retry_delays=0)
    async def fail() -> None:
        raise ValueError("always")

    run = AsyncInternals.run

    async def recorded_run(internals: AsyncInternals, call: Call[Any]) -> Any:
        nonlocal statements
        statements += call.function == "nack_messages"
        return await run(internals, call)

    monkeypatch.setattr(AsyncInternals, "run", recorded_run)
    with failing.connected_to(database18):
        await fail.enqueue_many_async([{}] * 500)
    async with working(failing, database18, concurrency=500):
        await holds(lambda: one(sql18, "select count(*) from penstock.dead") == 500, "all are dead letters")
    assert 2 <= statements < 100
