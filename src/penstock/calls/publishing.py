"""Calls that publish and send messages."""

from __future__ import annotations

from typing import Any

from penstock.message_options import Batch, Options
from penstock.payloads import Stored
from penstock.sql_call import NULL, Call, Repeat, call_with

from .parsing import value, values

__all__ = ["publish_message", "publish_messages", "send_message", "send_messages"]


def publish_message(topic_name: str, stored: Stored, options: Options) -> Call[int]:
    return _one("publish_message", {"topic_name": topic_name}, stored, options)


def send_message(queue_name: str, stored: Stored, options: Options) -> Call[int]:
    return _one("send_message", {"queue_name": queue_name}, stored, options)


def _one(function: str, arguments: dict[str, Any], stored: Stored, options: Options) -> Call[int]:
    if isinstance(stored, str):
        arguments["payload"] = stored
    else:
        arguments["payload"], arguments["body"] = NULL, stored
    options.add_to(arguments)
    return call_with(
        function, value, "*", Repeat.NEVER if options.dedup_key is None else Repeat.SAFE, arguments
    )


def publish_messages(topic_name: str, batch: Batch, options: Options) -> Call[list[int]]:
    return _many("publish_messages", {"topic_name": topic_name}, batch, options)


def send_messages(queue_name: str, batch: Batch, options: Options) -> Call[list[int]]:
    return _many("send_messages", {"queue_name": queue_name}, batch, options)


def _many(function: str, arguments: dict[str, Any], batch: Batch, options: Options) -> Call[list[int]]:
    is_keyed = options.dedup_key is not None or batch.is_keyed
    arguments |= batch.arguments()
    options.add_to(arguments)
    return call_with(function, values, "*", Repeat.SAFE if is_keyed else Repeat.NEVER, arguments)
