"""Payloads: what is stored of a Python value, and what comes back.

A payload is what JSON can hold, or bytes, or an instance of a model: a dataclass, a msgspec struct, a
pydantic model. What PostgreSQL cannot store is refused before it is sent, with the path to the value.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import msgspec

from .errors import PayloadInvalid, PayloadTooLarge
from .wording import shown

__all__ = [
    "MAX_BYTES",
    "UNREADABLE",
    "Codec",
    "Encoded",
    "Json",
    "Stored",
    "codec_of",
    "decode",
    "encode",
    "encode_json",
    "fault_of",
    "harmless",
    "load_headers",
    "load_json",
]

T = TypeVar("T")

# What JSON can hold; not written as a recursive type, which would refuse a dict[str, int].
Json: TypeAlias = Any

# As it travels: JSON as text, or bytes.
Stored: TypeAlias = "str | bytes"

# PostgreSQL's parser and Python's own give up somewhere beyond, at a depth that depends on their stacks.
MAX_DEPTH = 500
# The most that max_payload_bytes of a queue can be.
MAX_BYTES = 256_000_000
# What is told of errors of others, which may quote what they were given: so many, of so many characters.
MOST_FAULTS = 3
MOST_TEXT = 200
# What msgspec quotes: a value that is none of an enumeration.
QUOTED = re.compile(r"^(Invalid (?:enum )?value) .*?(?= - at `|$)", re.DOTALL)
# The one field of the object that stands where the server, or Python, cannot read a value; it says why.
UNREADABLE = "penstock_unreadable"
# From here on Python writes a float with an exponent.
EXPONENT_FROM = 1e16


@runtime_checkable
class Codec(Protocol[T]):
    """Turns a value into what JSON can hold, or bytes, and back; raises ValueError where it does not fit."""

    def encode(self, value: T, /) -> Json: ...

    def decode(self, stored: Json, /) -> T: ...


_encode_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode_plain = msgspec.json.Encoder().encode
_decode_first = json.JSONDecoder().raw_decode
_SCALARS = frozenset({str, int, bool, type(None)})
_CONTAINERS = (dict, list, tuple)
_BYTES = (bytes, bytearray, memoryview)


class Encoded(msgspec.Struct, frozen=True):
    """A payload that has been checked, as it is to be stored: numbers as they were written, for one."""

    stored: Stored


def encode(payload: object, codec: Codec[Any] | None = None) -> Stored:
    """What to send for a payload."""
    if type(payload) is Encoded:
        return payload.stored
    plain = payload if codec is None else _convert(codec, payload)
    if isinstance(plain, _BYTES):
        return _sized(bytes(plain))
    if codec is None and not isinstance(plain, _CONTAINERS):
        own = _own_codec(cast("type", type(plain)))
        plain = plain if own is None else _convert(own, plain)
    return encode_json(plain)


def decode(stored: Stored, codec: Codec[T] | None) -> T:
    """The value that a stored payload stands for."""
    try:
        plain = load_json(stored) if isinstance(stored, str) else stored
    except (ValueError, RecursionError) as exc:
        raise PayloadInvalid(f"the payload cannot be read by Python: {exc}") from exc
    if codec is None:
        return cast("T", plain)
    try:
        return codec.decode(plain)
    except (ValueError, TypeError) as exc:
        raise _misfit(codec, exc) from harmless(exc)


def encode_json(plain: object, name: str = "payload") -> str:
    """JSON as text, such that PostgreSQL stores it and the same comes back."""
    try:
        if _is_plain(plain, MAX_DEPTH) and b"\\u0000" not in (encoded := _encode_plain(plain)):
            return _sized(encoded).decode()
    except (ValueError, OverflowError, RecursionError):
        pass  # half of a surrogate pair, an integer beyond 64 bits, a stack that is nearly full
    for path, fault in _faults(plain, name):
        raise PayloadInvalid(f"{path} {fault}")
    # Subclasses of the plain types, large numbers, a backslash before "u0000": rare, and well-formed.
    try:
        text = _render(plain)
    except RecursionError:
        raise PayloadInvalid(f"{name} is nested deeper than the stack of this program is free for") from None
    _sized(text.encode())
    return text


def _render(value: Any) -> str:
    """JSON of a value without a fault. PostgreSQL would read 1e+23 as an integer, which is another number."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_encode_text(key)}:{_render(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_render, value)) + "]"
    if isinstance(value, float) and abs(value) >= EXPONENT_FROM:
        return format(value, ".1f")
    return _encode_text(value)


def load_json(text: str) -> Json:
    """The value of JSON text, as the database writes it: without a blank around it."""
    return _decode_first(text)[0]


def load_headers(text: str | None) -> dict[str, Any]:
    """Headers of a message; empty where it is without."""
    try:
        found = load_json(text) if text else {}
    except (ValueError, RecursionError) as exc:
        raise PayloadInvalid(f"the headers cannot be read by Python: {exc}") from exc
    return found if isinstance(found, dict) else {}


def codec_of(model: Any) -> Codec[Any]:
    """The codec of a model: itself if it is one, else one that validates for its type."""
    if isinstance(model, Codec) and not isinstance(model, type):
        return model
    return _model_codec(model)


@lru_cache(maxsize=1024)
def _model_codec(model: Any) -> Codec[Any]:
    return _PydanticCodec(model) if is_pydantic(model) else _ModelCodec(model)


@lru_cache(maxsize=1024)
def _own_codec(cls: type) -> Codec[Any] | None:
    """The codec of a value that is an instance of a model; None for plain ones."""
    return _model_codec(cls) if is_model(cls) else None


def is_model(cls: type) -> bool:
    """Whether it is a class of models: a dataclass, a struct, a pydantic model."""
    return dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) or is_pydantic(cls)


