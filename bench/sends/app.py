"""The app of the worker whose latency is measured: notes when each handler began."""

from __future__ import annotations

import atexit
import json
import os
import time
from pathlib import Path

import penstock

app = penstock.App(os.environ.get("BENCH_DSN"))
began: list[tuple[int, float]] = []


@app.task(max_attempts=3)
async def noop(number: int) -> None:
    began.append((number, time.time()))


def write() -> None:
    """Write the times down where BENCH_TIMES says."""
    Path(os.environ["BENCH_TIMES"]).write_text(json.dumps(began))


if "BENCH_TIMES" in os.environ:
    atexit.register(write)
