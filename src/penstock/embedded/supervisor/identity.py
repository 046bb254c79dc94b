"""The user of the server's processes: PostgreSQL refuses root, and wants a user that the system knows."""

import contextlib
import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from . import linux
from .errors import SupervisorError

# The user in place of root where user namespaces are not permitted: the first of these that exists.
UNPRIVILEGED = ("penstock", "postgres", "nobody")
# The server's user within a user namespace; `nobody` last, which seems to own all that is unmapped.
INNER = ("postgres", "daemon", "bin", "nobody")


class Identity(Protocol):
    """The user that a server process becomes."""

    @property
    def uid(self) -> int:
        """The owner of the server's files, as seen from outside."""

    @property
    def foreign(self) -> bool:
        """Whether that is another user than the supervisor's."""

    def enter(self) -> None:
        """Become it; called in the new process."""

    def own(self, path: Path) -> None:
        """Hand over a file or directory that was made for the server."""


@dataclass(frozen=True, slots=True)
class Myself:
    """The user that runs the supervisor."""

    uid: int
    foreign: bool = False

    def enter(self) -> None:
        pass

    def own(self, path: Path) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Namespaced:
    """The user that runs the supervisor, under another number, in a user namespace of the server's own."""

    uid: int
    inner_uid: int
    inner_gid: int
    foreign: bool = False

    def enter(self) -> None:
        linux.enter_user_namespace(self.inner_uid, self.inner_gid)

    def own(self, path: Path) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Unprivileged:
    """Another user than root, unrelated to the user that started the server."""

    uid: int
    gid: int
    foreign: bool = True

    def enter(self) -> None:
        os.setgroups([])
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)

    def own(self, path: Path) -> None:
        os.chown(path, self.uid, self.gid, follow_symlinks=False)


def choose_identity(data: Path) -> Identity:
    """Decide which user the server with this data directory runs as."""
    uid = os.geteuid()
    owner = data.stat().st_uid if data.exists() else uid
    if uid == 0 and owner != 0:
        return Unprivileged(owner, _group_of(owner))
    if uid != 0 and _is_known(uid):
        return Myself(uid)
    namespaced = _namespaced(uid)
    if namespaced and namespaces_permitted(namespaced):
        return namespaced
    if uid != 0:
        return Myself(uid)  # initdb will say that it wants the user to be known
    if data.exists():
        raise SupervisorError(
            f"PostgreSQL does not run as root, user namespaces are not permitted here, and {data} belongs to "
            f"root. Give it to another user (chown -R nobody '{data}'), or permit user namespaces."
        )
    return _stand_in()


def namespaces_permitted(namespaced: "Namespaced | None" = None) -> bool:
    """Whether the kernel lets us have a user namespace: tried in a process of its own."""
    namespaced = namespaced or _namespaced(os.geteuid())
    if namespaced is None:
        return False
    pid = os.fork()
    if pid == 0:
        try:
            namespaced.enter()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _namespaced(uid: int) -> Namespaced | None:
    user = _first_of(INNER)
    return Namespaced(uid, user.pw_uid, user.pw_gid) if user else None


def _stand_in() -> Unprivileged:
    user = _first_of(UNPRIVILEGED)
    if user:
        return Unprivileged(user.pw_uid, user.pw_gid)
    raise SupervisorError(
        f"PostgreSQL does not run as root, user namespaces are not permitted here, and none of the users "
        f"{', '.join(UNPRIVILEGED)} is there to run it as. Add one, or run this as an ordinary user."
    )


def _first_of(names: Sequence[str]) -> pwd.struct_passwd | None:
    for name in names:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


def _is_known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _group_of(uid: int) -> int:
    return pwd.getpwuid(uid).pw_gid if _is_known(uid) else uid
