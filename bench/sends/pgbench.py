"""Runs pgbench: as fast as it goes, or at a pace, with the time at which each transaction was committed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.embedded import find_binaries

THREADS = 2
STEP = 1_000_000
"""The number of a paced transaction is that of its client times this, and its place in the client's row."""
NUMBER = f":client_id * {STEP} + :n"
"""In the script of a paced run: the number of the transaction."""
PATIENCE_SECONDS = 60.0


class PgbenchError(RuntimeError):
    """pgbench is missing, or ended with an error."""


@dataclass(frozen=True, slots=True)
class Committed:
    """When a transaction was begun and when its sender knew of the commit, in Unix time."""

    begun: float
    ended: float


@cache
def program() -> Path:
    """pgbench, beside the server's programs or on the path."""
    beside = find_binaries().directory / "pgbench"
    found = beside if beside.exists() else shutil.which("pgbench")
    if found is None:
        raise PgbenchError(f"There is no pgbench, neither in {beside.parent} nor on the path.")
    return Path(found)


def rate(
    dsn: str, script: str, connections: int, seconds: float, settings: Mapping[str, str] | None = None
) -> float:
    """Transactions a second over so many connections, whose sessions have these settings."""
    with TemporaryDirectory() as folder:
        return tps(_run(dsn, Path(folder), script, connections, seconds, settings=settings))


def paced(dsn: str, script: str, connections: int, seconds: float, per_second: float) -> dict[int, Committed]:
    """Transactions at random distances, so many a second, by their numbers; the script uses NUMBER."""
    with TemporaryDirectory() as folder:
        script = f"\\set n :n + 1\n{script}"
        log = Path(folder, "log")
        options = ("-D", "n=-1", "-R", str(per_second), "-l", "--log-prefix", str(log))
        _run(dsn, Path(folder), script, connections, seconds, *options)
        return numbered(line for path in Path(folder).glob("log.*") for line in path.read_text().splitlines())


def tps(output: str) -> float:
    """The rate that pgbench printed."""
    found = re.search(r"^tps = ([0-9.]+)", output, re.MULTILINE)
    if found is None:
        raise PgbenchError(f"pgbench told no rate:\n{output}")
    return float(found[1])


def numbered(lines: Iterable[str]) -> dict[int, Committed]:
    """The transactions in a log of pgbench, by their numbers."""
    seen: defaultdict[int, int] = defaultdict(int)
    found: dict[int, Committed] = {}
    for line in lines:
        client_text, _, took, _, second, microsecond, *_ = line.split()
        client = int(client_text)
        ended = int(second) + int(microsecond) / 1e6
        found[client * STEP + seen[client]] = Committed(ended - int(took) / 1e6, ended)
        seen[client] += 1
    return found


def _run(
    dsn: str,
    folder: Path,
    script: str,
    connections: int,
    seconds: float,
    *options: str,
    settings: Mapping[str, str] | None = None,
) -> str:
    path = folder / "script.sql"
    path.write_text(script)
    load = ("-c", str(connections), "-j", str(min(THREADS, connections)), "-T", str(max(1, round(seconds))))
    command = (str(program()), "-n", "-M", "prepared", "-f", str(path), *load, *options, dsn)
    session = " ".join(f"-c {name}={value}" for name, value in (settings or {}).items())
    done = subprocess.run(
        command,
        env={**os.environ, "PGOPTIONS": session},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds + PATIENCE_SECONDS,
    )
    if done.returncode:
        raise PgbenchError(f"pgbench failed:\n{done.stderr[-2000:]}")
    return done.stdout
