"""One server for all processes of a user: up while any of them needs it. Counted by file locks, never by process ids."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from penstock.embedded.binaries import Binaries, find_binaries
from penstock.embedded.errors import EmbeddedError
from penstock.embedded.launch import Link, require_posix
from penstock.embedded.server import Server, StopMode
from penstock.embedded.supervisor.layout import Address, Layout, make_directory
from penstock.embedded.supervisor.locks import is_free, lock, open_lock

# Where root's server is if it has to run as another user, who could not get into root's home.
SYSTEM_DIRECTORY = Path("/var/lib/penstock/server")

START_SECONDS = 330


@contextmanager
def shared(*, directory: Path | None = None) -> Iterator[Server]:
    """The server that all processes of this user share, started by the first and stopped when the last has gone.

    It keeps its data in `directory`, by default in the user's data directory. A process that is forked meanwhile
    counts as a user, too, for as long as it lives.
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
        control = _Shared(layout)
        address = control.start()
        yield Server(directory, version=control.version(), address=address, control=control)
    finally:
        # Closed, not unlocked: unlocking would take the lock from forked children as well.
        os.close(users)


def default_directory() -> Path:
    """The user's data directory; for root the system's where the server cannot run as root's own."""
    if os.geteuid() == 0 and (SYSTEM_DIRECTORY.exists() or not _namespaces_permitted()):
        return SYSTEM_DIRECTORY
    return platformdirs.user_data_path("penstock", appauthor=False) / "server"


class _Shared:
    """Starting the shared server, or finding it up."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def start(self) -> Address:
        start = open_lock(self._layout.start_lock)
        try:
            lock(start, "exclusive")
            return self._find_or_start()
        finally:
            os.close(start)

    def stop(self, mode: StopMode) -> None:
        raise EmbeddedError(
            f"The server in {self._layout.directory} is shared: it stops by itself when the last process that uses it is done."
        )

    def version(self) -> int:
        return int((self._layout.data / "PG_VERSION").read_text())

    def _find_or_start(self) -> Address:
        deadline = time.monotonic() + START_SECONDS
        while not is_free(self._layout.supervisor_lock):
            # Not the starter's supervisor: it may have been killed, and its supervisor still be at it.
            address = self._published()
            if address is not None:
                return address
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"A supervisor looks after {self._layout.directory}, but its server does not get ready. See {self._layout.log}."
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

    def _published(self) -> Address | None:
        try:
            return Address(**json.loads(self._layout.state.read_text()))
        except FileNotFoundError:
            return None


def _namespaces_permitted() -> bool:
    link = Link({"kind": "probe"})
    link.close()
    return bool(link.answer["namespaces"])
