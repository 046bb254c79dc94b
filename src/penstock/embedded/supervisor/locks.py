"""File locks: held by an open file, gone when its last holder is, however that one ended."""

import os
import sys
import time
from pathlib import Path
from typing import Literal

if sys.platform != "win32":
    import fcntl


def open_lock(path: Path) -> int:
    """Open a lock file, made if need be. The descriptor does not pass to programs that are started."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def lock(descriptor: int, kind: Literal["shared", "exclusive"]) -> None:
    """Wait for the lock."""
    fcntl.flock(descriptor, fcntl.LOCK_SH if kind == "shared" else fcntl.LOCK_EX)


def try_lock(descriptor: int) -> bool:
    """Take the lock exclusively if it is free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_free(path: Path) -> bool:
    """Whether no process holds the lock; a file that is not there is free."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        return try_lock(descriptor)
    finally:
        os.close(descriptor)


def is_shareable(path: Path) -> bool:
    """Whether no process holds the lock exclusively."""
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def wait_until_free(path: Path, seconds: float) -> bool:
    """Wait for the lock to be free; False when the time ran out."""
    deadline = time.monotonic() + seconds
    while not is_free(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
