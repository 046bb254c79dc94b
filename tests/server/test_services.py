"""Services side by side: /readyz knows the trouble of each of them."""

from __future__ import annotations

import asyncio
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import psycopg

from penstock.health import Health, reporting
from penstock.server.maintenance import Maintenance
from penstock.server.services import Service, Services

PATIENCE_SECONDS = 20.0


class Gateway:
    """A second service, whose trouble the test decides."""

    name = "gateway"
    where = "nowhere"

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.trouble: str | None = None
        self._stop = asyncio.Event()

    async def run(self) -> None:
        self.started.set()
        await self._stop.wait()

    def stop(self) -> None:
        self._stop.set()


class Probe:
    """Asks /readyz over HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _ask(self) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{self._url}/readyz", timeout=10) as found:  # noqa: S310
                return found.status, found.read().decode().strip()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode().strip()

    async def until(self, fits: Callable[[int, str], bool]) -> tuple[int, str]:
        """Ask until an answer fits, and return that."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not fits(*(answer := await asyncio.to_thread(self._ask))):
                await asyncio.sleep(0.05)
        return answer


@asynccontextmanager
async def running(*services: Service) -> AsyncIterator[Probe]:
    """The services, as `penstock up` runs them, and a probe."""
    health, started = Health(), asyncio.Event()
    with reporting(health, port=0) as reported:
        probe = Probe(reported.url)
        all_of_them = Services(
            services, health=health, on_started=started.set, on_signal=lambda _name, _is_first: None
        )
        task = asyncio.create_task(all_of_them.run())
        try:
            await asyncio.wait_for(started.wait(), PATIENCE_SECONDS)
            yield probe
        finally:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(task, PATIENCE_SECONDS)


def rename(dsn: str, function: str, name: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"alter function penstock.{function} rename to {name}".encode())


async def test_the_trouble_of_each_service_is_reported(database18: str) -> None:
    gateway = Gateway()
    async with running(Maintenance(database18, on_away=lambda: None), gateway) as probe:
        assert await probe.until(lambda _status, _text: True) == (200, "ready: up")

        gateway.trouble = "port 8080 is in use"
        answer = await probe.until(lambda status, _: status == 503)
        assert answer == (503, "not ready: gateway: port 8080 is in use")

        rename(database18, "maintain", "maintain_elsewhere")
        _, text = await probe.until(lambda _, text: "maintenance" in text)
        assert text.startswith("not ready: maintenance: maintain() fails: ")
        assert text.endswith("; gateway: port 8080 is in use")

        gateway.trouble = None
        _, text = await probe.until(lambda _, text: "gateway" not in text)
        assert text.startswith("not ready: maintenance: maintain() fails: ")

        rename(database18, "maintain_elsewhere", "maintain")
        assert await probe.until(lambda status, _: status == 200) == (200, "ready: up")


async def test_a_service_with_trouble_from_its_start() -> None:
    """The first answer after the start knows of it."""
    gateway = Gateway()
    gateway.trouble = "no certificate"
    async with running(gateway) as probe:
        answer = await probe.until(lambda _status, _text: True)
        assert answer == (503, "not ready: gateway: no certificate")
