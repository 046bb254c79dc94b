"""What a browser asks for: pages, timed from the first byte sent to the last one received, and actions."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote, urlencode

from bench import report

PATIENCE = 120.0
# The dashboard ends a connection that is idle for longer.
IDLE_SECONDS = 10.0
REFERENCE = re.compile(rb'<(?:script|link|img)\b[^>]*?\b(?:src|href)="([^"]+)"')


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: bytes as they were sent, and in how many milliseconds."""

    status: int
    body: bytes
    sent: int
    milliseconds: float

    def json(self) -> Any:
        return json.loads(self.body)


class Browser:
    """One connection to a dashboard, kept open as browsers do."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self._token = ""
        self._used_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str) -> Answer:
        """A page, compressed as browsers ask for it. Raises if there is none."""
        return self._ask("GET", path, None, {"Accept-Encoding": "gzip"})

    def act(self, path: str, **fields: Any) -> Any:
        """An action, by the API; its data."""
        if not self._token:
            self._token = self.get("/api/v1/session").json()["csrf_token"]
        headers = {
            "Content-Type": "application/json",
            "X-CSRF-Token": self._token,
            "Sec-Fetch-Site": "same-origin",
        }
        return self._ask("POST", f"/api/v1{path}", json.dumps(fields).encode(), headers).json()["data"]

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        if time.monotonic() - self._used_at > IDLE_SECONDS:
            self._connection.close()  # the server may have done so; a request opens it again
        if self._connection.sock is None:
            self._connection.connect()
        began = time.perf_counter()
        self._connection.request(method, path, body, dict(headers))
        response = self._connection.getresponse()
        content = response.read()
        self._used_at = time.monotonic()
        took = 1000 * (time.perf_counter() - began)
        sent = len(content)
        if response.headers.get("Content-Encoding") == "gzip":
            content = gzip.decompress(content)
        if response.status >= 400:
            raise RuntimeError(f"{path}: {response.status} {content[:500]!r}")
        return Answer(response.status, content, sent, took)


def address(*segments: object, **query: object) -> str:
    """The path of a page."""
    path = "/" + "/".join(quote(str(segment), safe="") for segment in segments)
    return f"{path}?{urlencode(query)}" if query else path


@dataclass(frozen=True, slots=True)
class Times:
    """How long a page took in each round, in milliseconds; and bytes as they were sent.

    processor: time of the processor, of the dashboard and of its sessions in the database. On a busy machine
    it says more than the other one.
    """

    values: tuple[float, ...]
    processor: tuple[float, ...]
    sent: int

    @property
    def p50(self) -> float:
        return report.percentile(self.values, 0.5)

    @property
    def p95(self) -> float:
        return report.percentile(self.values, 0.95)

    @property
    def processor_p50(self) -> float:
        return report.percentile(self.processor, 0.5)

    def __add__(self, other: Times) -> Times:
        return Times(self.values + other.values, self.processor + other.processor, other.sent)


def timed(
    browser: Browser, pages: Mapping[str, str], rounds: int, meter: Callable[[], float]
) -> dict[str, Times]:
    """Each page so many times, one after the other in each round; the first round does not count."""
    found: dict[str, Times] = {}
    for number in range(rounds + 1):
        for name, path in pages.items():
            before = meter()
            answer = browser.get(path)
            one = Times((answer.milliseconds,), (1000 * (meter() - before),), answer.sent)
            if number:
                found[name] = found[name] + one if name in found else one
    return found


def cursor_of(browser: Browser, queue: str, state: str, messages: int) -> str:
    """The cursor behind so many messages of a list."""
    after, left = "", messages
    while left:
        size = min(left, 500)
        query: dict[str, object] = {"state": state, "page_size": size}
        page = browser.get(
            "/api/v1" + address("queues", queue, "messages", **query, **({"after": after} if after else {}))
        ).json()
        after = page["next_after"]
        left -= size
    return after


@dataclass(frozen=True, slots=True)
class Load:
    """What a browser loads for a page, with an empty cache, the stream not counted."""

    requests: int
    sent: int
    own_script: int
    script_sent: int


def first_load(browser: Browser, path: str) -> Load:
    """Load a page, and each file that it names once."""
    page = browser.get(path)
    files: Sequence[str] = list(dict.fromkeys(each.decode() for each in REFERENCE.findall(page.body)))
    answers = {name: browser.get(name) for name in files}
    own = next(answer for name, answer in answers.items() if name.endswith("/app.js"))
    return Load(
        1 + len(answers), page.sent + sum(each.sent for each in answers.values()), len(own.body), own.sent
    )
