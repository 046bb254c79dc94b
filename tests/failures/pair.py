"""Two real servers, a primary and its synchronous standby, that change places as often as a test wants."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg

from penstock import schema
from penstock.embedded import Server, find_binaries, throwaway
from penstock.embedded.server import StopMode
from tests.conftest import SETTINGS, in_memory
from tests.embedded.processes import eventually
from tests.failures.conftest import Sql, port_of

# On both servers; what a server has as the primary alone is set with `alter system`.
PAIR_SETTINGS = SETTINGS | {"wal_level": "replica", "wal_keep_size": "64MB"}


class Pair:
    """The primary and the standby. A message that a publisher has committed is on both."""

    def __init__(self, primary: Server, standby: Server) -> None:
        self.primary = primary
        self.standby = standby
        self._ports = port_of(primary.tcp_dsn()), port_of(standby.tcp_dsn())
        # A standby has the roles of its primary, with their passwords.
        self.password = urlsplit(primary.tcp_dsn()).password or ""

    def dsn(self, *, keywords: bool = False, options: str = "") -> str:
        """Both servers in one DSN, always in the same order."""
        one, other = self._ports
        if keywords:
            return (
                f"host=127.0.0.1,127.0.0.1 port={one},{other} dbname=postgres user=postgres"
                f" password={self.password} {options}"
            )
        hosts = f"127.0.0.1:{one},127.0.0.1:{other}"
        return f"postgresql://postgres:{self.password}@{hosts}/postgres?{options}"

    def tcp_dsn(self, server: Server) -> str:
        """One of them by TCP."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{port_of(server.tcp_dsn())}/postgres"

    def promote(self) -> None:
        """The standby becomes the primary, whatever the former one does."""
        with psycopg.connect(self.standby.dsn(), autocommit=True) as sql:
            sql.execute("select pg_promote()")
        self.primary, self.standby = self.standby, self.primary

    def fail_over(self, mode: StopMode) -> None:
        """Stop the primary, and promote the standby."""
        self.primary.stop(mode)
        self.promote()

    def attach(self) -> None:
        """Let the server that is not the primary follow it, as a copy of it; commits wait for it again."""
        standby = self.standby
        standby.stop("immediate")
        owner = standby.data_directory.stat()
        shutil.rmtree(standby.data_directory)
        program = find_binaries(major=standby.version).directory / "pg_basebackup"
        target = ["-d", self.primary.dsn(), "-D", str(standby.data_directory)]
        subprocess.run([program, *target, "-R", "-X", "stream", "-c", "fast", "--no-sync"], check=True)
        for path in (standby.data_directory, *standby.data_directory.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
        # What the primary has set for itself is not for the standby.
        settings = standby.data_directory / "postgresql.auto.conf"
        lines = settings.read_text().splitlines(keepends=True)
        settings.write_text("".join(line for line in lines if line.startswith(("#", "primary_conninfo"))))
        standby.start()
        with psycopg.connect(self.primary.dsn(), autocommit=True) as sql:
            sql.execute("set synchronous_commit = local")
            sql.execute("alter system set synchronous_standby_names = '*'")
            sql.execute("select pg_reload_conf()")
            eventually(lambda: is_synchronous(sql), "the standby is synchronous")


def is_synchronous(sql: Sql) -> bool:
    """Whether a commit waits for a standby."""
    return sql.execute("select from pg_stat_replication where sync_state = 'sync'").rowcount == 1


@contextmanager
def make_pair() -> Iterator[Pair]:
    """Two servers, the schema, and replication between them."""
    directory = in_memory()
    with (
        throwaway(settings=PAIR_SETTINGS, directory=directory) as one,
        throwaway(settings=PAIR_SETTINGS, directory=directory) as other,
    ):
        with psycopg.connect(one.dsn()) as connection:
            schema.install(connection)
        pair = Pair(one, other)
        pair.attach()
        yield pair
