"""Names in addresses: any name is one segment, in any mount."""

import asyncio
import re
from urllib.parse import quote, urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from penstock import Client
from penstock.dashboard import asgi
from penstock.dashboard.addresses import decode_segment, encode_segment, make_path, segments_of
from tests.dashboard.conftest import Serve

NAMES = [
    "plain",
    "a/b",
    "/",
    "//x//",
    "with blanks and 'quotes' and \"more\"",
    "🙂 emoji",
    "..",
    ".",
    "~",
    "~~x",
    "100%",
    "%2F",
    "a?b#c&d=e",
    "settings",
    "line\nbreak",
    "<script>alert(1)</script>",
    "\u202eright to left",
    "x" * 255,
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_one_segment(name: str) -> None:
    path = make_path("/prefix", ("queues", name, "settings"))
    # httpx resolves addresses as browsers do.
    resolved = httpx.URL("http://localhost").join(path).raw_path.decode()
    segments = segments_of({"path": "?", "raw_path": resolved.encode(), "root_path": "/prefix"})
    assert [decode_segment(each) for each in segments] == ["queues", name, "settings"]
    assert "/" not in encode_segment(name)


def test_the_path_may_lack_the_prefix() -> None:
    scope = {"path": "/queues/a/b", "raw_path": b"/queues/a%2Fb", "root_path": "/prefix"}
    assert segments_of(scope) == ["queues", "a%2Fb"]


def test_a_server_may_have_no_raw_path() -> None:
    assert segments_of({"path": "/queues/ä b", "root_path": ""}) == ["queues", quote("ä b")]


def test_pages_of_any_name(serve: Serve, queue: Client) -> None:
    for name in NAMES:
        queue.create_queue(name)
    with serve().client() as client:
        for name in NAMES:
            found = client.get(make_path("/api/v1", ("queues", name, "settings")))
            assert found.status_code == 200, (name, found.text)
            assert found.json()["queue"] == name
            assert client.get(make_path("", ("queues", name, "settings"))).status_code == 200


def test_mounted_under_a_prefix(database18: str, queue: Client) -> None:
    queue.create_queue("a/b")
    dashboard = asgi(database18, authenticate=lambda _request: _anyone())
    host = Starlette(routes=[Mount("/admin/queues", dashboard)])

    async def main() -> None:
        transport = httpx.ASGITransport(app=host)
        async with httpx.AsyncClient(transport=transport, base_url="http://example.org") as client:
            page = await client.get("/admin/queues/")
            assert page.status_code == 200, page.text
            addresses = re.findall(r'(?:href|src|action|hx-[a-z:]+)="(/[^"]*)"', page.text)
            assert len(addresses) > 10
            assert [each for each in addresses if not each.startswith("/admin/queues/")] == []
            assert 'href="/admin/queues/queues/a%2Fb"' in page.text
            found = await client.get("/admin/queues/queues/a%2Fb/settings")
            assert found.status_code == 200
            bare = await client.get("/admin/queues")
            assert bare.status_code in (307, 308)
            assert urlsplit(bare.headers["location"]).path == "/admin/queues/"
        await dashboard.close()

    asyncio.run(main())


def _anyone() -> object:
    from penstock.dashboard import Access

    return Access("anyone")
