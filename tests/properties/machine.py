"""The state machine: one rule for each call of the API, done to the engine and to the model alike."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from .base import START, caps, least, picks, queue_names, settings, shares, snapshots, tenant_caps
from .consuming import Consuming
from .engine import Snapshot
from .messages import Draft, Message, Settings
from .model import BEFORE
from .queues import Queue

SHARES = (40, 30, 20, 10)
CROWD = tuple(
    Draft(0, priority=priority, tenant=tenant)
    for priority, tenant in [
        (0, None),
        (0, "x"),
        (0, "x"),
        (1, "x"),
        (1, None),
        (2, "y"),
        (2, None),
        (3, "x"),
    ]
)


class QueueMachine(Consuming):
    """Drives both, and compares them after every step; here: maintenance, and what admins do."""

    @rule()
    def maintain(self) -> None:
        did: Counter[tuple[str, str]] = Counter()
        is_unfinished = True
        while is_unfinished:
            is_unfinished = False
            for action, name, n in self.engine.all(
                "select action, queue_name, affected from penstock.maintain()"
            ):
                if action == "unfinished":
                    is_unfinished = True
                else:
                    did[action, name] += n
        snapshot = self.engine.snapshot()
        removed = self._forget_what_was_kept_for_long_enough(snapshot)
        expected = self.model.maintain(self._outside(snapshot)) + removed
        raised = {
            name for name, floors in snapshot.floors.items() if floors != self.model.queues[name].floors
        }
        assert {name for action, name in did if action == "floor raised"} == raised
        # Completed messages also go with the day that they lie in, without being counted.
        uncounted = ("floor raised", "completed removed")
        about_messages = {key: n for key, n in did.items() if key[1] is not None and key[0] not in uncounted}
        assert about_messages == {key: n for key, n in (+expected).items() if key[0] not in uncounted}
        self.may_be_raised = raised

    def _forget_what_was_kept_for_long_enough(self, snapshot: Snapshot) -> Counter[tuple[str, str]]:
        """Retention is looked after once a minute or so: what is not gone yet may stay for a while."""
        present = {(row["queue"], row["id"]) for row in snapshot.messages}
        removed: Counter[tuple[str, str]] = Counter()
        for queue in self.model.queues.values():
            for message in queue.state("dead") + queue.state("done"):
                if (queue.name, message.id) not in present:
                    assert self.model.kept_for_long_enough(queue, message), f"{message} was removed too early"
                    action = "dead letters removed" if message.state == "dead" else "completed removed"
                    removed[action, queue.name] += 1
                    queue.forget(message)
        return removed

    @rule()
    def settle_down(self) -> None:
        """Where maintain() is called now and then, nothing that is due stays undone for some minutes."""
        left_behind = self.left_behind
        for _ in range(3):
            self.pass_time(61)
            for _ in range(2):
                self.maintain()
                self.same()
        assert not left_behind & self.left_behind, "payloads that no message needs are still there"
        for queue in self.model.queues.values():
            for message in queue.messages.values():
                assert not self.model.kept_for_long_enough(queue, message), f"{message} is kept for too long"
                assert message.state not in BEFORE or not message.over(self.model.now), message
                assert message.state != "waiting" or queue.free_tenant_permits(message.tenant) <= 0, message
                assert message.state != "scheduled" or (message.due_at or START) > self.model.now, message
                assert message.state != "active" or (message.vt or START) > self.model.now, message
            heads = zip(queue.heads(), queue.floors, strict=True)
            low = [head is not None and head != floor for head, floor in heads]
            may_wait = queue.fair or queue.quotas is not None
            assert not any(low if may_wait else low[:4]), f"a floor of {queue.name} is low"

    @rule(name=queue_names)
    def raise_floor(self, name: str) -> None:
        queue = self.model.queues[name]
        raised = queue.raised(self.model.last_id) != queue.floors
        assert self.engine.one("select penstock.raise_floor(%s)", [name]) is raised
        expected = queue.raised(self.model.last_id)
        self.may_be_raised = {name}
        self.same()
        assert queue.floors == expected

    # dead letters

    @rule(name=queue_names, some=st.none() | st.lists(picks, max_size=3), level=snapshots)
    def requeue(self, name: str, some: list[int] | None, level: str | None) -> None:
        queue = self._queue(name, "dead")
        dead = queue.state("dead")
        ids = None if some is None else [self._pick(dead, pick) for pick in some]
        self._revive(
            queue,
            [m for m in dead if ids is None or m.id in ids],
            None,
            level,
            call="select penstock.requeue_dlq_messages(%s, %s::bigint[])",
            params=[queue.name, ids],
        )

    @rule(name=queue_names, attempts=st.integers(1, 3), level=snapshots)
    def add_retries(self, name: str, attempts: int, level: str | None) -> None:
        queue = self._queue(name, "dead")
        dead = [m for m in queue.state("dead") if m.reason in ("expired", "no_attempts_left")]
        self._revive(
            queue,
            dead,
            attempts,
            level,
            call="select penstock.add_retries(%s, %s)",
            params=[queue.name, attempts],
        )

    def _revive(
        self,
        queue: Queue,
        dead: list[Message],
        more: int | None,
        level: str | None,
        *,
        call: str,
        params: list[Any],
    ) -> None:
        with self.engine.isolation(level):
            actual = self.engine.one(call, params)
        assert actual == self.model.revive(queue, dead, more, snapshot=level is not None)

    # queues

    @rule(
        name=queue_names,
        pick=picks,
        state=st.sampled_from(["ready", "ready", "waiting", "scheduled", "active", "dead"]),
    )
    def cancel(self, name: str, pick: int, state: str) -> None:
        queue = self._queue(name, state)
        message_id = self._pick(queue.state(state), pick)
        actual = self.engine.one("select penstock.cancel_message(%s, %s)", [queue.name, message_id])
        assert actual is self.model.cancel(queue, message_id)

    @rule(
        name=queue_names,
        chosen=settings,
        verb=st.sampled_from(["alter", "pause", "resume", "delete", "purge", "purge_dlq", "clean_up"]),
    )
    def administer(self, name: str, chosen: Settings, verb: str) -> None:
        queue = self.model.queues[name]
        match verb:
            case "alter":
                self.engine.alter_queue(name, chosen)
                queue.alter(chosen)
            case "pause" | "resume":
                self.engine.one(f"select penstock.{verb}_queue(%s)", [name])
                queue.paused = verb == "pause"
            case "delete":
                self.engine.one("select penstock.delete_queue(%s)", [name])
                self._create(name, chosen)
            case "purge":
                purged = self.model.purge(queue, *BEFORE, "active")
                assert self.engine.one("select penstock.purge_queue(%s)", [name]) == purged
            case "purge_dlq":
                assert self.engine.one("select penstock.purge_dlq(%s)", [name]) == self.model.purge(
                    queue, "dead"
                )
            case "clean_up":
                removed = self.model.purge(queue, "done")
                assert self.engine.one("select penstock.cleanup_queue_messages(%s)", [name]) == removed

    @rule(name=queue_names, most=caps, minimum=least, parts=shares, cap=tenant_caps)
    def alter_caps(
        self, name: str, most: int | None, minimum: int, parts: tuple[int, ...], cap: int | None
    ) -> None:
        queue = self.model.queues[name]
        chosen = replace(
            queue.settings, max_active=most, min_active=minimum, priority_shares=parts, tenant_max_active=cap
        )
        self.engine.alter_queue(queue.name, chosen)
        queue.alter(chosen)

    @rule(
        name=queue_names,
        most=st.sampled_from([1, 3, 4, 5, 7, 10, 13]),
        parts=st.lists(shares, min_size=1, max_size=2),
        cap=tenant_caps,
    )
    def crowd(self, name: str, most: int, parts: list[tuple[int, ...]], cap: int | None) -> None:
        """Caps that come, and shares that change, while more is active than they allow."""
        self.alter_caps(name, None, 0, SHARES, None)
        self.same()
        self.put_mixed(("send", name), list(CROWD), None)
        self.same()
        self.consume_all(name)
        self.same()
        self.put_mixed(("send", name), list(CROWD), None)
        for chosen in parts:
            self.same()
            self.alter_caps(name, most, 1, chosen, cap)

    @rule(name=queue_names, several=st.lists(st.sampled_from([1, 2, 3, 5]), min_size=2, max_size=3))
    def reseat(self, name: str, several: list[int]) -> None:
        """Tenants that are known, and have tenant_permits free or owe some, when their cap changes."""
        for cap in several:
            s = self.model.queues[name].settings
            self.alter_caps(name, s.max_active, s.min_active, s.priority_shares, cap)
            self.same()
            self.put_mixed(("send", name), list(CROWD[cap:4]), None)
            self.same()
            self.consume(name, "anna", None, cap)
            self.same()

    @rule()
    def resume(self) -> None:
        for queue in self.model.queues.values():
            self.engine.one("select penstock.resume_queue(%s)", [queue.name])
            queue.paused = False

    # look

    @rule(name=queue_names, pick=picks, page_size=st.sampled_from([1, 3, 100]))
    def look(self, name: str, pick: int, page_size: int) -> None:
        """Lists, page by page, and one message; what is ready is listed in the order of delivery."""
        queue = self.model.queues[name]
        listed: list[tuple[int, str]] = []
        cursor = None
        while True:
            page = self.engine.rows(
                "select * from penstock.list_messages(%s, page_size => %s, after => %s)",
                [name, page_size, cursor],
            )
            listed += [(row["message_id"], row["state"]) for row in page]
            if len(page) < page_size:
                break
            cursor = page[-1]["cursor"]
        ready = [m for p in range(4) for m in queue.line(p)]
        ordered = [
            *queue.state("active"),
            *ready,
            *sorted(queue.state("waiting"), key=lambda m: m.turn[1]),
            *queue.state("scheduled"),
            *queue.state("dead"),
            *queue.state("done"),
        ]
        assert listed == [(m.id, m.state) for m in ordered]
        dead = self.engine.rows("select * from penstock.list_dlq_messages(%s)", [name])
        assert [(row["message_id"], row["reason"]) for row in dead] == [
            (m.id, m.reason) for m in queue.state("dead")
        ]
        message_id = self._pick(ordered, pick)
        found = self.engine.rows("select * from penstock.get_message(%s, %s)", [name, message_id])
        message = queue.messages.get(message_id)
        assert [row["state"] for row in found] == ([] if message is None else [message.state])
        assert self.engine.one("select penstock.explain_delivery(%s, %s)", [name, message_id])
