"""A task that a process of its own can import."""

from __future__ import annotations

import os

from penstock import App

app = App()


@app.task(process=True, result=True)
def pid_of_handler() -> int:
    return os.getpid()
