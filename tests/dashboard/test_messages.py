"""The list of messages and the page of one: every state, exact numbers, large values, redaction, actions."""

import json
from typing import Any

import psycopg
import pytest

from penstock import Client
from penstock.dashboard.redaction import REDACTED
from tests.dashboard.conftest import Browser, Serve

HOSTILE = "<script>alert('x')</script>\"'&\u202e"


@pytest.fixture
def browser(serve: Serve, queue: Client) -> Any:
    queue.create_queue("q", max_delivery_attempts=1)
    with serve().client() as client:
        yield Browser(client)


def _die(queue: Client, payload: Any = None, error: str = "boom") -> int:
    message_id = queue.send("q", payload or {}, priority=0)
    (message,) = queue.consume_batch("q", batch_size=1)
    assert message.id == message_id
    message.nack(error=error)
    return message_id


def test_pages_by_cursor(browser: Browser, queue: Client) -> None:
    ids = queue.send_many("q", [{"n": number} for number in range(120)])
    seen: list[int] = []
    after = ""
    while True:
        found = browser.client.get(
            "/api/v1/queues/q/messages", params={"state": "ready", "after": after}
        ).json()
        seen += [each["message_id"] for each in found["messages"]]
        if found["next_after"] is None:
            break
        after = found["next_after"]
    assert seen == ids
    page = browser.client.get("/queues/q/messages").text
    assert page.count('name="id"') == 50
    assert "Next page" in page
    assert browser.client.get("/queues/q/messages?page_size=0").status_code == 422
    assert browser.client.get("/queues/q/messages?state=lost").status_code == 422
    assert browser.client.get("/queues/nothing/messages").status_code == 404


@pytest.mark.parametrize("state", ["ready", "waiting", "scheduled", "active", "dead", "done"])
def test_every_state(browser: Browser, queue: Client, state: str) -> None:
    assert f"No {state} messages" in browser.client.get(f"/queues/q/messages?state={state}").text
    if state == "waiting":
        queue.alter_queue("q", tenant_max_active=1)
        queue.send_many("q", [{}, {}], tenant="acme")
        queue.maintain()
    elif state == "scheduled":
        queue.send("q", {}, delay=60)
    elif state == "dead":
        _die(queue)
    else:
        queue.send("q", {}, tenant=HOSTILE)
    if state in ("active", "done"):
        (message,) = queue.consume_batch("q", batch_size=1)
        if state == "done":
            message.ack()
    found, *_ = queue.list_messages("q", state=state)  # type: ignore[arg-type]
    page = browser.client.get(f"/queues/q/messages?state={state}")
    assert f">{found.message_id}</a>" in page.text
    assert "<script>alert" not in page.text
    one = browser.client.get(f"/queues/q/messages/{found.message_id}")
    assert one.status_code == 200, one.text
    assert "<script>alert" not in one.text
    data = browser.client.get(f"/api/v1/queues/q/messages/{found.message_id}").json()
    assert data["message"]["state"] == state
    assert (data["explanation"] is None) == (state == "done")
    if state != "done":
        assert data["explanation"]["explanation"] == queue.explain_delivery("q", found.message_id)


def test_what_is_not_there(browser: Browser) -> None:
    for name in ("1", "0", "x", "-1", "9" * 30, "1'"):
        assert browser.client.get(f"/queues/q/messages/{name}").status_code == 404, name


def test_numbers_are_shown_as_they_are_stored(browser: Browser, database18: str) -> None:
    text = '{"large": 12345678901234567890123, "money": 1.10, "tiny": 1e-30}'
    with psycopg.connect(database18, autocommit=True) as connection:
        (message_id,) = connection.execute("select penstock.send_message('q', %s)", (text,)).fetchone() or (
            0,
        )
    page = browser.client.get(f"/queues/q/messages/{message_id}").text
    data = browser.client.get(f"/api/v1/queues/q/messages/{message_id}").json()["payload"]["text"]
    download = browser.client.get(f"/queues/q/messages/{message_id}/payload").text
    for shown in (page, data, download):
        assert "12345678901234567890123" in shown
        assert "1.10" in shown


