# Written by tools/unasync.py from src/penstock/_async/publishing.py:
# change that, run `make generate`.

"""Publish and send: one message, or any number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from penstock import calls
from penstock.concurrency import Many, chunks
from penstock.errors import InvalidArgument, PayloadInvalid
from penstock.message_options import CHUNK, CHUNK_BYTES, Batch, Batched, Options, batches
from penstock.models import NewMessage
from penstock.payloads import Stored, encode
from penstock.sql_call import Call
from penstock.values import Duration, flag

from .call_runner import CallRunner, Progress

__all__ = ["Publishing"]

# Iterable types that are a single payload.
NO_ITERABLES = (str, bytes, bytearray, memoryview, Mapping)


class Publishing(CallRunner):
    """Publishes messages to a topic, or sends them to one queue."""

    def publish(
        self,
        topic_name: str,
        payload: Any,
        *,
        delay: Duration | None = None,
        deliver_after: datetime | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: Duration | None = None,
        dedup_key: str | None = None,
        model: Any = None,
    ) -> int:
        """Publish a message to a topic: each of its queues gets it. Returns its id.

        payload: a JSON value, bytes, or an instance of a model. delay, deliver_after: the earliest delivery.
        priority: penstock.URGENT to LOW. tenant: tenants share a queue fairly. ttl: a message not done
        by then becomes a dead letter. dedup_key: while a message with that key is unfinished in any of the
        queues, nothing is published and the id of that message is returned. With a key, the client repeats a
        call whose connection was lost; if the first message is finished by then, it is published again.
        model: the model that the payload has to fit.
        """
        options = Options(delay, deliver_after, priority, tenant, headers, ttl, dedup_key)
        stored = self._stored(payload, model)
        return self._run(calls.publish_message(topic_name, stored, options))

    def publish_many(
        self,
        topic_name: str,
        payloads: Many,
        *,
        delay: Duration | None = None,
        deliver_after: datetime | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: Duration | None = None,
        dedup_key: str | None = None,
        model: Any = None,
        progress: Progress | None = None,
        atomic: bool = False,
    ) -> list[int]:
        """Publish any number of messages to a topic, from any iterable. Returns their ids in order.

        An option holds for all; a message with its own options is a penstock.NewMessage. progress is called
        with the number of messages sent so far. A client commits every 20,000 messages, or once with
        atomic=True. An error has the ids of the committed messages in its `published`.
        """
        options = Options(delay, deliver_after, priority, tenant, headers, ttl, dedup_key)
        many = self._calls(payloads, model, lambda batch: calls.publish_messages(topic_name, batch, options))
        return self._run_checked(many, progress, atomic)

    def send(
        self,
        queue_name: str,
        payload: Any,
        *,
        delay: Duration | None = None,
        deliver_after: datetime | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: Duration | None = None,
        dedup_key: str | None = None,
        model: Any = None,
    ) -> int:
        """Send a message to one queue, without a topic. Returns its id. Options as in publish()."""
        options = Options(delay, deliver_after, priority, tenant, headers, ttl, dedup_key)
        stored = self._stored(payload, model)
        return self._run(calls.send_message(queue_name, stored, options))

    def send_many(
        self,
        queue_name: str,
        payloads: Many,
        *,
        delay: Duration | None = None,
        deliver_after: datetime | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: Duration | None = None,
        dedup_key: str | None = None,
        model: Any = None,
        progress: Progress | None = None,
        atomic: bool = False,
    ) -> list[int]:
        """Send any number of messages to one queue. Returns their ids in order. See publish_many()."""
        options = Options(delay, deliver_after, priority, tenant, headers, ttl, dedup_key)
        many = self._calls(payloads, model, lambda batch: calls.send_messages(queue_name, batch, options))
        return self._run_checked(many, progress, atomic)

    def _stored(self, payload: Any, model: Any) -> Stored:
        if isinstance(payload, NewMessage):
            raise PayloadInvalid("a NewMessage is for publish_many() and send_many(): give its payload")
        return encode(payload, self._codec_for(model))

    def _run_checked(
        self, many: Iterator[Call[list[int]]], progress: Progress | None, atomic: bool
    ) -> list[int]:
        if progress is not None and not callable(progress):
            raise InvalidArgument(f"progress must be callable, not {progress!r}")
        return self._run_many(many, progress, flag("atomic", atomic))

    def _calls(
        self, payloads: Many, model: Any, make: Callable[[Batch], Call[list[int]]]
    ) -> Iterator[Call[list[int]]]:
        if isinstance(payloads, NO_ITERABLES) or not isinstance(payloads, Iterable | Iterable):
            raise InvalidArgument(
                f"payloads must be an iterable of payloads, not a {type(payloads).__name__}"
            )
        codec = self._codec_for(model)
        if codec is None and isinstance(payloads, Batched):
            for batch in payloads.batches():
                yield make(batch)
            return
        for items in chunks(payloads, CHUNK):
            for batch in batches(items, codec, CHUNK_BYTES):
                yield make(batch)
