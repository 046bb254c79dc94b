"""Programs of Debian packages for some tests. Where they cannot be had, these tests are skipped, loudly."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["installed", "unpacked"]

PATIENCE_SECONDS = 300.0


def installed(package: str, program: str, *, folder: Path) -> Path:
    """A program, installed with its package if it is not there, this is root and the system has apt.

    For packages that start no service. folder: for the lock, because several processes run the tests.
    """
    if (found := shutil.which(program)) is not None:
        return Path(found)
    if os.geteuid() == 0:
        with _alone(folder):
            if (found := shutil.which(program)) is None:
                _apt("install", "--yes", "--no-install-recommends", package, folder=folder)
                found = shutil.which(program)
    if found is None:
        _skip(program, package)
    return Path(found)


def unpacked(package: str, program: str, *, folder: Path) -> Path:
    """A program of the system, else from its package, which is fetched into a folder and not installed.

    So no service of the package is ever started, and the user need not be root.
    """
    if (found := shutil.which(program)) is not None:
        return Path(found)
    path = folder / package / "usr" / "bin" / program
    if not path.exists():
        with _alone(folder):
            if not path.exists():
                _unpack(package, folder)
    if not path.exists():
        _skip(program, package)
    return path


def _unpack(package: str, folder: Path) -> None:
    if _apt("download", package, folder=folder):
        for archive in folder.glob(f"{package}_*.deb"):
            # Under another name until it is complete.
            incomplete = folder / f"{package}.part"
            if _run("dpkg-deb", "--extract", str(archive), str(incomplete), folder=folder):
                incomplete.rename(folder / package)
            archive.unlink()


def _apt(*arguments: str, folder: Path) -> bool:
    """Run apt-get, if need be with fresh lists of packages; whether it succeeded."""
    if shutil.which("apt-get") is None:
        return False
    return _run("apt-get", "--quiet", *arguments, folder=folder) or (
        os.geteuid() == 0
        and _run("apt-get", "--quiet", "update", folder=folder)
        and _run("apt-get", "--quiet", *arguments, folder=folder)
    )


def _run(*command: str, folder: Path) -> bool:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    return done.returncode == 0


def _skip(program: str, package: str) -> NoReturn:
    pytest.skip(f"NO {program.upper()}: what it checks was not checked. Install Debian's package {package}.")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