def test_redaction_at_any_depth(browser: Browser, queue: Client) -> None:
    secret = {"user": {"password": "hush", "tokens": [{"api_key": "hush"}]}}
    ids = [
        queue.send("q", secret, headers={"authorization": "hush", "x": 1}),
        queue.send("q", json.dumps(secret).encode()),
    ]
    for message_id in ids:
        base = f"/queues/q/messages/{message_id}"
        for path in (base, f"{base}?show=raw", f"{base}?show=hex", f"/api/v1{base}", f"{base}/payload"):
            found = browser.client.get(path)
            assert found.status_code == 200
            assert "hush" not in found.text, path
            assert b"hush".hex(" ") not in found.text, path
        assert REDACTED in browser.client.get(f"{base}?show=raw").text


@pytest.mark.slow
def test_a_large_payload_is_not_sent_to_the_page(browser: Browser, queue: Client) -> None:
    ids = [
        queue.send("q", {"text": "x" * 50_000_000}),
        queue.send("q", b"\x00" * 50_000_000),
        queue.send("q", {"text": "y" * 100_000}),
    ]
    for message_id in ids:
        page = browser.client.get(f"/queues/q/messages/{message_id}")
        assert page.status_code == 200
        assert len(page.content) < 100_000
    assert "Too large to show" in browser.client.get(f"/queues/q/messages/{ids[0]}").text
    assert "Cut here" in browser.client.get(f"/queues/q/messages/{ids[2]}").text
    download = browser.client.get(f"/queues/q/messages/{ids[1]}/payload")
    assert len(download.content) == 50_000_000
    assert "attachment" in download.headers["content-disposition"]


def test_bytes_as_text_and_hex(browser: Browser, queue: Client) -> None:
    text, binary = queue.send("q", "grüße".encode()), queue.send("q", bytes(range(256)))
    assert "grüße" in browser.client.get(f"/queues/q/messages/{text}").text
    assert "67 72 c3 bc" in browser.client.get(f"/queues/q/messages/{text}?show=hex").text
    assert "00000010  10 11 12" in browser.client.get(f"/queues/q/messages/{binary}").text
    forms = [
        browser.client.get(f"/api/v1/queues/q/messages/{each}").json()["form"] for each in (text, binary)
    ]
    assert forms == ["pretty", "hex"]


def test_timeline_and_traceback(browser: Browser, queue: Client) -> None:
    message_id = _die(queue, error=f"Traceback:\n  {HOSTILE}\nValueError: 17 is odd")
    data = browser.client.get(f"/api/v1/queues/q/messages/{message_id}").json()
    assert [each["kind"] for each in data["timeline"]] == ["published", "failed", "dead"]
    assert data["message"]["reason"] == "no_attempts_left"
    page = browser.client.get(f"/queues/q/messages/{message_id}").text
    assert "ValueError: 17 is odd" in page
    assert "<script>alert" not in page


def test_actions_on_chosen_messages(browser: Browser, queue: Client) -> None:
    later = queue.send_many("q", [{}] * 4, delay=3600)
    done = browser.post("/api/v1/queues/q/messages/deliver", {"id": [str(each) for each in later[:2]]})
    assert done.json()["message"] == "2 messages made ready."
    assert {each.message_id for each in queue.list_messages("q", state="ready")} == set(later[:2])
    # One has moved on meanwhile: the answer says so.
    done = browser.post("/api/v1/queues/q/messages/deliver", {"id": [str(later[0]), str(later[2])]})
    assert done.json()["message"] == "1 message made ready. 1 message had moved on meanwhile."
    done = browser.post("/api/v1/queues/q/messages/cancel", {"id": str(later[3])})
    assert done.json()["data"] == {"affected": 1}
    assert queue.get_message("q", later[3]) is None
    queue.purge_queue("q")
    dead = [_die(queue) for _ in range(3)]
    done = browser.post("/api/v1/queues/q/messages/requeue", {"id": [str(dead[0])]})
    assert done.json()["message"] == "1 message requeued."
    done = browser.post("/api/v1/queues/q/messages/delete", {"id": [str(dead[1]), str(dead[2])]})
    assert done.json()["message"] == "2 messages deleted."
    assert queue.list_dlq_messages("q") == []
    assert [each.action for each in queue.list_actions(page_size=2)] == [
        "delete_dead_letters",
        "requeue_dead_letters",
    ]
    for bad in ({}, {"id": "x"}, {"id": ["1"] * 1001}):
        assert browser.post("/api/v1/queues/q/messages/cancel", bad).status_code == 422
