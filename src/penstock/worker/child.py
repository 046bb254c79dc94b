"""The child's side of a process pool: a loop that runs the functions that the parent asks for."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from inspect import iscoroutine, isroutine
from multiprocessing.connection import wait
from operator import attrgetter
from typing import Any

from penstock.errors import InvalidArgument
from penstock.middleware.logging import configure_logging
from penstock.tasks import context as contexts
from penstock.tasks.arguments import Arguments

__all__ = ["HEADER", "Call", "Failure", "resolve", "serve"]

# The length of what follows.
HEADER = 8
PR_SET_PDEATHSIG = 1
# A child inherits which signals its parent ignores.
TO_RESET = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


@dataclass(frozen=True, slots=True)
class Call:
    """A function to run: "module:qualname", its arguments, and what its context is made of."""

    reference: str
    arguments: dict[str, Any]
    context_facts: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception: pickled where that can be, and in words."""

    type_name: str
    text: str
    trace: str
    pickled: bytes | None


def resolve(reference: str) -> Callable[..., Any]:
    """The function of a reference; of a task, its handler."""
    module, _, qualname = reference.partition(":")
    try:
        found = attrgetter(qualname)(import_module(module))
    except AttributeError as exc:
        raise InvalidArgument(
            f"there is no {qualname} in module {module}, as the process of the handler imports it",
            hint='a function for process=True stands in a module, not under `if __name__ == "__main__":`',
        ) from exc
    function = found if isroutine(found) else getattr(found, "function", found)
    if not callable(function):
        raise InvalidArgument(f"{qualname} in module {module} is no function but {function!r}")
    return function


def serve(line: socket.socket, parent: int, log_level: int, first: str) -> None:
    """Run what comes over the line until it ends. first: the function to import before the first call."""
    _settle_in(line, parent)
    # An import that fails is reported in the answer to the call.
    with suppress(Exception):
        resolve(first)
    configure_logging(log_level)
    _send(line, b"")
    while (request := _receive(line)) is not None:
        answer = _run(request)
        _flush()
        _send(line, answer)


def _settle_in(line: socket.socket, parent: int) -> None:
    # A process group of its own: the parent kills the group, with all that the child has started.
    with suppress(PermissionError):
        os.setpgid(0, 0)
    # Processes that a handler starts or forks must not keep the line open after this process has ended.
    line.set_inheritable(False)
    os.register_at_fork(after_in_child=line.close)
    for number in TO_RESET:
        signal.signal(number, signal.SIG_DFL)
    # A terminal, systemd and containers send these signals to all processes. The worker drains, and ends its
    # children itself. Not SIG_IGN, because programs that a handler starts would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Text that a handler prints goes to stderr: stdout is the worker's.
    with suppress(OSError):
        os.dup2(2, 1)
    _die_with(parent)


def _die_with(parent: int) -> None:
    """End when the parent does, however it ends and whatever runs here."""
    threading.Thread(target=_watch_parent, name="penstock-parent", daemon=True).start()
    if sys.platform == "linux":
        # The thread cannot run while a handler holds the interpreter's lock, so the kernel is asked, too.
        # Where this call is forbidden, the thread is all there is.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _run(request: bytes) -> bytes:
    try:
        call: Call = pickle.loads(request)  # noqa: S301 - it comes from the parent
        result = _call(call)
    except BaseException as exc:
        return pickle.dumps(_failure(exc))
    try:
        return pickle.dumps((result,), pickle.HIGHEST_PROTOCOL)
    except Exception as exc:
        kind = type(result).__qualname__
        misfit = InvalidArgument(f"the result of {call.reference}, a {kind}, cannot be pickled: {exc}")
        misfit.__cause__ = exc
        return pickle.dumps(_failure(misfit))


def _call(call: Call) -> Any:
    function = resolve(call.reference)
    if call.context_facts is None:
        result = function(**call.arguments)
        return asyncio.run(result) if iscoroutine(result) else result
    context = contexts.TaskContext(**call.context_facts)
    token = contexts.CURRENT.set(context)
    try:
        result = _arguments(function, context.task_name).call(call.arguments, context)
        return asyncio.run(result) if iscoroutine(result) else result
    finally:
        contexts.CURRENT.reset(token)


@lru_cache(maxsize=1000)
def _arguments(function: Callable[..., Any], task_name: str) -> Arguments:
    return Arguments(function, task_name)


def _failure(exc: BaseException) -> Failure:
    # The frames of this module say nothing to the author of a handler.
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    lines = traceback.format_exception(type(exc), exc, trace)
    return Failure(type(exc).__qualname__, _text(exc), "".join(lines), _pickled(exc))


def _pickled(exc: BaseException) -> bytes | None:
    """None for an exception that cannot be unpickled, or that would end the parent, as SystemExit."""
    if not isinstance(exc, Exception):
        return None
    try:
        pickled = pickle.dumps(exc)
        back = pickle.loads(pickled)  # noqa: S301
    except Exception:
        return None
    return pickled if type(back) is type(exc) else None


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:
        return ""


def _flush() -> None:
    """Write out what the handler printed, before the parent learns that the handler is done."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _send(line: socket.socket, frame: bytes) -> None:
    # The parent may have closed its end: the next read finds out.
    with suppress(BrokenPipeError, ConnectionResetError):
        line.sendall(len(frame).to_bytes(HEADER, "big") + frame)


def _receive(line: socket.socket) -> bytes | None:
    """The next request; None when the parent has closed its end."""
    header = _read(line, HEADER)
    return None if header is None else _read(line, int.from_bytes(header, "big"))


def _read(line: socket.socket, size: int) -> bytes | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            count = line.recv_into(view)
        except ConnectionResetError:
            return None
        if not count:
            return None
        view = view[count:]
    return bytes(data)
