"""What the SDK of Sentry would send, kept."""

from __future__ import annotations

from typing import Any, Protocol

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

__all__ = ["Kept", "Start"]


class Kept(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__({"dsn": "https://key@example.org/1"})
        self.items = list[tuple[str | None, Any]]()

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [(item.type, item.payload.json) for item in envelope.items]

    def events(self) -> list[Any]:
        return [payload for kind, payload in self.items if kind == "event"]

    def transactions(self) -> list[Any]:
        return [payload for kind, payload in self.items if kind == "transaction"]

    def transaction(self) -> Any:
        [found] = self.transactions()
        return found

    def spans(self) -> list[Any]:
        """Of trace_lifecycle="stream"."""
        sentry_sdk.flush()
        return [span for kind, payload in self.items if kind == "span" for span in payload["items"]]


class Start(Protocol):
    """Starts Sentry for a test, with these options of sentry_sdk.init()."""

    def __call__(self, **options: Any) -> Kept: ...
