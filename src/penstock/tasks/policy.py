"""How often a task is tried, after which delays, and for how long."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import InvalidArgument
from penstock.values import LONGEST_RETRY_DELAY, Duration, interval

__all__ = ["LONGEST_TTL", "Exponential", "Policy", "RetryDelays"]

LONGEST_TTL = 2.0**31 - 1


@dataclass(frozen=True, slots=True)
class Exponential:
    """Delays that grow: first, then each `factor` times the one before, up to `longest`.

    jitter: the random share of a delay, so that tasks that failed together are not retried together.
    """

    first: Duration = 1.0
    factor: float = 2.0
    longest: Duration = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", interval("first", self.first, LONGEST_RETRY_DELAY))
        object.__setattr__(self, "longest", interval("longest", self.longest, LONGEST_RETRY_DELAY))
        for name, value, least, most in (("factor", self.factor, 1, 1000), ("jitter", self.jitter, 0, 1)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise InvalidArgument(f"{name} must be a number from {least} to {most}, not {value!r}")

    def most(self, attempt: int) -> float:
        """The longest possible delay after an attempt."""
        first, longest = interval("first", self.first), interval("longest", self.longest)
        if first == 0:
            return 0.0
        try:
            return min(first * float(self.factor) ** (attempt - 1), longest)
        except OverflowError:
            return longest

    def after(self, attempt: int) -> float:
        return self.most(attempt) * (1 - self.jitter * random.random())


# One delay for all, one after each attempt (the last one repeats), or growing delays.
RetryDelays: TypeAlias = "Duration | Sequence[Duration] | Exponential"


@dataclass(frozen=True, slots=True)
class Policy:
    """When a failed attempt is followed by another, and when a task becomes a dead letter."""

    max_attempts: int
    attempt_timeout: float | None
    delays: tuple[float, ...] | Exponential
    given_ttl: float | None

    @classmethod
    def of(
        cls,
        max_attempts: int,
        attempt_timeout: Duration | None,
        retry_delays: RetryDelays | None,
        ttl: Duration | None,
    ) -> Policy:
        if type(max_attempts) is not int or not 1 <= max_attempts <= 1_000_000:
            raise InvalidArgument(f"max_attempts must be 1 to 1000000, not {max_attempts!r}")
        timeout = None if attempt_timeout is None else interval("attempt_timeout", attempt_timeout)
        if timeout == 0:
            raise InvalidArgument("attempt_timeout must be more than 0 seconds: None is no limit")
        given = None if ttl is None else interval("ttl", ttl)
        if given == 0:
            raise InvalidArgument("ttl must be more than 0 seconds: None is computed from the attempts")
        return cls(max_attempts, timeout, _delays(retry_delays), given)

    def delay_after(self, attempt: int) -> int:
        """How long to wait after a failed attempt, in whole seconds, because the schema counts in seconds."""
        if isinstance(self.delays, Exponential):
            return math.ceil(self.delays.after(attempt))
        return math.ceil(self._listed(attempt))

    @property
    def ttl(self) -> float | None:
        """As given; else the longest time of all attempts and the delays between them, if it is known."""
        if self.given_ttl is not None or self.attempt_timeout is None:
            return self.given_ttl
        return min(self.max_attempts * self.attempt_timeout + self._all_delays(), LONGEST_TTL)

    def _all_delays(self) -> float:
        """The sum of the delays between attempts, each rounded up as delay_after() does."""
        gaps, total = self.max_attempts - 1, 0.0
        for attempt in range(1, gaps + 1):
            now = self.delays.most(attempt) if isinstance(self.delays, Exponential) else self._listed(attempt)
            total += math.ceil(now)
            # From here on the delays do not change.
            if self._is_settled(attempt, now):
                return total + (gaps - attempt) * math.ceil(now)
            if total > LONGEST_TTL:
                return total
        return total

    def _is_settled(self, attempt: int, delay: float) -> bool:
        if isinstance(self.delays, Exponential):
            return delay in (0, self.delays.longest) or self.delays.factor == 1
        return attempt >= len(self.delays)

    def _listed(self, attempt: int) -> float:
        delays = self.delays
        assert not isinstance(delays, Exponential)
        return delays[min(attempt, len(delays)) - 1] if delays else 0.0


def _delays(given: RetryDelays | None) -> tuple[float, ...] | Exponential:
    if given is None:
        return Exponential()
    if isinstance(given, Exponential):
        return given
    if isinstance(given, str | bytes | bytearray) or (isinstance(given, Sequence) and not given):
        raise InvalidArgument(
            f"retry_delays must be a duration, a list of them or Exponential(), not {given!r}"
        )
    if isinstance(given, Sequence):
        return tuple(interval("retry_delays", delay, LONGEST_RETRY_DELAY) for delay in given)
    return (interval("retry_delays", given, LONGEST_RETRY_DELAY),)
