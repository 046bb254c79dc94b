"""Waiting for results: by notification, with polling behind it, from threads and coroutines."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
import penstock._async.waiting
import penstock._sync.waiting
from penstock import App, InvalidArgument, NotFound, PayloadInvalid, TaskFailed
from penstock.embedded import Server
from tests.failures.pgbouncer import pgbouncer, require_pgbouncer

from . import kinds
from .kinds import Point
from .working import LATER, async_until, until, working, working_thread


async def double(x: int) -> int:
    return 2 * x


def double_in_a_thread(x: int) -> int:
    return 2 * x


# What is returned


async def test_a_result_of_each_kind_of_handler(app: App) -> None:
    awaited = app.task(result=True)(double)
    threaded = app.task(result=True)(double_in_a_thread)
    async with working(app):
        assert await (await awaited.enqueue_async(5)).result_async(timeout=20) == 10
        assert await (await threaded.enqueue_async(6)).result_async(timeout=20) == 12
        handle = await awaited.enqueue_async(7)
        assert await asyncio.to_thread(handle.result, timeout=20) == 14
        # It stays there to be asked for again.
        assert await handle.result_async(timeout=0) == 14
        assert await awaited.handle(handle.id).result_async() == 14


KINDS: list[tuple[Any, Any]] = [
    (None, None),
    (datetime, kinds.MOMENT),
    (date | None, date(2026, 1, 1)),
    (date | None, None),
    (timedelta, timedelta(1, 2, 3)),
    (bytes, b"\x00\xff"),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (dict[int, Point], {1: Point(2)}),
    (kinds.Polygon, kinds.Polygon([Point(1)], kinds.MOMENT, tags={"a"})),
    (list[kinds.Person], [kinds.Person(name="A", born=date.min)]),
    (kinds.Struct, kinds.Struct(2**70, kinds.MOMENT)),
    (float, 1e23),
    (int, 2**70),
    (Any, {"a": [1, None]}),
    (bool, False),
    (str, ""),
    (list[int], []),
]


async def test_a_typed_result_comes_back_as_what_it_was(app: App) -> None:
    def handler(number: int) -> Callable[[], Any]:
        async def give() -> Any:
            return KINDS[number][1]

        give.__annotations__ = {"return": KINDS[number][0]}
        return give

    tasks = [app.task(name=f"kind {n}", queue="kinds", result=True)(handler(n)) for n, _ in enumerate(KINDS)]
    async with working(app):
        handles = [await task.enqueue_async() for task in tasks]
        for handle, (_, value) in zip(handles, KINDS, strict=True):
            back = await handle.result_async(timeout=20)
            assert back == value
            assert type(back) is type(value)


async def test_a_result_without_an_annotation_is_what_json_holds_of_it(app: App) -> None:
    async def give():  # type: ignore[no-untyped-def]
        return {"point": Point(1), "at": date(2026, 1, 1)}

    task: Any = app.task(result=True)(give)
    async with working(app):
        handle = await task.enqueue_async()
        assert await handle.result_async(timeout=20) == {"point": {"x": 1, "y": 0.5}, "at": "2026-01-01"}


async def test_a_result_that_does_not_fit_its_annotation(app: App) -> None:
    async def give() -> int:
        return "no number"  # type: ignore[return-value]

    task = app.task(result=True)(give)
    async with working(app):
        handle = await task.enqueue_async()
        with pytest.raises((PayloadInvalid, TaskFailed), match=r"(?s)give.*int"):
            await handle.result_async(timeout=20)


@pytest.mark.parametrize("value", [object(), "a\0b", float("nan"), {1j: 2}])
async def test_a_result_that_cannot_be_stored_fails_the_task(app: App, value: object) -> None:
    async def give() -> Any:
        return value

    task = app.task(result=True)(give)
    async with working(app):
        handle = await task.enqueue_async()
        with pytest.raises(TaskFailed, match="result"):
            await handle.result_async(timeout=20)


# What fails


async def test_a_task_that_failed_tells_why(app: App) -> None:
    @app.task(queue="failing", result=True, max_attempts=2, retry_delays=0)
    async def fail(x: int) -> int:
        raise ValueError(f"not {x}")

    @app.task(queue="failing", result=True, max_attempts=5)
    def refuse(x: int) -> int:
        raise penstock.Reject(f"never {x}")

    async with working(app):
        failed, refused = await fail.enqueue_async(1), await refuse.enqueue_async(2)
        with pytest.raises(TaskFailed, match=r"(?s)fail.*no_attempts_left.*not 1") as caught:
            await failed.result_async(timeout=20)
        details = caught.value.details
        assert (details.message_id, details.reason) == (failed.id, "no_attempts_left")
        assert len(details.errors) == 2
        assert details.last_error is not None
        assert "Traceback" in details.last_error
        assert 'raise ValueError(f"not {x}")' in details.last_error
        with pytest.raises(TaskFailed, match=r"(?s)refuse.*failed.*never 2") as caught:
            await asyncio.to_thread(refused.result, timeout=20)
        assert caught.value.details.reason == "failed"


async def test_a_task_that_expired(app: App) -> None:
    task = app.task(result=True, ttl=1)(double)
    handle = await task.enqueue_async(1)
    with pytest.raises(TaskFailed, match="expired"):
        await asyncio.gather(handle.result_async(timeout=20), _maintained(app))
    await app.aclose()


async def _maintained(app: App) -> None:
    while (await app.async_client.get_queue_statistics("double"))[0].dead_count == 0:
        await app.async_client.maintain()
        await asyncio.sleep(0.05)


def test_no_result_in_time(app: App) -> None:
    handle = app.task(result=True)(double).enqueue(1)
    for timeout in (0, 0.1, timedelta(milliseconds=100)):
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="double"):
            handle.result(timeout=timeout)
        assert time.monotonic() - began < 5
    # The time is over, not the task.
    with working_thread(app):
        assert handle.result(timeout=20) == 2


async def test_no_result_in_time_awaited(app: App) -> None:
    handle = await app.task(result=True)(double).enqueue_async(1)
    with pytest.raises(TimeoutError, match="double"):
        await handle.result_async(timeout=0.1)
    # A caller that gives up waiting otherwise leaves nothing behind.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(handle.result_async(), 0.1)
    await app.aclose()


@pytest.mark.parametrize("timeout", [-1, "5", True, float("nan")])
def test_a_bad_timeout(unconnected: App, timeout: Any) -> None:
    with pytest.raises(InvalidArgument, match="timeout"):
        unconnected.task(result=True)(double).handle(1).result(timeout=timeout)


async def test_a_result_that_is_not_kept(unconnected: App) -> None:
    task = unconnected.task(double)
    with pytest.raises(InvalidArgument, match=r"'double' does not keep its result: .*result=True"):
        task.handle(1).result(timeout=1)
    with pytest.raises(InvalidArgument, match="double"):
        await task.handle(1).result_async(timeout=1)


def test_a_task_that_is_gone(app: App) -> None:
    task = app.task(result=True)(double)
    handle = task.enqueue(1)
    assert handle.cancel()
    with pytest.raises(NotFound, match=str(handle.id)):
        handle.result(timeout=20)
    with pytest.raises(NotFound, match="12345"):
        task.handle(12345).result(timeout=20)


def test_a_result_is_kept_for_the_time_given(app: App, sql18: psycopg.Connection[Any]) -> None:
    brief = app.task(name="brief", result=timedelta(hours=1))(double)
    long = app.task(name="long", result=timedelta(hours=3))(double)
    with working_thread(app):
        handles = [brief.enqueue(1), long.enqueue(2)]
        assert [handle.result(timeout=20) for handle in handles] == [2, 4]
    sql18.execute(LATER)

    def is_gone() -> bool:
        app.client.maintain()
        return handles[0].details() is None

    until(is_gone)
    with pytest.raises(NotFound):
        handles[0].result(timeout=1)
    assert handles[1].result(timeout=1) == 4


# How it is heard of


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that is not woken by a notification waits for a minute."""
    for module in (penstock._async.waiting, penstock._sync.waiting):
        for name in ("FIRST_POLL_SECONDS", "LONGEST_POLL_SECONDS", "LONGEST_POLL_LISTENING_SECONDS"):
            monkeypatch.setattr(module, name, 60.0)


