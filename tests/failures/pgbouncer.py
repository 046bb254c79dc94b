"""A real PgBouncer in front of a server."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.embedded.processes import eventually
from tests.failures.proxy import reserve

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
max_client_conn = 200
"""


def find_pgbouncer() -> str | None:
    """Where it is installed, if it is."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class PgBouncer:
    """One that runs."""

    def __init__(self, port: int, name: str) -> None:
        self._port = port
        self._name = name

    @property
    def dsn(self) -> str:
        return f"postgresql://any_user@127.0.0.1:{self._port}/{self._name}?sslmode=disable&gssencmode=disable"

    def answers(self) -> bool:
        try:
            with psycopg.connect(self.dsn, prepare_threshold=None) as connection:
                connection.execute("select 1")
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def pgbouncer(program: str, target: str, directory: Path, *, pool_size: int) -> Iterator[PgBouncer]:
    """Run one in transaction mode, with so many connections to the server."""
    parts, reserved = urlsplit(target), reserve()
    listen_port: int = reserved.getsockname()[1]
    name = parts.path.removeprefix("/")
    configuration = directory / "pgbouncer.ini"
    configuration.touch(0o600)
    configuration.write_text(
        CONFIGURATION.format(
            name=name,
            port=parts.port,
            user=parts.username,
            password=parts.password,
            listen_port=listen_port,
            pool_size=pool_size,
        )
    )
    # It does not run as root.
    user = ["-u", pwd.getpwuid(_other_user()).pw_name] if os.geteuid() == 0 else []
    log = directory / "pgbouncer.log"
    with (
        reserved,
        log.open("wb") as output,
        subprocess.Popen([program, *user, configuration], stdout=output, stderr=output) as process,
    ):
        try:
            one = PgBouncer(listen_port, name)
            eventually(lambda: process.poll() is not None or one.answers(), "PgBouncer answers", 10)
            assert process.poll() is None, log.read_text()
            yield one
        finally:
            process.terminate()


def _other_user() -> int:
    return pwd.getpwnam("nobody").pw_uid
