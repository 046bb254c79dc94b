"""One server for all processes of a user, up while any of them holds a lock on a file of it."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
import psycopg

from penstock.embedded.binaries import Binaries, find_binaries
from penstock.embedded.errors import EmbeddedError
from penstock.embedded.launch import Link, require_posix
from penstock.embedded.server import Server, StopMode
from penstock.embedded.supervisor.layout import Address, Layout, make_directory
from penstock.embedded.supervisor.locks import is_free, is_shareable, lock, open_lock

# Where root's server is if it has to run as another user, which cannot enter root's home.
SYSTEM_DIRECTORY = Path("/var/lib/penstock/server")

START_SECONDS = 330
# The supervisor wakes up so soon after the last user has left.
OTHERS_SECONDS = 0.3


@contextmanager
def shared(*, directory: Path | None = None) -> Iterator[Server]:
    """The server that all processes of this user share: started by the first, stopped when the last is gone.

    It keeps its data in `directory`, by default in the user's data directory. A process that is forked
    meanwhile counts, too, for as long as it lives.
    """
    require_posix()
    directory = (directory or default_directory()).absolute()
    make_directory(directory)
    owner = directory.stat().st_uid
    if owner != os.geteuid():
        raise EmbeddedError(
            f"{directory} belongs to user {owner}, not to {os.geteuid()}, who wants to run a server in it."
        )
    layout = Layout(directory)
    users = open_lock(layout.users_lock)
    try:
        lock(users, "shared")  # waits while a supervisor stops the server
        yield _Shared(layout).server()
    finally:
        # Closed, not unlocked: unlocking would take the lock from forked children as well.
        os.close(users)


def wait_until_stopped(server: Server, seconds: float) -> bool:
    """After leaving `shared`: wait until the server has stopped. False where others use it, or it takes long.

    The process that may stop it holds the users' lock exclusively; processes that use it share the lock.
    """
    layout = Layout(server.data_directory.parent)
    deadline = time.monotonic() + seconds
    others_until = time.monotonic() + OTHERS_SECONDS
    while not is_free(layout.supervisor_lock):
        at = time.monotonic()
        if at > deadline or (at > others_until and is_shareable(layout.users_lock)):
            return False
        time.sleep(0.01)
    return True


def find_shared(*, directory: Path | None = None) -> Server | None:
    """The server that `shared` would give, if it is up; not started, nor kept up: it may stop at any time."""
    found = _Shared(Layout((directory or default_directory()).absolute()))
    address = found.published()
    return None if address is None else found.server_at(address)


def default_directory() -> Path:
    """The user's data directory; for root the system's where the server cannot run as root's own."""
    if os.geteuid() == 0 and (SYSTEM_DIRECTORY.exists() or not _namespaces_permitted()):
        return SYSTEM_DIRECTORY
    return platformdirs.user_data_path("penstock", appauthor=False) / "server"


class _Shared:
    """Starting the shared server, or finding it up."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def server(self) -> Server:
        """The server, up."""
        return self.server_at(self.start())

    def start(self) -> Address:
        start = open_lock(self._layout.start_lock)
        try:
            lock(start, "exclusive")
            return self._find_or_start()
        finally:
            os.close(start)

    def stop(self, _mode: StopMode, /) -> None:
        raise EmbeddedError(
            f"The server in {self._layout.directory} is shared: it stops by itself when the last process "
            f"that uses it is done."
        )

    def server_at(self, address: Address) -> Server:
        version = int((self._layout.data / "PG_VERSION").read_text())
        return Server(self._layout.directory, version=version, address=address, control=self)

    def _find_or_start(self) -> Address:
        deadline = time.monotonic() + START_SECONDS
        while not is_free(self._layout.supervisor_lock):
            # Up already; or its starter was killed before, and its supervisor is still starting it.
            address = self.published()
            if address is not None and _answers(self.server_at(address)):
                return address
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"The server in {self._layout.directory} is being started, but does not get ready. "
                    f"See {self._layout.log}."
                )
            time.sleep(0.01)
        # An address that a killed supervisor left behind would be taken for the new one's.
        self._layout.state.unlink(missing_ok=True)
        return self._launch(find_binaries())

    def _launch(self, binaries: Binaries) -> Address:
        link = Link(
            {
                "kind": "shared",
                "programs": str(binaries.directory),
                "major": binaries.major,
                "directory": str(self._layout.directory),
                "settings": {},
            }
        )
        link.close()
        return Address(link.answer["socket_directory"], link.answer["port"])

    def published(self) -> Address | None:
        try:
            return Address(**json.loads(self._layout.state.read_text()))
        except FileNotFoundError:
            return None


def _answers(server: Server) -> bool:
    """Whether the server accepts connections; one that falls over or recovers does not."""
    try:
        psycopg.connect(server.dsn(), connect_timeout=10).close()
    except psycopg.OperationalError as error:
        # No code: no server. Class 57: it starts, stops or recovers. Other refusals are its own affair.
        return error.sqlstate is not None and not error.sqlstate.startswith("57")
    return True


def _namespaces_permitted() -> bool:
    link = Link({"kind": "probe"})
    link.close()
    return bool(link.answer["namespaces"])
