"""A real PgBouncer in front of a server."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.embedded.processes import eventually
from tests.failures.proxy import reserve

LOCK = Path(tempfile.gettempdir()) / "penstock-tests-pgbouncer.lock"
OTHER_USER = "nobody"
CONFIGURATION = """
[databases]
{name} = host=127.0.0.1 port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
admin_users = admin
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 1000
"""


def find_pgbouncer() -> str | None:
    """Where it is installed; it is installed first, where root has apt in a container."""
    if (found := _which()) is None and _may_install():
        with LOCK.open("w") as lock:
            # Each process of the tests comes here.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _which() is None:
                _install()
        found = _which()
    return found


def require_pgbouncer() -> str:
    """Where it is installed; the test is skipped where it is not."""
    if (found := find_pgbouncer()) is None:
        pytest.skip("NO PGBOUNCER: nothing was tried through a pooler")
    return found


def _which() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def _may_install() -> bool:
    # Where systemd runs, the package would start a service of its own.
    return (
        os.geteuid() == 0 and shutil.which("apt-get") is not None and not Path("/run/systemd/system").exists()
    )


def _install() -> None:
    install = "apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120 pgbouncer"
    for command in (install, f"apt-get update && {install}"):
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(["sh", "-c", command], env=environ, capture_output=True, check=False)
        if done.returncode == 0:
            return


class PgBouncer:
    """One in transaction mode, which can be restarted."""

    def __init__(self, program: str, target: str, directory: Path, *, port: int, pool_size: int) -> None:
        parts = urlsplit(target)
        self._port = port
        self._name = parts.path.removeprefix("/")
        configuration = directory / "pgbouncer.ini"
        configuration.touch(0o600)
        configuration.write_text(
            CONFIGURATION.format(
                name=self._name,
                port=parts.port,
                user=parts.username,
                password=parts.password,
                listen_port=port,
                pool_size=pool_size,
            )
        )
        # It does not run as root.
        user = ["-u", OTHER_USER] if os.geteuid() == 0 else []
        self._command = [program, *user, str(configuration)]
        self._log = directory / "pgbouncer.log"
        self.start()

    @property
    def dsn(self) -> str:
        return f"postgresql://any_user@127.0.0.1:{self._port}/{self._name}?sslmode=disable&gssencmode=disable"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)
        eventually(lambda: self._process.poll() is not None or self._answers(), "PgBouncer answers", 10)
        assert self._process.poll() is None, self._log.read_text()

    def stop(self) -> None:
        """End it at once, with all connections."""
        self._process.terminate()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.dsn, prepare_threshold=None) as connection:
                connection.execute("select 1")
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def pgbouncer(program: str, target: str, directory: Path, *, pool_size: int) -> Iterator[PgBouncer]:
    """Run one in transaction mode, with so many connections to the server."""
    with reserve() as reserved:
        port: int = reserved.getsockname()[1]
        one = PgBouncer(program, target, directory, port=port, pool_size=pool_size)
        try:
            yield one
        finally:
            one.stop()
