"""Calls that publish and send messages."""

from __future__ import annotations

from penstock.message_options import Batch, Options
from penstock.payloads import Stored
from penstock.sql_call import NULL, Call, Repeat, call

from .parsing import value, values

__all__ = ["publish_message", "publish_messages", "send_message", "send_messages"]


def publish_message(topic_name: str, stored: Stored, options: Options) -> Call[int]:
    return _one("publish_message", stored, options, topic_name=topic_name)


def send_message(queue_name: str, stored: Stored, options: Options) -> Call[int]:
    return _one("send_message", stored, options, queue_name=queue_name)


def _one(function: str, stored: Stored, options: Options, **target: str) -> Call[int]:
    is_json = isinstance(stored, str)
    return call(
        function,
        value,
        "*",
        Repeat.NEVER if options.dedup_key is None else Repeat.SAFE,
        **target,
        payload=stored if is_json else NULL,
        body=None if is_json else stored,
        **options.arguments(),
    )


def publish_messages(topic_name: str, batch: Batch, options: Options) -> Call[list[int]]:
    return _many("publish_messages", batch, options, topic_name=topic_name)


def send_messages(queue_name: str, batch: Batch, options: Options) -> Call[list[int]]:
    return _many("send_messages", batch, options, queue_name=queue_name)


def _many(function: str, batch: Batch, options: Options, **target: str) -> Call[list[int]]:
    keyed = options.dedup_key is not None or all(own and own.dedup_key for own in batch.own)
    return call(
        function,
        values,
        "*",
        Repeat.SAFE if keyed else Repeat.NEVER,
        **target,
        **batch.arguments(),
        **options.arguments(),
    )
