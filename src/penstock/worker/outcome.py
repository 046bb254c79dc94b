"""The outcome of a run: what the settler writes to the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.payloads import Json

__all__ = ["ACK", "Outcome", "Verdict"]

# "ack_with_result" is also the verdict for a member of a group: both are written by ack_tasks().
Verdict: TypeAlias = Literal["ack", "ack_with_result", "retry", "release", "reject"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    verdict: ack: done; ack_with_result: done, with a result to keep or a group to count; retry: failed, the
    attempt counts; release: given back, the attempt does not count; reject: failed for good. delay: seconds
    until the next delivery, of a retry or a release. error: of a retry or a reject, for the history of the
    message.
    """

    verdict: Verdict
    delay: float = 0.0
    error: str | None = None
    result: Json = None

    @classmethod
    def done(cls, result: Json) -> Outcome:
        return cls("ack_with_result", result=result)

    @classmethod
    def retried(cls, delay: float, error: str) -> Outcome:
        return cls("retry", delay, error)

    @classmethod
    def released(cls, delay: float = 0.0) -> Outcome:
        return cls("release", delay)

    @classmethod
    def rejected(cls, error: str) -> Outcome:
        return cls("reject", error=error)


# Of most runs: they are done, no result is kept, and they are of no group.
ACK = Outcome("ack")
