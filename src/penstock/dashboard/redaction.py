"""Redaction: values under keys that match a pattern are replaced on the server, at any depth.

Payloads are redacted as text, not as parsed JSON. So all digits stay, a value may be cut, nested too deeply
or surrounded by something else, and the cost depends on the length only.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from penstock.errors import InvalidArgument

__all__ = ["DEFAULT_PATTERNS", "REDACTED", "Redaction"]

DEFAULT_PATTERNS = (
    "passw(or)?d|passphrase|secret|authorization|credential|private_?key|api_?key|access_?key"
    "|(^|_)(token|jwt|pin|cvv|cvc|ssn)($|_)|card_?number|cookie",
)
REDACTED = "[redacted]"
MOST_KNOWN = 10_000

_WORD_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\s.\-]+")

# No pattern backtracks: the time is linear in the length, whatever a publisher has sent.
_INSIDE = rb'(?:[^"\\]++|\\.)*+'
# Found from every quote, so a quote too many somewhere does not matter.
_KEY = re.compile(rb'(?<!\\)"(%b)"\s*+:\s*+' % _INSIDE, re.S)
_STRING = re.compile(rb'"(%b)("?)' % _INSIDE, re.S)
_BRACKET_OR_STRING = re.compile(rb'[{}\[\]]|"%b"?' % _INSIDE, re.S)
_SCALAR = re.compile(rb'"%b"?|[^\s,}\]]*+' % _INSIDE, re.S)
_HALF_AN_ESCAPE = re.compile(rb"\\u[0-9a-fA-F]{0,3}$")


class Redaction:
    """Replaces values by their keys.

    patterns: regular expressions, searched in each key without regard to case. A key is also searched as
    words: `apiKey`, `api-key` and `API key` are all `api_key`.
    """

    def __init__(self, patterns: Sequence[str] = DEFAULT_PATTERNS) -> None:
        self._patterns = [_compiled(each) for each in patterns]
        self._cached = lru_cache(maxsize=4096)(self._hides)

    @property
    def is_active(self) -> bool:
        return bool(self._patterns)

    def hides(self, key: str) -> bool:
        """Whether the value of this key is not shown."""
        return self._cached(key) if len(key) < 256 else self._hides(key)

    def _hides(self, key: str) -> bool:
        plain = unicodedata.normalize("NFKC", key)
        words = _WORD_BREAK.sub("_", plain)
        return any(each.search(plain) or each.search(words) for each in self._patterns)

    def apply(self, value: Any) -> Any:
        """A copy of a JSON value without the values that are not shown. Any depth: it does not recurse."""
        if not self.is_active:
            return value
        holder: list[Any] = [value]
        pending: list[tuple[Any, Any]] = [(holder, 0)]
        while pending:
            parent, place = pending.pop()
            found = parent[place]
            if isinstance(found, dict):
                copied = {key: REDACTED if self.hides(str(key)) else each for key, each in found.items()}
                parent[place] = copied
                pending += [(copied, key) for key in copied]
            elif isinstance(found, list | tuple):
                items = list(found)
                parent[place] = items
                pending += [(items, i) for i in range(len(items))]
            elif isinstance(found, str):
                parent[place] = self.in_text(found)
        return holder[0]

    def in_text(self, text: str) -> str:
        """A text without the values in it that are not shown: JSON, a part of it, or a text around it."""
        if not self.is_active or '"' not in text:
            return text
        return self._in_bytes(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def in_bytes(self, data: bytes) -> bytes:
        """The same for bytes, whether they are text or not."""
        if not self.is_active:
            return data
        coding = json.detect_encoding(data[:4])
        if not coding.startswith("utf-8"):
            try:
                text = data.decode(coding)
            except UnicodeDecodeError:
                return self._in_bytes(data)
            if (shown := self.in_text(text)) != text:
                return shown.encode(coding)
        return self._in_bytes(data)

    def _in_bytes(self, data: bytes) -> bytes:
        if b'"' not in data:
            return data
        pieces: list[bytes] = []
        known: dict[bytes, bool] = {}
        copied = at = 0
        while (match := _KEY.search(data, at)) is not None:
            name = match[1]
            if (is_hidden := known.get(name)) is None:
                is_hidden = self.hides(_key(name))
                if len(known) < MOST_KNOWN:
                    known[name] = is_hidden
            # The quote at the end may be the one at the beginning of a key: `["a", ":b"...`.
            at = match.end(1)
            if is_hidden:
                pieces += (data[copied : match.end()], json.dumps(REDACTED).encode())
                copied = at = _end_of_value(data, match.end())
        if pieces:
            data = b"".join((*pieces, data[copied:]))
        # A string may have JSON in it.
        return _STRING.sub(self._in_string, data) if b'\\"' in data else data

    def _in_string(self, match: re.Match[bytes]) -> bytes:
        inside, end = match.groups()
        if b'\\"' not in inside:
            return match[0]
        whole = inside if end else _HALF_AN_ESCAPE.sub(b"", inside)
        try:
            text = json.loads(b'"%b"' % whole, strict=False)
        except ValueError:  # not JSON
            return match[0]
        shown = self.in_text(text)
        if shown == text:
            return match[0]
        written = json.dumps(shown, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return written if end else written[:-1]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.I)
    except re.error as exc:
        raise InvalidArgument(f"redact must be regular expressions, not {pattern!r}: {exc}") from None


def _key(inside: bytes) -> str:
    if b"\\" in inside:
        try:
            return str(json.loads(b'"%b"' % inside, strict=False))
        except ValueError:
            pass
    return inside.decode("utf-8", "replace")


def _end_of_value(data: bytes, start: int) -> int:
    """Where the value that begins there ends; the end of the data if it is cut."""
    if data[start : start + 1] not in (b"{", b"["):
        found = _SCALAR.match(data, start)
        assert found is not None
        return found.end()
    depth = 0
    for match in _BRACKET_OR_STRING.finditer(data, start):
        if match[0] in (b"{", b"["):
            depth += 1
        elif match[0] in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return match.end()
    return len(data)
