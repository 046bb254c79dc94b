"""Pauses that grow from one failed attempt to the next."""

from __future__ import annotations

import random

__all__ = ["Backoff"]


class Backoff:
    """Pauses that grow, each a little at random so that many do not come back at once."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def next(self) -> float:
        """How long to pause now."""
        pause, self._next = self._next, min(2 * self._next, self._longest)
        return pause * random.uniform(0.8, 1.2)

    def reset(self) -> None:
        """Begin with the first again."""
        self._next = self._first
