"""Serves the dashboard with uvicorn: as a service of `penstock up`, or alone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.errors import InvalidArgument, PenstockError
from penstock.tasks.app import App

from .access import is_loopback
from .application import Dashboard
from .options import Options

__all__ = ["DEFAULT_PORT", "DashboardService"]

DEFAULT_PORT = 8432
# Requests that run when it stops have so long to end.
GRACE_SECONDS = 1
# A request must have come whole after so long. A client that is slower on purpose would keep its connection,
# and needs no password for that.
REQUEST_SECONDS = 20.0


class DashboardService:
    """The dashboard on a socket of its own, until stop().

    port: None: 8432, or any free port if that is in use. public_url: the address that people use, if a proxy
    is in front.
    """

    name = "dashboard"

    def __init__(
        self,
        app_or_dsn: App | str | None,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        root_path: str = "",
        **options: Any,
    ) -> None:
        self.dashboard = Dashboard(app_or_dsn, Options(**options))
        if self.dashboard.guard.is_open and not is_loopback(host):
            raise InvalidArgument(
                f"a dashboard without authentication must not listen on {host!r}",
                hint="give it a token (--token, or PENSTOCK_DASHBOARD_TOKEN), or let it listen on 127.0.0.1",
            )
        self.started = asyncio.Event()
        self._root = root_path.rstrip("/")
        self._host = host
        self._socket = _bind(host, port)
        self._stop = asyncio.Event()
        config = uvicorn.Config(
            self.dashboard,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            root_path=self._root,
            timeout_graceful_shutdown=GRACE_SECONDS,
            server_header=False,
            http=_Protocol,
            timeout_keep_alive=20,
        )
        self._server = _Server(config)

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        if host in ("0.0.0.0", "[::]", ""):  # noqa: S104 - it is shown, not bound
            host = "localhost"
        return f"http://{host}:{self.port}{self._root}/"

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def where(self) -> str:
        return self.url

    @property
    def trouble(self) -> str | None:
        """None: pages and the log report trouble with the database; the others of `up` do not need them."""
        return None

    def stop(self) -> None:
        """End the streams, then the server; after a second call at once."""
        self._server.force_exit = self._stop.is_set()
        self._stop.set()
        self._server.should_exit = True
        self.dashboard.end_streams()

    async def run(self) -> None:
        try:
            self.dashboard.start(watch_signals=False)
            serving = asyncio.create_task(self._server.serve([self._socket]))
            while not self._server.started and not serving.done():
                await asyncio.sleep(0.01)
            self.started.set()
            await serving
        finally:
            self._socket.close()
            await self.dashboard.close()


class _Server(uvicorn.Server):
    """uvicorn, without handlers of signals: those belong to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(H11Protocol):
    """HTTP of uvicorn, which closes a connection whose request does not come."""

    _giving_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect(is_whole=False)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect(is_whole=self.conn.their_state not in (h11.IDLE, h11.SEND_BODY))

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(is_whole=True)
        super().connection_lost(exc)

    def _expect(self, *, is_whole: bool) -> None:
        if is_whole and self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        elif not is_whole and self._giving_up is None:
            self._giving_up = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)


def _bind(host: str, port: int | None) -> socket.socket:
    try:
        return _listening(host, DEFAULT_PORT if port is None else port)
    except OSError as exc:
        if port is None and exc.errno == errno.EADDRINUSE:
            return _listening(host, 0)
        what = f"port {DEFAULT_PORT if port is None else port} of {host}"
        if exc.errno == errno.EADDRINUSE:
            raise PenstockError(f"{what} is in use: the dashboard needs another one (--port)") from exc
        raise PenstockError(f"the dashboard cannot listen on {what}: {exc.strerror or exc}") from exc


def _listening(host: str, port: int) -> socket.socket:
    # With the number of the protocol: only then asyncio sends small answers at once (TCP_NODELAY). Else the
    # second part of an answer waits up to 40 ms for the browser to confirm the first one.
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(256)
        found.setblocking(False)
    except OSError:
        found.close()
        raise
    return found
