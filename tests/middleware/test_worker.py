"""Logging and metrics of runs in a real worker."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextvars import ContextVar
from typing import Any

import pytest

import penstock
from penstock.middleware.logging import LoggingMiddleware, TaskFilter
from penstock.middleware.metrics import MetricsMiddleware
from penstock.tasks.context import current_context

from .collecting import Collector
from .outcomes import Shipwreck
from .working import KINDS, as_kind, until, working

logger = logging.getLogger("shop")


class Records(logging.Handler):
    """Keeps records with what the filter added."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(TaskFilter())
        self.kept = list[logging.LogRecord]()

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(record)


@pytest.fixture
def collector() -> Collector:
    return Collector()


def app_of(dsn: str, collector: Collector, *others: Any) -> penstock.App:
    return penstock.App(dsn, middleware=[MetricsMiddleware(collector), *others])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_record_of_the_handler_knows_its_task(
    kind: str, database18: str, collector: Collector
) -> None:
    app = app_of(database18, collector, LoggingMiddleware())
    records = Records()

    def body(context: penstock.TaskContext) -> None:
        logger.warning("inside")
        assert threading.current_thread() is not threading.main_thread() or kind == "async"

    task = app.task(name="send_mail", queue="mail")(as_kind(kind, body))
    logger.addHandler(records)
    try:
        async with working(app):
            handles = [await task.enqueue_async() for _ in range(2)]
            await until(lambda: len(collector.observed) == 2)
        logger.warning("outside")
    finally:
        logger.removeHandler(records)
    *inside, outside = records.kept
    facts = [(r.__dict__["task"], r.__dict__["queue"], r.__dict__["attempt"]) for r in inside]
    assert facts == [("send_mail", "mail", 1)] * 2
    assert {record.__dict__["message_id"] for record in inside} == {handle.id for handle in handles}
    assert outside.__dict__["message_id"] == ""


@pytest.mark.parametrize("kind", KINDS)
async def test_each_outcome_is_counted(kind: str, database18: str, collector: Collector) -> None:
    app = app_of(database18, collector)
    busy = list[int]()

    def body(context: penstock.TaskContext) -> None:
        busy.append(collector.busy["varied"])
        match len(busy):
            case 1:
                raise penstock.Snooze(0)
            case 2:
                raise penstock.Retry("not yet", delay=0)
            case 3:
                raise Shipwreck("on rocks")
            case 5:
                raise penstock.Reject("no such address")

    task = app.task(name="varied", max_attempts=3, retry_delays=0)(as_kind(kind, body))
    async with working(app):
        await task.enqueue_async()
        await until(lambda: len(collector.observed) == 4)
        await task.enqueue_async()
        await until(lambda: len(collector.observed) == 5)
    assert [outcome for _, outcome, _ in collector.observed] == [
        "snoozed",
        "retried",
        "failed",
        "done",
        "rejected",
    ]
    assert busy == [1] * 5
    assert collector.busy == {"varied": 0}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_that_takes_too_long_has_failed(
    kind: str, database18: str, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_of(database18, collector, LoggingMiddleware())

    async def coroutine() -> None:
        await asyncio.sleep(60)

    def plain(context: penstock.TaskContext) -> None:
        context.cancelled.wait(60)

    handler: Any = coroutine if kind == "async" else plain
    task = app.task(name="slow", attempt_timeout=0.2)(handler)
    async with working(app):
        await task.enqueue_async()
        await until(lambda: collector.observed)
    [(_, outcome, seconds)] = collector.observed
    assert outcome == "failed"
    assert 0.2 <= seconds < 10
    [record] = [r for r in caplog.records if r.name == "penstock.middleware.logging"]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], TimeoutError)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_that_the_worker_calls_off(kind: str, database18: str, collector: Collector) -> None:
    app = app_of(database18, collector)
    begun = threading.Event()

    async def coroutine() -> None:
        begun.set()
        await asyncio.sleep(60)

    def plain(context: penstock.TaskContext) -> None:
        begun.set()
        context.cancelled.wait(60)

    handler: Any = coroutine if kind == "async" else plain
    task = app.task(name="slow")(handler)
    async with working(app, grace=0):
        await task.enqueue_async()
        await until(begun.is_set)
    assert [outcome for _, outcome, _ in collector.observed] == ["cancelled"]


