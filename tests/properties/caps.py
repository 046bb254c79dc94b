"""What max_active comes to: how many permits each priority has, and which are free."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache

from .messages import PRIORITIES


@cache
def quotas(most: int | None, least: int, shares: tuple[int, ...]) -> tuple[int, ...] | None:
    """The permits of each priority; one number for all, where there are too few to divide, or no shares."""
    if most is None:
        return None
    if most < sum(1 for share in shares if share) or not any(shares):
        return (most,)
    minimum = least if 4 * least <= most else 0
    needed = [max(minimum, 1 if share else 0) for share in shares]
    permits = [most * share // 100 for share in shares]
    by_rest = sorted(PRIORITIES, key=lambda p: (-(most * shares[p] % 100), p))
    for priority in by_rest[: most - sum(permits)]:
        permits[priority] += 1
    while short := [p for p in PRIORITIES if permits[p] < needed[p]]:
        # The priority with the most to spare gives. Ties (the requirement is silent): the least urgent.
        giver = max(PRIORITIES, key=lambda p: (permits[p] - needed[p], p))
        permits[giver] -= 1
        permits[short[0]] += 1
    return tuple(permits)


@dataclass(slots=True)
class Permits:
    """The permits of a queue that no message holds."""

    free: Counter[int] = field(default_factory=Counter)
    """Less than none: a debt."""
    deferred: Counter[int] = field(default_factory=Counter)
    """Given back under a snapshot that cannot see debts: free with the next look."""
