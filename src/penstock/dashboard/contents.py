"""What a page shows of a payload, of headers or of a result: redacted, as JSON or bytes, and not too much.

A page takes the beginning of a value only: a payload of many megabytes costs no more than a small one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .exact_json import pretty_text
from .redaction import Redaction

__all__ = ["MOST_READ", "Content", "bytes_content", "json_content"]

MOST_READ = 2_000_000
"""A page reads no more bytes of a value than that; what is larger can be downloaded."""
MOST_TAKEN = 60_000
MOST_SHOWN = 20_000
MOST_HEX = 4_096
HEX_ROW = 16


@dataclass(frozen=True, slots=True)
class Content:
    """A value. size: its bytes. text: what is shown, cut at 20,000 characters; None if it is too large.

    form: how it is shown; bytes that are no text are shown as "hex".
    """

    kind: Literal["json", "bytes"]
    size: int
    text: str | None
    is_cut: bool
    form: str


def json_content(text: str | None, size: int | None, redaction: Redaction, form: str) -> Content | None:
    """JSON of the database. form: "pretty", "raw" or "hex"."""
    if size is None:
        return None
    if text is None:
        return Content("json", size, None, True, form)
    shown = redaction.in_text(text[:MOST_TAKEN])
    if form == "hex":
        data = shown.encode()
        return Content("json", size, _hex(data[:MOST_HEX]), len(data) > MOST_HEX, form)
    if form == "pretty":
        shown = pretty_text(shown, MOST_SHOWN)
    return Content("json", size, shown[:MOST_SHOWN], len(text) > MOST_TAKEN or len(shown) > MOST_SHOWN, form)


def bytes_content(body: bytes, size: int, redaction: Redaction, form: str) -> Content:
    """Bytes: as hexadecimal numbers, or as text if they are text. body: the first of them."""
    data = redaction.in_bytes(body[:MOST_TAKEN])
    is_cut = size > MOST_TAKEN
    text = None if form == "hex" else _as_text(data, is_cut=is_cut)
    if text is None:
        return Content("bytes", size, _hex(data[:MOST_HEX]), is_cut or len(data) > MOST_HEX, "hex")
    return Content("bytes", size, text[:MOST_SHOWN], is_cut or len(text) > MOST_SHOWN, form)


def _as_text(data: bytes, *, is_cut: bool) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        if not is_cut or exc.start < len(data) - 4:
            return None
        text = data[: exc.start].decode()
    return None if "\x00" in text else text


def _hex(data: bytes) -> str:
    rows = []
    for start in range(0, len(data), HEX_ROW):
        row = data[start : start + HEX_ROW]
        letters = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        rows.append(f"{start:08x}  {row.hex(' '):<{3 * HEX_ROW}} {letters}")
    return "\n".join(rows)
