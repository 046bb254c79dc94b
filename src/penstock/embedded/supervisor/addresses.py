"""Where a server listens: a port that is free, and a directory short enough for a Unix socket."""

import os
import random
import re
import secrets
import shutil
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from .errors import SupervisorError
from .identity import Identity
from .layout import Layout

# The kernel's limit for the path of a Unix socket, without the closing zero.
LONGEST_SOCKET_PATH = 107 if sys.platform == "linux" else 103
SOCKET_NAME = ".s.PGSQL.65535"

# Below the range that the kernel gives to outgoing connections, so that none of those takes it in between.
PORTS = range(15000, 32000)

# libpq ends a directory's name at a comma, PostgreSQL at a quote: what is not plain is not worth the risk.
PLAIN = re.compile(r"/[\w/. +-]*", re.ASCII)


def ports(preferred: int | None) -> Iterator[int]:
    """Ports to try, the preferred one first. Free when asked: if a bind fails, the caller tries the next."""
    if preferred is not None and port_is_free(preferred):
        yield preferred
    for _ in range(50):
        port = random.choice(PORTS)
        if port_is_free(port):
            yield port


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def make_socket_directory(layout: Layout, identity: Identity) -> Path:
    """The directory of the server's socket, mode 0700: in its own directory where that is short enough."""
    link = layout.socket
    if link.is_symlink():
        elsewhere = link.readlink()
        if _is_ours(elsewhere, identity):
            return elsewhere
        link.unlink()
    if fits(link):
        link.mkdir(mode=0o700, exist_ok=True)
        identity.own(link)
        return link
    elsewhere = _short_parent(identity) / f"penstock-socket-{secrets.token_hex(4)}"
    link.symlink_to(elsewhere)  # first, so that a process that clears up after a killed supervisor finds it
    elsewhere.mkdir(mode=0o700)
    identity.own(elsewhere)
    return elsewhere


def remove_socket_directory(layout: Layout) -> None:
    """Remove the directory of the socket where it lies elsewhere."""
    if layout.socket.is_symlink():
        shutil.rmtree(layout.socket.readlink(), ignore_errors=True)
        layout.socket.unlink(missing_ok=True)


def fits(directory: Path) -> bool:
    """Whether a socket can be in this directory, and libpq can be told so."""
    path = os.fsencode(directory / SOCKET_NAME)
    return len(path) <= LONGEST_SOCKET_PATH and PLAIN.fullmatch(str(directory)) is not None


def _short_parent(identity: Identity) -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    candidates = [] if identity.foreign or not runtime else [Path(runtime)]
    for parent in (*candidates, Path("/tmp")):  # noqa: S108 - a random name in it, mode 0700
        if (
            parent.is_dir()
            and os.access(parent, os.W_OK | os.X_OK)
            and fits(parent / "penstock-socket-12345678")
        ):
            return parent
    raise SupervisorError(
        "There is no directory for the server's Unix socket: neither XDG_RUNTIME_DIR nor /tmp will do."
    )


def _is_ours(directory: Path, identity: Identity) -> bool:
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == identity.uid and not found.st_mode & 0o077
