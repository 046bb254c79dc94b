"""The queues of a worker: when the fetcher asks each of them next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from penstock.concurrency import AsyncFlag, now
from penstock.watch import Role, Watch

from .lanes import Route, room_of

__all__ = ["LONGEST_POLL_SECONDS", "Source", "Sources"]

# Between polls of a queue that does not exist.
LONGEST_POLL_SECONDS = 1.0
# A delayed message is fetched this much later than its delay says.
DUE_SLACK_SECONDS = 0.02
# A queue is looked at together with others if so much of its pause is over: pauses vary.
SHARED_AFTER = 0.6


class Source(AsyncFlag):
    """A queue. The flag is set when there may be a message in it."""

    def __init__(self, queue_name: str, wake_up: AsyncFlag) -> None:
        super().__init__()
        self.queue_name = queue_name
        self.watch: Watch | None = None
        self.poll_at = 0.0
        # From when on a look for other queues includes this one.
        self.look_at = 0.0
        # The last claim or look found no message.
        self.was_empty = True
        # The last claim was refused: another worker may have more luck.
        self.is_refused = False
        # When messages are due that this worker has put off.
        self._due: list[float] = []
        # The queue has max_active: a claim may return fewer messages than are ready.
        self.is_capped = False
        # The last claim returned fewer messages than it asked for.
        self.was_short = True
        # When to ask for all parked messages. Before ask_at, the fetcher asks for none.
        self.parked_at = 0.0
        self.ask_at = 0.0
        # Routes of parked messages that were lost with a worker before, as far as this worker knows.
        self.suspect: dict[Route, None] = {}
        # Routes that had no room for messages of this queue. This worker has parked those messages.
        self.full: dict[Route, None] = {}
        # Recent claims returned messages that could not run. Until then, claims park such messages.
        self.search_until = 0.0
        # Since when some kinds of tasks are full and others idle; when to search for the idle kinds.
        self.uneven_since = math.inf
        self.search_at = 0.0
        self._wake_up = wake_up
        self.set()

    def next_poll(self) -> float:
        """When to ask the queue next."""
        if self.is_set():
            return 0.0
        if any(room_of(route) > 0 for route in self.full):
            return self.ask_at
        return min(self.poll_at, self._due[0]) if self._due else self.poll_at

    def pause(self, seconds: float) -> None:
        """Ask the queue again after so many seconds."""
        at = now()
        self.poll_at, self.look_at = at + seconds, at + SHARED_AFTER * seconds

    @property
    def is_idle(self) -> bool:
        """Whether a look may tell that there is nothing to claim.

        A session that polls has many messages. Before ask_at, a look for parked messages would be slow.
        """
        is_polling = self.watch is not None and self.watch.role is Role.POLLING
        return self.was_empty and not (is_polling or self.is_refused) and now() >= self.ask_at

    @property
    def is_searching(self) -> bool:
        return now() < self.search_until

    def set(self) -> None:
        super().set()
        self._wake_up.set()

    def add_due(self, delay: float) -> None:
        """This worker has put a message off for so many seconds."""
        heappush(self._due, now() + delay + DUE_SLACK_SECONDS)

    def begin_claim(self) -> None:
        """The next claim covers all that set the flag, or is due, up to now."""
        self.clear()
        while self._due and self._due[0] <= now():
            heappop(self._due)


class Sources:
    """All queues of a worker, in the order in which they take turns, and one wake-up for all."""

    def __init__(self, queue_names: Sequence[str]) -> None:
        self.wake_up = AsyncFlag()
        self._order = [Source(name, self.wake_up) for name in queue_names]
        self._by_name = {source.queue_name: source for source in self._order}

    def __iter__(self) -> Iterator[Source]:
        return iter(self._order)

    def wake(self) -> None:
        """A slot has become free, or there is another reason for a pass over the queues."""
        self.wake_up.set()

    def rotate(self) -> None:
        """The queue that was served first is served last in the next pass."""
        self._order.append(self._order.pop(0))

    def delayed(self, queue_name: str, delay: float) -> None:
        """This worker has put off a message of the queue: it is due after so many seconds."""
        if (source := self._by_name.get(queue_name)) is not None:
            source.add_due(delay)

    def permits_returned(self, queue_name: str) -> None:
        """Messages of the queue were settled: if it has a cap, others may be claimed now."""
        source = self._by_name.get(queue_name)
        if source is not None and source.is_capped:
            source.set()
