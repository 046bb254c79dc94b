"""Every role against every action: in the API, on the address of the form, and which forms its pages have."""

import html
import re
from collections.abc import Iterator

import httpx
import pytest

from penstock import Client
from penstock.dashboard import Access, Permission, Tokens
from penstock.dashboard.addresses import make_path
from tests.conftest import Servers
from tests.dashboard.conftest import Served
from tests.dashboard.scene import Scene, set_up

ROLES = {"v": Permission.VIEW, "a": Permission.ACT, "m": Permission.ADMINISTER}
STRANGE = "not there"
FORM = re.compile(r'<form [^>]*method="post" action="([^"]*)"')


@pytest.fixture(scope="module")
def scene(servers: Servers) -> Iterator[Scene]:
    with servers.database(servers.get(18)) as dsn, Client(dsn, maintain=False) as queue:
        yield set_up(queue, dsn)


@pytest.fixture(scope="module")
def served(scene: Scene) -> Iterator[Served]:
    tokens = Tokens({token: Access(token, permission) for token, permission in ROLES.items()})
    served = Served(scene.dsn, authenticate=tokens)
    yield served
    served.stop()


@pytest.mark.parametrize("token", list(ROLES))
def test_every_action(served: Served, token: str) -> None:
    """What is named does not exist, so nothing is done. A role that may not act is refused before that."""
    routes = served.service.dashboard.routes.actions
    assert len(routes) > 18
    with served.client(headers={"Authorization": f"Bearer {token}"}) as client:
        for action in routes:
            segments = [STRANGE if each.startswith("{") else each for each in action.segments]
            for prefix in ((), ("api", "v1")):
                answer = client.post(make_path("", (*prefix, *segments)), json={"queue": STRANGE, "id": "1"})
                refused = answer.status_code == 403
                assert refused == (ROLES[token] < action.needs), (action.name, prefix, answer.text[:200])
                assert answer.status_code in (200, 403, 404, 409, 422, 303), (action.name, answer.text[:200])


@pytest.mark.parametrize("token", list(ROLES))
def test_pages_have_the_forms_that_the_role_may_send(served: Served, scene: Scene, token: str) -> None:
    routes = served.service.dashboard.routes
    with served.client(headers={"Authorization": f"Bearer {token}"}) as client:
        found = {name for path in _pages(scene) for name in _actions(served, client, path)}
    allowed = {each.name for each in routes.actions if each.needs <= ROLES[token]}
    assert found == allowed


def test_a_dashboard_that_only_shows_has_no_form(scene: Scene) -> None:
    served = Served(scene.dsn, read_only=True)
    try:
        with served.client() as client:
            for path in _pages(scene):
                page = client.get(path)
                assert page.status_code == 200
                assert not FORM.search(page.text), path
            token = client.get("/api/v1/session").json()["csrf_token"]
            answer = client.post("/api/v1/queues/mail/pause", json={}, headers={"X-CSRF-Token": token})
            assert (answer.status_code, "--read-only" in answer.text) == (403, True)
    finally:
        served.stop()


def _pages(scene: Scene) -> list[str]:
    messages = [
        make_path("", ("queues", queue, "messages", number)) for queue, number in scene.messages.values()
    ]
    lists = [
        make_path("", ("queues", queue, "messages"), {"state": state})
        for state, (queue, _) in scene.messages.items()
    ]
    queues = ["/queues/mail", "/queues/mail/settings", "/queues/reports"]
    return [
        *messages,
        *lists,
        *queues,
        "/dead",
        "/topics",
        "/groups",
        "/schedules",
        f"/operations/{scene.operation}",
    ]


def _actions(served: Served, client: httpx.Client, path: str) -> set[str]:
    page = client.get(path)
    assert page.status_code == 200, path
    names = set()
    for address in FORM.findall(page.text.partition("<main")[2]):  # not to sign out
        segments = html.unescape(address).strip("/").split("/")
        route = served.service.dashboard.routes.find_action(segments)
        assert route is not None, address
        names.add(route[0].name)
    return names
