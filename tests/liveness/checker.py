"""For each message of a history: how long it was deliverable without being started.

A message is deliverable from its publish, its due time, the end of an attempt that is to be repeated or the
end of a lost lease, until it starts or its time to live is over. Time does not count while

- no worker that knows the task is up,
- all slots of its kind are busy, or the cap of its queue or of its tenant is used up,
- a worker was lost less than a lease ago: that worker may have claimed it.

What else waits is no excuse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .history import Ended, Gone, History, Published, Started, Up
from .spans import Span, merged, without

# A slot or permit that becomes free is taken a moment later: to settle and to claim takes that long.
HANDOVER_SECONDS = 1.0

Resource = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """A message that was deliverable, and was not started, for so long."""

    message: Published
    since: float
    until: float
    seconds: float

    def __str__(self) -> str:
        m = self.message
        return (
            f"message {m.message} of {m.queue!r}, task {m.task!r}, tenant {m.tenant!r}, "
            f"published at {m.at:.2f}, deliverable for {self.seconds:.2f} s "
            f"between {self.since:.2f} and {self.until:.2f}"
        )


@dataclass(slots=True)
class Run:
    """One attempt, and when it released what it held."""

    message: int
    worker: int
    began: float
    ended: Ended | None = None


class Checker:
    """Looks through one history."""

    def __init__(self, history: History) -> None:
        self._limits = history.limits
        self._end = history.end
        events = sorted(history.events, key=lambda event: event.at)
        self._published = {event.message: event for event in events if isinstance(event, Published)}
        self._ups = [event for event in events if isinstance(event, Up)]
        self._gone = {event.worker: event.at for event in events if isinstance(event, Gone)}
        self._runs: dict[int, list[Run]] = defaultdict(list)
        for event in events:
            if isinstance(event, Started):
                self._runs[event.message].append(Run(event.message, event.worker, event.at))
            elif isinstance(event, Ended):
                self._run_of(event).ended = event
        self._lost = merged((at, at + self._limits.lease) for at in self._gone.values())
        self._full = {resource: self._saturated(resource) for resource in self._resources()}

    def _run_of(self, event: Ended) -> Run:
        return next(run for run in reversed(self._runs[event.message]) if run.worker == event.worker)

    # What a message needs

    def _needs(self, message: Published) -> list[Resource]:
        needed: list[Resource] = [("kind", message.kind)]
        if message.queue in self._limits.max_active:
            needed.append(("queue", message.queue))
        if message.queue in self._limits.tenant_max_active:
            needed.append(("tenant", message.queue, message.tenant or ""))
        return needed

    def _resources(self) -> set[Resource]:
        return {need for message in self._published.values() for need in self._needs(message)}

    def _saturated(self, resource: Resource) -> list[Span]:
        """When all of a resource was in use, and a moment longer."""
        changes = [(at, 0, more) for at, more in self._capacity(resource)]
        for message in self._published.values():
            if resource in self._needs(message):
                for run in self._runs[message.message]:
                    changes += [(run.began, 1, 0), (self._freed(run), -1, 0)]
        spans: list[Span] = []
        used = most = 0
        full_since: float | None = None
        for at, taken, more in sorted(changes):
            used += taken
            most += more
            if used >= most > 0 and full_since is None:
                full_since = at
            elif used < most and full_since is not None:
                spans.append((full_since, at + HANDOVER_SECONDS))
                full_since = None
        if full_since is not None:
            spans.append((full_since, self._end))
        return merged(spans)

    def _capacity(self, resource: Resource) -> Iterator[tuple[float, int]]:
        """When there became more or less of it."""
        what, name = resource[:2]
        if what == "kind":
            for up in self._ups:
                yield up.at, up.slots.get(name, 0)
                if up.worker in self._gone:
                    yield self._gone[up.worker], -up.slots.get(name, 0)
        else:
            caps = self._limits.max_active if what == "queue" else self._limits.tenant_max_active
            yield float("-inf"), caps[name]

    def _freed(self, run: Run) -> float:
        """When an attempt no longer held its slot and permits: those of a lost worker, after its lease."""
        if run.ended is not None:
            return run.ended.at
        return self._gone.get(run.worker, self._end) + self._limits.lease

    def _unattended(self, task: str) -> list[Span]:
        """When no worker was up that knows a task."""
        spans = merged((up.at, self._gone.get(up.worker, self._end)) for up in self._ups if task in up.tasks)
        edges = [float("-inf"), *(edge for span in spans for edge in span), float("inf")]
        return list(zip(edges[::2], edges[1::2], strict=True))

    # How long it waited

    def waits(self) -> list[Wait]:
        """Every time that a message was deliverable, the longest first."""
        found = [wait for message in self._published.values() for wait in self._waits_of(message)]
        return sorted(found, key=lambda wait: -wait.seconds)

    def _waits_of(self, message: Published) -> Iterator[Wait]:
        excuses = [
            *self._lost,
            *self._unattended(message.task),
            *(span for need in self._needs(message) for span in self._full[need]),
        ]
        for since, until in self._deliverable(message):
            yield Wait(message, since, until, without((since, until), excuses))

    def _deliverable(self, message: Published) -> Iterator[Span]:
        since: float | None = message.at + message.delay
        expires = self._end if message.ttl is None else message.at + message.ttl
        for run in sorted(self._runs[message.message], key=lambda run: run.began):
            if since is not None:
                yield since, min(run.began, expires)
            since = self._due_again(run)
        if since is not None:
            yield since, min(self._end, expires)

    def _due_again(self, run: Run) -> float | None:
        if run.ended is not None:
            return None if run.ended.is_last else run.ended.at + run.ended.delay
        gone = self._gone.get(run.worker)
        return None if gone is None else gone + self._limits.lease


def violations(history: History, bound: float) -> list[Wait]:
    """The messages that were deliverable for longer than the bound, the longest wait first."""
    return [wait for wait in Checker(history).waits() if wait.seconds > bound]


def longest(waits: Iterable[Wait]) -> float:
    return max((wait.seconds for wait in waits), default=0.0)
