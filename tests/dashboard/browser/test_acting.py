"""Actions in a browser: they ask, do, say what they did; and the page after the server was away."""

import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import expect

from penstock import Client
from penstock.dashboard.addresses import make_path
from tests.dashboard.browser.conftest import Open
from tests.dashboard.conftest import Serve, Served
from tests.dashboard.scene import set_up


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


def test_every_action(serve: Serve, open_tab: Open, queue: Client, database18: str) -> None:
    """Each asks, does it, says what it did, and is in the audit."""
    scene = set_up(queue, database18)
    served = serve()
    tab = open_tab(served)

    def act(path: str, button: str, told: str, **fields: str) -> None:
        page = tab.page if tab.page.url == served.url + path else tab.go(path)
        page.locator("main").get_by_role("button", name=button, exact=True).first.click()
        dialog = page.locator("dialog[open]")
        assert dialog.locator("h2").text_content().strip()
        for name, value in fields.items():
            dialog.locator(f"[name={name}]").fill(value)
        dialog.locator("button[type=submit]").click()
        page.locator(".toast", has_text=told).first.wait_for()

    def choose(state: str, button: str, told: str) -> None:
        name = scene.messages[state][0]
        path = make_path("", ("queues", name, "messages"), {"state": state})
        tab.go(path).check("tbody input[name=id] >> nth=0")
        act(path, button, told)

    group = make_path("", ("dead",), {"queue": "mail", "error": scene.error_key})
    choose("scheduled", "Deliver now", "1 message made ready")
    choose("ready", "Cancel", "1 message cancelled")
    choose("dead", "Requeue", "1 message requeued")
    choose("dead", "Delete", "1 message deleted")
    act(group, "Redrive", "62 dead letters", per_second="1")
    act(tab.page.url.removeprefix(served.url), "Cancel", "is cancelled")
    act("/dead?queue=mail", "Delete", "will be deleted")
    act("/queues/mail", "Send a message", "was sent", payload='{"hello": "you"}')
    act("/queues/mail", "Pause", "is paused")
    act("/queues/mail", "Resume", "delivers again")
    act("/queues/mail", "Purge", "deleted", confirm="mail")
    tab.go("/queues/mail/settings").fill("#max_active", "3")
    tab.page.click("button:text-is('Save')")
    tab.page.locator(".toast", has_text="most active: 0 to 3").wait_for()
    act("/queues/mail/settings", "Delete", "was deleted", confirm="mail")
    act("/schedules", "Run now", "nightly invoices")
    act("/schedules", "Pause", "nightly invoices")
    act("/schedules", "Resume", "nightly invoices")
    act("/schedules", "Delete", "nightly invoices")
    act("/groups", "Delete", "was deleted")
    act("/topics", "Delete", "orders")
    names = {each.name for each in served.service.dashboard.routes.actions}
    assert names - {each.action for each in queue.list_actions(page_size=100)} == set()
    assert tab.go("/audit").locator("tbody tr").count() > len(names)


def test_two_viewers_act_on_one_message(shop: Served, open_tab: Open, queue: Client) -> None:
    """The second one is told that it is gone, and the first one sees what is there now."""
    path = f"/queues/mail/messages/{queue.list_messages('mail', state='dead')[0].message_id}"
    pages = [open_tab(shop).go(path) for _ in range(2)]
    for page in pages:
        page.click("main >> button:text-is('Requeue')")
    pages[0].click("dialog[open] button[type=submit]")
    pages[0].wait_for_selector(".toast >> text=1 message requeued")
    pages[0].wait_for_selector("main .badge:text-is('ready')")
    pages[1].click("dialog[open] button[type=submit]")
    pages[1].wait_for_selector(".toast.problem")
    assert queue.list_messages("mail", state="dead") == []


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


def test_a_page_from_before_a_restart(serve: Serve, open_tab: Open, queue: Client) -> None:
    """With another secret the open page is too old to act with, says so, and acts after it is loaded anew."""
    queue.create_queue("q")
    served = serve(secret="before")  # noqa: S106
    tab = open_tab(served)
    page = tab.go("/queues/q")
    tab.wait_live()
    tab.expects_an_outage = True
    port = served.service.port
    served.stop()
    page.wait_for_selector("#live[data-state=off]")
    serve(port=port, secret="after")  # noqa: S106
    page.wait_for_selector("#live[data-state=on]")
    _confirm(page, "Pause")
    page.wait_for_selector(".toast.problem >> text=too old")
    assert _settings(queue, "q").paused_at is None
    page.reload()
    _confirm(page, "Pause")
    page.wait_for_selector(".toast >> text=is paused")


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
