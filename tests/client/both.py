"""What tests need in both worlds: something that runs beside the test, and waiting for a condition."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 20.0
LOOK_EVERY_SECONDS = 0.005


class AsyncRunning(Generic[T]):
    """A coroutine that runs beside the test."""

    def __init__(self, function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._task = asyncio.get_running_loop().create_task(function())

    def is_done(self) -> bool:
        return self._task.done()

    async def result(self) -> T:
        """What it returns, or raises."""
        return await asyncio.wait_for(self._task, PATIENCE_SECONDS)


class Running(Generic[T]):
    """A function that runs in a thread beside the test."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._outcome: Future[T] = Future()
        self._function = function
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._outcome.set_result(self._function())
        except BaseException as exc:
            self._outcome.set_exception(exc)

    def is_done(self) -> bool:
        return self._outcome.done()

    def result(self) -> T:
        return self._outcome.result(PATIENCE_SECONDS)


async def async_until(condition: Callable[[], object], patience: float = PATIENCE_SECONDS) -> None:
    """Wait for a condition, while the loop goes on."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience:g} seconds"
        await asyncio.sleep(LOOK_EVERY_SECONDS)


def until(condition: Callable[[], object], patience: float = PATIENCE_SECONDS) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience:g} seconds"
        time.sleep(LOOK_EVERY_SECONDS)
