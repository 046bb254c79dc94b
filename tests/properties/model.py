"""The engine as a plain Python model: dictionaries for tables, DESIGN sections 2, 3, 5 and 6 for SQL.

It knows nothing of locks, plans or batches of maintenance, nor of permits as rows: what is held is counted.
Takes from outside: the ranks, since which one a message gets is the engine's choice as long as it keeps the
promises about order (order.py); the floors, since raising them is; the last id, since ids are drawn for ranks
too; and when a message whose time to live is over goes to the dead letters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from .messages import PRIORITIES, Draft, Message, Outside
from .queues import Queue


def share_out(queue: Queue, most: int, waiting: Sequence[int]) -> list[int]:
    """How many of each priority a claim takes: the most urgent first, as far as there are permits."""
    taken: list[int] = []
    spent: Counter[int | None] = Counter()
    for priority in PRIORITIES:
        kind = queue.kind(priority)
        free = queue.free_permits(kind)
        n = min(waiting[priority], most - sum(taken))
        taken.append(n if free is None else max(0, min(n, free - spent[kind])))
        spent[kind] += taken[-1]
    return taken


def check_choice(queue: Queue, chosen: Sequence[Message], most: int, at: datetime) -> None:
    """A claim of what came in just now, and of what had no permit before.

    As many as there are permits and messages, the most urgent, those that were in line in their order, a
    tenant's in order.
    """
    entered = {e.message.id: e.kind for e in queue.entries if e.message.state == "ready"}
    lines = [
        [m for m in queue.state("ready") if m.priority == p and not m.over(at)]  # by id
        for p in PRIORITIES
    ]
    assert len({m.id for m in chosen}) == len(chosen), "a message is delivered twice"
    assert all(m in lines[m.priority] for m in chosen), "delivered what was not ready"
    urgency = [m.priority for m in chosen]
    assert urgency == sorted(urgency), "not the most urgent first"
    counted = Counter(urgency)
    expected = share_out(queue, most, [len(line) for line in lines])
    assert [counted[p] for p in PRIORITIES] == expected, f"not {expected} of each priority"
    for priority in PRIORITIES:
        taken = [m for m in chosen if m.priority == priority]
        old = [m for m in taken if m.id not in entered]
        assert old == [m for m in queue.line(priority) if m.id not in entered and not m.over(at)][: len(old)]
        for tenant in {m.tenant for m in taken}:
            belongs = [m for m in queue.line(priority) if m.tenant == tenant and m.entered_as != "anywhere"]
            belongs += [
                e.message
                for e in queue.entries
                if e.kind == "new" and (e.message.priority, e.message.tenant) == (priority, tenant)
            ]
            belongs = [m for m in belongs if not m.over(at)]
            own = [m for m in taken if m in belongs]
            assert own == belongs[: len(own)], (
                f"not in the order of its tenant: {[m.id for m in own]} of {[m.id for m in belongs]}"
            )


BEFORE = ("ready", "waiting", "scheduled")
"""The states of a message that no consumer has claimed."""


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
            holding = [
                q for q in queues if key in q.keys and (snapshot or not q.is_over(q.keys[key], self.now))
            ]
            holder = holding[0].keys[key] if holding else None
            if holder is None:
                for queue in queues:
                    if key in queue.keys:
                        queue.end(queue.keys[key], self.now)
                for queue in queues:
                    queue.keys[key] = ids[n]
            else:
                del fresh[ids[n]]
                ids[n] = holder
        for queue in queues:
            if not snapshot and any(draft.tenant is not None for draft in drafts):
                queue.begin_tenants()
            messages = [self._new(queue, message_id, draft) for message_id, draft in fresh.items()]
            queue.messages.update({m.id: m for m in messages})
            ready = [m for m in messages if m.state == "ready"]
            if queue.cap is not None and not snapshot:
                queue.give_tenant_permits(ready)
            elif queue.fair and not snapshot:
                # Behind what their tenants published under a snapshot.
                ready = queue.line_up(ready)
            queue.enter(ready, "fresh" if snapshot else "new")
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
            header=draft.header,
            raw=draft.raw,
            due_at=self.now + timedelta(seconds=draft.delay or 0) if later else None,
        )

    def consume(
        self,
        queue: Queue,
        token: str | None,
        vt_seconds: int | None,
        batch_size: int,
        *,
        ids: Sequence[int],
        outside: Outside,
    ) -> list[Message]:
        """The most urgent first, then by rank; where that is too little, sweep once and look again.

        The order of what the sweep brought in is the engine's choice, within limits: ids is what it chose.
        """
        if queue.paused:
            return []
        if queue.settings.max_active is not None:
            batch_size = min(batch_size, max(1, queue.settings.max_active // 2))
        if queue.fair and queue.look_at_new_lines(batch_size, self.now):
            claimed = self._choose(queue, batch_size, ids)
        else:
            lines = [[m for m in queue.line(p) if not m.over(self.now)] for p in PRIORITIES]
            shares = share_out(queue, batch_size, [len(line) for line in lines])
            claimed = [m for line, n in zip(lines, shares, strict=True) for m in line[:n]]
        for message in claimed:
            self._lease(queue, message, token, vt_seconds)
        queue.entries = [e for e in queue.entries if e.message.state == "ready"]
        missing = batch_size - len(claimed)
        if missing == 0:
            return claimed
        queue.expire([m for m in queue.state(*BEFORE) if m.over(self.now) and m.id in outside.dead], self.now)
        # A call never delivers a message twice, not even where the lease is of no length.
        queue.take_back(self.now, [m.id for m in claimed])
        queue.promote(self.now, outside.in_line)
        queue.take_returns(self.now)
        queue.admit(self.now)
        waiting = {m.tenant for m in queue.state("waiting")}
        queue.unseen = [check for check in queue.unseen if check[1] in waiting]
        known = [
            queue.messages[message_id] for message_id in ids[len(claimed) :] if message_id in queue.messages
        ]
        check_choice(queue, known, missing, self.now)
        queue.passed += [replace(m, state="passed") for m in known]
        for message in known:
            self._lease(queue, message, token, vt_seconds)
        queue.entries = [e for e in queue.entries if e.message.state == "ready"]
        return claimed + known

    def _choose(self, queue: Queue, most: int, ids: Sequence[int]) -> list[Message]:
        """What a first look claims where messages have just come in: the engine knows their ranks."""
        waiting = [
            len([m for m in queue.state("ready") if m.priority == p and not m.over(self.now)])
            for p in PRIORITIES
        ]
        chosen = [queue.messages[message_id] for message_id in ids[: sum(share_out(queue, most, waiting))]]
        check_choice(queue, chosen, most, self.now)
        queue.passed = [replace(m, state="passed", rank=None) for m in chosen]
        return chosen

    def _lease(self, queue: Queue, message: Message, token: str | None, vt_seconds: int | None) -> None:
        message.attempts += 1
        seconds = queue.settings.visibility_timeout_seconds if vt_seconds is None else vt_seconds
        length = min(seconds * queue.settings.visibility_backoff ** (message.attempts - 1), 2592000)
        message.state, message.rank, message.permit = "active", None, queue.kind(message.priority)
        if message.permit is not None:
            queue.permits.free[message.permit] -= 1
        message.token, message.claimed_at = token, self.now
        message.vt, message.late_since = self.now + timedelta(seconds=length), None

    def ack(
        self,
        queue: Queue,
        message_id: int,
        token: str | None,
        result: int | None = None,
        *,
        snapshot: bool = False,
    ) -> bool:
        message = queue.held(message_id, token)
        if message is None:
            return False
        if queue.settings.retain_completed_seconds == 0:
            queue.forget(message)
        else:
            queue.free_key(message)
            message.state, message.completed_at, message.result = "done", self.now, result
            queue.leave(message)
        queue.hand_on(self.now, snapshot=snapshot)
        return True

    def nack(
        self,
        queue: Queue,
        message_id: int,
        token: str | None,
        delay: int | None,
        error: str | None,
        *,
        most: int | None = None,
        snapshot: bool = False,
    ) -> bool:
        message = queue.held(message_id, token)
        if message is not None:
            kind = "anywhere" if snapshot else "beside"
            queue.give_back(message, self.now, delay, error, kind, most=most)
            queue.hand_on(self.now, snapshot=snapshot)
        return message is not None

    def release(
        self, queue: Queue, message_id: int, token: str | None, delay: int, *, snapshot: bool = False
    ) -> bool:
        message = queue.held(message_id, token)
        if message is not None:
            message.attempts -= 1
            if delay > 0:
                queue.put_off(message, self.now, delay)
            else:
                queue.enter([message], "anywhere" if snapshot else "back")
            message.late_since = self.now if message.over(self.now) else None
            queue.hand_on(self.now, snapshot=snapshot)
        return message is not None

    def reject(
        self,
        queue: Queue,
        message_id: int,
        token: str | None,
        error: str | None,
        *,
        snapshot: bool = False,
    ) -> bool:
        message = queue.held(message_id, token)
        if message is not None:
            message.fail(self.now, error)
            queue.bury(message, self.now, "failed")
            queue.hand_on(self.now, snapshot=snapshot)
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
            assert message.key is not None
            holder = queue.keys.get(message.key)
            if holder is not None and not snapshot and queue.is_over(holder, self.now):
                queue.end(holder, self.now)
            if queue.keys.setdefault(message.key, message.id) != message.id:
                message.key = None
        for message in messages:
            if more is None:
                message.attempts, message.limit = 0, None
            else:
                most = queue.settings.max_delivery_attempts
                limit = message.attempts + more
                message.limit = limit if most < limit else None
            message.expires_at = None if message.ttl is None else self.now + message.ttl
            message.lifetime = message.ttl
            message.reason = message.moved_at = None
        in_order = sorted(messages, key=lambda m: m.id)
        if queue.cap is not None and not snapshot:
            queue.give_tenant_permits(in_order)
        queue.enter(in_order, "new" if not snapshot else "fresh" if queue.fair else "anywhere")
        return len(messages)

    def cancel(self, queue: Queue, message_id: int) -> bool:
        message = queue.messages.get(message_id)
        if message is None or message.state not in BEFORE:
            return False
        queue.forget(message)
        queue.hand_on(self.now)
        return True

    def purge(self, queue: Queue, *states: str) -> int:
        purged = [m for m in queue.messages.values() if m.state in states]
        for message in purged:
            queue.forget(message)
        queue.hand_on(self.now)
        if "active" in states:
            queue.deferred_tenant_permits = Counter()
            queue.unseen = []
        return len(purged)

    def maintain(self, outside: dict[str, Outside]) -> Counter[tuple[str, str]]:
        """What is due, except for floors and retention; what is late may be seen later."""
        did: Counter[tuple[str, str]] = Counter()
        for name, queue in self.queues.items():
            over = [m for m in queue.state(*BEFORE) if m.over(self.now)]
            seen = [m for m in over if not self.may_be_late(m) or m.id in outside[name].dead]
            did["expired", name] = queue.expire(seen, self.now)
            did["leases taken back", name] = queue.take_back(self.now)
            did["promoted", name] = queue.promote(self.now, outside[name].in_line)
            queue.take_returns(self.now)
            did["admitted", name] = queue.admit(self.now)
            queue.unseen = []
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
