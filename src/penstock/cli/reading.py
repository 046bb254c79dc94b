"""What publish and send read: payloads in whatever form, from a file or a pipe, line by line."""

# ruff: noqa: PLC0415 - msgspec is imported when there is something to parse

from __future__ import annotations

import math
import os
import re
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from penstock.errors import PenstockError

from .failures import Failure
from .interrupts import Interrupts

if TYPE_CHECKING:
    from penstock.payloads import Encoded

__all__ = ["BadLine", "Group", "Parse", "Source", "Unreadable", "envelope", "json", "raw", "text"]

# The payload of a message, or a NewMessage.
Parse = Callable[[bytes], Any]

BOM = b"\xef\xbb\xbf"
STDIN = "stdin"
READ_BYTES = 1 << 20
# What is sent in one transaction, as the client has it; and not too much in memory.
GROUP_MESSAGES = 20_000
GROUP_BYTES = 4_000_000
# From a pipe, what comes within so long.
GATHER_SECONDS = 0.05
# Text of JSON may be longer than what is stored of it, which is 256 MB at the most.
LONGEST_BYTES = 400_000_000
SHORT_BYTES = 1000
# Numbers that may be too small or too long for a numeric of PostgreSQL.
SMALL = re.compile(rb"[0-9][eE][-+]?[0-9]{4}")
LONG_DIGITS = 10_000
LONG = re.compile(rb"[0-9]{%d}" % LONG_DIGITS)

# What an envelope may say of its message.
OPTIONS = ("priority", "tenant", "headers", "ttl", "delay", "deliver_after", "dedup_key")


class Unreadable(ValueError):  # noqa: N818 - named for what happened, as those of penstock.errors
    """It is not what it was said to be; says why."""


class TooLong(Exception):  # noqa: N818
    """The next line is."""


class BadLine(Exception):  # noqa: N818
    """A line that cannot be sent."""

    def __init__(self, number: int, fault: str) -> None:
        super().__init__(fault)
        self.number = number
        self.fault = fault


# Forms of a payload


def json(data: bytes) -> Encoded:
    """As it is written, where PostgreSQL can hold that: Python would round numbers of many digits."""
    import penstock.payloads as payloads  # noqa: PLR0402 - half the time of the other way to say it

    found = value(data)
    if SMALL.search(data) or (len(data) > LONG_DIGITS and _is_long(data)):
        return storable(found)
    return payloads.Encoded(_utf8(data))


def _is_long(data: bytes) -> bool:
    from penstock.payloads import MAX_BYTES

    return len(data) > MAX_BYTES or LONG.search(data) is not None


def value(data: bytes) -> Any:
    """What the JSON stands for."""
    found = _decode(data)
    # In so few bytes nothing is nested too deeply, and the decoder refuses all that is no JSON.
    if len(data) > SHORT_BYTES or b"\\u0000" in data:
        storable(found)
    return found


def _decode(data: bytes, kind: Any = Any) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        _utf8(data)  # whether it is that, and where
        what = "no JSON" if kind is Any else "no envelope"
        raise Unreadable(f"{what}: {str(exc).removeprefix('JSON is malformed: ')}") from None
    except RecursionError:
        raise Unreadable("JSON that is nested too deeply") from None


def text(data: bytes) -> Encoded:
    return storable(_utf8(data))


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise Unreadable(
            f"no UTF-8: byte {data[exc.start]:#04x} at position {exc.start}; --raw sends bytes as they are"
        ) from None


def raw(data: bytes) -> Encoded:
    return storable(data)


def envelope(data: bytes) -> Any:
    """A message with options of its own, as consume --json prints it."""
    from msgspec import UNSET

    from penstock.models import NewMessage

    found = _decode(data, _envelope_type())
    if found.body is not None:
        if found.payload is not UNSET and bytes(found.payload) != b"null":
            raise Unreadable("no envelope: it has both a payload and a body")
        payload = raw(found.body)
    elif found.payload is UNSET:
        raise Unreadable("no envelope: there is no payload in it")
    else:
        payload = json(bytes(found.payload))
    storable(found.headers)
    return NewMessage(payload, **{name: getattr(found, name) for name in OPTIONS})


@lru_cache
def _envelope_type() -> Any:
    """Knows what a message may have; what other commands tell of one that is there may stand in it, too."""
    from msgspec import UNSET, Meta, Raw, defstruct

    from penstock.models import DeadLetter, ListedMessage, MessageDetails

    number = Annotated[float, Meta(ge=0)] | None
    known: dict[str, tuple[Any, Any]] = {
        "payload": (Raw, UNSET),
        "body": (bytes | None, None),
        "priority": (Annotated[int, Meta(ge=0, le=3)] | None, None),
        "tenant": (str | None, None),
        "headers": (dict[str, Any] | None, None),
        "ttl": (number, None),
        "delay": (number, None),
        "deliver_after": (Annotated[datetime, Meta(tz=True)] | None, None),
        "dedup_key": (str | None, None),
    }
    listed = {field.name for model in (DeadLetter, ListedMessage, MessageDetails) for field in fields(model)}
    ignored = sorted((listed | {"id", "token", "attempt"}) - known.keys())
    every = [(name, *known[name]) for name in known] + [(name, Any, None) for name in ignored]
    return defstruct("Envelope", every, forbid_unknown_fields=True)


