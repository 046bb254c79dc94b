"""A running PostgreSQL server, to its user."""

from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import quote

from penstock.embedded.errors import EmbeddedError
from penstock.embedded.supervisor.layout import Address, Layout

StopMode = Literal["fast", "immediate"]


class Control(Protocol):
    """How a server is started and stopped: differs between a throwaway and a shared one."""

    def start(self) -> Address: ...
    def stop(self, mode: StopMode, /) -> None: ...


class Server:
    """A PostgreSQL server of our own. Its superuser is `postgres`."""

    def __init__(self, directory: Path, *, version: int, address: Address, control: Control) -> None:
        """Made by `throwaway` and `shared`."""
        self._layout = Layout(directory)
        self._version = version
        self._address = address
        self._control = control

    @property
    def version(self) -> int:
        """The major version."""
        return self._version

    @property
    def data_directory(self) -> Path:
        return self._layout.data

    @property
    def log_file(self) -> Path:
        return self._layout.log

    @property
    def password_file(self) -> Path:
        """The file with the password that `tcp_dsn` has in it; for its owner only."""
        return self._layout.password

    def dsn(self, database: str = "postgres") -> str:
        """A URI for the Unix socket. No password: the mode of its directory protects it."""
        host = quote(self._address.socket_directory, safe="")
        return f"postgresql://postgres@/{quote(database, safe='')}?host={host}&port={self._address.port}"

    def tcp_dsn(self, database: str = "postgres") -> str:
        """A URI for 127.0.0.1, with the password."""
        try:
            password = self.password_file.read_text()
        except OSError as error:
            raise EmbeddedError(f"The server's password cannot be read: {error}") from error
        host = f"127.0.0.1:{self._address.port}"
        return f"postgresql://postgres:{quote(password, safe='')}@{host}/{quote(database, safe='')}"

    def start(self) -> None:
        """Start the server if it does not run, and wait until it is ready."""
        self._address = self._control.start()

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server: `fast` ends all sessions, `immediate` leaves it as a crash would."""
        self._control.stop(mode)
