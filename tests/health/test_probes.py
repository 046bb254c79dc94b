"""/livez and /readyz: what they answer, to whom, and that no client can keep others from an answer."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from penstock.errors import PenstockError
from penstock.health import Health, Reporting, reporting
from tests.health.listening import ask

JSON = "application/json"

# Ends in the middle of an answer that the client does not read, and in the middle of a question.
ENDS = """
import socket, sys, time
from penstock.health import Health, reporting

with reporting(Health(), port=0) as told:
    clients = [socket.create_connection(("127.0.0.1", told.port)) for _ in range(3)]
    clients[0].sendall(b"GET /livez HTTP/1.1\\r\\n")
    clients[1].sendall(b"GET /livez HTTP/1.1\\r\\n\\r\\n")
    print(time.monotonic())
    if sys.argv[1] == "raise":
        raise SystemExit(7)
sys.exit(7)
"""


@pytest.fixture
def health() -> Health:
    return Health(beat_limit=1)


@pytest.fixture
def told(health: Health) -> Iterator[Reporting]:
    with reporting(health, port=0) as one:
        yield one


@pytest.fixture
def port(told: Reporting) -> int:
    assert told.port is not None
    return told.port


def test_they_say_how_it_is(health: Health, port: int) -> None:
    assert ask(port, "/livez") == (200, "live\n")
    assert ask(port, "/readyz") == (503, "not ready: starting\n")
    health.set_ready(True, "working on mail")
    assert ask(port, "/readyz") == (200, "ready: working on mail\n")
    assert ask(port, "/readyz?verbose") == (200, "ready: working on mail\n")
    health.beat()
    time.sleep(1.1)
    status, text = ask(port, "/livez")
    assert status == 503
    assert text.startswith("not live: the main loop has not turned for")
    assert ask(port, "/readyz")[0] == 503
    health.beat()
    health.set_stopping()
    assert ask(port, "/livez")[0] == 200
    assert ask(port, "/readyz") == (503, "not ready: stopping\n")


def test_a_client_that_asks_for_json_gets_it(health: Health, port: int) -> None:
    status, text = ask(port, "/readyz", Accept=JSON)
    assert (status, json.loads(text)) == (503, {"ready": False, "why": "starting"})
    status, text = ask(port, "/livez", Accept=f"text/html, {JSON}")
    assert (status, json.loads(text)) == (200, {"live": True, "why": ""})


def test_head_has_no_body_and_nothing_else_is_here(port: int) -> None:
    assert ask(port, "/livez", method="HEAD") == (200, "")
    assert ask(port, "/readyz", method="HEAD") == (503, "")
    for path in ("/", "/livez/", "/metrics", "/../livez"):
        assert ask(port, path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "STRANGE"):
        status, text = ask(port, "/livez", method=method)
        assert (status, text) == (405, "GET and HEAD only\n")


def test_the_answer_is_not_to_be_kept_and_says_little_of_us(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"POST /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    head = answer.partition("\r\n\r\n")[0].splitlines()
    assert "Allow: GET, HEAD" in head
    assert "Cache-Control: no-store" in head
    assert "Server: penstock" in [line.strip() for line in head]


@pytest.mark.parametrize("said", [b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nHost"], ids=len)
def test_clients_that_hang_keep_no_other_client_from_an_answer(port: int, said: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(said)
        began = time.monotonic()
        for _ in range(5):
            assert ask(port, "/livez")[0] == 200
        assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "nonsense",
    [b"\0\xff\x16\x03\r\n\r\n", b"GET\r\n\r\n", b"x" * 70000, b"GET /livez HTTP/9.9\r\n\r\n"],
    ids=len,
)
def test_nonsense_does_no_harm(port: int, nonsense: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(nonsense)
        client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):  # where it does not read all of it
            client.recv(65536)
    assert ask(port, "/livez")[0] == 200
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("how", ["raise", "end"])
def test_clients_that_hang_do_not_keep_the_process(how: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS, how], check=False, capture_output=True, text=True, timeout=20
    )
    assert (ended.returncode, ended.stderr) == (7, "")
    # Less than a client may be silent.
    assert time.monotonic() - float(ended.stdout) < 4


def test_at_the_end_the_port_is_free_at_once(health: Health) -> None:
    with reporting(health, port=0) as first:
        assert first.port is not None
        ask(first.port, "/livez")
    with reporting(health, port=first.port) as second:
        assert second.port == first.port
        assert ask(first.port, "/livez")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        ask(first.port, "/livez")


@pytest.mark.parametrize(
    ("host", "url"), [("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:"), ("::", "http://[::]:")]
)
def test_the_address_may_be_of_either_kind(health: Health, host: str, url: str) -> None:
    with reporting(health, port=0, host=host) as told:
        assert told.port is not None
        assert told.url == f"{url}{told.port}"
        assert ask(told.port, "/livez", host="127.0.0.1" if host == "::" else host)[0] == 200
        if host == "::":
            assert ask(told.port, "/livez", host="::1")[0] == 200


def test_a_port_that_is_in_use_is_named(health: Health, port: int) -> None:
    with (
        pytest.raises(PenstockError, match=f"port {port} of 127.0.0.1 is in use"),
        reporting(health, port=port),
    ):
        pass
    assert ask(port, "/livez")[0] == 200


@pytest.mark.parametrize(
    ("host", "complaint"),
    [("no.such.host.invalid", "'no.such.host.invalid' is not known"), ("192.0.2.1", "port 0 of 192.0.2.1")],
)
def test_a_host_that_is_not_ours_is_named(health: Health, host: str, complaint: str) -> None:
    with pytest.raises(PenstockError, match=complaint), reporting(health, port=0, host=host):
        pass
