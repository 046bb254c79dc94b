"""Payloads: how a Python value is stored, and how a stored value is read.

A payload is a JSON value, or bytes, or an instance of a model: a dataclass, a msgspec struct, a pydantic
model. A value that PostgreSQL cannot store is refused before it is sent, with the path to the value.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import msgspec

from .errors import PayloadInvalid, PayloadTooLarge
from .wording import shown

__all__ = [
    "MAX_BYTES",
    "UNREADABLE",
    "Codec",
    "Columns",
    "Encoded",
    "Json",
    "Stored",
    "codec_of",
    "columns_of",
    "decode",
    "encode",
    "encode_all",
    "encode_json",
    "fault_of",
    "harmless",
    "load_headers",
    "load_json",
]

T = TypeVar("T")

# A JSON value; not written as a recursive type, which would refuse a dict[str, int].
Json: TypeAlias = Any

# As sent to the database: JSON as text, or bytes.
Stored: TypeAlias = "str | bytes"

# Deeper nesting can exceed the stacks of PostgreSQL's parser and Python's own.
MAX_DEPTH = 500
# The largest max_payload_bytes of a queue.
MAX_BYTES = 256_000_000
# Limits for the text of foreign errors, which may quote values: so many faults, of so many characters.
MOST_FAULTS = 3
MOST_TEXT = 200
# msgspec quotes a value that is not in an enumeration.
QUOTED = re.compile(r"^(Invalid (?:enum )?value) .*?(?= - at `|$)", re.DOTALL)
# The only field of the object that replaces an unreadable value; it says why the value is unreadable.
UNREADABLE = "penstock_unreadable"
# From this number on Python writes a float with an exponent.
EXPONENT_FROM = 1e16


@runtime_checkable
class Codec(Protocol[T]):
    """Turns a value into a JSON value or bytes, and back; raises ValueError if the value does not fit."""

    def encode(self, value: T, /) -> Json: ...

    def decode(self, stored: Json, /) -> T: ...


_encode_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode_plain = msgspec.json.Encoder().encode
_decode_first = json.JSONDecoder().raw_decode
_SCALARS = frozenset({str, int, bool, type(None)})
_CONTAINERS = (dict, list, tuple)
_BYTES = (bytes, bytearray, memoryview)


class Encoded(msgspec.Struct, frozen=True):
    """A checked payload in its stored form, for example with numbers as they were written."""

    stored: Stored


def encode(payload: object, codec: Codec[Any] | None = None) -> Stored:
    """Encode a payload for the database."""
    if type(payload) is Encoded:
        return payload.stored
    plain = payload if codec is None else _convert(codec, payload)
    if isinstance(plain, _BYTES):
        return _sized(bytes(plain))
    if codec is None and not isinstance(plain, _CONTAINERS):
        own = _own_codec(cast("type", type(plain)))
        plain = plain if own is None else _convert(own, plain)
    return encode_json(plain)


Columns: TypeAlias = "dict[str, set[type]]"


def columns_of(rows: Sequence[Any]) -> Columns | None:
    """The types under each key of dicts that have the same keys and plain scalars only; None for all else.

    It goes by column, in loops of the interpreter: with more rows than keys, that takes half of the time of
    a step of Python for each value.
    """
    if set(map(type, rows)) != {dict} or set(map(len, rows)) != {len(rows[0])} or len(rows) < len(rows[0]):
        return None
    columns: Columns = {}
    for name in rows[0]:
        try:
            column = list(map(itemgetter(name), rows))
        except KeyError:
            return None
        columns[name] = types = set(map(type, column))
        # The sum of floats says whether one of them is too large, infinite or not a number.
        if type(name) is not str or not (
            types <= _SCALARS or (types == {float} and sum(map(abs, column)) < EXPONENT_FROM)
        ):
            return None
    return columns


def encode_all(payloads: Sequence[object], most: int, columns: Columns | None = None) -> str | None:
    """Many payloads as one JSON array, the same text as of encode(), in a fraction of the time.

    None, where one of them is not plain JSON, or where all of them have more than so many bytes.
    columns: what columns_of() found, if the caller has asked.
    """
    try:
        if columns is None and columns_of(payloads) is None and not _is_plain(payloads, MAX_DEPTH + 1):
            return None
        encoded = _encode_plain(payloads)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None  # encode() tells which one it is
    return None if len(encoded) > most or b"\\u0000" in encoded else encoded.decode()


def decode(stored: Stored, codec: Codec[T] | None) -> T:
    """Decode a stored payload."""
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
    """JSON as text that PostgreSQL stores, and that decodes to an equal value."""
    try:
        if _is_plain(plain, MAX_DEPTH) and b"\\u0000" not in (encoded := _encode_plain(plain)):
            return _sized(encoded).decode()
    except (ValueError, OverflowError, RecursionError):
        pass  # half of a surrogate pair, an integer beyond 64 bits, or a stack that is nearly full
    for path, fault in _faults(plain, name):
        raise PayloadInvalid(f"{path} {fault}")
    # Subclasses of the plain types, large numbers, a backslash before "u0000" are rare, but valid.
    try:
        text = _render(plain)
    except RecursionError:
        raise PayloadInvalid(f"{name} is nested deeper than the stack of this program is free for") from None
    _sized(text.encode())
    return text


def _render(value: Any) -> str:
    """JSON of a valid value. Avoids 1e+23, which PostgreSQL would read as an integer: another number."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_encode_text(key)}:{_render(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_render, value)) + "]"
    if isinstance(value, float) and abs(value) >= EXPONENT_FROM:
        return format(value, ".1f")
    return _encode_text(value)


