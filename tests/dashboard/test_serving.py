"""The dashboard as a process: the command, and mounted in the app of a user."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from penstock import Client
from tests.cli.command import Command

PATIENCE = 30.0
STREAMS = 100

HOST = """
import os
from starlette.applications import Starlette
from starlette.routing import Mount
from penstock.dashboard import asgi
app = Starlette(routes=[Mount("/queues-of-ours", asgi(os.environ["PENSTOCK_DATABASE_URL"]))])
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(database18: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a program of the environment; it is killed after the test."""
    started = []

    def run(*arguments: str) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "PENSTOCK_DATABASE_URL": database18, "PYTHONPATH": str(tmp_path)}
        process = subprocess.Popen(
            arguments, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_the_command(start: Start, queue: Client) -> None:
    queue.create_queue("q")
    process = start(str(Path(sys.executable).with_name("penstock")), "dashboard", "--port", "0", "--json")
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    _until_ready(url)
    streams = _streams(url, STREAMS)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert time.monotonic() - began < 2
    for each in streams:
        each.close()


def test_mounted_in_uvicorn(start: Start, queue: Client, tmp_path: Path) -> None:
    """A server waits for open requests when it stops: the dashboard ends its streams at the signal."""
    queue.create_queue("q")
    (tmp_path / "host.py").write_text(HOST)
    port = _free_port()
    arguments = ("-m", "uvicorn", "host:app", "--port", str(port), "--log-level", "warning")
    process = start(sys.executable, *arguments)
    url = f"http://127.0.0.1:{port}/queues-of-ours/"
    _until_ready(url)
    streams = _streams(url, STREAMS)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE)
    assert time.monotonic() - began < 2
    for each in streams:
        each.close()


def test_another_port_if_that_is_taken(start: Start) -> None:
    """Without --port: any free one. With it, the command says that it is in use."""
    taken = socket.create_server(("127.0.0.1", 0))
    port = str(taken.getsockname()[1])
    process = start(str(Path(sys.executable).with_name("penstock")), "dashboard", "--port", port)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert f"port {port} of 127.0.0.1 is in use".encode() in err
    taken.close()


def test_options_that_do_not_fit(database18: str, tmp_path: Path) -> None:
    command = Command(database18, tmp_path)
    command("dashboard", "--host", "0.0.0.0", "--port", "0").failed(2, "without authentication")  # noqa: S104
    command("dashboard", "--basic", "nobody").failed(2, "USER:PASSWORD")
    command("dashboard", "--token", "x", "--basic", "a:b").failed(2, "not both")


def _until_ready(url: str) -> None:
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            if httpx.get(f"{url}readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < give_up, "it does not get ready"
        time.sleep(0.1)


def _streams(url: str, number: int) -> list[socket.socket]:
    address = httpx.URL(url)
    opened = []
    for _ in range(number):
        connection = socket.create_connection(("127.0.0.1", address.port), timeout=PATIENCE)
        connection.sendall(f"GET {address.path}events?all=1 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        opened.append(connection)
    for connection in opened:
        assert b"200 OK" in connection.recv(100)
    return opened


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
