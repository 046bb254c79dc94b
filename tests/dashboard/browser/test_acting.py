"""Actions in a browser: they ask, do, say what they did; and the page after the server was away."""

import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import expect

from penstock import Client
from tests.dashboard.browser.conftest import Open
from tests.dashboard.conftest import Serve, Served


def _confirm(page: Any, button: str) -> None:
    page.click(f"main >> button:text-is('{button}')")
    page.click("dialog[open] button[type=submit]")


def test_pause_and_resume(shop: Served, open_tab: Open, queue: Client) -> None:
    page = open_tab(shop).go("/queues/billing")
    page.click("main >> button:text-is('Pause')")
    page.wait_for_selector("dialog[open]")
    page.click("dialog[open] >> text=Back")
    assert _settings(queue, "billing").paused_at is None
    _confirm(page, "Pause")
    page.wait_for_selector(".toast >> text=is paused")
    assert _settings(queue, "billing").paused_at is not None
    _confirm(page, "Resume")
    page.wait_for_selector(".toast >> text=delivers again")
    assert _settings(queue, "billing").paused_at is None


def test_purge_wants_the_name(shop: Served, open_tab: Open, queue: Client) -> None:
    page = open_tab(shop).go("/queues/billing")
    page.click("main >> button:text-is('Purge')")
    page.fill("#confirm-purge", "something else")
    page.click("dialog[open] button[type=submit]")
    page.wait_for_selector(".toast.problem")
    assert len(queue.list_messages("billing")) == 30
    page.click("main >> button:text-is('Purge')")
    page.fill("#confirm-purge", "billing")
    page.click("dialog[open] button[type=submit]")
    page.wait_for_selector(".toast >> text=30 messages of queue billing deleted")
    assert queue.list_messages("billing") == []


def test_send_a_message(shop: Served, open_tab: Open, queue: Client) -> None:
    page = open_tab(shop).go("/queues/mail")
    before = len(queue.list_messages("mail"))
    page.click("main >> button:text-is('Send a message')")
    page.fill("#payload", '{"hello": "wörld"}')
    page.select_option("#priority", "0")
    page.click("dialog[open] button[type=submit]")
    page.wait_for_selector(".toast >> text=was sent to queue mail")
    assert len(queue.list_messages("mail")) == before + 1


def test_settings_show_what_changes(shop: Served, open_tab: Open, queue: Client) -> None:
    page = open_tab(shop).go("/queues/billing/settings")
    page.fill("#max_active", "4")
    page.wait_for_selector("#preview >> text=This changes")
    assert "Most active" in page.text_content("#preview")
    page.fill("#max_active", "lots")
    page.wait_for_selector("#preview >> text=whole number")
    page.fill("#max_active", "4")
    page.click("button:text-is('Save')")
    page.wait_for_selector(".toast >> text=most active: 10 to 4")
    assert _settings(queue, "billing").max_active == 4


def test_a_viewer_sees_no_buttons(serve: Serve, open_tab: Open, queue: Client) -> None:
    queue.create_queue("q")
    page = open_tab(serve(read_only=True)).go("/queues/q")
    assert page.locator("main form[method=post]").count() == 0
    page = open_tab(serve(read_only=True)).go("/queues/q/settings")
    assert page.locator("fieldset[disabled]").count() == 1


def test_live_again_after_a_restart(serve: Serve, open_tab: Open, queue: Client) -> None:
    queue.create_queue("q")
    served = serve(secret="the same")  # noqa: S106
    tab = open_tab(served)
    page = tab.go("/")
    tab.wait_live()
    tab.expects_an_outage = True
    port = served.service.port
    served.stop()
    page.wait_for_selector("#live[data-state=off]")
    queue.send("q", {})
    serve(port=port, secret="the same")  # noqa: S106
    began = time.monotonic()
    page.wait_for_selector("#live[data-state=on]")
    assert time.monotonic() - began < 3
    expect(page.locator("[data-field=depth]")).to_have_text("1")


def test_the_stream_ends_in_a_hidden_tab(serve: Serve, open_tab: Open) -> None:
    served = serve()
    tab = open_tab(served)
    page = tab.go("/")
    tab.wait_live()
    live = served.service.dashboard.live
    assert live.stream_count == 1
    hide = """(hidden) => {
        Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page.evaluate(hide, True)
    _until(lambda: live.stream_count == 0)
    page.evaluate(hide, False)
    _until(lambda: live.stream_count == 1)


def _until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def _settings(queue: Client, name: str) -> Any:
    return next(each for each in queue.list_queues() if each.name == name)
