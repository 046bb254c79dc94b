"""A dashboard on a real socket, served in a thread, on a database of the test."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from penstock import Client
from penstock.dashboard import DashboardService

PATIENCE = 20.0
# Not used: the dashboard speaks HTTP. A context of its own for each client would take longer than a request.
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Served:
    """A dashboard that runs until stop()."""

    def __init__(self, dsn: str, **options: Any) -> None:
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._options = {"port": 0, **options}
        self._dsn = dsn
        self.service: DashboardService
        self.loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            self.service = DashboardService(self._dsn, **self._options)
            serving = asyncio.create_task(self.service.run())
            await self.service.started.wait()
            self._ready.set()
            await serving

        try:
            asyncio.run(main())
        except BaseException as exc:
            self._failure = exc
            self._ready.set()

    @property
    def url(self) -> str:
        return self.service.url.rstrip("/")

    def client(self, **options: Any) -> httpx.Client:
        """A client that has no proof of its own."""
        return httpx.Client(base_url=self.url, timeout=PATIENCE, verify=TLS, **options)

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the loop of the server."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.service.stop)
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive(), "the dashboard does not stop"


Serve = Callable[..., Served]


@pytest.fixture
def serve(database18: str) -> Iterator[Serve]:
    """Serves dashboards of the test's database; they are stopped after the test."""
    with ExitStack() as stack:

        def start(dsn: str | None = None, **options: Any) -> Served:
            served = Served(database18 if dsn is None else dsn, **options)
            stack.callback(served.stop)
            return served

        yield start


@pytest.fixture
def queue(database18: str) -> Iterator[Client]:
    with Client(database18, maintain=False) as client:
        yield client


class Browser:
    """What a page of the dashboard would send: the session's CSRF token, and the headers of a browser."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.token = client.get("/api/v1/session").json()["csrf_token"]

    def post(self, path: str, data: dict[str, Any] | None = None, **options: Any) -> httpx.Response:
        headers = {"X-CSRF-Token": self.token, "Sec-Fetch-Site": "same-origin", **options.pop("headers", {})}
        return self.client.post(path, json=data or {}, headers=headers, **options)