@pytest.mark.usefixtures("no_polling")
async def test_results_come_by_notification(app: App) -> None:
    gates: list[asyncio.Event] = []

    @app.task(result=True)
    async def finish(x: int) -> float:
        gates.append(gate := asyncio.Event())
        await gate.wait()
        if x < 0:
            raise penstock.Reject(str(time.monotonic()))
        return time.monotonic()

    taken = list[float]()
    async with working(app):
        for x in range(6):
            handle = await finish.enqueue_async(x if x % 3 else -1)
            waits: Any
            if x % 2:
                waits = asyncio.ensure_future(handle.result_async(timeout=50))
            else:
                waits = asyncio.ensure_future(asyncio.to_thread(handle.result, timeout=50))
            await async_until(lambda x=x: len(gates) > x)  # type: ignore[misc]
            gates[x].set()
            try:
                ended = await waits
            except TaskFailed as exc:
                ended = float(str(exc.details.last_error).splitlines()[0].removeprefix("Reject: "))
            taken.append(time.monotonic() - ended)
    # The next poll would have been a second away or more.
    assert statistics.median(taken) < 0.5


@pytest.mark.usefixtures("no_polling")
async def test_many_wait_at_once(app: App) -> None:
    gate = asyncio.Event()

    @app.task(result=True)
    async def wait(x: int) -> int:
        await gate.wait()
        return x

    with ThreadPoolExecutor(20) as pool:
        loop = asyncio.get_running_loop()
        async with working(app):
            handles = await wait.enqueue_many_async((x,) for x in range(100))
            awaited = asyncio.gather(*(handle.result_async(timeout=50) for handle in [*handles, handles[0]]))
            # Twenty threads, of which ten wait for the same one.
            wanted = [*handles[:10], *handles[:1] * 10]
            blocked = asyncio.gather(
                *(loop.run_in_executor(pool, partial(handle.result, timeout=50)) for handle in wanted)
            )
            await asyncio.sleep(0)
            gate.set()
            assert await awaited == [*range(100), 0]
            assert await blocked == [*range(10), *[0] * 10]


