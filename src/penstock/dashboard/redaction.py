"""Redaction: values under keys that match a pattern are replaced on the server, at any depth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["DEFAULT_PATTERNS", "REDACTED", "Redaction"]

DEFAULT_PATTERNS = (
    "passw(or)?d|passphrase|secret|authorization|credential|private_?key|api_?key|access_?key"
    "|(^|_)(token|jwt|pin|cvv|cvc|ssn)($|_)|card_?number|cookie",
)
REDACTED = "[redacted]"

_WORD_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\s.\-]+")


class Redaction:
    """Replaces values by their keys.

    patterns: regular expressions, searched in each key without regard to case. A key is also searched as
    words: `apiKey`, `api-key` and `API key` are all `api_key`.
    """

    def __init__(self, patterns: Sequence[str] = DEFAULT_PATTERNS) -> None:
        self._pattern = re.compile("|".join(f"(?:{each})" for each in patterns), re.I) if patterns else None

    @property
    def is_active(self) -> bool:
        return self._pattern is not None

    def hides(self, key: str) -> bool:
        """Whether the value of this key is not shown."""
        if self._pattern is None:
            return False
        return bool(self._pattern.search(key) or self._pattern.search(_WORD_BREAK.sub("_", key)))

    def apply(self, value: Any) -> Any:
        """A copy of a JSON value without the values that are not shown. Any depth: it does not recurse."""
        if self._pattern is None:
            return value
        holder: list[Any] = [value]
        pending: list[tuple[Any, Any]] = [(holder, 0)]
        while pending:
            parent, place = pending.pop()
            found = parent[place]
            if isinstance(found, dict):
                copied = {key: REDACTED if self.hides(str(key)) else each for key, each in found.items()}
                parent[place] = copied
                pending += [
                    (copied, key) for key, each in copied.items() if isinstance(each, dict | list | tuple)
                ]
            elif isinstance(found, list | tuple):
                items = list(found)
                parent[place] = items
                pending += [
                    (items, i) for i, each in enumerate(items) if isinstance(each, dict | list | tuple)
                ]
        return holder[0]
