"""Who looks for messages of a queue, and when: interrupts while the queue is idle, polling while it is busy.

At most one session watches a queue. While it is idle, each send notifies it. While many messages come, it
looks every few milliseconds, and sends do not notify: commits with NOTIFY go one at a time. The other
sessions stand by: they look once a second. One of them is next: the watching session notifies it when it has
no more room.

The consumers of a client wait together: the first of them looks for all.
"""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from penstock.concurrency import now

__all__ = ["Role", "Watch"]

# A queue is busy after so many messages and notifications within so many seconds. A message that notified
# counts twice.
BUSY_EVENTS = 40
BUSY_SECONDS = 1.0
# A busy queue is idle again after so long without a message. If polling found none at all, the next time
# takes longer: notifications come, but there is no permit for a message.
QUIET_SECONDS = 0.1
LONGEST_QUIET_SECONDS = 3.2
# Between two looks of a session that polls. The pause grows if looks find nothing, or take long.
POLL_SECONDS = 0.002
SLOW_POLL_SECONDS = 0.005
LONGEST_POLL_SECONDS = 0.02
EMPTY_LOOKS = 10
# Looks of a session that does not poll. The first ones find messages of sends that met no idle session, so
# did not notify, and were committed late.
PAUSES: tuple[float, ...] = (0.005, 0.02, 0.1, 0.5, 1.0)
# A consumer that waits behind others looks when its flag is set, or after so long for each of those. If the
# first one has not looked for so long, the other one takes its place: its connection may be silent.
BEHIND_SECONDS = 1.5
STUCK_SECONDS = 1.4
FARTHEST = 64
# A session hands over its watch if none of its consumers has had room for so long.
LINGER_SECONDS = 0.01


class Role(Enum):
    """What a session is for a queue."""

    DEAF = "deaf"
    STANDBY = "standby"
    IDLE = "idle"
    POLLING = "polling"

    @property
    def is_watching(self) -> bool:
        return self in (Role.IDLE, Role.POLLING)


class Settable(Protocol):
    """The flag of a consumer."""

    def set(self) -> None: ...


