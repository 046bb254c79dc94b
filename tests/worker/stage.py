"""Workers to test: real processes with an app in a folder of their own, or one in the loop of a test."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import psycopg

from penstock import App, Handle, MessageDetails, Worker
from tests.embedded.processes import eventually

__all__ = ["PATIENCE", "Process", "Stage", "ended", "holds", "in_state", "move_clock", "one", "working"]

PATIENCE = 25.0
MODULE = "jobs"

# What handlers of an app in a process of its own speak to the test with: a file of lines, and files as gates.
PRELUDE = '''
"""Tasks of a test."""

import asyncio, os, signal, sys, threading, time
from pathlib import Path

import penstock
from penstock import Exponential, Reject, Retry, Snooze, TaskContext

HERE = Path(__file__).parent
app = penstock.App()


def say(*words):
    with open(HERE / "said", "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")


async def passed(gate):
    while not (HERE / gate).exists():
        await asyncio.sleep(0.02)


def waits(gate):
    while not (HERE / gate).exists():
        time.sleep(0.02)

'''


class Process:
    """A worker, or the supervisor of several."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def begun(self, times: int = 1) -> Process:
        """Wait until it works."""
        eventually(lambda: self._has_begun(times), f"the worker has begun: {self.log}", PATIENCE)
        return self

    def _has_begun(self, times: int) -> bool:
        log = self.log
        assert self.is_running, f"the worker has ended: {log}"
        return log.count("working on") >= times

    def says(self, text: str, seconds: float = PATIENCE) -> None:
        """Wait until a text is in its log."""
        eventually(lambda: text in self.log, f"the log says {text!r}", seconds)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait until it ends; its exit code."""
        return self._process.wait(seconds)

    def stop(self, seconds: float = PATIENCE) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def kill(self) -> None:
        """SIGKILL: no last words."""
        self._process.kill()
        self._process.wait(PATIENCE)


class Stage:
    """An app in a folder, the database that it works in, and the processes that run it."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        self.dsn = dsn
        self._app: App | None = None
        self._processes: list[Process] = []

    def write(self, source: str, *, name: str = MODULE) -> Stage:
        """Write the module with the tasks."""
        (self.folder / f"{name}.py").write_text(PRELUDE + dedent(source))
        return self

    @property
    def app(self) -> App:
        """The same app here, to enqueue with."""
        if self._app is None:
            spec = importlib.util.spec_from_file_location(MODULE, self.folder / f"{MODULE}.py")
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self._app = module.app
            self._app.use(self.dsn)
        return self._app

    def enqueue(self, task_name: str, *arguments: Any, **options: Any) -> int:
        """Enqueue one call; the id of its message."""
        return self.app.tasks[task_name].options(**options).enqueue(*arguments).id

    def details(self, task_name: str, message_id: int) -> MessageDetails | None:
        """What the database knows of a call."""
        return self.app.client.get_message(self.app.tasks[task_name].queue, message_id)

    def state(self, task_name: str, message_id: int) -> str | None:
        found = self.details(task_name, message_id)
        return None if found is None else found.state

    def done(self, task_name: str, *message_ids: int, seconds: float = PATIENCE) -> None:
        """Wait until these are done."""
        self._wait_for_states(task_name, message_ids, (None, "done"), seconds)

    def dead(self, task_name: str, *message_ids: int, seconds: float = PATIENCE) -> None:
        """Wait until these are given up."""
        self._wait_for_states(task_name, message_ids, ("dead",), seconds)

    def _wait_for_states(
        self, task_name: str, message_ids: tuple[int, ...], states: tuple[str | None, ...], seconds: float
    ) -> None:
        def have() -> bool:
            return all(self.state(task_name, message_id) in states for message_id in message_ids)

        self.until(have, f"messages {message_ids} are in {states}", seconds)

    def start(self, *options: str, dsn: str | None = None, module: str = MODULE) -> Process:
        """Start a worker."""
        log = self.folder / f"log{len(self._processes)}"
        command = [sys.executable, "-m", "penstock.cli", "worker", f"{module}:app"]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, "--dsn", dsn or self.dsn, *options],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._processes.append(Process(process, log))
        return self._processes[-1]

    def worker(self, *options: str) -> Process:
        """Start a worker, and wait until it works."""
        return self.start(*options).begun()

    @property
    def said(self) -> list[str]:
        """What the handlers have said so far."""
        file = self.folder / "said"
        return file.read_text().splitlines() if file.exists() else []

    def heard(self, *lines: str, seconds: float = PATIENCE) -> None:
        """Wait until the handlers have said these."""
        self.until(lambda: set(lines) <= set(self.said), f"handlers say {lines}", seconds)

    def until(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        """Wait until something is so; if it never is, tell what the handlers and the logs say."""
        try:
            eventually(condition, what, seconds)
        except AssertionError as exc:
            logs = [f"{process.pid}: {process.log}" for process in self._processes]
            raise AssertionError("\n".join([str(exc), f"said: {self.said}", *logs])) from None

    def open(self, gate: str) -> None:
        """Let handlers pass that wait for a file."""
        (self.folder / gate).touch()

    def close(self) -> None:
        for process in self._processes:
            if process.is_running:
                process.signal(signal.SIGCONT)
                process.kill()
        for pid in self.leftovers():
            os.kill(pid, signal.SIGKILL)
        if self._app is not None:
            self._app.close()

    def leftovers(self) -> list[int]:
        """Processes that work in the folder."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cwd").readlink() == self.folder:
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@asynccontextmanager
async def working(app: App, dsn: str, **options: Any) -> AsyncIterator[Worker]:
    """A worker in this loop, for as long as the block runs."""
    with app.connected_to(dsn):
        worker = Worker(app, **{"lease": 5, "grace": 1, **options})
        running = asyncio.ensure_future(worker.run())
        try:
            begun = asyncio.ensure_future(worker.started.wait())
            await asyncio.wait({running, begun}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            assert begun.done(), running
            yield worker
            assert not running.done(), f"the worker has ended: {running}"
        finally:
            begun.cancel()
            worker.stop()
            await asyncio.wait_for(running, PATIENCE)
            await app.aclose()


async def holds(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait until something is so, while the loop goes on."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"did not happen within {seconds} s: {what}"
        await asyncio.sleep(0.02)


def one(sql: psycopg.Connection[Any], query: str, *parameters: Any) -> Any:
    """The one value that a query gives."""
    row = sql.execute(query.encode(), parameters).fetchone()
    assert row is not None
    return row[0]


async def ended(handle: Handle[Any], seconds: float = PATIENCE) -> MessageDetails | None:
    """Wait until a task has ended: what is known of it as a dead letter, or None where it is done."""
    found = await _looked(handle, lambda found: found is None or found.state in ("dead", "done"), seconds)
    return None if found is None or found.state == "done" else found


async def in_state(handle: Handle[Any], state: str, seconds: float = PATIENCE) -> MessageDetails:
    """Wait until a task is in a state; what is known of it then."""
    found = await _looked(handle, lambda found: found is not None and found.state == state, seconds)
    assert found is not None
    return found


async def _looked(
    handle: Handle[Any], fits: Callable[[MessageDetails | None], bool], seconds: float
) -> MessageDetails | None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not fits(found := await handle.details_async()):
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds} s: {_short(found)}"
        await asyncio.sleep(0.02)
    return found


def _short(found: MessageDetails | None) -> str:
    if found is None:
        return "gone"
    return f"{found.state}, {found.delivery_attempts} attempts, {found.reason}, {found.last_error}"


def move_clock(sql: psycopg.Connection[Any], seconds: float) -> None:
    """From now on the clock of the database is so much ahead."""
    sql.execute(
        "create or replace function penstock.clock() returns timestamptz language sql volatile "
        f"as $$ select clock_timestamp() + interval '{seconds} seconds' $$".encode()
    )
