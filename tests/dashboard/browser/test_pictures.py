"""The pictures of the docs. They are taken in each run, and written with PENSTOCK_WRITE_PICTURES=1 only."""

import os
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from penstock.dashboard.addresses import make_path
from tests.dashboard.browser.conftest import Open
from tests.dashboard.conftest import Served
from tests.dashboard.scene import Scene

FOLDER = Path(__file__).parents[3] / "docs" / "images"
WRITE = "PENSTOCK_WRITE_PICTURES"
WIDTH, HEIGHT = 1200, 780
MOST_BYTES = 150_000


def _overview(page: Any) -> None:
    # The first sample brings the rates; the lines of the last hour come with the page.
    expect(page.locator("[data-total=in_rate]")).to_have_text(re.compile(r"\d"))
    page.reload()
    expect(page.locator("[data-total=in_rate]")).to_have_text(re.compile(r"\d"))
    expect(page.locator("tbody tr[data-queue]")).to_have_count(6)
    expect(page.locator(".spark").first).to_be_visible()
    page.get_by_role("heading", name="attention").wait_for()


def _queue(page: Any) -> None:
    page.wait_for_selector(".u-wrap canvas >> nth=1")
    expect(page.locator(".u-legend .u-value").nth(1)).not_to_be_empty()
    page.evaluate("scrollBy(0, document.querySelector('.segmented').getBoundingClientRect().top - 24)")


def _message(page: Any) -> None:
    expect(page.locator("#why-title")).to_have_text("Why is it not running?")
    expect(page.get_by_text("permits in use")).to_be_visible()


def _dead(page: Any) -> None:
    expect(page.locator("tbody tr").first).to_be_visible()
    page.locator("tbody tr", has_text="TimeoutError").get_by_role("button", name="Redrive").click()
    page.wait_for_selector("dialog[open]")


PICTURES: dict[str, tuple[str, Any]] = {
    "overview": ("/", _overview),
    "queue": ("/queues/billing", _queue),
    "message": ("a message", _message),
    "dead-letters": ("/dead", _dead),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures(dashboard: Served, scene: Scene, open_tab: Open, theme: str) -> None:
    viewport = {"width": WIDTH, "height": HEIGHT}
    tab = open_tab(
        dashboard, viewport=viewport, color_scheme=theme, timezone_id="Europe/Berlin", locale="en-GB"
    )
    queue, number = scene.messages["waiting"]
    pictures = {}
    for name, (path, prepare) in PICTURES.items():
        page = tab.go(make_path("", ("queues", queue, "messages", number)) if name == "message" else path)
        tab.wait_live()
        prepare(page)
        pictures[name] = page.screenshot(animations="disabled", caret="hide")
    for name, picture in pictures.items():
        assert _size(picture) == (WIDTH, HEIGHT), name
        assert len(picture) <= MOST_BYTES, (name, len(picture))
        assert _distinct_rows(picture) > HEIGHT / 4, f"{name} is nearly blank"
        if os.environ.get(WRITE):
            (FOLDER / _file(name, theme)).write_bytes(picture)


def test_the_docs_have_them() -> None:
    """Each picture is there, has the size that the test takes, and is shown by the how-to."""
    how_to = (FOLDER.parent / "how-to" / "dashboard.md").read_text()
    readme = (FOLDER.parents[1] / "README.md").read_text()
    files = {_file(name, theme) for name in PICTURES for theme in ("light", "dark")}
    assert {each.name for each in FOLDER.glob("*.png")} == files
    for each in files:
        assert _size((FOLDER / each).read_bytes()) == (WIDTH, HEIGHT), each
        assert f"../images/{each}" in how_to, each
    assert f"docs/images/{_file('overview', 'light')}" in readme


def _file(name: str, theme: str) -> str:
    return f"dashboard-{name}-{theme}.png"


def _size(picture: bytes) -> tuple[int, int]:
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def _distinct_rows(picture: bytes) -> int:
    """How many rows differ, as they are stored. A blank picture has one or two."""
    at, data = 8, b""
    while at < len(picture):
        (length,) = struct.unpack(">I", picture[at : at + 4])
        if picture[at + 4 : at + 8] == b"IDAT":
            data += picture[at + 8 : at + 8 + length]
        at += 12 + length
    rows = zlib.decompress(data)
    _, height = _size(picture)
    step = len(rows) // height
    return len({rows[place : place + step] for place in range(0, len(rows), step)})
