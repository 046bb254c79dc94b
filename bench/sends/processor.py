"""Processor time of processes on this machine, read from /proc; 0 where it is not known."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import psycopg

TICK = os.sysconf("SC_CLK_TCK")
PARENT, OWN, REAPED = 1, slice(11, 13), slice(13, 15)
"""Fields of /proc/<pid>/stat after the name: the parent, its own ticks, those of children that ended."""


def of(pids: Iterable[int]) -> float:
    """Seconds that these processes have used, in all their threads."""
    return sum(_own(pid) for pid in pids)


def parent(pid: int) -> int | None:
    """The process that started this one."""
    fields = _stat(pid)
    return int(fields[PARENT]) if fields else None


def children(pid: int) -> list[int]:
    """The processes that this one started and that still run."""
    every = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return [each for each in every if parent(each) == pid]


class Server:
    """The processes of a PostgreSQL server, also those that have ended meanwhile."""

    def __init__(self, dsn: str) -> None:
        with psycopg.connect(dsn) as connection:
            self._postmaster = parent(connection.info.backend_pid)

    def used(self) -> float:
        """Seconds that all of them have used since the server started."""
        postmaster = self._postmaster
        if postmaster is None:
            return 0.0
        reaped = sum(int(ticks) for ticks in _stat(postmaster)[REAPED]) / TICK
        return reaped + of([postmaster, *children(postmaster)])


def _own(pid: int) -> float:
    """By the scheduler's count, which is finer than ticks."""
    used = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            used += int(path.read_text().split()[0])
        except (OSError, IndexError):  # the thread has ended
            continue
    return used / 1e9


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