def storable(payload: Any) -> Encoded:
    """The payload as it is stored, if PostgreSQL can hold it."""
    from penstock.payloads import Encoded, encode

    try:
        return Encoded(encode(payload))
    except PenstockError as exc:
        raise Unreadable(str(exc)) from None


# Where payloads come from


@dataclass(frozen=True, slots=True)
class Group:
    """Messages of lines that stand next to each other, and how many bytes were read so far."""

    items: list[Any]
    first_line: int
    last_line: int
    read_bytes: int


@dataclass(frozen=True, slots=True)
class Source:
    """An open file, or stdin."""

    name: str
    descriptor: int

    @classmethod
    @contextmanager
    def open(cls, path: str | None) -> Iterator[Source]:
        """The file of that name; stdin for None or `-`."""
        if path is None or path == "-":
            if sys.stdin is None:
                raise Failure("stdin is closed")
            yield cls(STDIN, sys.stdin.fileno())
            return
        try:
            with Path(path).open("rb", buffering=0) as file:
                yield cls(path, file.fileno())
        except OSError as exc:
            if str(exc.filename) != path:
                raise
            raise Failure(f"{path}: {exc.strerror}") from None

    @property
    def size(self) -> int | None:
        """How many bytes there are; None where that is not known: it is a pipe."""
        status = os.fstat(self.descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        return max(0, status.st_size - os.lseek(self.descriptor, 0, os.SEEK_CUR))

    def read(self, interrupts: Interrupts) -> bytes:
        """All of it, as one payload."""
        parts, total = [], 0
        # What is too long is not even begun, where that is known.
        while max(total, self.size or 0) <= LONGEST_BYTES and (data := self._read(interrupts)):
            parts.append(data)
            total += len(data)
        if max(total, self.size or 0) > LONGEST_BYTES:
            raise Failure(f"{self.name} is more than {LONGEST_BYTES:,} bytes: too much for one message")
        return b"".join(parts)

    def check(self, parse: Parse, interrupts: Interrupts, show: Callable[[Group], None]) -> None:
        """Read all lines of a file, and go back to where it was. Raises BadLine."""
        start = os.lseek(self.descriptor, 0, os.SEEK_CUR)
        for group in self.groups(parse, interrupts):
            show(group)
        os.lseek(self.descriptor, start, os.SEEK_SET)

    def groups(self, parse: Parse, interrupts: Interrupts) -> Iterator[Group]:
        """The lines that are not empty, parsed.

        From a pipe what has come is given out without waiting long for more. Raises BadLine, after all lines
        that stand before it were given out.
        """
        items: list[Any] = []
        number, first, read_bytes, start_bytes = 0, 1, 0, 0
        is_file, until = self.size is not None, math.inf
        try:
            for lines in self._lines(interrupts):
                for line in lines:
                    number += 1
                    read_bytes += len(line) + 1
                    if data := line if parse is raw else _content(line, is_first=number == 1):
                        items.append(parse(data))
                    if items and (len(items) >= GROUP_MESSAGES or read_bytes - start_bytes >= GROUP_BYTES):
                        yield Group(items, first, number, read_bytes)
                        items, first, start_bytes = [], number + 1, read_bytes
                until = min(until, time.monotonic() + GATHER_SECONDS) if items else math.inf
                if items and not is_file and not self._has_more(until):
                    yield Group(items, first, number, read_bytes)
                    items, first, start_bytes, until = [], number + 1, read_bytes, math.inf
        except TooLong:
            if items:
                yield Group(items, first, number, read_bytes)
            raise BadLine(number + 1, f"more than {LONGEST_BYTES:,} bytes") from None
        except Unreadable as exc:
            if items:
                yield Group(items, first, number - 1, read_bytes)
            raise BadLine(number, str(exc)) from None
        if items:
            yield Group(items, first, number, read_bytes)

    def _has_more(self, until: float) -> bool:
        """Whether there is more to read, or its end, before that moment."""
        seconds = until - time.monotonic()
        return seconds > 0 and bool(select.select([self.descriptor], [], [], seconds)[0])

    def _lines(self, interrupts: Interrupts) -> Iterator[list[bytes]]:
        """Lines, some at a time."""
        begun: list[bytes] = []
        length = 0
        while data := self._read(interrupts):
            first, *others = data.split(b"\n")
            begun.append(first)
            length += len(first)
            if others:
                others.insert(0, b"".join(begun))
                last = others.pop()
                begun, length = [last], len(last)
            if length > LONGEST_BYTES:
                yield others
                raise TooLong
            yield others
        if length:
            yield [b"".join(begun)]

    def _read(self, interrupts: Interrupts) -> bytes:
        try:
            with interrupts.breakable():
                while True:
                    try:
                        return os.read(self.descriptor, READ_BYTES)
                    except BlockingIOError:
                        select.select([self.descriptor], [], [])
        except OSError as exc:
            raise Failure(f"{self.name}: {exc.strerror}") from None


def _content(line: bytes, *, is_first: bool) -> bytes:
    """What is in a line, without what only ends or begins it; nothing in one that is blank."""
    if is_first:
        line = line.removeprefix(BOM)
    line = line.removesuffix(b"\r")
    return b"" if line.isspace() else line
