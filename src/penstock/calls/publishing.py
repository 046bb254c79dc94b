"""Calls that publish and send messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.message_options import Batch, Options
from penstock.payloads import Stored
from penstock.sql_call import NULL, Call, Repeat, Row, call_with

from .parsing import value, values

__all__ = ["publish_message", "publish_messages", "send_message", "send_messages"]

T = TypeVar("T")

# From here on what psycopg loses without a thread (deadlines.py) is more than a hundredth of a second.
LARGE_BYTES = 16_000_000


def publish_message(topic_name: str, stored: Stored, options: Options) -> Call[int]:
    return _one("publish_message", {"topic_name": topic_name}, stored, options, value)


def send_message(queue_name: str, stored: Stored, options: Options) -> Call[int]:
    return _one("send_message", {"queue_name": queue_name}, stored, options, value)


def _one(
    function: str,
    arguments: dict[str, Any],
    stored: Stored,
    options: Options,
    parse: Callable[[Sequence[Row]], T],
) -> Call[T]:
    if isinstance(stored, str):
        arguments["payload"] = stored
    else:
        arguments["payload"], arguments["body"] = NULL, stored
    options.add_to(arguments)
    call = call_with(
        function, parse, "*", Repeat.NEVER if options.dedup_key is None else Repeat.SAFE, arguments
    )
    return call if len(stored) < LARGE_BYTES else call.as_large()


def publish_messages(topic_name: str, batch: Batch, options: Options) -> Call[list[int]]:
    return _many("publish_message", {"topic_name": topic_name}, batch, options)


def send_messages(queue_name: str, batch: Batch, options: Options) -> Call[list[int]]:
    return _many("send_message", {"queue_name": queue_name}, batch, options)


def _many(function: str, arguments: dict[str, Any], batch: Batch, options: Options) -> Call[list[int]]:
    """A call of the function for one message, or of the one for many."""
    # Large messages come one by one. In an array the server would copy such a message at each step.
    if len(batch.stored) == 1:
        (stored,), (own,) = batch.stored, batch.own
        return _one(function, arguments, stored, options if own is None else options.with_own(own), values)
    is_keyed = options.dedup_key is not None or batch.is_keyed
    arguments |= batch.arguments()
    options.add_to(arguments)
    call = call_with(f"{function}s", values, "*", Repeat.SAFE if is_keyed else Repeat.NEVER, arguments)
    return call if batch.size < LARGE_BYTES else call.as_large()
