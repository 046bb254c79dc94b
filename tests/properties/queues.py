"""A queue of the model: its messages, the permits and tenant permits they hold, waiting and admission."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from .caps import Permits, quotas
from .messages import LEASE_RAN_OUT, PRIORITIES, Entry, Message, Settings

UNDER_SNAPSHOT = ("fresh", "anywhere")


@dataclass(slots=True)
class Queue:
    """Messages by id, dedup keys, floors. What is held is counted from the messages."""

    id: int
    name: str
    topic: str | None
    settings: Settings
    fair: bool
    """Whether it has seen tenants, or has a cap for each of them."""
    tenants_from: int | None = None
    """The rank behind which tenants share it: the engine's."""
    early: set[int] = field(default_factory=set)
    """What was ready when the first tenant came, and has not left since."""
    floors: tuple[int, ...] = (0,) * 11
    """Of the priorities, of waiting, of the permits of each priority, of tenants, the checks."""
    heads_aside: tuple[int | None, ...] = (None,) * 7
    """First ranks of waiting messages, permits of each priority, of tenants, of checks: the engine's."""
    paused: bool = False
    permits: Permits = field(default_factory=Permits)
    messages: dict[int, Message] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    """What came into ready since ranks were last looked at, a tenant's messages in their order."""
    passed: list[Message] = field(default_factory=list)
    """What was in line when those came in, or was one of them (no rank), and was claimed in the same step."""
    left: Counter[int] = field(default_factory=Counter)
    """Permits that were given back in this step."""
    returned: Counter[str | None] = field(default_factory=Counter)
    """Tenant permits that were given back in this step and not handed on yet."""
    deferred_tenant_permits: Counter[str | None] = field(default_factory=Counter)
    """Tenant permits given back under a snapshot: free once a call without a snapshot sees them."""
    turns: int = 0
    lines: dict[str | None, int] = field(default_factory=dict)
    """Tenants that have permits, free or held, and how many, after the last step: the engine gives those."""
    unseen: list[tuple[int, str | None]] = field(default_factory=list)
    """Lines in which a message came to wait and no session has looked since."""

    def state(self, *states: str) -> list[Message]:
        """The messages in a state, by id."""
        return sorted((m for m in self.messages.values() if m.state in states), key=lambda m: m.id)

    def line(self, priority: int) -> list[Message]:
        """Those ready in a priority, in the order of delivery."""
        ready = [m for m in self.state("ready") if m.priority == priority and m.rank is not None]
        return sorted(ready, key=lambda m: (m.rank, m.id))

    def held(self, message_id: int, token: str | None) -> Message | None:
        message = self.messages.get(message_id)
        if message is None or message.state != "active" or message.token != token:
            return None
        return message

    # permits

    @property
    def quotas(self) -> tuple[int, ...] | None:
        s = self.settings
        return quotas(s.max_active, s.min_active, s.priority_shares)

    @property
    def cap(self) -> int | None:
        return self.settings.tenant_max_active

    def kind(self, priority: int) -> int | None:
        """The line of permits that a priority draws from."""
        return None if self.quotas is None else 0 if len(self.quotas) == 1 else priority

    def free_permits(self, kind: int | None) -> int | None:
        """None: no cap."""
        return None if kind is None else max(0, self.permits.free[kind])

    def quota(self, kind: int) -> int:
        return self.quotas[kind] if self.quotas is not None and kind < len(self.quotas) else 0

    def holders(self) -> Counter[int | None]:
        """How many hold a permit of each priority; a deferred one is held, too."""
        return Counter(m.permit for m in self.state("active")) + Counter[int | None](self.permits.deferred)

    def free_tenant_permits(self, tenant: str | None) -> int:
        """Less than none: so many debts."""
        assert self.cap is not None
        held = sum(m.holds_tenant_permit and m.tenant == tenant for m in self.state("ready", "active"))
        return self.cap - held - self.deferred_tenant_permits[tenant]

    def leave(self, message: Message) -> None:
        """What is not active gives its permit back; its tenant permit too, unless it is ready."""
        if message.permit is not None:
            self.left[message.permit] += 1
            message.permit = None
        if message.holds_tenant_permit and message.state != "ready":
            message.holds_tenant_permit = False
            self.returned[message.tenant] += 1

    def hand_on(self, at: datetime, *, snapshot: bool = False) -> None:
        """Returned permits repay debts, or are free; those of tenants go to the next message that waits.

        Under a snapshot that cannot see all, that is left to the next look.
        """
        left, returned = self.left, self.returned
        self.left, self.returned = Counter(), Counter()
        if self.quotas is not None and snapshot:
            self.permits.deferred += left
        elif self.quotas is not None:
            self.permits.free.update(left)
        if self.cap is not None and snapshot:
            self.deferred_tenant_permits += returned
        elif self.cap is not None:
            for tenant, n in sorted(returned.items(), key=lambda item: item[0] or ""):
                # A tenant permit is handed on where the line has no other that is free.
                if self.free_tenant_permits(tenant) <= n:
                    self.bring_in(tenant, self.free_tenant_permits(tenant), at)
                is_waiting = any(m.tenant == tenant for m in self.state("waiting"))
                if self.free_tenant_permits(tenant) > 0 and is_waiting:
                    self.unseen.append((0, tenant))

    def take_returns(self, at: datetime) -> None:
        """What was given back under a snapshot."""
        self.left, self.permits.deferred = self.permits.deferred, Counter()
        self.returned, self.deferred_tenant_permits = self.deferred_tenant_permits, Counter()
        self.hand_on(at)

    def bring_in(self, tenant: str | None, most: int, at: datetime) -> int:
        """The most urgent first, those that come back, then the oldest."""
        line = [m for m in self.state("waiting") if m.tenant == tenant and not m.over(at)]
        chosen = sorted(line, key=lambda m: (m.priority, m.turn))[: max(most, 0)]
        for message in chosen:
            message.holds_tenant_permit = self.cap is not None
            self._to_ready(message, "new")
        return len(chosen)

    def admit(self, at: datetime) -> int:
        """All that wait and may come in."""
        tenants = {m.tenant for m in self.state("waiting")}
        return sum(
            self.bring_in(t, len(self.messages) if self.cap is None else self.free_tenant_permits(t), at)
            for t in tenants
        )

    def look_at_new_lines(self, most: int, at: datetime) -> int:
        """What every consume does: so many of the checks that no session has looked at."""
        looked_at = self.unseen[: max(most, 100)]
        tenants = [tenant for _, (_, tenant) in sorted(enumerate(looked_at), key=lambda c: (c[1][0], c[0]))]
        chosen = [tenant for tenant in dict.fromkeys(tenants) if self.is_open(tenant)][:most]
        came = sum(
            self.bring_in(
                tenant, most if self.cap is None else min(most, self.free_tenant_permits(tenant)), at
            )
            for tenant in chosen
        )
        done = set(chosen) - {m.tenant for m in self.state("waiting")}
        rest = self.unseen[max(most, 100) :]
        self.unseen = [check for check in looked_at if check[1] not in done] + rest
        return came

    def line_up(self, messages: Sequence[Message]) -> list[Message]:
        """Those whose tenant has messages waiting wait, too; the others come back."""
        waiting = {m.tenant for m in self.state("waiting")}
        behind = [m for m in messages if m.tenant in waiting]
        for message in behind:
            self.wait(message, back=False)
        urgency = {t: min(m.priority for m in behind if m.tenant == t) for t in {m.tenant for m in behind}}
        self.leave_checks(urgency, unseen=True)
        return [m for m in messages if m not in behind]

    def is_open(self, tenant: str | None) -> bool:
        return self.cap is None or self.lines.get(tenant) != self.cap or self.free_tenant_permits(tenant) > 0

    def leave_checks(self, lines: dict[str | None, int], *, unseen: bool = False) -> None:
        new = [
            tenant
            for tenant in lines
            if unseen or tenant not in self.lines or self.free_tenant_permits(tenant) > 0
        ]
        self.unseen += [(lines[tenant], tenant) for tenant in sorted(new, key=lambda tenant: tenant or "")]

    def wait(self, message: Message, *, back: bool) -> None:
        self.turns += 1
        message.state, message.rank, message.turn = "waiting", None, (not back, self.turns)
        self.leave(message)

    # in and out

    def free_key(self, message: Message) -> None:
        if message.key is not None and self.keys.get(message.key) == message.id:
            del self.keys[message.key]

    def bury(self, message: Message, at: datetime, reason: str) -> None:
        message.bury(at, reason)
        self.free_key(message)
        self.leave(message)

    def forget(self, message: Message) -> None:
        self.free_key(message)
        message.state = ""
        self.leave(message)
        del self.messages[message.id]

    def _to_ready(self, message: Message, kind: str) -> None:
        """The rank is looked up when the step is over."""
        message.state, message.rank = "ready", None
        message.entered_as = kind
        self.entries.append(Entry(message, kind))

    def give_tenant_permits(self, messages: Sequence[Message]) -> None:
        """As far as its tenant has permits; behind what waits of a tenant they line up."""
        waiting = {m.tenant for m in self.state("waiting")}
        for tenant in ({m.tenant for m in messages} & self.lines.keys()) - waiting:
            own = [m for m in messages if m.tenant == tenant]
            for message in own[: max(0, self.free_tenant_permits(tenant))]:
                message.holds_tenant_permit = True

    def enter(self, messages: Iterable[Message], kind: str) -> None:
        """Into ready, those that have a tenant permit where one is needed; else into waiting."""
        lined_up: dict[str | None, int] = {}
        for message in messages:
            if kind in UNDER_SNAPSHOT and self.fair:
                self.wait(message, back=kind == "anywhere")
                lined_up[message.tenant] = min(message.priority, lined_up.get(message.tenant, 3))
            elif self.cap is None or message.holds_tenant_permit:
                message.holds_tenant_permit = self.cap is not None
                self._to_ready(message, kind)
                self.leave(message)
            else:
                self.wait(message, back=kind in ("back", "beside"))
                lined_up[message.tenant] = min(message.priority, lined_up.get(message.tenant, 3))
        self.leave_checks(lined_up, unseen=kind in UNDER_SNAPSHOT)

    def give_back(
        self,
        message: Message,
        at: datetime,
        delay: int | None,
        error: str | None,
        kind: str = "beside",
        *,
        most: int | None = None,
    ) -> None:
        """The end of an attempt that failed."""
        message.fail(at, error)
        most = message.limit or most or self.settings.max_delivery_attempts or None
        if most is not None and message.attempts >= most:
            self.bury(message, at, "no_attempts_left")
        elif message.over(at):
            self.bury(message, at, "expired")
        else:
            delays = self.settings.retry_delays
            delay = delays[min(message.attempts, len(delays)) - 1] if delay is None else delay
            if delay > 0:
                self.put_off(message, at, delay)
            else:
                self.enter([message], kind)

    def is_over(self, message_id: int, at: datetime) -> bool:
        """Whether a message would become a dead letter if a sweep came by."""
        message = self.messages.get(message_id)
        if message is None or message.state == "dead":
            return False  # It comes in just now.
        if message.state != "active":
            return message.over(at)
        most = message.limit or self.settings.max_delivery_attempts or None
        last = message.over(at) or (most is not None and message.attempts >= most)
        return last and message.vt is not None and message.vt < at

    def end(self, message_id: int, at: datetime) -> None:
        """What a publisher does with a message that is over and holds the key that it wants."""
        message = self.messages[message_id]
        if message.state == "active":
            self.give_back(message, at, None, LEASE_RAN_OUT)
        else:
            self.bury(message, at, "expired")
        self.hand_on(at)

    def put_off(self, message: Message, at: datetime, delay: int) -> None:
        message.state, message.due_at = "scheduled", at + timedelta(seconds=delay)
        self.leave(message)

    def expire(self, messages: Iterable[Message], at: datetime) -> int:
        expired = list(messages)
        for message in expired:
            self.bury(message, at, "expired")
        self.hand_on(at)
        return len(expired)

    def take_back(self, at: datetime, untouched: Collection[int] = ()) -> int:
        """Leases that ran out."""
        ran_out = [
            m for m in self.state("active") if m.vt is not None and m.vt < at and m.id not in untouched
        ]
        for message in ran_out:
            kind = "beside" if message.lost_deliveries else "back"
            self.give_back(message, at, None, LEASE_RAN_OUT, kind)
        self.hand_on(at)
        return len(ran_out)

    def promote(self, at: datetime, in_line: Collection[int]) -> int:
        """Messages that are due: as new ones, or beside others where they are retried.

        Permits of tenants are given by priority and due time. Of those due at the same time the engine
        chooses: by in_line, what is ready or active after the step.
        """
        due = [m for m in self.state("scheduled") if m.due_at is not None and m.due_at <= at]
        stale = [m for m in due if m.over(at)]
        self.expire(stale, at)
        alive = sorted((m for m in due if m.state == "scheduled"), key=lambda m: (m.due_at, m.id))
        if self.cap is not None:
            by_time = sorted(alive, key=lambda m: (m.priority, m.due_at or at, m.id not in in_line))
            self.give_tenant_permits(by_time)
        let_in = [m for m in alive if self.cap is None or m.holds_tenant_permit]
        self.enter((m for m in let_in if m.attempts > 0), "beside")
        self.enter((m for m in let_in if m.attempts == 0), "new")
        for message in alive:
            if message not in let_in:
                self.wait(message, back=message.attempts > 0)
        return len(due)

    # settings and floors

    def begin_tenants(self) -> None:
        """What is ready now is served first."""
        if not self.fair:
            self.fair = True
            self.early = {m.id for m in self.state("ready")}

    def alter(self, settings: Settings) -> None:
        """What is active when a cap comes holds a permit of each kind; what is ready waits for its turn."""
        before = self.quotas, self.cap
        self.settings = settings
        if self.quotas != before[0]:
            self._make_permits()
        if (before[1] is None) != (self.cap is None):
            self.deferred_tenant_permits = Counter()
        if before[1] is None and self.cap is not None:
            self.begin_tenants()
            for message in self.state("active"):
                message.holds_tenant_permit = True
            for message in sorted(self.state("ready"), key=lambda m: (m.rank, m.id)):
                message.holds_tenant_permit = False
                self.wait(message, back=message.attempts > 0)
        if self.cap != before[1]:
            self.leave_checks({m.tenant: 0 for m in self.state("waiting")}, unseen=True)

    def _make_permits(self) -> None:
        """A message that is one too many of its priority holds a permit of one that has too few."""
        self.permits = Permits()
        if self.quotas is None:
            return
        active = sorted(self.state("active"), key=lambda m: (m.claimed_at, m.id))
        for message in active:
            message.permit = self.kind(message.priority)
        free = Counter({kind: self.quota(kind) for kind in PRIORITIES})
        free.subtract(m.permit for m in active if m.permit is not None)
        lacking = [kind for kind in reversed(PRIORITIES) for _ in range(free[kind])]
        for message in active:
            if lacking and message.permit is not None and free[message.permit] < 0:
                free[message.permit] += 1
                message.permit = lacking.pop(0)
                free[message.permit] -= 1
        self.permits.free = free

    def heads(self) -> tuple[int | None, ...]:
        """The first rank of each priority, of waiting messages, of the permits of priorities and tenants."""
        ready = (line[0].rank if (line := self.line(p)) else None for p in PRIORITIES)
        return (*ready, *self.heads_aside)

    def raised(self, last_id: int) -> tuple[int, ...]:
        """Where the floor belongs: at the first living row, at the last id where there is none."""
        raised = tuple(
            max(floor, last_id if head is None else head)
            for floor, head in zip(self.floors, self.heads(), strict=True)
        )
        return raised if self.fair or self.quotas is not None else (*raised[:4], *self.floors[4:])