def is_pydantic(model: Any) -> bool:
    return hasattr(model, "__pydantic_validator__")


@dataclasses.dataclass(frozen=True, slots=True)
class _ModelCodec(Generic[T]):
    """Of a dataclass, a struct, or any type that msgspec knows."""

    model: type[T]

    def encode(self, value: T) -> Json:
        plain = msgspec.to_builtins(value, str_keys=True)
        # A dataclass does not look at what it is given: only the way back tells whether it fits.
        msgspec.convert(plain, self.model, str_keys=True)
        return plain

    def decode(self, stored: Json) -> T:
        return msgspec.convert(stored, self.model, str_keys=True)


class _PydanticCodec:
    """Of a pydantic model or dataclass. The program that has one has pydantic."""

    def __init__(self, model: Any) -> None:
        from pydantic import TypeAdapter  # noqa: PLC0415

        self.model = model
        self._adapter = TypeAdapter(model)

    def encode(self, value: Any) -> Json:
        # By way of JSON, as a strict model reads a date or a UUID from nothing else but text of JSON.
        adapter = self._adapter
        if not isinstance(value, self.model):
            value = adapter.validate_json(encode_json(value))
        text = adapter.dump_json(value, by_alias=True, round_trip=True).decode()
        adapter.validate_json(text)
        return load_json(text)

    def decode(self, stored: Json) -> Any:
        return self._adapter.validate_json(_render(stored))


def _convert(codec: Codec[Any], payload: object) -> Json:
    try:
        return codec.encode(payload)
    except (ValueError, TypeError) as exc:
        raise _misfit(codec, exc) from harmless(exc)


def fault_of(exc: BaseException) -> str:
    """What is wrong with a value, without the value itself: errors are logged, and kept in dead letters."""
    if type(exc).__module__.startswith("pydantic") and hasattr(exc, "errors"):
        faults = exc.errors(include_url=False, include_input=False, include_context=False)
        texts = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".removeprefix(": ") for fault in faults]
        more = f"; {len(texts) - MOST_FAULTS} more" if len(texts) > MOST_FAULTS else ""
        return "; ".join(_cut(text) for text in texts[:MOST_FAULTS]) + more
    return _cut(QUOTED.sub(r"\1", str(exc)))


def harmless(exc: BaseException) -> BaseException | None:
    """The exception, where its own text has no more in it than fault_of() tells: as the cause of another."""
    return exc if fault_of(exc) == str(exc) else None


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 3]}..."


def _misfit(codec: Codec[Any], exc: BaseException) -> PayloadInvalid:
    return PayloadInvalid(f"the payload does not fit {_name(codec)}: {fault_of(exc)}")


def _name(codec: Codec[Any]) -> str:
    model = getattr(codec, "model", codec)
    return getattr(model, "__qualname__", None) or repr(model)


def _sized(stored: bytes) -> bytes:
    if len(stored) > MAX_BYTES:
        raise PayloadTooLarge(f"the payload has {len(stored)} bytes, of at most {MAX_BYTES}")
    return stored


def _is_plain(value: Any, depth: int) -> bool:  # noqa: PLR0911
    """Whether a value is made of nothing but the types of JSON: quick, and the only look at most payloads."""
    cls = type(value)
    if cls in _SCALARS:
        return True
    if cls is float:
        return bool(-EXPONENT_FROM < value < EXPONENT_FROM)
    if cls is dict and depth:
        for key, item in value.items():
            if type(key) is not str or not (type(item) in _SCALARS or _is_plain(item, depth - 1)):
                return False
        return True
    if (cls is list or cls is tuple) and depth:
        # Not all() of a generator: that takes three times as much of the stack.
        for item in value:  # noqa: SIM110
            if not (type(item) in _SCALARS or _is_plain(item, depth - 1)):
                return False
        return True
    return False


def _faults(value: object, name: str) -> Iterator[tuple[str, str]]:
    """Each value that cannot be stored: where it is, and why. No recursion: it may be deep, or endless."""
    # For each container that is open: itself, its path, and the items that are still to be looked at.
    above: list[tuple[object, str, Iterator[tuple[Any, Any]]]] = []
    path = name
    while True:
        if isinstance(value, _CONTAINERS):
            if any(value is container for container, _, _ in above):
                yield path, "contains itself"
            elif len(above) >= MAX_DEPTH:
                yield path[:100] + "...", f"is nested deeper than {MAX_DEPTH} levels"
            else:
                above.append((value, path, iter(_items(value))))
        elif fault := _scalar_fault(value):
            yield path, fault
        while above:
            following = next(above[-1][2], None)
            if following is not None:
                break
            above.pop()
        else:
            return
        container, outer, _ = above[-1]
        key, value = following
        if isinstance(container, dict) and (fault := _key_fault(key)):
            yield outer, f"has the key {shown(key)}: {fault}"
        path = f"{outer}[{shown(key)}]"


def _items(value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value)


def _key_fault(key: object) -> str | None:
    if not isinstance(key, str):
        return "keys in JSON are strings"
    fault = _text_fault(key)
    return fault and f"it {fault}"


def _scalar_fault(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else _text_fault(value)
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is {value!r}, which JSON cannot hold"
    if isinstance(value, int):
        try:
            _encode_text(value)
        except ValueError:
            return "is an integer of too many digits"
        return None
    advice = ": give bytes as the whole payload, not within JSON" if isinstance(value, bytes) else ""
    return f"is a {type(value).__qualname__}, which JSON cannot hold{advice}"


def _text_fault(text: str) -> str | None:
    if (position := text.find("\0")) >= 0:
        return f"has a NUL character at position {position}, which PostgreSQL cannot store"
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        return f"has half of a surrogate pair at position {exc.start}, which is no text"
    return None
