"""What the model is made of: the settings of a queue, what a publisher says, a message and how it came in."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

PRIORITIES = range(4)


LEASE_RAN_OUT = "the lease ran out"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a queue that change what happens to a message."""

    max_delivery_attempts: int = 3
    visibility_timeout_seconds: int = 30
    visibility_backoff: float = 1.0
    retry_delays: tuple[int, ...] = (0,)
    message_ttl_seconds: int | None = None
    retain_completed_seconds: int = 86400
    retain_dead_seconds: int = 2592000
    notify: bool = True
    max_active: int | None = None
    min_active: int = 5
    priority_shares: tuple[int, ...] = (40, 30, 20, 10)
    tenant_max_active: int | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """What a publisher says of one message."""

    number: int
    priority: int = 2
    tenant: str | None = None
    delay: int | None = None
    ttl: int | None = None
    key: str | None = None
    large: bool = False
    header: int | None = None
    raw: bool = False
    """Whether it is bytes instead of JSON."""


@dataclass(slots=True)
class Message:
    """One message in one queue, in exactly one state."""

    id: int
    state: str
    number: int
    priority: int
    tenant: str | None
    large: bool
    published_at: datetime
    ttl: timedelta | None
    expires_at: datetime | None
    key: str | None
    header: int | None
    raw: bool
    lifetime: timedelta | None = None
    """Set when it is requeued: its time to live starts anew then."""
    rank: int | None = None
    attempts: int = 0
    limit: int | None = None
    errors: list[tuple[int, datetime, str]] = field(default_factory=list)
    due_at: datetime | None = None
    vt: datetime | None = None
    token: str | None = None
    claimed_at: datetime | None = None
    reason: str | None = None
    moved_at: datetime | None = None
    completed_at: datetime | None = None
    result: int | None = None
    permit: int | None = None
    """The priority whose permit it holds, while it is active in a queue with max_active."""
    holds_tenant_permit: bool = False
    """Whether it holds a permit of its tenant, while it is ready or active, under tenant_max_active."""
    turn: tuple[bool, int] = (True, 0)
    """The order of waiting: redelivered messages first, then as they came."""
    entered_as: str = ""
    """How it came into ready: see Entry."""
    late_since: datetime | None = None
    """Since when it waits although its time to live is over: maintain() may need a minute to see it."""

    def over(self, at: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= at

    @property
    def lost_deliveries(self) -> int:
        """Deliveries in a row, up to the last one, that ended because the lease ran out."""
        endings = [error for _, _, error in reversed(self.errors)]
        return next((n for n, error in enumerate(endings) if error != LEASE_RAN_OUT), len(endings))

    def fail(self, at: datetime, error: str | None) -> None:
        if error is not None:
            self.errors = [*self.errors, (self.attempts, at, error)][-10:]

    def bury(self, at: datetime, reason: str) -> None:
        self.state, self.reason, self.moved_at, self.late_since = "dead", reason, at, None


@dataclass(frozen=True, slots=True)
class Entry:
    """A message that came into ready in this step, and how.

    new: behind what its tenant has waiting; back: in front; beside: one beside each that waits. Under a
    snapshot that cannot see the floor the rank is a fresh id, for what is new (fresh) and for what comes
    back, which then may be anywhere; in a queue with tenants such a message goes to waiting instead.
    """

    message: Message
    kind: str


@dataclass(frozen=True, slots=True)
class Outside:
    """What the engine chose where the model leaves the choice to it."""

    dead: frozenset[int] = frozenset()
    in_line: frozenset[int] = frozenset()
    """What is ready or active after the step."""