def in_child(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is below zero")
    return number


async def test_a_handler_in_a_process(database18: str, collector: Collector) -> None:
    app = app_of(database18, collector)
    task = app.task(process=True)(in_child)
    async with working(app, processes=1):
        await task.enqueue_async(1)
        await until(lambda: len(collector.observed) == 1)
        await task.enqueue_async(-1)
        await until(lambda: len(collector.observed) == 2)
    assert [outcome for _, outcome, _ in collector.observed] == ["done", "failed"]
    assert collector.busy == {"in_child": 0}


async def test_a_collector_that_fails_harms_no_task(
    database18: str, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Collector):
        def observe_duration(self, *arguments: Any) -> None:
            raise Shipwreck(*arguments)

    app = app_of(database18, collector, MetricsMiddleware(Broken()))
    task = app.task(result=True)(in_child)
    async with working(app):
        handles = await task.enqueue_many_async([(number,) for number in range(5)])
        assert [await handle.result_async(timeout=20) for handle in handles] == list(range(5))
    assert [outcome for _, outcome, _ in collector.observed] == ["done"] * 5
    assert sum("metrics collector failed" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("with_middleware", [True, False])
async def test_a_failure_is_logged_once(
    with_middleware: bool, database18: str, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """By LoggingMiddleware, or where there is none by the worker."""
    app = app_of(database18, collector, *([LoggingMiddleware()] if with_middleware else []))
    task = app.task(in_child)
    async with working(app):
        await task.enqueue_async(-1)
        await until(lambda: collector.observed)
    told = [record for record in caplog.records if record.exc_info]
    assert len(told) == 1
    assert told[0].levelno == logging.ERROR
    assert told[0].name.startswith("penstock.middleware" if with_middleware else "penstock.worker")


async def test_the_start_and_the_end_are_logged(
    database18: str, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "penstock.middleware.logging")
    app = app_of(database18, collector, LoggingMiddleware())
    task = app.task(name="nap")(lambda: time.sleep(0.05))
    async with working(app):
        handle = await task.enqueue_async()
        await until(lambda: collector.observed)
    told = [r for r in caplog.records if r.name == "penstock.middleware.logging"]
    assert told[0].getMessage() == f"nap[{handle.id}] started, attempt 1 of 1"
    assert told[1].getMessage().startswith(f"nap[{handle.id}] done in 0.")
    assert told[1].__dict__["seconds"] >= 0.05


LEFT: ContextVar[int | None] = ContextVar("left", default=None)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_run_leaves_in_its_context_is_gone(
    kind: str, database18: str, collector: Collector
) -> None:
    """A span that a handler forgot to end, or a scope, is not the next one's."""
    app = app_of(database18, collector)
    found = list[int | None]()

    def body(context: penstock.TaskContext) -> None:
        found.append(LEFT.get())
        LEFT.set(context.message_id)
        assert current_context() is context

    task = app.task(name="careless")(as_kind(kind, body))
    async with working(app, concurrency=1, threads=1):
        await task.enqueue_many_async([{}] * 10)
        await until(lambda: len(collector.observed) == 10)
    assert [outcome for _, outcome, _ in collector.observed] == ["done"] * 10
    assert found == [None] * 10
    assert current_context() is None


async def test_a_result_that_cannot_be_stored_is_not_done(database18: str, collector: Collector) -> None:
    app = app_of(database18, collector)
    task = app.task(name="odd", result=True)(as_kind("async", lambda context: context))
    async with working(app):
        await task.enqueue_async()
        await until(lambda: collector.observed)
    assert [outcome for _, outcome, _ in collector.observed] == ["rejected"]
