"""The engine as a plain Python model: dictionaries for tables, DESIGN sections 2, 3 and 5 for SQL.

It knows nothing of locks, plans or batches of maintenance. It takes from outside: the ranks, since which one
a message gets is the engine's business as long as it keeps the promises about order (order.py); the floors,
since raising them is; and the last id, since ids are drawn for ranks too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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
    entered_as: str = ""
    """How it came into ready: see Entry."""
    late_since: datetime | None = None
    """Since when it waits although its time to live is over: maintain() may need a minute to see it."""

    def over(self, at: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= at

    def fail(self, at: datetime, error: str | None) -> None:
        if error is not None:
            self.errors = [*self.errors, (self.attempts, at, error)][-10:]

    def bury(self, at: datetime, reason: str) -> None:
        self.state, self.reason, self.moved_at, self.late_since = "dead", reason, at, None


@dataclass(frozen=True, slots=True)
class Entry:
    """A message that came into ready in this step, and how.

    new: behind what its tenant has waiting; back: in front. Under a snapshot that cannot see the floor the
    rank is a fresh id, for what is new (fresh) and for what comes back, which then may be anywhere.
    """

    message: Message
    kind: str


@dataclass(slots=True)
class Queue:
    """A queue: its messages by id, its dedup keys, the floor of each priority."""

    id: int
    name: str
    topic: str | None
    settings: Settings
    floors: tuple[int, ...] = (0, 0, 0, 0)
    paused: bool = False
    messages: dict[int, Message] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    """What came into ready since ranks were last looked at, a tenant's messages in their order."""

    def state(self, state: str) -> list[Message]:
        """The messages in a state, by id."""
        return sorted((m for m in self.messages.values() if m.state == state), key=lambda m: m.id)

    def line(self, priority: int) -> list[Message]:
        """Those ready in a priority, in the order of delivery."""
        ready = [m for m in self.state("ready") if m.priority == priority and m.rank is not None]
        return sorted(ready, key=lambda m: (m.rank, m.id))

    def held(self, message_id: int, token: str | None) -> Message | None:
        message = self.messages.get(message_id)
        if message is None or message.state != "active" or message.token != token:
            return None
        return message

    def free_key(self, message: Message) -> None:
        if message.key is not None and self.keys.get(message.key) == message.id:
            del self.keys[message.key]

    def bury(self, message: Message, at: datetime, reason: str) -> None:
        message.bury(at, reason)
        self.free_key(message)

    def forget(self, message: Message) -> None:
        self.free_key(message)
        del self.messages[message.id]

    def enter(self, messages: Iterable[Message], kind: str) -> None:
        """Into ready; the rank is looked up when the step is over."""
        for message in messages:
            message.state, message.rank = "ready", None
            message.entered_as = kind
            self.entries.append(Entry(message, kind))

    def give_back(
        self, message: Message, at: datetime, delay: int | None, error: str | None, kind: str = "back"
    ) -> None:
        """The end of an attempt that failed."""
        message.fail(at, error)
        most = message.limit if message.limit is not None else (self.settings.max_delivery_attempts or None)
        if message.over(at):
            self.bury(message, at, "expired")
        elif most is not None and message.attempts >= most:
            self.bury(message, at, "no_attempts_left")
        else:
            delays = self.settings.retry_delays
            delay = delays[min(message.attempts, len(delays)) - 1] if delay is None else delay
            if delay > 0:
                message.state, message.due_at = "scheduled", at + timedelta(seconds=delay)
            else:
                self.enter([message], kind)

    def take_back(self, at: datetime, untouched: Iterable[int] = ()) -> int:
        """Leases that ran out."""
        ran_out = [
            m for m in self.state("active") if m.vt is not None and m.vt < at and m.id not in untouched
        ]
        for message in ran_out:
            self.give_back(message, at, None, LEASE_RAN_OUT)
        return len(ran_out)

    def promote(self, at: datetime) -> int:
        """Messages that are due: as new ones, or in front where they are retried."""
        due = [m for m in self.state("scheduled") if m.due_at is not None and m.due_at <= at]
        for message in due:
            if message.over(at):
                self.bury(message, at, "expired")
        alive = [m for m in due if m.state == "scheduled"]
        self.enter((m for m in alive if m.attempts > 0), "back")
        self.enter(sorted((m for m in alive if m.attempts == 0), key=lambda m: (m.due_at, m.id)), "new")
        return len(due)

    def heads(self) -> list[int | None]:
        """The first rank of each priority."""
        return [line[0].rank if (line := self.line(p)) else None for p in PRIORITIES]

    def raised(self, last_id: int) -> tuple[int, ...]:
        """Where the floor belongs: at the first living row, at the last id where there is none."""
        return tuple(
            max(floor, last_id if head is None else head)
            for floor, head in zip(self.floors, self.heads(), strict=True)
        )


