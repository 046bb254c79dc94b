"""What a handler may raise to end its attempt in another way than by returning or failing."""

from __future__ import annotations

from penstock.values import LONGEST_RETRY_DELAY, Duration, interval

__all__ = ["Outcome", "Reject", "Retry", "Snooze"]


class Outcome(Exception):  # noqa: N818
    """Ends an attempt in another way than done or failed."""


class Retry(Outcome):
    """The attempt failed: try again after this delay, instead of the delay of retry_delays.

    The attempt counts: after the last one, the task has no attempts left.
    """

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = None if delay is None else interval("delay", delay, LONGEST_RETRY_DELAY)


class Reject(Outcome):
    """The attempt failed, and another would fail, too: the task becomes a dead letter, with this reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Snooze(Outcome):
    """The task is delivered again after this delay, and the attempt is not counted."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = interval("delay", delay, LONGEST_RETRY_DELAY)
