"""Processes that do jobs side by side: several, so that it is the database that is measured, not Python."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from penstock.errors import PenstockError

from .figures import Outcome
from .jobs import Job, Report
from .process import GO, READY, Trouble

__all__ = ["ProcessPool"]

END_SECONDS = 5.0


class ProcessPool:
    """Processes with a client each, started when they are needed, ended with the block."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._processes: list[_Process] = []

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()

    def do(self, jobs: Sequence[Job], report: Report) -> list[Outcome]:
        """Each job in a process of its own; they begin together, when all are prepared."""
        while len(self._processes) < len(jobs):
            self._processes.append(_Process(self._dsn))
        processes = self._processes[: len(jobs)]
        for process, job in zip(processes, jobs, strict=True):
            process.send(job)
        _wait(processes, lambda answer: answer == READY, report)
        for process in processes:
            process.send(GO)
        return _wait(processes, lambda answer: isinstance(answer, Outcome), report)


class _Process:
    """One process, in a session of its own: Ctrl-C is for the one that has started it."""

    def __init__(self, dsn: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.benchmark.process", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.pipe: Connection = Connection(ours.detach())
        self.send(dsn)

    def send(self, value: object) -> None:
        try:
            self.pipe.send(value)
        except ConnectionError:
            raise self._death() from None

    def recv(self) -> Any:
        try:
            answer = self.pipe.recv()
        except (EOFError, ConnectionError):
            raise self._death() from None
        if isinstance(answer, Trouble):
            raise PenstockError(answer.text, hint=answer.hint)
        return answer

    def _death(self) -> PenstockError:
        code = self._process.wait(END_SECONDS)
        return PenstockError(f"a process that measures has ended with exit code {code}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.pipe.close()


def _wait(processes: Sequence[_Process], is_wanted: Callable[[Any], bool], report: Report) -> list[Any]:
    """What was waited for, of each, in their order; all else that comes is progress."""
    pending = {process.pipe: process for process in processes}
    found: dict[_Process, Any] = {}
    while pending:
        for pipe in wait(list(pending)):
            assert isinstance(pipe, Connection)
            process = pending[pipe]
            answer = process.recv()
            if is_wanted(answer):
                found[process] = answer
                del pending[pipe]
            else:
                report(answer)
    return [found[process] for process in processes]