class Watch:
    """The consumers of a client that wait for messages of one queue, and the role of the client's session.

    changed: called with the watch when `wanted` or `check_at` may have changed. The listener
    then acts, and calls begin().
    """

    def __init__(self, queue_name: str, changed: Callable[[Watch], None]) -> None:
        self.queue_name = queue_name
        self.role = Role.DEAF
        # The session stands by, and is told of a handover before the others.
        self.is_next = False
        # When the listener has to compare `wanted` and `role` again.
        self.check_at = math.inf
        self._changed = changed
        self._lock = threading.Lock()
        self._waiting: dict[Settable, None] = {}
        self._left_at = -math.inf
        self._events: deque[float] = deque(maxlen=BUSY_EVENTS)
        self._found_at = -math.inf
        self._looked_at = -math.inf
        self._began_at = -math.inf
        self._quiet_seconds = QUIET_SECONDS
        self._idle_not_before = -math.inf
        self._empty_looks = 0
        self._step = 0
        self._may_try = False

    # For consumers

    def enter(self, flag: Settable) -> None:
        """A consumer has room. It looks when its flag is set, or after the pause that looked() returns."""
        with self._lock:
            is_changed = self._enter(flag)
        if is_changed:
            self._changed(self)

    def _enter(self, flag: Settable) -> bool:
        if flag in self._waiting:
            return False
        self._waiting[flag] = None
        if len(self._waiting) == 1:
            self._looked_at = now()
            self._may_try = self._may_try or self.role is Role.STANDBY
        return self._may_try

    def leave(self, flag: Settable) -> None:
        """A consumer has no room any more. The next one looks: there may be more messages."""
        needs_check = False
        with self._lock:
            if flag not in self._waiting:
                return
            was_lead = next(iter(self._waiting)) is flag
            del self._waiting[flag]
            if self._waiting and was_lead:
                self._looked_at = now()
                next(iter(self._waiting)).set()
            elif not self._waiting:
                self._left_at = now()
                needs_check = self._has_a_part and self.check_at == math.inf
                if needs_check:
                    self.check_at = self._left_at + LINGER_SECONDS
        if needs_check:
            self._changed(self)

    def looked(self, flag: Settable, found: int, took: float) -> float:
        """A consumer has looked: so many messages in so many seconds. In how many seconds to look again.

        A consumer that found nothing waits from now on.
        """
        at = now()
        with self._lock:
            is_changed = not found and self._enter(flag)
            if found:
                self._events.extend([at] * min(found, BUSY_EVENTS))
                self._found_at = at
                self._quiet_seconds = QUIET_SECONDS
                self._empty_looks = 0
            else:
                self._empty_looks += 1
            position = self._position(flag)
            if position and at - self._looked_at > STUCK_SECONDS:
                self._waiting = {flag: None} | self._waiting
                position = 0
            if position:
                pause = BEHIND_SECONDS * position
            else:
                self._looked_at = at
                pause = self._pause(at, found, took)
            is_changed = is_changed or self._wanted(at) is not self.role
        if is_changed:
            self._changed(self)
        return pause

    def _position(self, flag: Settable) -> int:
        """How many consumers wait before this one."""
        if flag not in self._waiting:
            return 0
        for position, other in enumerate(self._waiting):
            if other is flag or position == FARTHEST:
                return position
        return 0

    def _pause(self, at: float, found: int, took: float) -> float:
        if self.role is Role.POLLING:
            pause = POLL_SECONDS if self._empty_looks < EMPTY_LOOKS else SLOW_POLL_SECONDS
            return max(pause, min(took, LONGEST_POLL_SECONDS), self._quiet_pause(at))
        if found:
            self._step = 0
        pause = PAUSES[self._step]
        if self._step < len(PAUSES) - 1:
            self._step += 1
            return pause
        self._may_try = self._may_try or self.role is Role.STANDBY
        # Not all sessions at once.
        return pause * random.uniform(0.8, 1.2)

    # For the listener

    @property
    def _has_a_part(self) -> bool:
        """Whether other sessions count on this one."""
        return self.role.is_watching or self.is_next

    @property
    def is_next_in_vain(self) -> bool:
        """The session is next, and has had no room for a while."""
        with self._lock:
            return self.is_next and not self._waiting and now() >= self._left_at + LINGER_SECONDS

    def be_next(self, is_next: bool) -> None:
        with self._lock:
            self.is_next = is_next
            if is_next and not self._waiting:
                self.check_at = now() + LINGER_SECONDS

    @property
    def wanted(self) -> Role:
        """The role that the session should have now."""
        with self._lock:
            return self._wanted(now())

    def _wanted(self, at: float) -> Role:
        is_busy = len(self._events) == BUSY_EVENTS and at - self._events[0] < BUSY_SECONDS
        if not self._waiting:
            is_over = self.role.is_watching and at >= self._left_at + LINGER_SECONDS
            return Role.STANDBY if is_over else self.role
        if self.role is Role.IDLE and is_busy:
            return Role.POLLING
        if self.role is Role.POLLING and at >= max(
            self._quiet_at + self._quiet_seconds, self._idle_not_before
        ):
            return Role.IDLE
        if self.role is Role.STANDBY and self._may_try:
            return Role.POLLING if is_busy else Role.IDLE
        return self.role

    def begin(self, role: Role) -> None:
        """The session has this role from now on. The first consumer looks: it may have missed a message."""
        with self._lock:
            if self.role is Role.POLLING and self._found_at < self._began_at:
                self._quiet_seconds = min(2 * self._quiet_seconds, LONGEST_QUIET_SECONDS)
            self.role = role
            self.is_next = False
            self._began_at = now()
            self._may_try = False
            self._step = 0
            self._empty_looks = 0
            self.check_at = math.inf
            self._idle_not_before = -math.inf
            if role is Role.IDLE:
                self._events.clear()
            if self._waiting:
                self._looked_at = self._began_at
                next(iter(self._waiting)).set()
            elif role.is_watching:
                self.check_at = now() + LINGER_SECONDS

    def stay(self) -> None:
        """The session could not get the wanted role. A session that polls tries again soon to be idle."""
        with self._lock:
            self._may_try = False
            if self.role is Role.POLLING:
                at = now()
                self.check_at = self._idle_not_before = at + max(POLL_SECONDS, self._quiet_pause(at))

    def _quiet_pause(self, at: float) -> float:
        """The least pause of a session that polls a quiet queue, since it cannot become idle.

        Usually a send is just testing whether the session is idle. But another session may keep the lock.
        """
        return min(PAUSES[-1], (at - self._quiet_at) / 20)

    @property
    def _quiet_at(self) -> float:
        """When a session that polls last had a message."""
        return max(self._found_at, self._began_at)

    def check(self) -> None:
        """check_at is over."""
        with self._lock:
            is_empty = not self._waiting and self._has_a_part
            self.check_at = max(now(), self._left_at + LINGER_SECONDS) if is_empty else math.inf

    def wake(self) -> None:
        """A notification of a send has come."""
        with self._lock:
            self._events.append(now())
            if self._waiting and self.role is not Role.POLLING:
                next(iter(self._waiting)).set()

    def look(self) -> None:
        """There is a message that the session that watches cannot run."""
        with self._lock:
            if self._waiting:
                next(iter(self._waiting)).set()

    def offer(self) -> None:
        """Another session has handed over its watch: try to get it."""
        with self._lock:
            self._may_try = self._may_try or self.role is Role.STANDBY
