"""JSON in which a number stays the text that it was: large integers are not rounded, decimals keep zeros."""

from __future__ import annotations

import json
from typing import Any

import msgspec

__all__ = ["dump", "load", "pretty"]


def load(text: str) -> Any:
    """Read JSON. Numbers become `msgspec.Raw`: their text."""
    return _DECODER.decode(text)


def dump(value: Any) -> bytes:
    """Write a data object, or what load() returned, as JSON."""
    return _ENCODER.encode(value)


def pretty(value: Any) -> str:
    """The same on several lines, for people."""
    return msgspec.json.format(dump(value), indent=2).decode()


def _raw(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


def _other(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise NotImplementedError(f"no JSON for {type(value)}")


_DECODER = json.JSONDecoder(parse_int=_raw, parse_float=_raw, parse_constant=_raw)
_ENCODER = msgspec.json.Encoder(enc_hook=_other)
