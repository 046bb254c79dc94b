"""PostgreSQL's programs as the server's user can run them, and the environment they run in."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from .errors import SupervisorError
from .identity import Identity
from .layout import Layout
from .processes import Attention, spawn
from .signals import QUIT_AT_ONCE

# Not the rest: secrets of the user that started a shared server, PG*, LC_*, NOTIFY_SOCKET (by
# which the server would report itself ready in the place of the user's own service).
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH")


def environment() -> Mapping[str, str]:
    """What the server's processes get to see of the environment."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    # With TZ given, initdb need not compare every time zone there is with the system's.
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def reachable_programs(directory: Path, layout: Layout, identity: Identity, attention: Attention) -> Path:
    """The directory of the programs; a copy of them where the server's user cannot get at the original.

    The original is not opened up: its modes, and those of the directories above it, are not ours to change.
    """
    if not identity.foreign or _runs(directory, identity, attention):
        return directory
    prefix = directory.parent
    if not (prefix / "share").is_dir() or not (prefix / "lib").is_dir():
        raise SupervisorError(
            f"PostgreSQL does not run as root, and user {identity.uid}, who stands in, cannot run "
            f"{directory}/postgres. Put it where others may read it, or permit user namespaces."
        )
    copy = _copy(prefix, layout.directory / "programs") / directory.name
    if not _runs(copy, identity, attention):
        raise SupervisorError(
            f"User {identity.uid}, who stands in for root, cannot run {copy}/postgres, a copy of {directory}."
        )
    return copy


def _runs(directory: Path, identity: Identity, attention: Attention) -> bool:
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        process = spawn(
            [directory / "postgres", "--version"],
            identity=identity,
            directory=Path("/"),
            output=null,
            environment=environment(),
            death=QUIT_AT_ONCE,
        )
    except SupervisorError:
        return False
    finally:
        os.close(null)
    return attention.until(process.ended, 30) and process.status == 0


def _copy(prefix: Path, target: Path) -> Path:
    """Copy an installation, readable by all, with the libraries that a wheel has beside its package."""
    shutil.rmtree(target, ignore_errors=True)
    package = prefix.parent
    copies = {prefix: target / package.name / prefix.name}
    libraries = package.with_name(package.name + ".libs")
    if libraries.is_dir():
        copies[libraries] = target / libraries.name
    umask = os.umask(0o022)
    try:
        for source, place in copies.items():
            shutil.copytree(
                source,
                place,
                symlinks=True,
                copy_function=_copy_file,
                ignore=shutil.ignore_patterns("include"),
            )
            for directory, _, _ in os.walk(place):
                os.chmod(directory, 0o755)  # noqa: S103, PTH101 - a copy of ours, for the server's user
    finally:
        os.umask(umask)
    return copies[prefix]


def _copy_file(source: str, target: str) -> None:
    shutil.copyfile(source, target, follow_symlinks=False)
    if not os.path.islink(target):  # noqa: PTH114
        os.chmod(target, 0o755 if os.access(source, os.X_OK) else 0o644)  # noqa: PTH101
