"""A server with a directory of its own, gone with the process that asked for it."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock.embedded.binaries import Binaries, find_binaries
from penstock.embedded.errors import EmbeddedError
from penstock.embedded.launch import Link, require_posix
from penstock.embedded.server import Server, StopMode
from penstock.embedded.supervisor.abandoned import remove_server
from penstock.embedded.supervisor.layout import Address, Layout
from penstock.embedded.supervisor.locks import wait_until_free

LEFTOVER_SECONDS = 15
RESERVED = {"listen_addresses", "port", "unix_socket_directories", "unix_socket_permissions"}


@contextmanager
def throwaway(
    *,
    settings: Mapping[str, str] | None = None,
    binaries: Binaries | None = None,
    directory: Path | str | None = None,
) -> Iterator[Server]:
    """A fresh server in a temporary directory; both are gone afterwards, however this process ends.

    `settings` are PostgreSQL's, for example `{"fsync": "off"}`; what is not given has its own default.
    `directory`: where its directory is made; where temporary files are, unless given.
    """
    require_posix()
    reserved = RESERVED.intersection(settings or ())
    if reserved:
        raise EmbeddedError(
            f"The embedded server chooses these settings itself: {', '.join(sorted(reserved))}."
        )
    binaries = binaries or find_binaries()
    link = Link(
        {
            "kind": "throwaway",
            "programs": str(binaries.directory),
            "major": binaries.major,
            "directory": str(Path(directory or tempfile.gettempdir()).absolute()),
            "settings": dict(settings or {}),
        }
    )
    own = Path(link.answer["directory"])
    try:
        yield Server(own, version=binaries.major, address=_address(link.answer), control=_Throwaway(link))
    finally:
        link.close()
        if link.is_ours:
            _remove_leftovers(Layout(own))


class _Throwaway:
    def __init__(self, link: Link) -> None:
        self._link = link

    def start(self) -> Address:
        return _address(self._link.request({"do": "start"}))

    def stop(self, mode: StopMode, /) -> None:
        self._link.request({"do": "stop", "mode": mode})


def _address(answer: Mapping[str, object]) -> Address:
    return Address(str(answer["socket_directory"]), int(str(answer["port"])))


def _remove_leftovers(layout: Layout) -> None:
    """Remove what a killed supervisor could not; the kernel has told its server to stop."""
    if layout.directory.exists() and wait_until_free(layout.postgres_lock, LEFTOVER_SECONDS):
        remove_server(layout)
