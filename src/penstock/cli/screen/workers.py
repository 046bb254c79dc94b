"""Workers on the screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.text import Text

from penstock.models import ListedWorker

from ..output.cells import Grid, brief

__all__ = ["HEADINGS", "alive", "described", "worker_lines"]

HEADINGS = ("WORKER", "QUEUES", "RUNS", "HELD", "SEEN", "STATE", "RUNNING")
STYLES = {"gone": "bad", "stopping": "warning", "up": "good"}
LONGEST_QUEUES = 30


def alive(workers: Iterable[ListedWorker]) -> int:
    return sum(each.is_alive for each in workers)


def worker_lines(workers: Sequence[ListedWorker], at: datetime, width: int) -> list[Text]:
    """A heading and a line for each; those that live first."""
    if not workers:
        return [Text(" no workers (consumers without a worker are not listed)", "faint")]
    grid = Grid(HEADINGS, right=(2, 3, 4))
    for each in sorted(workers, key=lambda worker: not worker.is_alive):
        name, queues, runs, held, seen, state, running = described(each, at)
        grid.add(name, queues, runs, str(held), seen, Text(state, STYLES[state]), running)
    return grid.lines(width)


def described(worker: ListedWorker, at: datetime) -> tuple[str, str, str, int, str, str, str]:
    """What stands under the headings."""
    running = _running(worker)
    return (
        f"{worker.hostname}:{worker.pid}",
        _queues(worker.queues),
        f"{len(running)}/{worker.concurrency}",
        worker.held,
        brief(max(0, int((at - worker.seen_at).total_seconds()))),
        "gone" if not worker.is_alive else "stopping" if worker.stopping else "up",
        _running_tasks(running, worker.seen_at),
    )


def _running(worker: ListedWorker) -> list[dict[str, Any]]:
    """What it said of the tasks that it runs; it may be older or newer than this program."""
    said = worker.running
    return [each for each in said if isinstance(each, dict)] if isinstance(said, list) else []


def _queues(names: Sequence[str]) -> str:
    text = ", ".join(names)
    if len(text) <= LONGEST_QUEUES:
        return text
    return f"{names[0][: LONGEST_QUEUES - 8]} +{len(names) - 1}" if len(names) > 1 else text[:LONGEST_QUEUES]


def _running_tasks(running: Sequence[dict[str, Any]], at: datetime) -> str:
    """The tasks, how many of each and for how long by then; the one that runs for the longest first."""
    longest: dict[str, int] = {}
    number = Counter(str(run.get("task", "?")) for run in running)
    for run in running:
        task = str(run.get("task", "?"))
        longest[task] = max(longest.get(task, 0), _seconds(run, at))
    tasks = sorted(longest, key=lambda task: (-longest[task], task))
    return ", ".join(_told_one(task, number[task], longest[task]) for task in tasks) or "-"


def _told_one(task: str, number: int, seconds: int) -> str:
    return f"{task} {brief(seconds)}" if number == 1 else f"{number} {task} {brief(seconds)}"


def _seconds(run: dict[str, Any], at: datetime) -> int:
    try:
        return max(0, int((at - datetime.fromisoformat(str(run.get("since")))).total_seconds()))
    except (ValueError, TypeError):
        return 0