def check_choice(entries: Sequence[Entry], chosen: Sequence[Entry], most: int) -> None:
    """A claim of what came in just now: as many as there are, the most urgent, a tenant's in order."""
    assert len(chosen) == min(most, len(entries)), "too few, or others than came in"
    left = [e for e in entries if e not in chosen]
    urgency = [e.message.priority for e in chosen]
    assert urgency == sorted(urgency), "not the most urgent first"
    assert not urgency or all(e.message.priority >= urgency[-1] for e in left), (
        "something more urgent was left"
    )
    for tenant in {(e.message.priority, e.message.tenant) for e in chosen}:
        belongs = [e for e in entries if e.kind == "new" and (e.message.priority, e.message.tenant) == tenant]
        taken = [e for e in chosen if e in belongs]
        assert taken == belongs[: len(taken)], "not in the order of its tenant"


class Model:
    """Queues on a topic and beside it, and a clock that only moves when told to."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.last_id = 0
        self.queues: dict[str, Queue] = {}

    def publish(self, queues: list[Queue], drafts: Sequence[Draft], *, snapshot: bool) -> list[int]:
        """Into each of the queues; a key that is held in one of them refuses the message in all."""
        queues = sorted(queues, key=lambda q: q.id)
        ids = [self.last_id + n for n in range(1, len(drafts) + 1)]
        fresh = dict(zip(ids, drafts, strict=True))
        for n in sorted(
            (n for n, d in enumerate(drafts) if d.key is not None), key=lambda n: (drafts[n].key, n)
        ):
            key = drafts[n].key or ""
            holder = next((q.keys[key] for q in queues if key in q.keys), None)
            if holder is None:
                for queue in queues:
                    queue.keys[key] = ids[n]
            else:
                del fresh[ids[n]]
                ids[n] = holder
        for queue in queues:
            messages = [self._new(queue, message_id, draft) for message_id, draft in fresh.items()]
            ready = [m for m in messages if m.state == "ready"]
            queue.enter(ready, "fresh" if snapshot else "new")
            queue.messages.update({m.id: m for m in messages})
        return ids

    def _new(self, queue: Queue, message_id: int, draft: Draft) -> Message:
        seconds = queue.settings.message_ttl_seconds if draft.ttl is None else draft.ttl
        ttl = None if seconds is None else timedelta(seconds=seconds)
        later = draft.delay is not None and draft.delay > 0
        return Message(
            id=message_id,
            state="scheduled" if later else "ready",
            number=draft.number,
            priority=draft.priority,
            tenant=draft.tenant,
            large=draft.large,
            published_at=self.now,
            ttl=ttl,
            expires_at=None if ttl is None else self.now + ttl,
            key=draft.key,
            due_at=self.now + timedelta(seconds=draft.delay or 0) if later else None,
        )

    def consume(
        self, queue: Queue, token: str | None, vt_seconds: int | None, batch_size: int, second: Sequence[int]
    ) -> list[Message]:
        """The most urgent first, then by rank; where that is too little, sweep once and look again.

        The order of what the sweep brought in is the engine's choice, within limits: second is what it chose.
        """
        if queue.paused:
            return []
        line = [m for p in PRIORITIES for m in queue.line(p) if not m.over(self.now)]
        claimed = line[:batch_size]
        for message in claimed:
            self._lease(queue, message, token, vt_seconds)
        missing = batch_size - len(claimed)
        if missing == 0:
            return claimed
        # A call never delivers a message twice, not even where the lease is of no length.
        queue.take_back(self.now, [m.id for m in claimed])
        queue.promote(self.now)
        entered = {e.message.id: e for e in queue.entries}
        chosen = [entered[message_id] for message_id in second[:missing] if message_id in entered]
        check_choice(queue.entries, chosen, missing)
        for entry in chosen:
            self._lease(queue, entry.message, token, vt_seconds)
        queue.entries = [e for e in queue.entries if e not in chosen]
        return claimed + [e.message for e in chosen]

    def _lease(self, queue: Queue, message: Message, token: str | None, vt_seconds: int | None) -> None:
        message.attempts += 1
        seconds = queue.settings.visibility_timeout_seconds if vt_seconds is None else vt_seconds
        length = min(seconds * queue.settings.visibility_backoff ** (message.attempts - 1), 2592000)
        message.state, message.rank = "active", None
        message.token, message.claimed_at = token, self.now
        message.vt, message.late_since = self.now + timedelta(seconds=length), None

    def ack(self, queue: Queue, message_id: int, token: str | None, result: int | None = None) -> bool:
        message = queue.held(message_id, token)
        if message is None:
            return False
        if queue.settings.retain_completed_seconds == 0:
            queue.forget(message)
        else:
            queue.free_key(message)
            message.state, message.completed_at, message.result = "done", self.now, result
        return True

    def nack(
        self,
        queue: Queue,
        message_id: int,
        token: str | None,
        delay: int | None,
        error: str | None,
        *,
        snapshot: bool = False,
    ) -> bool:
        message = queue.held(message_id, token)
        if message is not None:
            queue.give_back(message, self.now, delay, error, "anywhere" if snapshot else "back")
        return message is not None

    def release(self, queue: Queue, message_id: int, token: str | None, *, snapshot: bool = False) -> bool:
        message = queue.held(message_id, token)
        if message is not None:
            message.attempts -= 1
            queue.enter([message], "anywhere" if snapshot else "back")
            message.late_since = self.now if message.over(self.now) else None
        return message is not None

    def reject(self, queue: Queue, message_id: int, token: str | None, error: str | None) -> bool:
        message = queue.held(message_id, token)
        if message is not None:
            message.fail(self.now, error)
            queue.bury(message, self.now, "failed")
        return message is not None

    def extend(self, queue: Queue, message_id: int, token: str | None, seconds: int) -> datetime | None:
        message = queue.held(message_id, token)
        if message is None or message.vt is None:
            return None
        message.vt += timedelta(seconds=seconds)
        return message.vt

    def pulse(self, token: str, seconds: int) -> int:
        held = [m for q in self.queues.values() for m in q.state("active") if m.token == token]
        for message in held:
            message.vt = self.now + timedelta(seconds=seconds)
        return len(held)

    def revive(
        self, queue: Queue, messages: list[Message], more: int | None, *, snapshot: bool = False
    ) -> int:
        """Dead letters come back behind what their tenant has waiting; their time to live starts again."""
        for message in sorted((m for m in messages if m.key is not None), key=lambda m: (m.key, m.id)):
            if message.key is not None and queue.keys.setdefault(message.key, message.id) != message.id:
                message.key = None
        for message in messages:
            if more is None:
                message.attempts, message.limit = 0, None
            else:
                most = queue.settings.max_delivery_attempts
                limit = message.attempts + more
                message.limit = limit if 0 < most < limit else None
            message.expires_at = None if message.ttl is None else self.now + message.ttl
            message.reason = message.moved_at = None
        queue.enter(messages, "anywhere" if snapshot else "new")
        return len(messages)

    def cancel(self, queue: Queue, message_id: int) -> bool:
        message = queue.messages.get(message_id)
        if message is None or message.state not in ("ready", "scheduled"):
            return False
        queue.forget(message)
        return True

    def purge(self, queue: Queue, *states: str) -> int:
        purged = [m for m in queue.messages.values() if m.state in states]
        for message in purged:
            queue.forget(message)
        return len(purged)

    def maintain(self) -> Counter[tuple[str, str]]:
        """What is due, except for floors and retention; what is late may be seen later: not counted."""
        did: Counter[tuple[str, str]] = Counter()
        for queue in self.queues.values():
            for message in queue.state("ready") + queue.state("scheduled"):
                if message.over(self.now) and not self.may_be_late(message):
                    queue.bury(message, self.now, "expired")
                    did["expired", queue.name] += 1
            did["leases taken back", queue.name] = queue.take_back(self.now)
            did["promoted", queue.name] = queue.promote(self.now)
        return +did

    def kept_for_long_enough(self, queue: Queue, message: Message) -> bool:
        """Whether a dead letter or a completed message may be removed."""
        if message.state == "dead" and message.moved_at is not None:
            return message.moved_at < self.now - timedelta(seconds=queue.settings.retain_dead_seconds)
        if message.state == "done" and message.completed_at is not None:
            return message.completed_at < self.now - timedelta(
                seconds=queue.settings.retain_completed_seconds
            )
        return False

    def may_be_late(self, message: Message) -> bool:
        return message.late_since is not None and self.now - message.late_since < timedelta(minutes=1)
