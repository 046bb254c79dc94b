"""Each page in a browser: no error, no refused content, nothing from elsewhere, usable by everyone."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from penstock import Client
from penstock.dashboard.addresses import make_path
from tests.dashboard.browser.conftest import DESKTOP, PHONE, Open, every_page, mounted
from tests.dashboard.conftest import Serve, Served
from tests.dashboard.scene import Scene


def _axe() -> str:
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()


def test_every_page(dashboard: Served, scene: Scene, open_tab: Open) -> None:
    """No barrier by axe, nothing wider than a phone, no error, nothing from elsewhere.

    In the dark only colours differ.
    """
    tab, axe = open_tab(dashboard), _axe()
    barriers, wide = list[str](), list[str]()
    for path in every_page(scene):
        page = tab.go(path)
        tab.wait_live()
        page.evaluate(axe)
        for theme, rules in (("light", ""), ("dark", "runOnly: ['color-contrast'], ")):
            page.emulate_media(color_scheme=theme)
            found = page.evaluate(f"axe.run(document, {{{rules}resultTypes: ['violations']}})")
            barriers += [
                f"{path} {theme}: {each['id']}: {node['html'][:200]}: {node['failureSummary']}"
                for each in found["violations"]
                for node in each["nodes"]
            ]
        page.set_viewport_size(PHONE)
        if tab.is_wider_than_the_screen():
            wide.append(path)
        page.set_viewport_size(DESKTOP)
    assert barriers == [], "\n".join(barriers)
    assert wide == []


def test_no_page_is_left_out(dashboard: Served, scene: Scene) -> None:
    routes = dashboard.service.dashboard.routes
    visited = [urlsplit(path).path.strip("/").split("/") for path in every_page(scene)]
    known = {
        found[0].segments for each in visited if (found := routes.find_page([part for part in each if part]))
    }
    with_template = {
        each.segments for each in routes.pages if each.template and each.segments[-1:] != ("payload",)
    }
    assert {each for each in with_template if "history" not in each} - known == set()


def test_empty_pages(serve: Serve, open_tab: Open) -> None:
    """A new database: each list says what belongs there, on a phone."""
    tab = open_tab(serve(), viewport=PHONE)
    for path in ("/", "/dead", "/operations", "/topics", "/groups", "/schedules", "/workers", "/audit"):
        page = tab.go(path)
        tab.wait_live()
        assert page.locator(".empty strong").count() == 1, path
        assert not tab.is_wider_than_the_screen(), path


def test_charts_are_drawn(dashboard: Served, open_tab: Open) -> None:
    """Lines in the colours of the theme, a legend with the newest values, and the same numbers in a table."""
    tab = open_tab(dashboard)
    page = tab.go("/queues/billing")
    page.wait_for_selector(".u-wrap canvas")
    assert page.locator(".chart canvas").count() == page.locator("[data-chart]").count() == 5
    drawn = """() => [...document.querySelectorAll('.chart canvas')].map((canvas) => {
        const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return new Set(new Uint32Array(pixels.buffer)).size;
    })"""
    assert min(page.evaluate(drawn)) > 10
    expect(page.locator(".u-legend .u-value").nth(1)).to_have_text(re.compile(r"\d"))
    page.click("details.table summary >> nth=0")
    assert page.locator("details.table").first.locator("tbody tr").count() > 50
    text = page.text_content("details.table tbody tr >> nth=0")
    assert text.strip()


def test_two_viewers(dashboard: Served, open_tab: Open, keeper: Client) -> None:
    """Both see what comes in, and what one of them does."""
    tabs = [open_tab(dashboard), open_tab(dashboard)]
    for tab in tabs:
        tab.go("/")
        tab.wait_live()
    keeper.send_many("webhooks", [{}] * 100)
    for tab in tabs:
        expect(tab.page.locator("tr[data-queue=webhooks] [data-field=depth]")).to_have_text("101")
    tabs[0].go("/queues/webhooks").click("main >> button:text-is('Pause')")
    tabs[0].page.click("dialog[open] button[type=submit]")
    expect(tabs[1].page.locator("tr[data-queue=webhooks] [data-field=paused]")).to_be_visible()
    tabs[0].go("/")
    keeper.create_queue("newcomer")
    for tab in tabs:
        tab.page.wait_for_selector("tr[data-queue=newcomer]")


def test_filter_and_sort(dashboard: Served, open_tab: Open) -> None:
    page = open_tab(dashboard).go("/")
    page.fill("#filter", "mai")
    page.wait_for_selector("tr[data-queue=billing]", state="detached")
    assert page.locator("tbody tr").count() == 1
    page.fill("#filter", "")
    page.wait_for_selector("tr[data-queue=billing]")
    page.click("th >> text=Depth")
    page.wait_for_selector("th[aria-sort=descending] >> text=Depth")
    assert page.locator("tbody tr").first.get_attribute("data-queue") == "imports"


def test_by_keys_alone(dashboard: Served, open_tab: Open) -> None:
    page = open_tab(dashboard).go("/?filter=billing")
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


def test_dark_and_light(dashboard: Served, open_tab: Open) -> None:
    page = open_tab(dashboard).go("/topics")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.keyboard.press("t")
    dark = page.evaluate(background)
    assert light != dark
    page.reload()
    assert page.evaluate(background) == dark


def test_times_are_the_viewers(dashboard: Served, open_tab: Open) -> None:
    texts = []
    for zone in ("Asia/Tokyo", "America/New_York"):
        page = open_tab(dashboard, timezone_id=zone, locale="en-GB").go("/topics")
        page.wait_for_selector("time[data-done]")
        texts.append(page.text_content("time[data-time=when]"))
        assert "UTC" in page.get_attribute("time[data-time=when]", "title")
    assert texts[0] != texts[1]


def test_every_key_goes_where_it_says(dashboard: Served, open_tab: Open) -> None:
    page = open_tab(dashboard).go("/doctor")
    links = page.evaluate(
        "[...document.querySelectorAll('nav a[data-key]')].map((a) => [a.dataset.key, a.href])"
    )
    assert len(links) == 10
    for key, address in links:
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_url(address)
        page.evaluate("document.activeElement.blur()")  # the search takes the focus
    page.keyboard.press("?")
    listed = page.text_content("#keys")
    assert all(f"{key}" in listed for key, _ in links)


def test_an_action_by_keys_alone(dashboard: Served, open_tab: Open, keeper: Client) -> None:
    """Tab to the button, a dialog that takes the focus and gives it back, Enter."""
    page = open_tab(dashboard).go("/queues/imports")
    focused = "document.activeElement.textContent.trim()"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate(focused) == "Pause":
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    assert page.evaluate("document.querySelector('dialog[open]').contains(document.activeElement)")
    page.keyboard.press("Escape")
    assert page.evaluate(focused) == "Pause"
    page.keyboard.press("Enter")
    while page.evaluate("document.activeElement.type") != "submit":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector(".toast >> text=is paused")
    assert next(each for each in keeper.list_queues() if each.name == "imports").paused_at is not None


# What people who publish may write

SCRIPT = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>\u202e{{7*7}}{% raw %}"
RIGHT_TO_LEFT = "הודעות / رسائل"
LARGE = 1_000_000


@pytest.fixture(scope="module")
def hostile(keeper: Client) -> list[str]:
    """Names, payloads, errors and tenants that want to be more than text; returns the pages with them."""
    keeper.create_topic(SCRIPT)
    keeper.create_queue(SCRIPT, topic=SCRIPT, max_delivery_attempts=1)
    keeper.create_queue(RIGHT_TO_LEFT, max_delivery_attempts=1)
    keeper.create_queue("x" * 255)
    keeper.create_queue("a/b?c#d %2f \N{FOX FACE}")
    pages = ["/", "/dead", "/topics", "/groups", "/schedules", "/workers", "/audit", "/operations", "/doctor"]
    for name in (SCRIPT, RIGHT_TO_LEFT):
        body = {SCRIPT: SCRIPT, RIGHT_TO_LEFT: RIGHT_TO_LEFT, "large": name * (LARGE // len(name))}
        options: dict[str, Any] = {"headers": {"task": SCRIPT, SCRIPT: SCRIPT}}
        tenant, key = name[:100], SCRIPT[:100]
        dying = keeper.send(name, body, tenant=tenant, **options)
        error = f"Traceback (most recent call last):\n  {SCRIPT}\n{name}: {SCRIPT * 1000}"
        keeper.nack_many(keeper.consume_batch(name, batch_size=1), error=error)
        ready = keeper.send(name, body, tenant=tenant, dedup_key=key, **options)
        queue = ("queues", name)
        pages += [
            make_path("", (*queue, *rest)) for rest in ((), ("tenants",), ("settings",), ("messages", ready))
        ]
        pages += [
            make_path("", (*queue, "messages", dying), {"show": form}) for form in ("pretty", "raw", "hex")
        ]
        pages += [make_path("", (*queue, "messages"), {"state": state}) for state in ("ready", "dead")]
        group = keeper.list_dlq_groups(name)[0]
        pages.append(make_path("", ("dead",), {"queue": name, "error": group.error_key}))
        keeper.put_schedule(name, name, {}, definition={"every": 60}, next_at=keeper.clock())
        keeper.create_group(3, name, {})
        keeper.record_action(SCRIPT, who=SCRIPT, queue_name=name, details={SCRIPT: SCRIPT}, outcome=SCRIPT)
    worker: dict[str, Any] = {"hostname": SCRIPT, "pid": 1, "version": SCRIPT, "concurrency": 1}
    keeper.register_worker(SCRIPT, queues=[SCRIPT], tasks=[SCRIPT], **worker)
    running = {"task": SCRIPT, "queue": SCRIPT, "message_id": 1, "attempt": 1, "since": SCRIPT}
    keeper.beat_worker(SCRIPT, held=1, running=[running], stopping=False)
    found = make_path("", ("search",), {"q": f'tenant:"{RIGHT_TO_LEFT}"'})
    return [*pages, found, make_path("", ("queues", "x" * 255)), make_path("", ("queues", SCRIPT + "?"))]


def test_hostile_text(hostile: list[str], dashboard: Served, open_tab: Open) -> None:
    """It stays text on every page, sends little, and does not leave its place."""
    tab = open_tab(dashboard, viewport=PHONE)
    dialogs: list[Any] = []
    tab.page.on("dialog", lambda dialog: dialogs.append(dialog))  # noqa: PLW0108 - playwright marks it
    strange = """() => [...document.querySelectorAll('script, img, [onerror]')].filter((each) =>
        !each.closest('.brand') && each.type !== 'application/json' && !/static/.test(each.src)).length"""
    for path in hostile:
        page = tab.go(path)
        tab.wait_live()
        assert page.evaluate(strange) == 0, path
        assert not tab.is_wider_than_the_screen(), path
        assert len(page.content()) < 500_000, path
        assert "49" not in page.title(), path
    assert dialogs == []


def test_a_hostile_queue_can_be_used(
    hostile: list[str], dashboard: Served, open_tab: Open, keeper: Client
) -> None:
    tab = open_tab(dashboard)
    page = tab.go("/")
    page.click("tr[data-queue^='<img'] a")
    page.wait_for_selector("[data-chart], .empty")
    assert page.text_content("h1") == SCRIPT
    tab.wait_live()
    before = int(page.text_content("[data-field=depth]"))
    keeper.send(SCRIPT, {})
    expect(page.locator("[data-field=depth]")).to_have_text(str(before + 1))
    page.click("main >> button:text-is('Pause')")
    page.click("dialog[open] button[type=submit]")
    page.wait_for_selector(".toast")
    assert SCRIPT in page.text_content(".toast")
    links = page.evaluate("[...document.querySelectorAll('.tabs a')].map((a) => a.href)")
    for address in links:
        page.goto(address)
        assert page.text_content("h1") == SCRIPT


# Under a prefix


def test_under_a_prefix(scene: Scene, open_tab: Open) -> None:
    """Mounted in another app. Each request outside the prefix is a fault of the tab."""
    with mounted(scene.dsn, "/admin/our queues") as served:
        tab = open_tab(served)
        page = tab.go("/")
        tab.wait_live()
        for label in page.locator("nav a").all_text_contents():
            page.click(f"nav a:text-is('{label}')")
            page.wait_for_selector(f"nav a[aria-current=page]:text-is('{label}')")
        page.click("nav a:text-is('Queues')")
        page.click("tr[data-queue=mail] a")
        page.wait_for_selector(".u-wrap canvas")
        page.click(".tabs a:text-is('Messages')")
        page.click("[aria-label=State] a >> text=dead")
        page.check("tbody input[name=id] >> nth=0")
        page.click("[data-selection] button:text-is('Requeue')")
        page.click("dialog[open] button[type=submit]")
        page.wait_for_selector(".toast >> text=requeued")
        page.keyboard.press("t")
        assert {each["path"] for each in page.context.cookies()} == {"/admin/our%20queues"}
