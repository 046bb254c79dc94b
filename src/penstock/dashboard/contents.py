"""What a page shows of a payload, of headers or of a result: redacted, as JSON or bytes, and not too much."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from .exact_json import dump, load, pretty
from .redaction import Redaction

__all__ = ["MOST_READ", "MOST_REDACTED", "Content", "bytes_content", "json_content", "redacted"]

MOST_READ = 2_000_000
"""A page reads no more bytes of a value than that; what is larger can be downloaded."""
MOST_SHOWN = 20_000
MOST_HEX = 4_096
MOST_REDACTED = 64_000_000
"""JSON of more bytes is not taken apart, so it is not redacted, and not handed out where redaction is on."""
HEX_ROW = 16


@dataclass(frozen=True, slots=True)
class Content:
    """A value. size: its bytes. text: what is shown, cut at 20,000 characters; None if it is too large."""

    kind: Literal["json", "bytes"]
    size: int
    text: str | None
    is_cut: bool


async def json_content(text: str | None, size: int | None, redaction: Redaction, form: str) -> Content | None:
    """JSON of the database. form: "pretty" or "raw"."""
    if size is None:
        return None
    if text is None:
        return Content("json", size, None, True)
    shown = await _apart(_json_text, text, redaction, form)
    return Content("json", size, shown[:MOST_SHOWN], len(shown) > MOST_SHOWN)


async def bytes_content(body: bytes, size: int, redaction: Redaction, form: str) -> Content:
    """Bytes: as hexadecimal numbers, or as text if they are text. body: the first of them."""
    data = await _apart(redacted_bytes, body, redaction)
    if form != "hex":
        try:
            shown = data.decode()
        except UnicodeDecodeError as exc:
            if exc.start >= len(data) - 4 and len(body) < size:
                shown = data[: exc.start].decode()
            else:
                form = "hex"
        else:
            if "\x00" in shown:
                form = "hex"
    if form == "hex":
        return Content("bytes", size, _hex(data[:MOST_HEX]), max(len(data), size) > MOST_HEX)
    return Content("bytes", size, shown[:MOST_SHOWN], max(len(shown), size) > MOST_SHOWN)


def redacted(text: str, redaction: Redaction) -> bytes:
    """JSON of the database as JSON that may be shown, with every digit."""
    return text.encode() if not redaction.is_active else dump(redaction.apply(load(text)))


def redacted_bytes(body: bytes, redaction: Redaction) -> bytes:
    """Bytes as they are; if they are JSON, it is redacted, too."""
    if redaction.is_active and body.lstrip()[:1] in (b"{", b"["):
        try:
            return redacted(body.decode(), redaction)
        except (ValueError, RecursionError):
            return body
    return body


async def _apart(function: Any, value: Any, *arguments: Any) -> Any:
    """In a thread, if it takes long: other viewers do not wait for it."""
    if len(value) < 50_000:
        return function(value, *arguments)
    return await asyncio.to_thread(function, value, *arguments)


def _json_text(text: str, redaction: Redaction, form: str) -> str:
    try:
        value = redaction.apply(load(text))
        return pretty(value) if form == "pretty" else dump(value).decode()
    except (ValueError, RecursionError):
        # SQL may store thousands of levels, which Python does not read: so they cannot be redacted.
        return "[nested too deeply to be shown]" if redaction.is_active else text


def _hex(data: bytes) -> str:
    rows = []
    for start in range(0, len(data), HEX_ROW):
        row = data[start : start + HEX_ROW]
        letters = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        rows.append(f"{start:08x}  {row.hex(' '):<{3 * HEX_ROW}} {letters}")
    return "\n".join(rows)
