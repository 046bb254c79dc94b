"""Our app with a second kind of task in its queue: `penstock worker bench.peers.penstock_kinds:app`."""

from __future__ import annotations

import time

from bench.peers.penstock import app

__all__ = ["app"]


@app.task
def sleep(seconds: float) -> None:
    """Keep a thread busy."""
    time.sleep(seconds)
