"""`penstock worker --json`; what else it does is in tests/worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.worker.stage import Process, Stage

JOBS = """
    import logging
    from decimal import Decimal

    log = logging.getLogger("shop")

    @app.task(max_attempts=1)
    async def pay(amount):
        extra = {"order": {"id": 7}, "took": Decimal("1.5"), "level": "mine", "by": {(1, 2): 3}}
        log.warning("two\\nlines, %s €", amount, extra=extra)
        say("paid")

    @app.task(max_attempts=1)
    async def fail():
        try:
            raise ValueError("no such card\\x1b[31m")
        except ValueError:
            log.exception("failed")
        say("failed")
"""


@pytest.fixture
def stage(tmp_path: Path, database18: str) -> Iterator[Stage]:
    with closing(Stage(tmp_path, database18)) as one:
        yield one.write(JOBS)


def records(process: Process) -> list[dict[str, Any]]:
    """Its log: a line of JSON each, and nothing else."""
    found = [json.loads(line) for line in process.log.splitlines()]
    assert found
    assert all({"time", "level", "logger", "message"} <= set(each) for each in found)
    return found


def test_each_record_is_a_line_of_json(stage: Stage) -> None:
    began = datetime.now(UTC)
    worker = stage.worker("--json")
    message_id = stage.enqueue("pay", 5)
    stage.enqueue("fail")
    stage.heard("paid", "failed")
    assert worker.stop() == 0
    found = records(worker)
    assert any("working on" in each["message"] for each in found)
    for each in found:
        assert timedelta() <= datetime.fromisoformat(each["time"]) - began < timedelta(minutes=2)
    (paid,) = [each for each in found if each["logger"] == "shop" and "€" in each["message"]]
    assert paid["message"] == "two\nlines, 5 €"
    # What the record says of itself, not what the task calls by the same name.
    assert paid["level"] == "warning"
    # Which task it comes from, and what the caller added.
    assert (paid["task"], paid["message_id"], paid["attempt"]) == ("pay", message_id, 1)
    assert (paid["order"], paid["took"]) == ({"id": 7}, "1.5")
    assert "(1, 2)" in str(paid["by"]), "what JSON cannot hold is told in words"
    (failed,) = [each for each in found if each["message"] == "failed"]
    assert failed["level"] == "error"
    assert failed["exception"].startswith("Traceback")
    assert failed["exception"].endswith("no such card\x1b[31m")


def test_all_processes_and_their_supervisor(stage: Stage) -> None:
    worker = stage.start("--json", "--processes", "2", "--log-level", "info").begun(2)
    assert worker.stop() == 0
    assert len([each for each in records(worker) if "working on" in each["message"]]) == 2


def test_without_it_lines_are_for_people(stage: Stage) -> None:
    worker = stage.worker()
    assert worker.stop() == 0
    with pytest.raises(json.JSONDecodeError):
        json.loads(worker.log.splitlines()[0])
