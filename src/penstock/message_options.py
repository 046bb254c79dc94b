"""Options of messages to publish: for all, for a single message, and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from .errors import InvalidArgument
from .models import NewMessage
from .payloads import Codec, Stored, encode, encode_all, encode_json
from .sql_call import json_array
from .values import Duration, interval, moment, seconds
from .wording import shown

__all__ = ["CHUNK", "CHUNK_BYTES", "Batch", "Batched", "Options", "batches"]

# The most messages, and bytes, in one statement.
CHUNK = 1000
CHUNK_BYTES = 1_000_000


class Options(msgspec.Struct, frozen=True):
    """Options of a message at its publish."""

    delay: Duration | None = None
    deliver_after: datetime | None = None
    priority: int | None = None
    tenant: str | None = None
    headers: Mapping[str, Any] | None = None
    ttl: Duration | None = None
    dedup_key: str | None = None

    def with_own(self, message: NewMessage) -> Options:
        """The options of a message whose common options are these."""
        given = {
            name: own for name in Options.__struct_fields__ if (own := getattr(message, name)) is not None
        }
        if "delay" in given or "deliver_after" in given:
            given = {"delay": None, "deliver_after": None} | given
        return msgspec.structs.replace(self, **given)

    def add_to(self, arguments: dict[str, Any]) -> None:
        """Add the options that are given to the arguments of the SQL function."""
        if self.delay is not None:
            if self.deliver_after is not None:
                raise InvalidArgument(
                    "either delay or deliver_after, not both: "
                    f"{shown(self.delay)}, {shown(self.deliver_after)}"
                )
            arguments["delay"] = (repr(interval("delay", self.delay)),)
        elif self.deliver_after is not None:
            arguments["deliver_after"] = moment("deliver_after", self.deliver_after)
        if self.priority is not None:
            arguments["priority"] = self.priority
        if self.tenant is not None:
            arguments["tenant"] = self.tenant
        if self.headers is not None:
            arguments["headers"] = encode_headers(self.headers)
        if self.ttl is not None:
            arguments["ttl_seconds"] = seconds("ttl", self.ttl)
        if self.dedup_key is not None:
            arguments["dedup_key"] = self.dedup_key


def encode_headers(headers: Mapping[str, Any] | None) -> str | None:
    """Headers as JSON text; None stays None."""
    if headers is None:
        return None
    if type(headers) is dict:
        if len(headers) == 1:
            ((name, header),) = headers.items()
            if type(header) is str:
                return _encode_header(name, header)
        return encode_json(headers, "headers")
    if not isinstance(headers, Mapping):
        raise InvalidArgument(f"headers must be a mapping, not {shown(headers)}")
    return encode_json(dict(headers), "headers")


@lru_cache(maxsize=1024)
def _encode_header(name: str, header: str) -> str:
    """One header of text: most messages have no more than the name of their task."""
    return encode_json({name: header}, "headers")


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages to publish in one call, each with its options.

    document: payloads of messages without options of their own, as one JSON array; else `stored` and `own`.
    """

    stored: Sequence[Stored] = ()
    own: Sequence[NewMessage | None] = ()
    document: str | None = None

    @property
    def is_keyed(self) -> bool:
        """Whether each message has a dedup key of its own."""
        return self.document is None and all(own and own.dedup_key for own in self.own)

    @property
    def size(self) -> int:
        """How long the payloads are together."""
        return sum(map(len, self.stored)) if self.document is None else len(self.document)

    def arguments(self) -> dict[str, Any]:
        """The batch as arguments of the SQL function: arrays for options that any message has of its own."""
        if self.document is not None:
            return {"documents": (self.document,)}
        json = [stored for stored in self.stored if isinstance(stored, str)]
        arguments: dict[str, Any]
        if len(json) == len(self.stored):
            arguments = {"documents": (f"[{','.join(json)}]",)}
        else:
            json_or_null = [stored if isinstance(stored, str) else None for stored in self.stored]
            raw_or_null = [stored if isinstance(stored, bytes) else None for stored in self.stored]
            arguments = {"payloads": json_or_null, "bodies": raw_or_null}
        if any(own is not None for own in self.own):
            arguments |= self._own_arguments()
        return arguments

    def _own_arguments(self) -> dict[str, Any]:
        own = [_own_options(message) for message in self.own]
        arguments: dict[str, Any] = {
            "priorities": [options.get("priority") for options in own],
            "tenants": [options.get("tenant") for options in own],
            "headers_list": [options.get("headers") for options in own],
            "ttls": [options.get("ttl_seconds") for options in own],
            "dedup_keys": [options.get("dedup_key") for options in own],
            "deliver_afters": [options.get("deliver_after") for options in own],
        }
        given = {name: values for name, values in arguments.items() if any(v is not None for v in values)}
        delays = [options.get("delay") for options in own]
        if any(delay is not None for delay in delays):
            moments = given.pop("deliver_afters", [None] * len(own))
            given["deliver_delays"] = (
                json_array(moments),
                json_array(delay and delay[0] for delay in delays),
            )
        return given


def _own_options(message: NewMessage | None) -> dict[str, Any]:
    arguments = dict[str, Any]()
    if message is not None:
        Options(**{name: getattr(message, name) for name in Options.__struct_fields__}).add_to(arguments)
    return arguments


@dataclass(frozen=True, slots=True)
class Batched:
    """Payloads that the caller can encode in batches, in less time than one by one."""

    payloads: Iterable[Any]
    batches: Callable[[], Iterator[Batch]]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.payloads)


def batches(items: Sequence[object], codec: Codec[Any] | None, size: int) -> Iterator[Batch]:
    """Split payloads, and messages with options of their own, into batches of so many bytes."""
    if codec is None and items and (document := encode_all(items, size)) is not None:
        yield Batch(document=document)
        return
    stored, own, total = list[Stored](), list[NewMessage | None](), 0
    for item in items:
        new = item if isinstance(item, NewMessage) else None
        encoded = encode(item if new is None else new.payload, codec)
        if stored and total + len(encoded) > size:
            yield Batch(stored, own)
            stored, own, total = [], [], 0
        stored.append(encoded)
        own.append(new)
        total += len(encoded)
    if stored:
        yield Batch(stored, own)
