"""The owner's line to a supervisor."""

import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.embedded.errors import EmbeddedError

# To the supervisor its folder is a package of its own: to import penstock would take longer than to start.
BOOTSTRAP = "import sys; sys.path.append(sys.argv.pop(1)); from supervisor.main import main; main()"

END_SECONDS = 120


def require_posix() -> None:
    """Raise where there are no Unix sockets, file locks and fork()."""
    if sys.platform == "win32":
        raise EmbeddedError(
            "The embedded server does not run on Windows. Install PostgreSQL, and name its database in "
            "PENSTOCK_DATABASE_URL; or use WSL."
        )


class Link:
    """A supervisor that was started, and the socket to it, which it sees close when this process ends."""

    def __init__(self, orders: Mapping[str, object]) -> None:
        """Start a supervisor and wait for its first answer."""
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _start(theirs)
            except OSError as error:
                self._socket.close()
                raise EmbeddedError(
                    f"The supervisor does not start with {sys.executable!r}: {error}"
                ) from error
        _open_links.add(self)
        try:
            self.answer = self.request(orders)
        except BaseException:
            self.close()
            raise
        self._close_output()  # from its first answer on, it writes to the server's log

    @property
    def is_ours(self) -> bool:
        """Whether this process started the supervisor; a forked child did not."""
        return os.getpid() == self._owner

    def request(self, request: Mapping[str, object]) -> dict[str, Any]:
        """Ask the supervisor for something and wait for its answer."""
        if not self.is_ours:
            raise EmbeddedError(
                f"Only process {self._owner}, which started this server, can start or stop it."
            )
        with self._lock:
            try:
                line = self._exchange(json.dumps(request).encode() + b"\n")
            except OSError:
                line = b""
            except BaseException:
                # The answer to this would be taken for the answer to the next request.
                self._socket.close()
                raise
        if not line:
            raise EmbeddedError(f"The supervisor of this server has ended. {self._last_words()}".rstrip())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EmbeddedError(answer["error"])
        return answer

    def close(self) -> None:
        """Let go of the supervisor and wait until it has ended; a forked child only lets go."""
        self._socket.close()
        if self.is_ours:
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._close_output()

    def forget(self) -> None:
        """In a forked child: let the supervisor see the end of its owner, whom this child may outlive."""
        self._socket.close()
        self._process.returncode = 0  # not this process's child: nothing to wait for, nothing to warn of

    def _exchange(self, request: bytes) -> bytes:
        self._socket.sendall(request)
        answer = b""
        while not answer.endswith(b"\n"):
            part = self._socket.recv(65536)
            if not part:
                return b""
            answer += part
        return answer

    def _last_words(self) -> str:
        """What Python said if it did not get as far as the supervisor."""
        output = self._process.stderr
        return output.read().decode(errors="replace").strip() if output and not output.closed else ""

    def _close_output(self) -> None:
        if self._process.stderr:
            self._process.stderr.close()


def _start(line: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", BOOTSTRAP, str(Path(__file__).parent)],
        stdin=line.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd="/",
        start_new_session=True,  # Ctrl-C is for the owner, which may need the server for its last things
    )


# A fork without exec copies the sockets to a child, which must let go of them: see Link.forget.
_open_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _forget_links() -> None:
    for link in list(_open_links):
        link.forget()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_links)
