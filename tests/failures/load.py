"""A publisher and a consumer that work while a test does harm to the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock import Client, ConnectionLost, LeaseLost, NotReplicated
from tests.embedded.processes import eventually
from tests.failures.test_listener import Stream

STOP_SECONDS = 20


class Publisher:
    """Sends numbers one after the other in a thread, and keeps those whose send has returned."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stopped = False
        self._error: BaseException | None = None
        self.sent: list[int] = []
        self._thread = threading.Thread(target=self._run, name="publisher")
        self._thread.start()

    def _run(self) -> None:
        try:
            number = 0
            while not self._stopped:
                # A failover can lose a message that was not replicated. It is sent again, with its key.
                with suppress(NotReplicated):
                    self._client.send("q", number, dedup_key=f"key {number}")
                    self.sent.append(number)
                    number += 1
        except BaseException as exc:
            self._error = exc

    def wait_for(self, more: int, seconds: float) -> None:
        """Until so many more have been sent."""
        goal = len(self.sent) + more
        eventually(lambda: self._error or len(self.sent) >= goal, f"{more} were sent", seconds)
        assert self._error is None, self._error

    def stop(self) -> None:
        self._stopped = True
        self._thread.join(STOP_SECONDS)
        assert not self._thread.is_alive()
        assert self._error is None, self._error


class HardyStream(Stream):
    """A consumer whose loop survives an ack of which it is not known whether it has taken effect."""

    def _run(self) -> None:
        for message in self._consumer:
            with suppress(ConnectionLost, LeaseLost, NotReplicated):
                message.ack()
            self._got.put(message.payload)


@contextmanager
def hardy_stream(client: Client) -> Iterator[HardyStream]:
    # A message whose claim was under way comes back when its lease is over.
    stream = HardyStream(client, "q", visibility_timeout=2)
    try:
        yield stream
    finally:
        stream.stop()


def take(stream: Stream, sent: list[int]) -> None:
    """Until each number that was sent has come."""
    missing = set(sent)
    while missing:
        missing.discard(stream.next())
