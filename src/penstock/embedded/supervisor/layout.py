"""The files in a server's directory, as its owner and its supervisor both know them."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

THROWAWAY_PREFIX = "penstock-"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: the directory of its Unix socket, and its port there and on 127.0.0.1."""

    socket_directory: str
    port: int

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Layout:
    """The directory of one server. It belongs to the owner, `data` in it to whom the server runs as."""

    directory: Path

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def password(self) -> Path:
        """The superuser's password over TCP; mode 0600."""
        return self.directory / "password"

    @property
    def log(self) -> Path:
        return self.directory / "postgres.log"

    @property
    def socket(self) -> Path:
        """The directory of the Unix socket, or a link to it where this path is too long for a socket."""
        return self.directory / "socket"

    @property
    def state(self) -> Path:
        """The address of a shared server; there while it is ready."""
        return self.directory / "state.json"

    @property
    def port(self) -> Path:
        """The port that a shared server had last, to have it again."""
        return self.directory / "port"

    @property
    def users_lock(self) -> Path:
        """Shared by the users; the supervisor has it for itself from when no user is left until it ends."""
        return self.directory / "users.lock"

    @property
    def start_lock(self) -> Path:
        """Held by the one process that finds out whether the server is up, and starts it if not."""
        return self.directory / "start.lock"

    @property
    def supervisor_lock(self) -> Path:
        """Held by the supervisor as long as it lives, stopped server or not."""
        return self.directory / "supervisor.lock"

    @property
    def postgres_lock(self) -> Path:
        """Held by every process of the server, passed on to its children: free means all are gone."""
        return self.directory / "postgres.lock"


def make_directory(directory: Path) -> None:
    """Make a server's directory, closed to others.

    Root's can be passed through, not listed: the server may have to run as another user. What is in it has
    modes of its own.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        return
    if os.geteuid() == 0:
        directory.chmod(0o711)
