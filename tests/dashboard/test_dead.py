"""Dead letters by error, operations and their driver, tenants, search."""

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from penstock import Client
from penstock.dashboard.views.search import parse
from penstock.errors import InvalidArgument
from tests.dashboard.conftest import Browser, Serve

PATIENCE = 20.0
HOSTILE = "<script>alert('x')</script>\"'&\u202e"


@pytest.fixture
def browser(serve: Serve, queue: Client) -> Any:
    queue.create_queue("q", max_delivery_attempts=1)
    with serve().client() as client:
        yield Browser(client)


def _die(queue: Client, number: int, error: str) -> list[int]:
    ids = queue.send_many("q", [{"n": each} for each in range(number)], tenant="acme")
    while found := queue.consume_batch("q", batch_size=1000):
        queue.nack_many(found, error=error)
    return ids


def _ends(browser: Browser, operation_id: int, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found = browser.client.get(f"/api/v1/operations/{operation_id}").json()["operation"]
        if wanted(found):
            return dict(found)
        time.sleep(0.02)
    raise AssertionError(found)


def test_groups_and_their_letters(browser: Browser, queue: Client) -> None:
    assert "No dead letters" in browser.client.get("/dead").text
    _die(queue, 30, "ValueError: order 17 is odd")
    _die(queue, 3, f"KeyError: {HOSTILE}")
    data = browser.client.get("/api/v1/dead", params={"queue": "q"}).json()
    assert sorted(each["dead_count"] for each in data["groups"]) == [3, 30]
    page = browser.client.get("/dead").text
    assert "<script>alert" not in page
    key = next(each["error_key"] for each in data["groups"] if each["dead_count"] == 30)
    group = browser.client.get("/api/v1/dead", params={"queue": "q", "error": key}).json()
    assert len(group["letters"]) == 20
    more = browser.client.get(
        "/api/v1/dead", params={"queue": "q", "error": key, "after": group["next_after"]}
    ).json()
    assert len(more["letters"]) == 10
    group_page = browser.client.get("/dead", params={"queue": "q", "error": key})
    assert group_page.status_code == 200
    assert browser.client.get("/dead", params={"error": key}).status_code == 422


def test_a_redrive_runs_to_its_end(browser: Browser, queue: Client) -> None:
    _die(queue, 2500, "ValueError: odd")
    done = browser.post("/api/v1/dead/redrive", {"queue": "q"}).json()
    assert (
        done["message"] == "about 2,500 dead letters of queue q will be redriven."
        or "2,500" in done["message"]
    )
    assert done["page"] == f"/operations/{done['data']['operation_id']}"
    ended = _ends(browser, done["data"]["operation_id"], lambda each: each["finished_at"] is not None)
    assert (ended["state"], ended["done_count"], ended["who"]) == ("done", 2500, "local")
    assert queue.list_dlq_messages("q") == []
    assert browser.client.get("/operations").status_code == 200
    assert browser.client.get(done["page"]).status_code == 200
    assert queue.list_actions(page_size=1)[0].action == "redrive"


def test_a_redrive_with_a_canary_stops_if_it_dies_again(browser: Browser, queue: Client) -> None:
    _die(queue, 100, "ValueError: odd")
    done = browser.post("/api/v1/dead/redrive", {"queue": "q", "canary": "on"}).json()
    number = done["data"]["operation_id"]
    waits = _ends(browser, number, lambda each: each["canary_id"] is not None)
    assert waits["done_count"] == 1
    (message,) = queue.consume_batch("q", batch_size=10)
    assert message.id == waits["canary_id"]
    message.nack(error="ValueError: odd")
    ended = _ends(browser, number, lambda each: each["finished_at"] is not None)
    assert ended["state"] == "stopped"
    assert ended["note"] in browser.client.get(f"/operations/{number}").text
    assert len(queue.list_dlq_messages("q", page_size=1000)) == 100


def test_an_operation_with_a_rate_is_cancelled_soon(browser: Browser, queue: Client) -> None:
    _die(queue, 1000, "ValueError: odd")
    number = browser.post("/api/v1/dead/delete", {"queue": "q"}).json()["data"]["operation_id"]
    _ends(browser, number, lambda each: each["state"] == "done")
    _die(queue, 1000, "ValueError: odd")
    body = {"queue": "q", "per_second": "50"}
    number = browser.post("/api/v1/dead/redrive", body).json()["data"]["operation_id"]
    _ends(browser, number, lambda each: each["done_count"] > 0)
    began = time.monotonic()
    assert browser.post(f"/api/v1/operations/{number}/cancel").json()["status"] == "ok"
    ended = _ends(browser, number, lambda each: each["finished_at"] is not None)
    assert time.monotonic() - began < 1.0
    assert ended["state"] == "cancelled"
    assert 0 < ended["done_count"] < 1000
    again = browser.post(f"/api/v1/operations/{number}/cancel").json()
    assert again["status"] == "problem"
    assert browser.client.get("/operations/999999").status_code == 404
    assert browser.post("/api/v1/operations/x/cancel").status_code == 404


def test_a_redrive_goes_on_after_a_restart(serve: Serve, queue: Client) -> None:
    queue.create_queue("q", max_delivery_attempts=1)
    _die(queue, 300, "ValueError: odd")
    first = serve()
    with first.client() as client:
        browser = Browser(client)
        body = {"queue": "q", "per_second": "100"}
        number = browser.post("/api/v1/dead/redrive", body).json()["data"]["operation_id"]
        _ends(browser, number, lambda each: each["done_count"] > 0)
    first.stop()
    with serve().client() as client:
        ended = _ends(Browser(client), number, lambda each: each["finished_at"] is not None)
    assert (ended["state"], ended["done_count"]) == ("done", 300)


FAIL = """
    create function public.fail() returns trigger language plpgsql as $$ begin raise 'damaged'; end $$;
    create trigger fail before delete on penstock.dead for each row
        when (old.queue_id = {}) execute function public.fail();
"""


def test_an_operation_that_fails_keeps_no_other_back(
    browser: Browser, queue: Client, sql18: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    bad = queue.create_queue("bad", max_delivery_attempts=1)
    for name in ("bad", "q"):
        queue.send(name, 1)
        queue.nack_many(queue.consume_batch(name), error="odd")
    sql18.execute(FAIL.format(bad).encode())
    try:
        first, second = (
            browser.post("/api/v1/dead/redrive", {"queue": name}).json()["data"]["operation_id"]
            for name in ("bad", "q")
        )
        assert _ends(browser, second, lambda each: each["finished_at"] is not None)["done_count"] == 1
        assert f"operation {first} cannot go on: damaged" in caplog.text
    finally:
        sql18.execute("drop function public.fail() cascade")


def test_bad_fields(browser: Browser) -> None:
    for body in ({}, {"queue": "q", "per_second": "0"}, {"queue": "q", "per_second": "fast"}):
        assert browser.post("/api/v1/dead/redrive", body).status_code == 422, body
    assert browser.post("/api/v1/dead/redrive", {"queue": "nothing"}).status_code == 404


def test_tenants(browser: Browser, queue: Client) -> None:
    assert "No tenant has messages" in browser.client.get("/queues/q/tenants").text
    queue.alter_queue("q", tenant_max_active=2)
    queue.send_many("q", [{}] * 500, tenant=HOSTILE)
    queue.send_many("q", [{}] * 2, tenant="small")
    queue.maintain()
    for message in queue.consume_batch("q", batch_size=3):
        message.ack()
    data = browser.client.get("/api/v1/queues/q/tenants").json()
    by_name = {each["share"]["tenant"]: each for each in data["tenants"]}
    assert by_name[HOSTILE]["notes"] == ["floods", "at its cap"]
    assert by_name[HOSTILE]["times_median"] is not None
    assert by_name["small"]["notes"] == []
    page = browser.client.get("/queues/q/tenants")
    assert "floods" in page.text
    assert "<script>alert" not in page.text


def test_search(browser: Browser, queue: Client) -> None:
    ids = queue.send_many(
        "q", [{"order": {"id": each, "token": each}} for each in range(20)], tenant="acme inc"
    )

    def found(text: str) -> list[int]:
        answer = browser.client.get("/api/v1/search", params={"q": text})
        assert answer.status_code == 200, answer.text
        return [each["message_id"] for each in answer.json()["result"]["matches"]]

    assert found(f"id:{ids[3]}") == found(str(ids[3])) == [ids[3]]
    assert found("queue:q payload.order.id:7") == [ids[7]]
    assert sorted(found('tenant:"acme inc" state:ready')) == ids
    assert found("tenant:other") == []
    assert "That is everywhere" in browser.client.get("/search", params={"q": "tenant:other"}).text
    assert browser.client.get("/search").status_code == 200
    queue.send_many("q", [{}] * 60, tenant="many")
    assert "There may be more" in browser.client.get("/search", params={"q": "tenant:many"}).text
    # What pages hide cannot be found out by asking for it.
    assert browser.client.get("/api/v1/search", params={"q": "payload.order.token:7"}).status_code == 422
    for bad in ("word", 'tenant:"open', "state:lost", "id:x", "size:1", "id:1 id:2"):
        assert browser.client.get("/api/v1/search", params={"q": bad}).status_code == 422, bad


def test_parse() -> None:
    assert parse("17") == {"message_id": 17}
    assert parse('queue:"a \\"b\\"" key:x:y') == {"queue_name": 'a "b"', "dedup_key": "x:y"}
    assert parse("payload.a.b:1.50") == {"payload_path": ["a", "b"], "payload_value": "1.50"}
    with pytest.raises(InvalidArgument, match="given twice"):
        parse("payload.a:1 payload.b:2")
