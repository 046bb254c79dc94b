"""Each page in a browser: no error, no refused content, nothing from elsewhere, usable by everyone."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from penstock import Client
from tests.dashboard.browser.conftest import PHONE, Open
from tests.dashboard.conftest import Serve, Served

PAGES = [
    "/",
    "/queues/billing",
    "/queues/billing/settings",
    "/topics",
    "/groups",
    "/schedules",
    "/workers",
    "/doctor",
    "/audit",
]


def _axe() -> str:
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_barrier(shop: Served, open_tab: Open, scheme: str) -> None:
    """By axe, in both themes."""
    tab, told = open_tab(shop, color_scheme=scheme), list[str]()
    for path in PAGES:
        page = tab.go(path)
        tab.wait_live()
        page.evaluate(_axe())
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        told += [
            f"{path}: {each['id']}: {node['html'][:200]}: {node['failureSummary']}"
            for each in found["violations"]
            for node in each["nodes"]
        ]
    assert told == [], "\n".join(told)


def test_every_page_fits_a_phone(shop: Served, open_tab: Open) -> None:
    tab = open_tab(shop, viewport=PHONE)
    for path in PAGES:
        tab.go(path)
        tab.wait_live()
        assert not tab.is_wider_than_the_screen(), path


def test_numbers_are_live(shop: Served, open_tab: Open, queue: Client) -> None:
    tabs = [open_tab(shop), open_tab(shop)]
    for tab in tabs:
        tab.go("/")
        tab.wait_live()
    queue.send_many("mail", [{}] * 100)
    for tab in tabs:
        expect(tab.page.locator("tr[data-queue=mail] [data-field=depth]")).to_have_text("102")
    queue.create_queue("newcomer")
    for tab in tabs:
        tab.page.wait_for_selector("tr[data-queue=newcomer]")


def test_filter_and_sort(shop: Served, open_tab: Open) -> None:
    page = open_tab(shop).go("/")
    page.fill("#filter", "mai")
    page.wait_for_selector("tr[data-queue=billing]", state="detached")
    assert page.locator("tbody tr").count() == 1
    page.fill("#filter", "")
    page.wait_for_selector("tr[data-queue=billing]")
    page.click("th >> text=Depth")
    page.wait_for_selector("th[aria-sort=descending] >> text=Depth")
    assert page.locator("tbody tr").first.get_attribute("data-queue") == "billing"


def test_by_keys_alone(shop: Served, open_tab: Open) -> None:
    page = open_tab(shop).go("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("?")
    page.wait_for_selector("#keys[open]")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent") == "billing"
    page.keyboard.press("Enter")
    page.wait_for_url("**/queues/billing")
    page.keyboard.press("g")
    page.keyboard.press("w")
    page.wait_for_url("**/workers")
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.wait_for_selector("#filter")
    page.keyboard.press("/")
    page.keyboard.type("mail")
    page.wait_for_selector("tr[data-queue=billing]", state="detached")


def test_dark_and_light(shop: Served, open_tab: Open) -> None:
    page = open_tab(shop).go("/topics")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.keyboard.press("t")
    dark = page.evaluate(background)
    assert light != dark
    page.reload()
    assert page.evaluate(background) == dark


def test_times_are_the_viewers(shop: Served, open_tab: Open) -> None:
    texts = []
    for zone in ("Asia/Tokyo", "America/New_York"):
        page = open_tab(shop, timezone_id=zone, locale="en-GB").go("/topics")
        page.wait_for_selector("time[data-done]")
        texts.append(page.text_content("time[data-time=when]"))
        assert "UTC" in page.get_attribute("time[data-time=when]", "title")
    assert texts[0] != texts[1]


def test_hostile_names(serve: Serve, queue: Client, open_tab: Open) -> None:
    hostile = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>\u202e{{7*7}}"
    queue.create_topic(hostile)
    queue.create_queue(hostile, topic=hostile)
    queue.create_queue("x" * 255)
    queue.put_schedule(hostile, hostile, {}, definition={"every": 1}, next_at=queue.clock())
    tab = open_tab(serve())
    dialogs: list[Any] = []
    tab.page.on("dialog", lambda dialog: dialogs.append(dialog))  # noqa: PLW0108 - playwright marks it
    for path in ("/", "/topics", "/schedules"):
        tab.go(path)
        tab.wait_live()
    page = tab.go("/")
    page.click("tr[data-queue^='<img'] a")
    page.wait_for_selector("h1")
    assert page.text_content("h1") == hostile
    queue.send(hostile, {})
    expect(page.locator("[data-field=depth]")).to_have_text("1")
    page.click("text=Pause")
    page.click("dialog[open] button[type=submit]")
    page.wait_for_selector(".toast")
    assert hostile in page.text_content(".toast")
    assert dialogs == []
