"""Work on the side: the database is asked in threads, so that keys are answered while it thinks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

__all__ = ["Answer", "Background"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a job: its result or what it raised, and how long it took."""

    job: str
    result: Any
    error: Exception | None
    seconds: float


class Background:
    """Runs jobs, one of a name at a time. The process may end in the middle of a job."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._since: dict[str, float] = {}

    def start(self, job: str, work: Callable[[], Any]) -> bool:
        """Begin it; False where one of that name is under way."""
        if job in self._since:
            return False
        self._since[job] = time.monotonic()
        threading.Thread(target=self._run, args=(job, work), name=f"top {job}", daemon=True).start()
        return True

    def waited(self, job: str) -> float:
        """For how many seconds it has been under way; 0 where it is not."""
        return time.monotonic() - self._since[job] if job in self._since else 0.0

    def answers(self) -> Iterator[Answer]:
        """What has ended since."""
        while True:
            try:
                answer = self._answers.get_nowait()
            except Empty:
                return
            self._since.pop(answer.job, None)
            yield answer

    def _run(self, job: str, work: Callable[[], Any]) -> None:
        began = time.monotonic()
        result, error = None, None
        try:
            result = work()
        except Exception as exc:
            error = exc
        self._answers.put(Answer(job, result, error, time.monotonic() - began))
        self._wake()
