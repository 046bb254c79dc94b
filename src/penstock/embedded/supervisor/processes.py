"""Starting processes that end with the supervisor, and waiting for things that its owner may cut short."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from . import linux
from .errors import SupervisorError
from .identity import Identity


class OwnerGone(Exception):  # noqa: N818 - the regular end
    """No user of the server is left, or the supervisor received SIGTERM."""


class Attention:
    """What the supervisor listens to: its owner (something to read), the end of a child, SIGTERM."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self._terminated = False
        self._signals, wake = os.pipe()
        for descriptor in (self._signals, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._note)
        signal.signal(signal.SIGTERM, self._note)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _note(self, number: int, _frame: FrameType | None) -> None:
        """Remember a request to end; for all else the wake-up is what counts."""
        self._terminated |= number == signal.SIGTERM

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for any of it; True if the owner says something or is gone. Raises OwnerGone on SIGTERM."""
        if self._terminated:
            raise OwnerGone
        ready, _, _ = select.select([self.owner, self._signals], [], [], seconds)
        self._drain()
        if self._terminated:
            raise OwnerGone
        return self.owner in ready

    def until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is done; False when time ran out. Raises OwnerGone if the owner goes."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                return False
            # An owner waits for its answer before it says more: if there is something to read, it is the end.
            if self.wait(0.005):
                raise OwnerGone
        return True

    def regardless(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is done, whatever the owner does; False when time ran out."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                return False
            select.select([self._signals], [], [], 0.005)
            self._drain()
        return True

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._signals, 4096):
                pass


@dataclass(slots=True)
class Process:
    """A child of the supervisor."""

    pid: int
    status: int | None = None

    def ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def send(self, number: signal.Signals) -> None:
        if not self.ended():  # so its id cannot be another's by now
            os.kill(self.pid, number)


def spawn(
    command: Sequence[str | Path],
    *,
    identity: Identity,
    directory: Path,
    output: int,
    inherit: Sequence[int] = (),
    environment: Mapping[str, str],
    death: signal.Signals,
) -> Process:
    """Run a program as `identity` in `directory`; it gets the signal `death` when the supervisor ends."""
    parent = os.getpid()
    reads, writes = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        try:
            identity.enter()
            linux.die_with_parent(parent, death)
            os.chdir(directory)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            null = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((null, 0), (output, 1), (output, 2)):
                os.dup2(source, target)
            for descriptor in inherit:
                os.set_inheritable(descriptor, True)
            os.execve(command[0], [os.fspath(word) for word in command], environment)  # noqa: S606
        except BaseException as error:
            os.write(writes, str(error).encode())
        finally:
            os._exit(127)
    os.close(writes)
    with os.fdopen(reads, encoding="utf-8", errors="replace") as pipe:
        trouble = pipe.read()
    if trouble:
        os.waitpid(pid, 0)
        raise SupervisorError(f"{command[0]} cannot be run in {directory} by user {identity.uid}: {trouble}")
    return Process(pid)


def collect() -> None:
    """Take note of adopted children that have ended, so that they do not stay behind as zombies."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
