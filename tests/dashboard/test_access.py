"""Who may see and do what; requests of other sites; connections that can only read."""

import http.client
import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from starlette.requests import Request

from penstock import Client, InvalidArgument
from penstock.dashboard import Access, Basic, DashboardService, Permission, Tokens
from penstock.errors import NotFound
from tests.dashboard.conftest import Browser, Serve
from tests.embedded.processes import eventually

VIEW, ACT, ADMINISTER = Permission.VIEW, Permission.ACT, Permission.ADMINISTER


# Without authentication


def test_without_authentication_it_listens_here_only() -> None:
    with pytest.raises(InvalidArgument, match="without authentication must not listen"):
        DashboardService("postgresql://localhost/x", host="0.0.0.0", port=0)  # noqa: S104


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost"}, 200),
        ({"Host": "127.0.0.1:1234"}, 200),
        ({"Host": "[::1]:1234"}, 200),
        ({"Host": "evil.example.org"}, 403),
        ({"Host": "127.0.0.1.evil.example.org"}, 403),
        ({"Host": "localhost@evil.example.org"}, 403),
        ({"Host": ""}, 403),
        ({"X-Forwarded-For": "10.0.0.1"}, 403),
        ({"Forwarded": "for=10.0.0.1"}, 403),
    ],
)
def test_without_authentication_other_names_are_refused(
    serve: Serve, headers: dict[str, str], status: int
) -> None:
    """A name of an attacker that points here, and a proxy that lets others in."""
    served = serve()
    connection = http.client.HTTPConnection("127.0.0.1", served.service.port, timeout=20)
    connection.putrequest("GET", "/topics", skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == status
    connection.close()


# Authentication


def test_a_token(serve: Serve) -> None:
    tokens = Tokens({"all": Access("admin", ADMINISTER), "look": Access("viewer", VIEW)})
    with serve(authenticate=tokens).client() as client:
        assert client.get("/api/v1/topics").status_code == 401
        assert client.get("/metrics").status_code == 401
        assert client.get("/events").status_code == 401
        assert client.get("/livez").status_code == 200
        page = client.get("/topics")
        assert (page.status_code, page.headers["location"]) == (303, "/login")
        bearer = {"Authorization": "Bearer look"}
        assert client.get("/api/v1/session", headers=bearer).json()["permission"] == "view"
        assert client.get("/api/v1/topics", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.post("/login", data={"token": "wrong"}).status_code == 401
        entered = client.post("/login", data={"token": "all"})
        assert entered.status_code == 303
        cookie = entered.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "all" not in cookie.split(";")[0].partition("=")[2]
        assert client.get("/topics").status_code == 200
        assert (
            client.get("/api/v1/session").json() | {"name": "admin"} == client.get("/api/v1/session").json()
        )


def test_a_user_with_a_password(serve: Serve) -> None:
    served = serve(authenticate=Basic({"ann": ("hush", ACT)}))
    with served.client() as client:
        refused = client.get("/topics")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic")
        assert client.get("/topics", auth=("ann", "wrong")).status_code == 401
        assert client.get("/topics", auth=("bob", "")).status_code == 401
        assert client.get("/api/v1/session", auth=("ann", "hush")).json()["permission"] == "act"


def test_a_callable_of_the_host(serve: Serve) -> None:
    async def authenticate(request: Request) -> Access | None:
        name = request.headers.get("x-user")
        return None if name is None else Access(name, VIEW if name == "viewer" else ADMINISTER)

    with serve(authenticate=authenticate).client() as client:
        assert client.get("/topics").status_code == 403
        assert client.get("/topics", headers={"X-User": "viewer"}).status_code == 200


def test_it_may_listen_elsewhere_with_a_token(serve: Serve) -> None:
    served = serve(host="0.0.0.0", authenticate=Tokens("x"))  # noqa: S104
    with served.client() as client:
        assert client.get("/topics", headers={"Authorization": "Bearer x"}).status_code == 200


# Permissions


ACTIONS: list[tuple[str, Permission]] = [
    ("/queues/q/pause", ACT),
    ("/queues/q/resume", ACT),
    ("/queues/q/send", ACT),
    ("/queues/q/purge", ADMINISTER),
    ("/queues/q/settings", ADMINISTER),
    ("/queues/q/delete", ADMINISTER),
    ("/topics/t/delete", ADMINISTER),
    ("/groups/1/delete", ADMINISTER),
    ("/schedules/s/run", ACT),
    ("/schedules/s/pause", ACT),
    ("/schedules/s/resume", ACT),
    ("/schedules/s/delete", ADMINISTER),
]


@pytest.mark.parametrize("permission", list(Permission))
def test_each_permission_against_each_action(serve: Serve, queue: Client, permission: Permission) -> None:
    queue.create_queue("q")
    tokens = Tokens({"x": Access("somebody", permission)})
    with serve(authenticate=tokens).client(headers={"Authorization": "Bearer x"}) as client:
        for path, needed in ACTIONS:
            for prefix in ("", "/api/v1"):
                status = client.post(f"{prefix}{path}", json={}).status_code
                assert (status == 403) == (permission < needed), (path, status)
        page = client.get("/queues/q").text
        assert (">Pause<" in page) == (permission >= ACT)
        assert (">Purge<" in page) == (permission >= ADMINISTER)


def test_every_action_is_in_the_matrix(serve: Serve) -> None:
    routes = serve().service.dashboard.routes
    known = {tuple(path.strip("/").split("/"))[::2] for path, _ in ACTIONS}
    own = [each for each in routes.actions if each.run.__module__.rpartition(".")[2] in OWN]
    assert {tuple(each.segments)[::2] for each in own} == known


OWN = ("queue", "settings", "topics", "groups", "schedules")


# Requests of other sites


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Origin": "http://evil.example.org"}, 403),
        ({"Origin": "null"}, 403),
        ({}, 200),
        ({"X-CSRF-Token": "wrong"}, 403),
        ({"X-CSRF-Token": ""}, 403),
    ],
)
def test_a_page_of_another_site_cannot_act(
    serve: Serve, queue: Client, headers: dict[str, str], status: int
) -> None:
    queue.create_queue("q")
    with serve().client() as client:
        token = client.get("/api/v1/session").json()["csrf_token"]
        found = client.post("/api/v1/queues/q/pause", headers={"X-CSRF-Token": token, **headers}, json={})
        assert found.status_code == status, found.text
    assert (queue.list_queues()[0].paused_at is not None) == (status == 200)


