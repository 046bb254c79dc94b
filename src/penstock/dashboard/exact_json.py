"""JSON for the browser, and JSON of the database laid out for people without parsing it.

Text is not parsed, so a number stays as it is stored: large integers are not rounded, decimals keep zeros.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

__all__ = ["dump", "pretty", "pretty_text"]

INDENT = "  "
# They occur in strings only.
TURNING = {
    code: f"\\u{code:04x}" for code in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def dump(value: Any) -> bytes:
    """Write a data object as JSON."""
    return _ENCODER.encode(value)


def pretty(value: Any) -> str:
    """The same on several lines, for people: characters that turn text round are written as escapes."""
    return msgspec.json.format(dump(value), indent=2).decode().translate(TURNING)


def pretty_text(text: str, most: int) -> str:
    """JSON on several lines: at most a little more than so many characters.

    The text may be cut, nested deeply, or no JSON at all.
    """
    parts: list[str] = []
    size = depth = 0
    was_opened = False
    for match in _TOKEN.finditer(text):
        mark = match[0]
        is_end = mark in ("}", "]")
        depth = max(0, depth - is_end)
        line = "\n" + INDENT * depth
        part = line + mark if was_opened != is_end else mark
        was_opened = mark in ("{", "[")
        depth += was_opened
        if mark == ",":
            part += line
        elif mark == ":":
            part += " "
        parts.append(part)
        size += len(part)
        if size > most:
            break
    return "".join(parts).translate(TURNING)


def _other(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise NotImplementedError(f"no JSON for {type(value)}")


_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}\[\]:,]|[^\s"{}\[\]:,]++', re.S)
_ENCODER = msgspec.json.Encoder(enc_hook=_other)
