"""Every page answers with HTML and, under /api/v1, with the same data as JSON."""

import re
from typing import Any

import httpx
import pytest

from penstock import Client
from penstock.dashboard.addresses import make_path
from tests.dashboard.conftest import Serve, Served

PAGES = ["/", "/topics", "/groups", "/schedules", "/workers", "/doctor", "/audit"]
QUEUE_PAGES = ["", "/settings"]
HOSTILE = "<script>alert('x')</script>\"'&\u202e"


@pytest.fixture
def served(serve: Serve, queue: Client) -> Served:
    queue.create_topic("orders")
    queue.create_queue("billing", topic="orders", max_active=10)
    queue.create_queue("mail")
    for number in range(30):
        queue.publish("orders", {"number": number}, tenant="acme")
    return serve()


@pytest.mark.parametrize("path", [*PAGES, *(f"/queues/billing{each}" for each in QUEUE_PAGES)])
def test_a_page_is_html_and_json(served: Served, path: str) -> None:
    with served.client() as client:
        page = client.get(path)
        assert page.status_code == 200, page.text
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert 'id="main"' in page.text
        data = client.get(f"/api/v1{path}".rstrip("/"))
        assert data.status_code == 200, data.text
        assert isinstance(data.json(), dict)
        # htmx gets the part that it swaps, without the frame.
        part = client.get(path, headers={"HX-Request": "true"})
        assert 'id="main"' in part.text
        assert "<nav" not in part.text.partition("<main")[0]


def test_empty_pages(serve: Serve) -> None:
    with serve().client() as client:
        for path in PAGES:
            page = client.get(path)
            assert page.status_code == 200, page.text
        assert "There are no queues yet" in client.get("/").text


def test_what_is_not_there(served: Served) -> None:
    with served.client() as client:
        for path in ("/nothing", "/queues/nothing", "/queues/nothing/settings", "/static/x/nothing.js"):
            assert client.get(path).status_code == 404, path
            assert client.get(f"/api/v1{path}").json()["error"]["status"] == 404
        assert client.put("/topics").status_code == 405


def test_overview_sorts_and_filters(served: Served, queue: Client) -> None:
    queue.create_queue("Zebra")
    for _ in range(40):
        queue.send("mail", {})
    with served.client() as client:
        _until(lambda: client.get("/api/v1").json()["totals"]["depth"] == 70)
        found = client.get("/api/v1", params={"sort": "depth"}).json()["queues"]
        assert [each["name"] for each in found] == ["mail", "billing", "Zebra"]
        found = client.get("/api/v1", params={"sort": "-name", "filter": "ORD"}).json()["queues"]
        assert [each["name"] for each in found] == ["billing"]
        found = client.get("/api/v1", params={"sort": "no such"}).json()
        assert [each["name"] for each in found["queues"]] == ["billing", "mail", "Zebra"]
        assert found["totals"] | {"queues": 3, "depth": 70} == found["totals"]


def test_hostile_names_are_text(serve: Serve, queue: Client) -> None:
    queue.create_topic(HOSTILE)
    queue.create_queue(HOSTILE, topic=HOSTILE)
    queue.put_schedule(HOSTILE, HOSTILE, {"x": HOSTILE}, definition={"cron": HOSTILE}, next_at=queue.clock())
    with serve().client() as client:
        for path in (*PAGES, *(make_path("", ("queues", HOSTILE)) + each for each in QUEUE_PAGES)):
            page = client.get(path)
            assert page.status_code == 200, path
            assert "<script>alert" not in page.text
            assert not re.search(r"\son\w+=", page.text)


def test_nothing_inline_and_nothing_from_elsewhere(served: Served) -> None:
    with served.client() as client:
        for path in (*PAGES, "/queues/billing", "/queues/billing/settings"):
            page = client.get(path)
            policy = page.headers["content-security-policy"]
            assert "unsafe" not in policy
            assert "default-src 'none'" in policy
            assert " style=" not in page.text
            assert not re.search(r"<script(?![^>]*(src=|application/json))", page.text)
            assert not re.search(r'(src|href|action)="(https?:)?//', page.text)


def test_first_load_is_small(served: Served) -> None:
    with served.client() as client:
        for path, most in (("/", 7), ("/queues/billing", 9)):
            page = client.get(path)
            assets = sorted(set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text)))
            total = _transferred(page) + sum(_transferred(client.get(each)) for each in assets)
            # And one request for the page, and one for the stream.
            assert len(assets) + 2 <= min(most, 8)
            assert total <= 90_000
        own = client.get(next(each for each in assets if each.endswith("app.js")))
        assert len(own.content) <= 15_000


def _transferred(response: httpx.Response) -> int:
    return int(response.headers["content-length"])


def test_static_files_are_kept_for_ever(served: Served) -> None:
    with served.client() as client:
        address = re.findall(r'href="(/static/[^"]+css)"', client.get("/").text)[0]
        found = client.get(address)
        assert "immutable" in found.headers["cache-control"]
        assert found.headers["content-encoding"] == "gzip"
        plain = client.get(address, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == found.content
        # The address of another version: its content is not kept under that address.
        digest = address.split("/")[2]
        assert client.get(address.replace(digest, "0" * 12)).headers["cache-control"] == "no-cache"


def test_openapi_describes_every_route(served: Served) -> None:
    with served.client() as client:
        found: dict[str, Any] = client.get("/api/openapi.json").json()
        assert found["openapi"].startswith("3.1")
        assert found["servers"] == [{"url": "/api/v1"}]
        routes = served.service.dashboard.routes
        for route in routes.pages:
            assert "get" in found["paths"]["/" + "/".join(route.segments)]
        for action in routes.actions:
            assert "post" in found["paths"]["/" + "/".join(action.segments)]
        text = str(found)
        for name in re.findall(r"#/components/schemas/(\w+)", text):
            assert name in found["components"]["schemas"]
        operations = [method["operationId"] for path in found["paths"].values() for method in path.values()]
        assert len(operations) == len(set(operations))


def _until(condition: Any) -> None:
    import time

    give_up = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < give_up, "it did not come true"
        time.sleep(0.05)
