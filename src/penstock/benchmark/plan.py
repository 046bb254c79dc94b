"""What is measured, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BATCH", "MEASURES", "Plan"]

BATCH = 100
"""Messages in one call, where several go in one."""

MEASURES = {
    "round-trip": "select 1: the network and nothing else",
    "commit": "the smallest commit there is: the disk",
    "send": "one message a call, one sender",
    "send-batch": f"{BATCH} messages a call, one sender",
    "send-concurrent": "one message a call, several senders",
    "send-many": "all messages in one call",
    "drain": f"{BATCH} messages a call, claimed and acked, several consumers",
    "latency": "from send to receive, on an idle queue",
    "tasks": "tasks that do nothing, one worker process",
}
"""By name, in the order in which they are measured; each with what it does."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure. seconds: for how long one measure may go on, whatever it has got done by then."""

    messages: int = 10_000
    payload_bytes: int = 100
    senders: int = 4
    consumers: int = 4
    seconds: float = 10.0
    measures: tuple[str, ...] = tuple(MEASURES)
