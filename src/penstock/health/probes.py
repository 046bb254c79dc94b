"""The answers to probes: a small HTTP server that knows /livez and /readyz."""

from __future__ import annotations

import errno
import json
import selectors
import socket
import socketserver
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from penstock.errors import PenstockError

from .state import Health

__all__ = ["Probes"]

# How long a client may be silent. A probe of Kubernetes waits for one second.
SILENCE_SECONDS = 5.0
# Clients at once. One more, and the oldest connection is closed.
MOST_CLIENTS = 32


class Probes:
    """Answers in threads of its own, which never keep the process from ending."""

    def __init__(self, health: Health, host: str, port: int) -> None:
        self._server = _Server(health, host, port)
        self.host, self.port = str(self._server.server_address[0]), self._server.server_address[1]
        self._waker, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="penstock probes", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._server, selectors.EVENT_READ)
            waiting.register(self._woken, selectors.EVENT_READ)
            while True:
                if any(key.fileobj is self._woken for key, _ in waiting.select()):
                    return
                self._server.handle_request()

    def close(self) -> None:
        """Answer no more requests; clients that wait for an answer are cut off."""
        self._waker.close()
        self._thread.join()
        self._woken.close()
        self._server.server_close()
        self._server.cut_all()


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    allow_reuse_port = False
    request_queue_size = 128

    def __init__(self, health: Health, host: str, port: int) -> None:
        self.health = health
        self._clients: dict[Any, None] = {}
        self._lock = threading.Lock()
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self.address_family = family
            super().__init__(address, _Answer)  # type: ignore[arg-type] # IPv6 has four parts
        except OSError as exc:
            raise PenstockError(_complaint(host, port, exc)) from exc
        # Do not wait for a client that has disconnected before it could be accepted.
        self.socket.setblocking(False)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            # Both families on "::", whatever the system prefers.
            with suppress(OSError):
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not the method of HTTPServer, which asks the DNS for a name that is not needed.
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._clients[request] = None
            oldest = next(iter(self._clients)) if len(self._clients) > MOST_CLIENTS else None
            self._clients.pop(oldest, None)
        if oldest is not None:
            _cut(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away or talks nonsense is no event."""

    def cut_all(self) -> None:
        with self._lock:
            clients = tuple(self._clients)
        for client in clients:
            _cut(client)


class _Answer(BaseHTTPRequestHandler):
    server: _Server
    server_version = "penstock"
    sys_version = ""
    timeout = SILENCE_SECONDS

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/livez":
            self._say("live", *self.server.health.liveness())
        elif path == "/readyz":
            self._say("ready", *self.server.health.readiness())
        else:
            self.send_error(HTTPStatus.NOT_FOUND, "there are /livez and /readyz here")

    do_HEAD = do_GET  # noqa: N815 - as http.server calls it

    def _say(self, what: str, is_so: bool, why: str) -> None:
        status = HTTPStatus.OK if is_so else HTTPStatus.SERVICE_UNAVAILABLE
        if "application/json" in self.headers.get("Accept", ""):
            self._send(status, json.dumps({what: is_so, "why": why}), "application/json")
        else:
            line = what if is_so else f"not {what}"
            self._send(status, f"{line}: {why}" if why else line)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """What http.server or do_GET does not like: a line of text, not a page."""
        status = HTTPStatus(code)
        if status == HTTPStatus.NOT_IMPLEMENTED:
            status, message = HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD only"
        self._send(status, message or status.phrase)

    def _send(self, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A probe every few seconds would fill the log."""


def _cut(client: Any) -> None:
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


def _complaint(host: str, port: int, exc: OSError) -> str:
    where = f"port {port} of {host or 'all addresses'}"
    if exc.errno == errno.EADDRINUSE:
        return f"{where} is in use: the health port has to be another one"
    if isinstance(exc, socket.gaierror):
        return f"the health host {host!r} is not known: {exc.strerror}"
    return f"{where} cannot be opened for probes: {exc.strerror or exc}"
