"""How max_active is divided among the priorities, for a preview: as `_quotas()` in `permits.sql` does it."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["quotas"]


def quotas(max_active: int, min_active: int, shares: Sequence[int]) -> list[int]:
    """The permits of each priority; one number, for all together, where there are too few to divide."""
    floor = min_active if 4 * min_active <= max_active else 0
    least = [max(floor, 1 if share > 0 else 0) for share in shares]
    if sum(least) > max_active or sum(shares) == 0:
        return [max_active]
    found = _divided(max_active, shares)
    spare = [quota - lowest for quota, lowest in zip(found, least, strict=True)]
    missing = -sum(each for each in spare if each < 0)
    if missing == 0:
        return found
    # Priorities that can spare permits come down to one level; the most urgent of them keep a remainder.
    falling = sorted(spare, reverse=True)
    level = 0
    for number in range(1, len(falling) + 1):
        level = (sum(falling[:number]) - missing) // number
        if number == len(falling) or falling[number] <= level:
            break
    remainder = sum(max(each - level, 0) for each in spare) - missing
    result = []
    for lowest, each in zip(least, spare, strict=True):
        if each <= level:
            result.append(lowest + max(each, 0))
            continue
        result.append(lowest + level + (1 if remainder > 0 else 0))
        remainder -= 1
    return result


def _divided(max_active: int, shares: Sequence[int]) -> list[int]:
    """By largest remainder; ties go to the more urgent priority."""
    whole = [max_active * share // 100 for share in shares]
    order = sorted(range(len(shares)), key=lambda place: -(max_active * shares[place] % 100))
    for place in order[: max_active - sum(whole)]:
        whole[place] += 1
    return whole
