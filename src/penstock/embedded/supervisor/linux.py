"""Three calls of Linux that Python has no name for; without effect elsewhere."""

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWUSER = 0x10000000

HERE = sys.platform == "linux"


def die_with_parent(parent: int, number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends.

    A change of user clears the wish, so it comes after that. A process that was orphaned before it ends here.
    """
    if not HERE:
        return
    _call("prctl", PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none gets out of sight."""
    if HERE:
        _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def enter_user_namespace(uid: int, gid: int) -> None:
    """Be `uid` and `gid` to this process and its children, and keep the old identity to all others."""
    if not HERE:
        raise OSError("there are no user namespaces on this system")
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    _call("unshare", CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {outer_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {outer_gid} 1")


def children() -> list[int]:
    """The processes whose parent is this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name in parentheses may hold anything; the parent's id is the second field after it.
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended meanwhile
        if parent == os.getpid():
            found.append(int(entry.name))
    return found


def _call(name: str, *arguments: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*map(ctypes.c_ulong, arguments)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