def test_the_token_of_a_form_field(serve: Serve, queue: Client) -> None:
    """What a browser without JavaScript sends."""
    queue.create_queue("q")
    with serve().client() as client:
        token = client.get("/api/v1/session").json()["csrf_token"]
        done = client.post(
            "/queues/q/pause",
            data={"csrf_token": token},
            headers={"Origin": str(client.base_url).rstrip("/")},
        )
        assert done.status_code == 303


def test_the_token_of_another_viewer_is_not_taken(serve: Serve, queue: Client) -> None:
    queue.create_queue("q")
    served = serve(authenticate=Basic({"ann": ("1", ADMINISTER), "bob": ("2", ADMINISTER)}))
    with served.client() as client:
        token = client.get("/api/v1/session", auth=("ann", "1")).json()["csrf_token"]
        refused = client.post(
            "/api/v1/queues/q/pause", headers={"X-CSRF-Token": token}, auth=("bob", "2"), json={}
        )
        assert refused.status_code == 403


# Connections


def test_pages_cannot_write(serve: Serve, queue: Client) -> None:
    """By PostgreSQL: the connection of pages has a role that may not, and transactions that only read."""
    import asyncio

    queue.create_queue("q")
    served = serve()
    with served.client() as client:
        assert client.get("/topics").status_code == 200
    viewers = served.service.dashboard.database.viewers

    def run(call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, served.loop).result(20)

    assert run(viewers.diagnose_server()).role_name == "penstock_viewer"
    assert run(viewers.diagnose_server()).is_read_only
    for attempt in (viewers.send("q", {}), viewers.pause_queue("q"), viewers.purge_queue("q")):
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)):
            run(attempt)


def test_read_only_has_no_other_connection(serve: Serve, queue: Client) -> None:
    queue.create_queue("q")
    served = serve(read_only=True)
    with served.client() as client:
        assert served.service.dashboard.database.actions is None
        refused = Browser(client).post("/api/v1/queues/q/pause")
        assert refused.status_code == 403
        assert "read-only" in refused.json()["error"]["message"]
        assert client.get("/api/v1/session").json()["permission"] == "view"
        assert ">Pause<" not in client.get("/queues/q").text


def test_a_role_that_may_not_become_a_viewer(
    serve: Serve, sql18: psycopg.Connection[Any], database18: str
) -> None:
    sql18.execute("create role stranger login password 'x'")
    try:
        served = serve(psycopg.conninfo.make_conninfo(database18, user="stranger", password="x"))  # noqa: S106
        with served.client() as client:
            found = client.get("/topics")
            assert found.status_code >= 400
            assert client.get("/readyz").status_code == 503
        served.stop()
    finally:
        sql18.execute("drop role stranger")