def test_enqueued_and_waited_for_on_both_sides_of_a_fork(app: App, database18: str) -> None:
    app.task(name="double", result=True)(double_in_a_thread)
    with working_thread(app):
        done = subprocess.run(
            [sys.executable, "-m", "tests.tasks.forking", database18],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


async def test_a_task_may_wait_for_another(app: App) -> None:
    inner = app.task(result=True)(double)

    @app.task(result=True)
    async def outer(x: int) -> int:
        return 1 + await (await inner.enqueue_async(x)).result_async(timeout=20)

    async with working(app):
        assert await (await outer.enqueue_async(5)).result_async(timeout=20) == 11


@contextmanager
def pooled(server: Server, dsn: str, directory: Path) -> Iterator[str]:
    """A PgBouncer in front of the database: LISTEN does not work there."""
    program = require_pgbouncer()
    tcp = server.tcp_dsn(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])  # type: ignore[arg-type]
    with pgbouncer(program, tcp, directory, pool_size=3) as one:
        yield one.dsn


async def test_through_a_pooler_results_come_by_polling(
    app: App, database18: str, server18: Server, tmp_path: Path
) -> None:
    task = app.task(result=True)(double)
    with pooled(server18, database18, tmp_path) as dsn:
        async with working(app), App(dsn) as waiter:
            there = waiter.task(result=True)(double)
            handle = await there.enqueue_async(5)
            assert await handle.result_async(timeout=20) == 10
            assert await asyncio.to_thread(there.handle(handle.id).result, timeout=20) == 10
            assert await task.handle(handle.id).result_async(timeout=20) == 10
            later = await there.options(delay=1).enqueue_async(6)
            assert await later.result_async(timeout=20) == 12
