"""What the children of a process pool are told to run."""

import asyncio
import ctypes
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from penstock.tasks.context import TaskContext, current_context
from penstock.tasks.outcomes import Reject, Retry, Snooze


class Picky(Exception):  # noqa: N818
    """Pickles, and does not come back: its parameters are not its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Fitting(Exception):  # noqa: N818
    """Comes back as it was."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Wrapped:
    """Stands for a task: an object in the place of the function that it wraps."""

    def __init__(self, function: Any) -> None:
        self.function = function


class Holder:
    """A class with functions in it."""

    @staticmethod
    def twice(number: int) -> int:
        return 2 * number

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    def method(self) -> None: ...


def add(a: int, b: int = 0) -> int:
    return a + b


def pid() -> int:
    return os.getpid()


async def add_slowly(a: int, b: int) -> int:
    await asyncio.sleep(0.001)
    return a + b


@Wrapped
def wrapped(a: int) -> int:
    return a + 1


def replaced() -> str:
    return "the first"


first_replaced = replaced


def replaced() -> str:  # type: ignore[no-redef]
    return "the second"


def size_of(data: bytes) -> int:
    return len(data)


def make(size: int) -> bytes:
    return bytes(size)


def unpicklable() -> Any:
    return lambda: None


def fail(kind: str) -> None:
    if kind == "picky":
        raise Picky(1, 2)
    if kind == "local":

        class Local(Exception):  # noqa: N818
            pass

        raise Local("made here")
    if kind == "fitting":
        raise Fitting(7) from ValueError("the cause")
    if kind == "exit":
        sys.exit(3)
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "cancelled":
        raise asyncio.CancelledError
    if kind == "wordless":

        class Wordless(Exception):  # noqa: N818
            def __str__(self) -> str:
                raise RuntimeError("no words")

        raise Wordless
    raise {"retry": Retry("later", delay=5), "reject": Reject("no use"), "snooze": Snooze(9)}[kind]


def die(how: str, path: str = "") -> None:
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "forked":
        # The process that is left over has all that its parent had open.
        if (left_over := os.fork()) == 0:
            time.sleep(600)
        tell(path, left_over)
        os._exit(9)
    time.sleep(600)


def sleep(path: str = "", seconds: float = 600) -> None:
    """Say that it runs, and by whom, then take long."""
    if path:
        tell(path, os.getpid())
    time.sleep(seconds)


def wait_for(path: str) -> str:
    """Say that it runs, then wait until it may end."""
    tell(path, os.getpid())
    while Path(path).exists():
        time.sleep(0.01)
    return "waited"


def hold_the_lock(path: str) -> None:
    """Never let another thread of this process run: a pattern that backtracks for years."""
    tell(path, os.getpid())
    re.fullmatch(r"(a|a?)+b", "a" * 60)


def start_program(path: str) -> None:
    """Start another program, and take long."""
    program = subprocess.Popen(["sleep", "600"])
    tell(path, os.getpid(), program.pid)
    time.sleep(600)


def terminate_program() -> int:
    """The exit code of a program that is asked to end by SIGTERM, then of one that is interrupted."""
    codes = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with subprocess.Popen(["sleep", "600"]) as program:
            program.send_signal(number)
            codes.append(program.wait(30))
    assert codes == [-signal.SIGTERM, -signal.SIGINT]
    return 0


def interrupt_myself() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)
    return "not minded"


def handlers() -> dict[str, str]:
    return {number.name: str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGHUP)}


def have_children() -> int:
    """A process of one's own, by multiprocessing."""
    process = multiprocessing.get_context("fork").Process(target=os._exit, args=(4,))
    process.start()
    process.join(30)
    return process.exitcode or 0


def talk(text: str) -> None:
    print("printed", text)
    logging.getLogger("functions").info("logged %s", text)


def with_context(context: TaskContext, number: int, /, *, more: int = 0) -> tuple[Any, ...]:
    assert current_context() is context
    return context.task_name, context.attempt, context.is_last_attempt, number, more


async def with_context_async(number: int, ctx: TaskContext) -> tuple[int, int]:
    found = current_context()
    assert found is ctx
    return number, ctx.message_id


def without_context() -> bool:
    return current_context() is None


def tell(path: str, *pids: int) -> None:
    """Write it in one go, so that no reader sees half of it."""
    half = Path(f"{path}.{os.getpid()}")
    half.write_text(" ".join(map(str, pids)))
    half.rename(path)