def load_json(text: str) -> Json:
    """Decode JSON text as the database writes it: without surrounding blanks."""
    return _decode_first(text)[0]


def load_headers(text: str | None) -> dict[str, Any]:
    """Headers of a message; empty if it has none."""
    try:
        found = load_json(text) if text else {}
    except (ValueError, RecursionError) as exc:
        raise PayloadInvalid(f"the headers cannot be read by Python: {exc}") from exc
    return found if isinstance(found, dict) else {}


def codec_of(model: Any) -> Codec[Any]:
    """The codec of a model: the model itself if it is a codec, else a codec that validates its type."""
    if isinstance(model, Codec) and not isinstance(model, type):
        return model
    return _model_codec(model)


@lru_cache(maxsize=1024)
def _model_codec(model: Any) -> Codec[Any]:
    return _PydanticCodec(model) if is_pydantic(model) else _ModelCodec(model)


@lru_cache(maxsize=1024)
def _own_codec(cls: type) -> Codec[Any] | None:
    """The codec for an instance of a model; None for plain values."""
    return _model_codec(cls) if is_model(cls) else None


def is_model(cls: type) -> bool:
    """Whether a class is a model: a dataclass, a struct, a pydantic model."""
    return dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) or is_pydantic(cls)


def is_pydantic(model: Any) -> bool:
    return hasattr(model, "__pydantic_validator__")


@dataclasses.dataclass(frozen=True, slots=True)
class _ModelCodec(Generic[T]):
    """For a dataclass, a struct, or any type that msgspec knows."""

    model: type[T]

    def encode(self, value: T) -> Json:
        plain = msgspec.to_builtins(value, str_keys=True)
        # A dataclass does not check its values: only decoding finds values that do not fit.
        msgspec.convert(plain, self.model, str_keys=True)
        return plain

    def decode(self, stored: Json) -> T:
        return msgspec.convert(stored, self.model, str_keys=True)


class _PydanticCodec:
    """For a pydantic model or dataclass. A program with such a model has pydantic installed."""

    def __init__(self, model: Any) -> None:
        from pydantic import TypeAdapter  # noqa: PLC0415

        self.model = model
        self._adapter = TypeAdapter(model)

    def encode(self, value: Any) -> Json:
        # Through JSON, because a strict model reads a date or a UUID only from JSON text.
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
    """What is wrong with a value, without the value, because errors are logged and kept in dead letters."""
    if type(exc).__module__.startswith("pydantic") and hasattr(exc, "errors"):
        faults = exc.errors(include_url=False, include_input=False, include_context=False)
        texts = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".removeprefix(": ") for fault in faults]
        more = f"; {len(texts) - MOST_FAULTS} more" if len(texts) > MOST_FAULTS else ""
        return "; ".join(_cut(text) for text in texts[:MOST_FAULTS]) + more
    return _cut(QUOTED.sub(r"\1", str(exc)))


def harmless(exc: BaseException) -> BaseException | None:
    """The exception, if its text has no more than fault_of() tells; it can then be the cause of another."""
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
    """Whether a value consists of JSON types only: fast, and the only check for most payloads."""
    cls = type(value)
    if cls in _SCALARS:
        return True
    if cls is float:
        return bool(-EXPONENT_FROM < value < EXPONENT_FROM)
    if cls is dict and depth:
        for key, item in value.items():
            if type(key) is not str:
                return False
            cls = type(item)
            # Not left to the call for the item: most items are one of these.
            if cls in _SCALARS or (cls is float and -EXPONENT_FROM < item < EXPONENT_FROM):
                continue
            if not _is_plain(item, depth - 1):
                return False
        return True
    if (cls is list or cls is tuple) and depth:
        # Not all() with a generator, which takes three times as much stack.
        for item in value:  # noqa: SIM110
            if not (type(item) in _SCALARS or _is_plain(item, depth - 1)):
                return False
        return True
    return False


def _faults(value: object, name: str) -> Iterator[tuple[str, str]]:
    """Each value that cannot be stored, with path and reason. No recursion: it may be deep or cyclic."""
    # For each open container: itself, its path, and its unchecked items.
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
