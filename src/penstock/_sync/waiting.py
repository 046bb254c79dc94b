# Written by tools/unasync.py from src/penstock/_async/waiting.py:
# change that, run `make generate`.

"""Waiting for the end of a message: notifications, with polling behind them."""

from __future__ import annotations

from penstock import calls
from penstock.backoff import Backoff
from penstock.concurrency import Flag, now
from penstock.errors import NotFound
from penstock.models import MessageResult

from .client import Client

__all__ = ["finished"]

FIRST_POLL_SECONDS = 0.05
LONGEST_POLL_SECONDS = 1.0
# While notifications are heard: for what ends without one, as a time to live does.
LONGEST_POLL_LISTENING_SECONDS = 2.0


def finished(client: Client, queue_name: str, message_id: int, timeout: float | None) -> MessageResult | None:
    """The message when it is done or dead; None where that took too long."""
    deadline = None if timeout is None else now() + timeout
    flag, backoff = Flag(), Backoff(FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS)
    channel = client._runtime.listen_done(queue_name, flag, message_id)
    try:
        while True:
            flag.clear()
            found = client._run(calls.get_result(queue_name, message_id))
            if found is None:
                raise NotFound(
                    f"queue {queue_name!r} has no message {message_id}, or has not kept it after it was done"
                )
            if found.state in ("done", "dead"):
                return found
            pause = backoff.next()
            if channel is not None and client._runtime.hears(channel):
                pause = LONGEST_POLL_LISTENING_SECONDS
            if deadline is not None:
                pause = min(pause, deadline - now())
                if pause <= 0:
                    return None
            flag.wait(pause)
    finally:
        client._runtime.unlisten(channel, flag)
