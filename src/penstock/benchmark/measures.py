"""The measures, one after the other."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .figures import Figure, figure
from .jobs import (
    LONGEST_PAUSE,
    Amount,
    Commit,
    Drain,
    Job,
    Receive,
    RoundTrip,
    Send,
    SendBatch,
    SendMany,
    SendPaced,
    Work,
)
from .plan import Plan
from .process_pool import ProcessPool
from .queues import Queues

__all__ = ["Watch", "measure"]

MOST_ROUND_TRIPS = 1000
MOST_LATENCIES = 200
YARDSTICK_SECONDS = 2.0


class Watch(Protocol):
    """Is told how far a measure is: a progress bar, or nothing."""

    def begin(self, name: str, total: int) -> None: ...
    def advance(self, done: int) -> None: ...


@dataclass(frozen=True, slots=True)
class _Step:
    """One measure: what its processes do. total: of what they report. counted: the first so many of
    them count; None: all.
    """

    jobs: Sequence[Job]
    total: int
    counted: int | None = None
    is_rate: bool = True


def measure(dsn: str, plan: Plan, queues: Queues, watch: Watch) -> Generator[Figure]:
    """Each measure of the plan, as soon as it is done."""
    with ProcessPool(dsn) as pool:
        steps = _Steps(dsn, plan, queues)
        for name in plan.measures:
            if name == "drain" and "send-many" not in plan.measures:
                pool.do(steps.send_many().jobs, lambda _: None)  # there has to be something to drain
            step: _Step = getattr(steps, name.replace("-", "_"))()
            watch.begin(name, step.total)
            outcomes = pool.do(step.jobs, watch.advance)
            yield figure(name, outcomes[: step.counted], is_rate=step.is_rate)


class _Steps:
    """A method for each measure, by its name."""

    def __init__(self, dsn: str, plan: Plan, queues: Queues) -> None:
        self._dsn = dsn
        self._plan = plan
        self._queues = queues
        self._names: dict[str, str] = {}
        self._amount = Amount(plan.messages, plan.seconds)
        # Random, so that nothing compresses it.
        self._payload = {"text": secrets.token_hex(plan.payload_bytes // 2 + 1)[: plan.payload_bytes]}

    def _queue(self, purpose: str, **settings: Any) -> str:
        if purpose not in self._names:
            self._names[purpose] = self._queues.create(purpose, **settings)
        return self._names[purpose]

    # The yardsticks

    def round_trip(self) -> _Step:
        return _Step([RoundTrip(self._dsn, self._yardstick)], self._yardstick.count)

    def commit(self) -> _Step:
        return _Step([Commit(self._dsn, self._yardstick)], self._yardstick.count)

    @property
    def _yardstick(self) -> Amount:
        return Amount(min(MOST_ROUND_TRIPS, self._plan.messages), min(YARDSTICK_SECONDS, self._plan.seconds))

    # In

    def send(self) -> _Step:
        return _Step([Send(self._queue("send"), self._payload, self._amount)], self._plan.messages)

    def send_batch(self) -> _Step:
        return _Step([SendBatch(self._queue("send"), self._payload, self._amount)], self._plan.messages)

    def send_concurrent(self) -> _Step:
        senders = self._plan.senders
        share = Amount(-(-self._plan.messages // senders), self._plan.seconds)
        return _Step([Send(self._queue("send"), self._payload, share)] * senders, share.count * senders)

    def send_many(self) -> _Step:
        job = SendMany(self._queue("drain"), self._payload, self._plan.messages)
        return _Step([job], self._plan.messages)

    # Out

    def drain(self) -> _Step:
        job = Drain(self._queue("drain"), self._queue("beside"), self._amount)
        return _Step([job] * self._plan.consumers, self._plan.messages)

    def latency(self) -> _Step:
        queue = self._queue("latency")
        count = max(1, min(MOST_LATENCIES, self._plan.messages, int(self._plan.seconds / LONGEST_PAUSE)))
        jobs: list[Job] = [Receive(queue, count), SendPaced(queue, self._payload, count)]
        return _Step(jobs, count, counted=1, is_rate=False)

    def tasks(self) -> _Step:
        # Without a limit of attempts, as an app declares it.
        queue = self._queue("tasks", max_delivery_attempts=0)
        return _Step([Work(self._dsn, queue, self._amount)], self._plan.messages)
