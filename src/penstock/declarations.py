"""What an app sends beyond single messages: the queues that it needs, and groups."""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .models import NewMessage

__all__ = ["Declared", "GroupMember", "GroupStart", "QueueNeeds"]


logger = logging.getLogger("penstock")

# Longer than most transactions.
LASTING_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class QueueNeeds:
    """A queue of tasks. max_active, retain_completed: None leaves it as it is."""

    name: str
    max_active: int | None = None
    retain_completed: int | None = None

    @property
    def has_options(self) -> bool:
        return self.max_active is not None or self.retain_completed is not None


class Declared:
    """The queues that are known to be there, so that each is declared once in a process.

    A queue that was declared in a transaction of the caller may be rolled back with it. It counts as known
    when it is still there a while later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: set[QueueNeeds] = set()
        self._seen: dict[QueueNeeds, tuple[int, float]] = {}
        self._reported: dict[str, str] = {}

    def __contains__(self, needs: QueueNeeds) -> bool:
        return needs in self._known

    def add(self, needs: QueueNeeds, queue_id: int, *, is_committed: bool) -> None:
        with self._lock:
            if is_committed:
                self._known.add(needs)
                return
            seen_id, seen_at = self._seen.setdefault(needs, (queue_id, time.monotonic()))
            if seen_id != queue_id:
                self._seen[needs] = (queue_id, time.monotonic())
            elif time.monotonic() > seen_at + LASTING_SECONDS:
                self._known.add(needs)

    def report_difference(self, needs: QueueNeeds, difference: str) -> None:
        """Log that a queue is not as it should be, and that this role may not change it; once."""
        with self._lock:
            is_reported = self._reported.get(needs.name) == difference
            self._reported[needs.name] = difference
        if not is_reported:
            logger.warning(
                "queue %s is not as the code has it: %s. Only penstock_admin may change it: "
                "penstock queue alter %s, or start a worker once with that role",
                needs.name,
                difference,
                shlex.quote(needs.name),
            )

    def forget(self, needs: QueueNeeds) -> None:
        with self._lock:
            self._known.discard(needs)
            self._seen.pop(needs, None)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A task of a group."""

    queue: QueueNeeds
    message: NewMessage


@dataclass(frozen=True, slots=True)
class GroupStart:
    """What a group begins with: its members, and what follows when all of them are done."""

    members: Sequence[GroupMember]
    callback: GroupMember
    with_results: bool

    @property
    def queues(self) -> list[QueueNeeds]:
        return list(dict.fromkeys(member.queue for member in (*self.members, self.callback)))
