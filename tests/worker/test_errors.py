"""Handlers that fail in strange ways: the attempt has failed, the worker goes on."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from penstock import App, Reject, TaskContext
from tests.worker.stage import Stage, ended, working


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_errors_of_all_kinds_fail_the_attempt_only(
    database18: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Mute(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError("not even its text")

    class Endless(BaseException):
        pass

    errors: dict[str, BaseException] = {
        "cancelled": asyncio.CancelledError(),
        "stop": StopIteration(),
        "stop_async": StopAsyncIteration(),
        "base": Endless("base"),
        "generator": GeneratorExit(),
        "mute": Mute(),
        "nul": ValueError("a\0b"),
        "surrogate": ValueError("a\ud800b"),
        "long": ValueError("x" * 3_000_000),
        "group": BaseExceptionGroup("several", [Endless(), ValueError()]),
        "timeout": TimeoutError("of its own"),
    }
    app, attempts = App(), dict[str, int]()

    def fail(what: str) -> None:
        attempts[what] = attempts.get(what, 0) + 1
        raise errors[what]

    async def fail_async(what: str) -> None:
        fail(what)

    task = app.task(name="fail", max_attempts=2, retry_delays=0, attempt_timeout=20)(
        fail_async if kind == "async" else fail
    )
    with caplog.at_level(logging.CRITICAL, "penstock"):
        async with working(app, database18, threads=2, concurrency=2):
            handles = {what: await task.enqueue_async(what) for what in errors}
            for what, handle in handles.items():
                found = await ended(handle)
                assert found is not None, what
                assert (found.state, found.reason) == ("dead", "no_attempts_left"), what
                assert len(found.last_error or "") < 20_000
    assert attempts == dict.fromkeys(errors, 2)


async def test_a_long_error_is_cut_in_the_log(database18: str, caplog: pytest.LogCaptureFixture) -> None:
    app = App()

    @app.task(max_attempts=1)
    async def quote(how: str) -> None:
        if how == "reject":
            raise Reject("x" * 3_000_000)
        raise ValueError("x" * (3_000_000 if how == "long" else 3))

    formatter = logging.Formatter("%(message)s")
    async with working(app, database18):
        for how in ("long", "reject", "short"):
            await ended(await quote.enqueue_async(how))
    told = [record for record in caplog.records if record.name == "penstock.worker.runs"]
    texts = [formatter.format(record) for record in told]
    assert len(texts) == 3
    assert all(len(text) < 20_000 for text in texts)
    assert "failed, no attempts left" in texts[0]
    assert "Traceback" in texts[0]
    assert "rejected (xxx" in texts[1]
    # As ever, for handlers of the log that look at the error itself.
    assert told[2].exc_info is not None


async def test_a_payload_that_does_not_fit_fails_and_a_handler_that_changes_headers_does_no_harm(
    database18: str,
) -> None:
    app, seen = App(), list[Any]()

    @app.task(queue="q")
    async def spoil(context: TaskContext, number: int) -> None:
        seen.append(dict(context.headers))
        context.headers.clear()

    async with working(app, database18):
        for payload in ([1], "x", 7, None, {"number": "seven"}, {"other": 1}, {}, {"number": 1, "more": 2}):
            message_id = await app.async_client.send("q", payload, headers={"task": "spoil"})
            found = None
            while found is None or found.state != "dead":
                found = await app.async_client.get_message("q", message_id)
                assert found is not None
            assert found.last_error is not None
            assert "the payload of task 'spoil'" in found.last_error
        for number in range(3):
            assert await ended(await spoil.enqueue_async(number)) is None
    assert seen == [{"task": "spoil"}] * 3


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_handler_that_exits_fails_and_the_worker_goes_on(stage: Stage, kind: str) -> None:
    prefix = "async " if kind == "async" else ""
    stage.write(
        f"""
        @app.task(max_attempts=2, retry_delays=0)
        {prefix}def leave(code: int):
            say("leaves", code)
            sys.exit(code)

        @app.task
        {prefix}def interrupt():
            raise KeyboardInterrupt

        @app.task
        {prefix}def fine():
            say("fine")
        """
    )
    ids = [stage.enqueue("leave", 0), stage.enqueue("leave", 3)]
    worker = stage.worker("-c", "1", "--threads", "1")
    ids.append(stage.enqueue("interrupt"))
    stage.enqueue("fine")
    stage.heard("fine")
    stage.dead("leave", *ids)
    assert worker.stop() == 0
    for message_id, error in zip(ids, ("SystemExit: 0", "SystemExit: 3", "KeyboardInterrupt"), strict=True):
        found = stage.details("leave", message_id)
        assert found is not None
        assert (found.state, found.reason) == ("dead", "no_attempts_left")
        assert error in (found.last_error or "")
    assert sorted(stage.said) == ["fine"] + ["leaves 0"] * 2 + ["leaves 3"] * 2
