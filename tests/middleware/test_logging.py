"""Records know their task, and each run is logged."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.middleware.logging import LoggingMiddleware, TaskFilter, configure_logging
from penstock.tasks.outcomes import Reject, Retry, Snooze

from .contexts import context_of, entered, run
from .outcomes import OUTCOMES, Shipwreck

ROOT = Path(__file__).parents[2]
NAME = "penstock.middleware.logging"
FORMAT = "%(task)s|%(message_id)s|%(queue)s|%(attempt)s|%(message)s"


@contextmanager
def written(filter_: TaskFilter) -> Iterator[io.StringIO]:
    """What a handler with this filter writes of the logger `shop.orders`."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(filter_)
    handler.setFormatter(logging.Formatter(FORMAT))
    logger = logging.getLogger("shop")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield stream
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


class TestFilter:
    def test_inside_and_outside(self) -> None:
        logger = logging.getLogger("shop.orders")
        with written(TaskFilter()) as stream:
            logger.warning("before")
            with entered([], context_of(attempt=2)):
                logger.warning("inside")
            logger.warning("after")
        assert stream.getvalue() == "||||before\nsend_mail|17|mail|2|inside\n||||after\n"

    def test_what_stands_outside_can_be_chosen(self) -> None:
        with written(TaskFilter(outside="-")) as stream:
            logging.getLogger("shop.orders").warning("none")
        assert stream.getvalue() == "-|-|-|-|none\n"

    def test_what_the_caller_says_stays(self) -> None:
        with written(TaskFilter()) as stream, entered([], context_of()):
            logging.getLogger("shop.orders").warning("other", extra={"queue": "theirs"})
        assert stream.getvalue() == "send_mail|17|theirs|1|other\n"

    def test_the_logger_of_the_context_needs_no_filter(self, caplog: pytest.LogCaptureFixture) -> None:
        context_of().logger.warning("hello")
        [record] = caplog.records
        assert (record.__dict__["task"], record.__dict__["message_id"]) == ("send_mail", 17)

    def test_in_a_thread_with_the_context(self) -> None:
        """As asyncio.to_thread() starts one."""
        logger = logging.getLogger("shop.orders")
        with written(TaskFilter()) as stream, entered([], context_of()):
            copied = copy_context()
            thread = threading.Thread(target=lambda: copied.run(logger.warning, "thread"))
            thread.start()
            thread.join()
        assert stream.getvalue() == "send_mail|17|mail|1|thread\n"


EXPECTED: dict[str, tuple[int, str]] = {
    "done": (logging.INFO, r"send_mail\[17\] done in 0\.\d{3} s"),
    "retried": (
        logging.WARNING,
        r"send_mail\[17\] asks for a retry in 5 s after 0\.\d{3} s, attempt 1 of 3: not yet",
    ),
    "rejected": (logging.ERROR, r"send_mail\[17\] rejected after 0\.\d{3} s: no such address"),
    "snoozed": (logging.INFO, r"send_mail\[17\] snoozed for 60 s after 0\.\d{3} s"),
    "cancelled": (logging.WARNING, r"send_mail\[17\] cancelled after 0\.\d{3} s"),
}


class TestMiddleware:
    @pytest.mark.parametrize(("outcome", "error", "given"), OUTCOMES)
    def test_each_end(
        self,
        outcome: str,
        error: BaseException | None,
        given: dict[str, Any],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.INFO, NAME)
        run(LoggingMiddleware(), error, **given)
        # A start is logged at debug level.
        [record] = caplog.records
        attempt = given.get("attempt", 1)
        failed = (
            logging.ERROR if attempt == 3 else logging.WARNING,
            rf"send_mail\[17\] failed after 0\.\d{{3}} s, attempt {attempt} of 3",
        )
        level, text = EXPECTED.get(outcome, failed)
        assert (record.name, record.levelno) == (NAME, level)
        assert re.fullmatch(text, record.getMessage())
        # A traceback for what went wrong, not for what the handler decided.
        assert (record.exc_info and record.exc_info[1]) == (error if outcome == "failed" else None)
        facts = {
            "task": "send_mail",
            "message_id": 17,
            "queue": "mail",
            "attempt": attempt,
            "outcome": outcome,
        }
        assert {name: record.__dict__[name] for name in facts} == facts
        assert 0 < record.__dict__["seconds"] < 1

    def test_a_retry_without_a_delay(self, caplog: pytest.LogCaptureFixture) -> None:
        run(LoggingMiddleware(), Retry("busy"))
        assert re.search(r"asks for a retry after 0\.\d+ s, attempt 1 of 3: busy", caplog.text)

    def test_the_start(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, NAME)
        with entered([LoggingMiddleware()], context_of()):
            [record] = caplog.records
            assert record.levelno == logging.DEBUG
            assert record.getMessage() == "send_mail[17] started, attempt 1 of 3"
            assert record.__dict__["queue"] == "mail"

    def test_a_logger_of_ones_own(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "shop.tasks")
        run(LoggingMiddleware(logger=logging.getLogger("shop.tasks")))
        assert [record.name for record in caplog.records] == ["shop.tasks"]

    def test_nothing_where_the_level_is_higher(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.CRITICAL, NAME)
        for error in (None, Snooze(1), Reject("no"), Retry("no"), Shipwreck()):
            run(LoggingMiddleware(), error)
        assert caplog.records == []


PROGRAM = """
import logging, sys
{before}
from penstock.middleware.logging import LoggingMiddleware, configure_logging
from tests.middleware.contexts import context_of, entered
configure_logging({level})
logging.getLogger("shop").info("outside")
with entered([LoggingMiddleware()], context_of()):
    logging.getLogger("shop").info("inside")
    logging.getLogger("shop").debug("details")
    context_of().logger.warning("own")
"""


def output(before: str, level: str) -> list[str]:
    """What such a program writes to stderr; without the times."""
    program = PROGRAM.format(before=before, level=level)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    return [re.sub(r"^[\d-]+ [\d:,]+ ", "", line) for line in done.stderr.splitlines()]


class TestConfigure:
    @pytest.mark.parametrize("level", ["", "'info'", "'INFO'", "20"])
    def test_lines_name_the_task(self, level: str) -> None:
        lines = output("", level)
        assert lines[:3] == [
            "INFO shop: outside",
            "INFO shop: send_mail[17] inside",
            "WARNING penstock.task.send_mail: send_mail[17] own",
        ]
        # Once, although the text names it by itself.
        assert re.fullmatch(rf"INFO {NAME}: send_mail\[17\] done in [\d.]+ s", lines[3])
        assert len(lines) == 4

    def test_what_is_set_up_stays(self) -> None:
        before = "logging.basicConfig(format='%(message)s', level=logging.WARNING)"
        assert output(before, "'debug'") == ["own"]

    @pytest.mark.parametrize("level", ["loud", True, None, 1.5])
    def test_no_such_level(self, level: Any) -> None:
        with pytest.raises(penstock.InvalidArgument, match=f"level must be .* not {level!r}"):
            configure_logging(level)
