"""What the supervisor does, from its first line of orders to its end.

Standard input is a socket to the owner: a JSON object a line, each answered by one. The first is the orders.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import linux
from .abandoned import remove_abandoned, remove_server
from .addresses import remove_socket_directory
from .cluster import Cluster
from .errors import SupervisorError
from .identity import choose_identity, namespaces_permitted
from .layout import THROWAWAY_PREFIX, Address, Layout
from .locks import lock, open_lock, try_lock
from .processes import Attention, OwnerGone

LARGEST_LOG = 10_000_000


@dataclass(frozen=True, slots=True)
class Orders:
    """What the owner wants: the first line on its socket."""

    kind: str
    programs: Path
    major: int
    directory: Path
    settings: dict[str, str]


class Line:
    """The owner's end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._reader = connection.makefile("rb")

    def read(self) -> dict[str, Any] | None:
        """The next request; None at the end."""
        try:
            line = self._reader.readline()
        except ConnectionError:
            return None
        return dict(json.loads(line)) if line.endswith(b"\n") else None

    def answer(self, **fields: object) -> None:
        """Answer the owner; an owner that has ended is noticed elsewhere."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(fields).encode() + b"\n")

    def close(self) -> None:
        self._reader.close()
        self.connection.close()


def main() -> None:
    """Run as a process of its own."""
    os.umask(0o077)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an owner that ignores it has passed that on
    line = Line(_take_standard_input())
    request = line.read()
    if request is None:
        return
    if request["kind"] == "probe":
        line.answer(namespaces=namespaces_permitted())
        return
    orders = Orders(
        request["kind"],
        Path(request["programs"]),
        request["major"],
        Path(request["directory"]),
        request["settings"],
    )
    try:
        (_throwaway if orders.kind == "throwaway" else _shared)(orders, line)
    except OwnerGone:
        pass
    except (SupervisorError, OSError) as error:
        print(error, file=sys.stderr)
        line.answer(error=str(error))
    except Exception:
        line.answer(error=traceback.format_exc())
        raise
    finally:
        line.close()


def _take_standard_input() -> socket.socket:
    """Move the owner's socket out of the way of the children, which get /dev/null."""
    connection = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return connection


def _throwaway(orders: Orders, line: Line) -> None:
    """A server for one owner, in a directory made here: both go when the owner does."""
    linux.adopt_orphans()
    attention = Attention(line.connection.fileno())
    layout = Layout(Path(tempfile.mkdtemp(prefix=THROWAWAY_PREFIX, dir=orders.directory)))
    cluster = None
    try:
        if os.geteuid() == 0:
            layout.directory.chmod(0o711)
        # It gets its name when it is locked: a lock file without a holder is of a process that has ended.
        unnamed = layout.supervisor_lock.with_suffix(".new")
        lock(open_lock(unnamed), "exclusive")
        unnamed.rename(layout.supervisor_lock)
        _redirect_output(layout)
        cluster = _make_cluster(orders, layout, attention, durable=False)
        address = cluster.start()
        line.answer(directory=str(layout.directory), **address.as_dict())
        remove_abandoned(orders.directory)
        _serve(cluster, line, attention)
    finally:
        if cluster is not None:
            cluster.stop("immediate")
        remove_server(layout)


def _serve(cluster: Cluster, line: Line, attention: Attention) -> None:
    """Start and stop the server as its owner asks."""
    while True:
        if not attention.wait():
            continue
        request = line.read()
        if request is None:
            return
        try:
            if request["do"] == "stop":
                cluster.stop(request["mode"])
                line.answer()
            else:
                line.answer(**cluster.start().as_dict())
        except (SupervisorError, OSError) as error:
            line.answer(error=str(error))


def _shared(orders: Orders, line: Line) -> None:
    """A server for the processes that hold the users' lock: it is stopped when none does any more."""
    if os.fork():
        os._exit(0)  # the supervisor has no parent: the process that started it may end before or after it
    linux.adopt_orphans()
    layout = Layout(orders.directory)
    if not try_lock(open_lock(layout.supervisor_lock)):
        raise SupervisorError(f"Another supervisor looks after {layout.directory} already.")
    if layout.log.exists() and layout.log.stat().st_size > LARGEST_LOG:
        layout.log.replace(layout.log.with_suffix(".log.1"))
    _redirect_output(layout)
    owner, watcher = _watch_users(layout)
    attention = Attention(owner)
    cluster = None
    try:
        cluster = _make_cluster(orders, layout, attention, durable=True, watcher=watcher)
        address = cluster.start()
        line.answer(**_publish(layout, address))
        line.close()
        _keep_up(cluster, attention)
    finally:
        layout.state.unlink(missing_ok=True)
        if cluster is not None:
            cluster.stop("fast")
        remove_socket_directory(layout)


def _keep_up(cluster: Cluster, attention: Attention) -> None:
    """Start the server again if it falls over, until no user is left."""
    while not attention.wait():
        if not cluster.running:
            cluster.layout.state.unlink(missing_ok=True)
            _publish(cluster.layout, cluster.start())


def _watch_users(layout: Layout) -> tuple[int, int]:
    """A descriptor that ends when no user is left, and the process that waits for it.

    It waits in flock(), which cannot be waited for together with anything else. The supervisor has the same
    file open, and with it the lock: new users wait until the supervisor, too, has ended.
    """
    users = open_lock(layout.users_lock)
    end, alive = os.pipe()
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        linux.die_with_parent(supervisor, signal.SIGKILL)
        keep = sorted((users, alive))
        os.closerange(0, keep[0])
        os.closerange(keep[0] + 1, keep[1])
        os.closerange(keep[1] + 1, os.sysconf("SC_OPEN_MAX"))
        lock(users, "exclusive")
        os._exit(0)
    os.close(alive)
    return end, pid


def _make_cluster(
    orders: Orders, layout: Layout, attention: Attention, *, durable: bool, watcher: int | None = None
) -> Cluster:
    port = None
    with contextlib.suppress(OSError, ValueError):
        port = int(layout.port.read_text())
    return Cluster(
        layout,
        programs=orders.programs,
        major=orders.major,
        identity=choose_identity(layout.data),
        attention=attention,
        settings=orders.settings,
        durable=durable,
        port=port,
        spare=() if watcher is None else (watcher,),
    )


def _publish(layout: Layout, address: Address) -> dict[str, object]:
    """Write down where the server is to be found, for processes that did not start it."""
    for path, text in ((layout.port, str(address.port)), (layout.state, json.dumps(address.as_dict()))):
        new = path.with_suffix(".new")
        new.write_text(text)
        new.rename(path)
    return address.as_dict()


def _redirect_output(layout: Layout) -> None:
    """Send whatever Python may have to say to the server's log."""
    with layout.log.open("ab") as log:
        os.dup2(log.fileno(), 2)
    sys.stderr.flush()
