"""Removing a throwaway server's directory: one's own, and those whose supervisor was killed."""

import os
import shutil
from pathlib import Path

from .addresses import remove_socket_directory
from .layout import THROWAWAY_PREFIX, Layout
from .locks import is_free


def remove_server(layout: Layout) -> None:
    """Remove the directory of a server that does not run, and its socket's."""
    remove_socket_directory(layout)
    shutil.rmtree(layout.directory, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Remove what killed supervisors of the same user left behind in a directory for temporary files."""
    for directory in parent.glob(f"{THROWAWAY_PREFIX}*"):
        layout = Layout(directory)
        try:
            abandoned = (
                directory.lstat().st_uid == os.geteuid()  # no other user could have put anything into it
                and not directory.is_symlink()
                and layout.supervisor_lock.exists()
                and is_free(layout.supervisor_lock)
                and is_free(layout.postgres_lock)
            )
        except OSError:
            continue  # another process has just removed it
        if abandoned:
            remove_server(layout)