def test_headers_of_every_answer(serve: Serve) -> None:
    with serve().client() as client:
        for path in ("/", "/topics", "/nothing", "/api/v1/topics", "/metrics", "/livez"):
            headers = client.get(path).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["cache-control"] == "no-store"
            assert "server" not in headers


def test_a_body_that_is_too_large(serve: Serve, queue: Client) -> None:
    queue.create_queue("q")
    with serve().client() as client:
        found = Browser(client).post("/api/v1/queues/q/send", {"payload": "x" * 1_100_000})
        assert found.status_code == 413
        odd = client.post("/api/v1/queues/q/send", content=b"\xff\xfe", headers={"Content-Type": "text/xml"})
        assert odd.status_code == 415


# Sessions of a token, and what a stranger is told


def test_a_session_ends(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the server: a cookie that was copied lives no longer than the one in the browser."""
    tokens = Tokens("x")
    old = tokens.session("x")
    with serve(authenticate=tokens).client() as client:

        def status(cookie: str) -> int:
            return client.get("/api/v1/session", headers={"Cookie": f"penstock_session={cookie}"}).status_code

        assert status(old) == 200
        end, _, digest = old.partition(".")
        assert status(f"{int(end) + 1}.{digest}") == 401
        assert status(digest) == 401
        late = int(end) + 1
        monkeypatch.setattr("penstock.dashboard.access.time.time", lambda: late)
        assert status(old) == 401


def test_sign_out(serve: Serve) -> None:
    with serve(authenticate=Tokens("x")).client() as client:
        client.post("/login", data={"token": "x"})
        assert "Sign out" in client.get("/topics").text
        token = client.get("/api/v1/session").json()["csrf_token"]
        assert client.post("/logout").status_code == 403, "a page of another site could do it"
        assert client.post("/logout", data={"csrf_token": token}).status_code == 303
        assert client.get("/api/v1/session").status_code == 401


def test_no_token_in_an_address(serve: Serve) -> None:
    """Addresses are logged, and stay in the history of a browser."""
    with serve(authenticate=Tokens("x")).client() as client:
        assert "set-cookie" not in client.get("/login", params={"token": "x"}).headers


def test_letters_of_any_language(serve: Serve) -> None:
    served = serve(authenticate=Tokens("schlüssel"))
    with served.client() as client:
        header = {b"Authorization": "Bearer schlüssel".encode()}
        assert client.get("/api/v1/session", headers=header).status_code == 200
    served = serve(authenticate=Basic({"jürgen": ("geheimnis ß", VIEW)}))
    with served.client() as client:
        assert client.get("/api/v1/session", auth=("jürgen", "geheimnis ß")).status_code == 200
        for odd in (b"Basic", b"Basic \xff", b"Basic !", b"Basic /zr/", b"basic YW5u"):
            assert client.get("/api/v1/session", headers={b"Authorization": odd}).status_code == 401, odd


def test_a_stranger_learns_nothing_about_the_database(serve: Serve) -> None:
    served = serve("postgresql://secret_user@127.0.0.1:1/secret_name", authenticate=Tokens("x"))
    with served.client() as client:
        known = {"Authorization": "Bearer x"}
        eventually(lambda: "secret_name" in client.get("/", headers=known).text, "trouble is shown")
        for path in ("/login", "/nothing", "/", "/readyz"):
            for headers in ({}, {"HX-Request": "true"}):
                text = client.get(path, headers=headers, follow_redirects=True).text
                assert "secret_" not in text, path


def _fail(request: Request) -> Access | None:
    raise NotFound("the user table is gone")


def _access(name: Any, permission: Any) -> Any:
    return lambda _: Access(name, permission)


@pytest.mark.parametrize(
    ("authenticate", "status"),
    [
        (_fail, 500),
        (lambda _: True, 403),
        (lambda _: "ann", 403),
        (lambda _: {"name": "ann", "permission": 3}, 403),
        (lambda _: Access, 403),
        (_access("ann", 3), 500),
        (_access("ann", "administer"), 500),
        (_access(None, ADMINISTER), 500),
        (_access("", ADMINISTER), 500),
    ],
)
def test_a_callable_that_fails_lets_no_one_in(serve: Serve, authenticate: Any, status: int) -> None:
    with serve(authenticate=authenticate).client() as client:
        found = client.get("/api/v1/topics")
        assert found.status_code == status
        assert "user table" not in found.text


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="secret must not be empty"):
        DashboardService("postgresql://localhost/x", port=0, secret="")


@pytest.mark.parametrize("name", ["X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via", "Forwarded"])
def test_without_authentication_no_proxy_may_lead_here(serve: Serve, name: str) -> None:
    with serve().client() as client:
        assert client.get("/topics", headers={name: "127.0.0.1"}).status_code == 403


# Every action that there is


def test_a_viewer_can_do_nothing(serve: Serve, queue: Client) -> None:
    """By the list of the routes: an action that is added is in it."""
    queue.create_queue("q")
    served = serve(authenticate=Tokens({"look": Access("viewer", VIEW), "act": Access("actor", ACT)}))
    actions = served.service.dashboard.routes.actions
    assert len(actions) >= 19
    with served.client() as client:
        for action in actions:
            path = "/" + "/".join("1" if each.startswith("{") else each for each in action.segments)
            for prefix in ("", "/api/v1"):
                for token, permission in (("look", VIEW), ("act", ACT)):
                    found = client.post(prefix + path, json={}, headers={"Authorization": f"Bearer {token}"})
                    assert (found.status_code == 403) == (permission < action.needs), (path, token)
                refused = client.get(prefix + path, headers={"Authorization": "Bearer look"})
                assert refused.status_code in (200, 404), "reading does nothing"
    assert "viewer" not in {each.who for each in queue.list_actions()}


def test_the_way_back_stays_here(serve: Serve, queue: Client) -> None:
    """A form without JavaScript goes back to its page, never to another host."""
    queue.create_queue("q")
    with serve().client() as client:
        token = client.get("/api/v1/session").json()["csrf_token"]
        for referer, expected in (
            (f"{client.base_url}/queues/q?range=1h", "/queues/q"),
            (f"{client.base_url}//other.example.org/x", "/"),
            ("http://[", "/"),
            ("javascript:alert(1)", "/"),
        ):
            done = client.post("/queues/q/pause", data={"csrf_token": token}, headers={"Referer": referer})
            assert (done.status_code, done.headers["location"]) == (303, expected), referer


@pytest.mark.parametrize(
    "path",
    [
        "/audit?before=" + "9" * 20,
        "/audit?before=" + "9" * 5000,
        "/queues/q/messages?page_size=" + "9" * 5000,
        "/queues/q/settings?max_active=" + "9" * 5000,
        "/operations?before=" + "9" * 5000,
        "/queues/%00",
        "/search?q=tenant:%00",
    ],
)
def test_odd_addresses_are_no_failures(serve: Serve, queue: Client, path: str) -> None:
    queue.create_queue("q")
    with serve().client() as client:
        assert client.get(path).status_code < 500
        assert client.get(f"/api/v1{path}").status_code < 500


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/queues/q/send", {"payload": "1", "delay": "9" * 5000}),
        ("/queues/q/pause", {"csrf_token": "\ud800"}),
        ("/dead/redrive", {"queue": "q", "per_second": "000000001" + "9" * 5000}),
    ],
)
def test_odd_forms_are_no_failures(serve: Serve, queue: Client, path: str, body: dict[str, str]) -> None:
    queue.create_queue("q")
    with serve().client() as client:
        headers = {"Content-Type": "application/json"}
        if "csrf_token" not in body:
            headers["X-CSRF-Token"] = client.get("/api/v1/session").json()["csrf_token"]
        found = client.post(f"/api/v1{path}", content=json.dumps(body), headers=headers)
        assert 400 <= found.status_code < 500, found.text


def test_a_restricted_queue_is_hidden(serve: Serve, queue: Client, sql18: psycopg.Connection[Any]) -> None:
    """Pages read as penstock_viewer, which has no right in it, for every person."""
    queue.create_queue("q", max_delivery_attempts=1)
    queue.put_schedule(
        "hidden schedule",
        "q",
        {"a": "hidden"},
        definition={"every": 60},
        next_at=queue.clock() + timedelta(hours=1),
    )
    message_id = queue.send("q", {"a": "hidden"}, tenant="hidden", dedup_key="hidden")
    with serve().client() as client:
        browser = Browser(client)
        assert browser.post("/api/v1/schedules/hidden%20schedule/run").status_code == 200
        assert "hidden" in client.get("/api/v1/audit").text
        sql18.execute("select penstock.grant_queue('penstock_publisher', 'q', 'view')")
        browser.post("/api/v1/schedules/hidden%20schedule/pause")
        for path in (
            "/",
            "/dead",
            "/operations",
            "/search?q=key:hidden",
            "/topics",
            "/groups",
            "/schedules",
            "/workers",
            "/audit",
        ):
            found = client.get(f"/api/v1{path}")
            assert found.status_code == 200
            assert "hidden" not in found.text.replace("key:hidden", ""), path
        for path in (
            "",
            "/messages",
            f"/messages/{message_id}",
            f"/messages/{message_id}/payload",
            "/tenants",
        ):
            found = client.get(f"/api/v1/queues/q{path}")
            assert found.status_code in (403, 404), path
            assert "hidden" not in found.text
