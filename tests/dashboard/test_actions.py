"""Each action does what it says, says what it did, and is in the audit by the same transaction."""

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from penstock import Client
from penstock.dashboard.redaction import REDACTED
from tests.dashboard.conftest import Browser, Serve


@pytest.fixture
def browser(serve: Serve, queue: Client) -> Any:
    queue.create_queue("q")
    with serve().client() as client:
        yield Browser(client)


def _last(queue: Client) -> Any:
    return queue.list_actions(page_size=1)[0]


def test_pause_and_resume(browser: Browser, queue: Client) -> None:
    done = browser.post("/api/v1/queues/q/pause")
    assert done.status_code == 200, done.text
    assert done.json()["message"].startswith("Queue q is paused")
    assert queue.list_queues()[0].paused_at is not None
    entry = _last(queue)
    assert (entry.action, entry.queue_name, entry.who) == ("pause_queue", "q", "local")
    assert entry.outcome == done.json()["message"]
    browser.post("/api/v1/queues/q/resume")
    assert queue.list_queues()[0].paused_at is None


def test_a_page_gets_a_toast(browser: Browser) -> None:
    done = browser.post("/queues/q/pause", headers={"HX-Request": "true"})
    assert done.status_code == 204
    told = json.loads(done.headers["hx-trigger"])["penstock:toast"]
    assert told["status"] == "ok"
    failed = browser.post("/queues/nothing/pause", headers={"HX-Request": "true"})
    assert failed.status_code == 404
    assert json.loads(failed.headers["hx-trigger"])["penstock:toast"]["status"] == "problem"


def test_purge_asks_for_the_name(browser: Browser, queue: Client) -> None:
    queue.send_many("q", [{}] * 5)
    assert browser.post("/api/v1/queues/q/purge", {"confirm": "other"}).status_code == 422
    assert queue.list_actions() == []
    done = browser.post("/api/v1/queues/q/purge", {"confirm": "q"}).json()
    assert done["data"] == {"purged": 5}
    assert done["message"] == "5 messages of queue q deleted."
    assert queue.list_messages("q") == []
    assert _last(queue).details["purged"] == 5


def test_send(browser: Browser, queue: Client) -> None:
    fields = {"payload": '{"a": 1}', "priority": "0", "tenant": "acme", "delay": "60"}
    done = browser.post("/api/v1/queues/q/send", fields).json()
    found = queue.get_message("q", done["data"]["message_id"])
    assert found is not None
    assert (found.payload, found.priority, found.tenant, found.state) == ({"a": 1}, 0, "acme", "scheduled")
    # A JSON body may have the payload as it is.
    browser.post("/api/v1/queues/q/send", {"payload": {"b": [1]}})
    assert browser.post("/api/v1/queues/q/send", {"payload": "{"}).status_code == 422
    assert browser.post("/api/v1/queues/q/send", {"payload": "1", "priority": "9"}).status_code == 422


def test_secrets_do_not_get_into_the_audit(browser: Browser, queue: Client) -> None:
    browser.post("/api/v1/queues/q/send", {"payload": {"password": "hush"}})
    entry = _last(queue)
    assert entry.details["payload"] == {"password": REDACTED}
    browser.post("/api/v1/queues/q/send", {"payload": json.dumps({"password": "hush"})})
    assert "hush" not in str(_last(queue).details)


def test_settings(browser: Browser, queue: Client) -> None:
    preview = browser.client.get(
        "/api/v1/queues/q/settings", params={"max_active": "8", "retry_delays": "1s, 1m", "notify": "true"}
    ).json()
    assert [(each["name"], each["before"], each["after"]) for each in preview["changes"]] == [
        ("max_active", "0", "8"),
        ("retry_delays", "0", "1s, 1m"),
    ]
    assert preview["meaning"]
    assert queue.list_queues()[0].max_active is None, "a preview changes nothing"
    wrong = browser.client.get("/api/v1/queues/q/settings", params={"max_active": "many"}).json()
    assert "whole number" in wrong["fault"]
    done = browser.post("/api/v1/queues/q/settings", {"max_active": "8", "retry_delays": "1s, 1m"})
    assert done.status_code == 200, done.text
    found = queue.list_queues()[0]
    assert (found.max_active, found.retry_delays) == (8, (1, 60))
    assert _last(queue).details["before"] == {"max_active": "0", "retry_delays": "0"}
    browser.post("/api/v1/queues/q/settings", {"max_active": "0"})
    assert queue.list_queues()[0].max_active is None
    assert browser.post("/api/v1/queues/q/settings", {"visibility_timeout": "-1"}).status_code == 422


def test_delete_a_queue(browser: Browser, queue: Client) -> None:
    assert browser.post("/api/v1/queues/q/delete", {"confirm": ""}).status_code == 422
    assert browser.post("/api/v1/queues/q/delete", {"confirm": "q"}).status_code == 200
    assert queue.list_queues() == []
    assert _last(queue).action == "delete_queue"


def test_topics(browser: Browser, queue: Client) -> None:
    queue.create_topic("t")
    queue.create_queue("of t", topic="t")
    assert browser.post("/api/v1/topics/t/delete").status_code == 200
    assert queue.list_topics() == []
    assert browser.post("/api/v1/topics/t/delete").status_code in (200, 404)


def test_schedules(browser: Browser, queue: Client) -> None:
    queue.put_schedule(
        "s", "q", {"n": 1}, definition={"every": 60}, next_at=queue.clock() + timedelta(hours=1)
    )
    found = browser.client.get("/api/v1/schedules").json()["schedules"][0]
    assert (found["name"], found["rhythm"], found["is_overdue"]) == ("s", "every 60 s", False)
    done = browser.post("/api/v1/schedules/s/run").json()
    assert queue.get_message("q", done["data"]["message_id"]) is not None
    browser.post("/api/v1/schedules/s/pause")
    assert queue.list_schedules()[0].paused_at is not None
    browser.post("/api/v1/schedules/s/resume")
    assert queue.list_schedules()[0].paused_at is None
    browser.post("/api/v1/schedules/s/delete")
    assert queue.list_schedules() == []
    assert browser.post("/api/v1/schedules/s/delete").status_code == 404


def test_groups(browser: Browser, queue: Client) -> None:
    group = queue.create_group(3, "q", {})
    found = browser.client.get("/api/v1/groups").json()["groups"][0]
    assert (found["id"], found["total"], found["done_count"]) == (group, 3, 0)
    assert browser.post(f"/api/v1/groups/{group}/delete").status_code == 200
    assert browser.post(f"/api/v1/groups/{group}/delete").status_code == 404
    assert browser.post("/api/v1/groups/x/delete").status_code == 404


def test_the_audit_fails_with_its_action(
    browser: Browser, queue: Client, sql18: psycopg.Connection[Any]
) -> None:
    """In one transaction: without the row there is no action."""
    sql18.execute("alter table penstock.audit add constraint never check (action <> 'pause_queue')")
    assert browser.post("/api/v1/queues/q/pause").status_code >= 400
    assert queue.list_queues()[0].paused_at is None


def test_the_page_of_the_audit(browser: Browser, queue: Client) -> None:
    for _ in range(103):
        browser.post("/api/v1/queues/q/pause")
    first = browser.client.get("/api/v1/audit").json()
    assert len(first["entries"]) == 100
    rest = browser.client.get("/api/v1/audit", params={"before": first["next_before"]}).json()
    assert len(rest["entries"]) == 3
    assert rest["next_before"] is None
    assert browser.client.get("/api/v1/audit", params={"queue": "other"}).json()["entries"] == []
    assert "Next page" in browser.client.get("/audit").text
    del queue
