"""A real browser: Debian's chromium, driven by playwright. Where there is none, these tests are skipped."""

import asyncio
import shutil
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from penstock import Client
from penstock.dashboard import asgi
from penstock.dashboard.addresses import make_path
from tests.conftest import Servers
from tests.dashboard.conftest import PATIENCE, Serve, Served
from tests.dashboard.scene import Scene, set_up

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 800}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHROMIUM is None:
        for item in items:
            if "dashboard/browser" in str(item.path):
                item.add_marker(pytest.mark.skip(reason="NO CHROMIUM: the pages were not tried in a browser"))


# Not for the session: playwright runs an event loop in this thread, in which no other test can run its own.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        playwright.expect.set_options(timeout=20_000)  # a tick may be late on a busy machine
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page that notes what a user would not see: errors, refused content, requests elsewhere."""

    def __init__(self, page: Any, home: str) -> None:
        self.page = page
        self.home = home
        self.faults: list[str] = []
        self.expects_an_outage = False
        page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        page.on("console", self._note)
        page.on("request", self._check)

    def _note(self, message: Any) -> None:
        if self.expects_an_outage and ("Failed to load" in message.text or "htmx:sse:error" in message.text):
            return
        if message.type in ("error", "warning") and "status of 4" not in message.text:
            self.faults.append(f"console: {message.text}")

    def _check(self, request: Any) -> None:
        if not request.url.startswith((self.home, "data:")):
            self.faults.append(f"elsewhere: {request.url}")

    def go(self, path: str) -> Any:
        self.page.goto(self.home + path)
        return self.page

    def wait_live(self) -> None:
        self.page.wait_for_selector("#live[data-state=on]")

    def is_wider_than_the_screen(self) -> bool:
        """Charts take their new width a frame or two after the screen has."""
        return bool(
            self.page.evaluate("""async () => {
                const wide = () => document.documentElement.scrollWidth > innerWidth;
                for (let frame = 0; wide() && frame < 60; frame++) await new Promise(requestAnimationFrame);
                return wide();
            }""")
        )


Open = Callable[..., Tab]


@pytest.fixture
def open_tab(chromium: Any) -> Iterator[Open]:
    contexts = []
    tabs: list[Tab] = []

    def open_(served: Served | Mounted, **options: Any) -> Tab:
        context = chromium.new_context(**{"viewport": DESKTOP, "color_scheme": "light", **options})
        contexts.append(context)
        tab = Tab(context.new_page(), served.url)
        tabs.append(tab)
        return tab

    yield open_
    for context in contexts:
        context.close()
    faults = [fault for tab in tabs for fault in tab.faults]
    assert faults == []


@pytest.fixture(scope="module")
def store(servers: Servers) -> Iterator[tuple[Scene, Client]]:
    """A database for all tests of a module, with something on every page."""
    with servers.database(servers.get(18)) as dsn, Client(dsn, maintain=False) as queue:
        yield set_up(queue, dsn), queue


@pytest.fixture(scope="module")
def scene(store: tuple[Scene, Client]) -> Scene:
    return store[0]


@pytest.fixture(scope="module")
def keeper(store: tuple[Scene, Client]) -> Client:
    """A client of that database."""
    return store[1]


@pytest.fixture(scope="module")
def dashboard(scene: Scene) -> Iterator[Served]:
    served = Served(scene.dsn)
    yield served
    served.stop()


class Mounted:
    """What a Tab needs to know of an app that has the dashboard under a prefix."""

    def __init__(self, url: str) -> None:
        self.url = url


@contextmanager
def mounted(dsn: str, prefix: str) -> Iterator[Mounted]:
    """The dashboard in an app of its own, under a prefix, in a thread."""
    dashboard = asgi(dsn)
    app = Starlette(routes=[Mount(prefix, dashboard)])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    listener = socket.create_server(("127.0.0.1", 0))
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve([listener])
        await dashboard.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    try:
        yield Mounted(f"http://127.0.0.1:{listener.getsockname()[1]}{quote(prefix)}")
    finally:
        server.should_exit = True
        loops[0].call_soon_threadsafe(dashboard.end_streams)
        thread.join(PATIENCE)


def every_page(scene: Scene) -> list[str]:
    """The address of each kind of page, and of the pages that look different by state."""
    queue, number = scene.messages["ready"]
    dead, _ = scene.messages["dead"]
    lists = [
        ("queues", name, "messages", {"state": state, "page_size": 5})
        for state, (name, _) in scene.messages.items()
    ]
    details = [("queues", name, "messages", found) for name, found in scene.messages.values()]
    return [
        *(
            "/",
            "/queues/billing",
            "/queues/mail?range=3h",
            "/queues/imports/tenants",
            "/queues/billing/settings",
        ),
        "/queues/billing/settings?max_active=3",
        *(make_path("", parts[:3], parts[3]) for parts in lists),
        *(make_path("", parts) for parts in details),
        make_path("", ("queues", queue, "messages", number), {"show": "hex"}),
        make_path("", ("dead",), {"queue": dead, "error": scene.error_key}),
        *("/dead", "/operations", f"/operations/{scene.operation}", "/search", "/search?q=tenant:acme"),
        *("/topics", "/groups", "/schedules", "/workers", "/doctor", "/audit", "/queues/nothing"),
    ]


@pytest.fixture
def shop(serve: Serve, queue: Client) -> Served:
    """A dashboard with something on each page."""
    queue.create_topic("orders")
    queue.create_queue("billing", topic="orders", max_active=10)
    queue.create_queue("mail", max_delivery_attempts=1)
    for number in range(30):
        queue.publish("orders", {"number": number}, tenant=f"tenant {number % 3}")
    queue.send_many("mail", [{"to": "ann@example.org"}] * 3)
    with warnings.catch_warnings():
        for message in queue.consume("mail", batch_size=2, wait=0):
            message.nack(error="ValueError: no such address")
            break
    queue.create_group(10, "billing", {})
    queue.put_schedule("nightly", "mail", {}, definition={"every": 60}, next_at=queue.clock())
    queue.register_worker(
        "token", hostname="host", pid=1, version="0.1.0", queues=["mail"], tasks=["send"], concurrency=10
    )
    return serve()
