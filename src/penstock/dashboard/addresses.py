"""Addresses: how the names of queues and tenants travel in a path, and what a request's path means.

A name may contain slashes, spaces, quotes and emoji. Each is one segment of the path, percent-encoded, so a
request is matched by its raw path: decoded, `/queues/a%2Fb` would be three segments. Browsers resolve the
segments `.` and `..` even if they are encoded, so such names get a tilde in front, as do names that begin
with one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlencode

__all__ = ["decode_segment", "encode_segment", "make_path", "segments_of"]

ESCAPE = "~"


def encode_segment(name: object) -> str:
    """A name as one segment of a path."""
    return _encoded(str(name))


# A page has the same names in many addresses.
@lru_cache(maxsize=4096)
def _encoded(text: str) -> str:
    if text in (".", "..") or text.startswith(ESCAPE):
        text = ESCAPE + text
    return quote(text, safe="~!$'()*,:;@+", errors="replace")


def decode_segment(segment: str) -> str:
    """The name that a segment stands for. Raises ValueError if the segment is not UTF-8."""
    text = unquote_to_bytes(segment).decode("utf-8")
    return text[1:] if text.startswith(ESCAPE) else text


def make_path(root: str, parts: Sequence[object], query: Mapping[str, Any] | None = None) -> str:
    """The path of a page below root; a part of the query that is None or empty is left out."""
    path = f"{root}/{'/'.join(encode_segment(part) for part in parts)}"
    given = {name: value for name, value in (query or {}).items() if value not in (None, "")}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def segments_of(scope: Mapping[str, Any]) -> list[str]:
    """The encoded segments of the requested path, below the prefix that the app is mounted at."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1").partition("?")[0] if raw else quote(str(scope["path"]))
    root = quote(str(scope.get("root_path") or "").rstrip("/"))
    # Servers and frameworks differ: with some the path contains the prefix, with some it does not.
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    return path.strip("/").split("/") if path.strip("/") else []
