"""The state machine: one rule for each call of the API, done to the engine and to the model alike."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from psycopg.types.json import Jsonb

from .compare import check_beside, check_consumed, check_messages, check_statistics
from .engine import Engine, Snapshot
from .model import PRIORITIES, Draft, Message, Model, Queue, Settings
from .order import check_ranks, take_ranks

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
TOPICS = {"a": "t", "b": "t", "c": None}
"""Two queues on one topic, and one without."""

queue_names = st.sampled_from(sorted(TOPICS))
targets = st.sampled_from([("publish", "t"), ("publish", "t"), ("send", "a"), ("send", "b"), ("send", "c")])
picks = st.integers(0, 7)
"""Which of the messages that a call could be about: none is excluded beforehand, so that every step does something."""
tokens = st.sampled_from(["held", "held", "held", "held", "seen", "nobody"])
consumers = st.sampled_from([None, "anna", "berta"])
snapshots = st.sampled_from([None, None, None, "repeatable read", "serializable"])
errors = st.sampled_from([None, "boom", "bang"])
settings = st.builds(
    Settings,
    max_delivery_attempts=st.sampled_from([3, 1, 2, 0]),
    visibility_timeout_seconds=st.sampled_from([30, 5, 0]),
    visibility_backoff=st.sampled_from([1.0, 2.0, 1.5]),
    retry_delays=st.sampled_from([(0,), (10,), (0, 20), (7, 0, 60)]),
    message_ttl_seconds=st.sampled_from([None, None, None, 40, 300]),
    retain_completed_seconds=st.sampled_from([86400, 0, 90]),
    retain_dead_seconds=st.sampled_from([2592000, 120]),
    notify=st.booleans(),
)
drafts = st.builds(
    Draft,
    number=st.just(0),
    priority=st.sampled_from([2, 2, 0, 1, 3]),
    tenant=st.sampled_from([None, None, "x", "y"]),
    delay=st.sampled_from([None, None, None, 0, 15, 60]),
    ttl=st.sampled_from([None, None, 25, 25, 100]),
    key=st.sampled_from([None, None, None, "k", "l"]),
    large=st.sampled_from([False, False, False, True]),
)

STOCK = (
    Draft(0),
    Draft(0, tenant="x"),
    Draft(0, tenant="x"),
    Draft(0, priority=0),
    Draft(0, delay=15),
    Draft(0, ttl=25),
    Draft(0, key="k"),
    Draft(0, large=True),
)


class QueueMachine(RuleBasedStateMachine):
    """Drives both, and compares them after every step."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.model = Model(START)
        self.number = 0
        self.seen: dict[tuple[str, int], list[str]] = {}
        self.may_be_raised: set[str] = set()
        self.left_behind: set[int] = set()
        engine.set_time(START)
        engine.reset()
        engine.connection.execute("select penstock.create_topic('t')")

    @initialize(a=settings, b=settings, c=settings)
    def create(self, a: Settings, b: Settings, c: Settings) -> None:
        for name, chosen in zip(sorted(TOPICS), (a, b, c), strict=True):
            self._create(name, chosen)

    def _create(self, name: str, chosen: Settings) -> None:
        queue_id = self.engine.create_queue(name, TOPICS[name], chosen)
        self.model.queues[name] = Queue(queue_id, name, TOPICS[name], chosen)

    # what a rule is about

    def _queues_of(self, verb: str, target: str) -> list[Queue]:
        if verb == "send":
            return [self.model.queues[target]]
        return [q for q in self.model.queues.values() if q.topic == target]

    def _numbered(self, draft: Draft) -> Draft:
        self.number += 1
        return Draft(
            self.number, draft.priority, draft.tenant, draft.delay, draft.ttl, draft.key, draft.large
        )

    def _queue(self, name: str, *states: str) -> Queue:
        """The queue of that name, or another one, with something in one of these states, so that every step does
        something; where there is none, the step that leads there comes first."""
        queues = [self.model.queues[name], *self.model.queues.values()]
        for prepared in (False, True):
            for queue in queues:
                if any(m.state in states for m in queue.messages.values()):
                    return queue
            if not prepared:
                self._prepare(name, states)
        return queues[0]

    def _prepare(self, name: str, states: tuple[str, ...]) -> None:
        if states == ("dead",):
            self.reject(name, 0, "held", "boom", None)
        elif states == ("active",):
            self.consume(name, "anna", None, 3)
        else:
            self.put_mixed(("send", name), list(STOCK), None)
        self.same()

    def _pick(self, messages: list[Message], pick: int) -> int:
        return messages[pick % len(messages)].id if messages else 1_000_000 + pick

    def _leased(self, queue: Queue, pick: int, whose: str) -> tuple[int, str]:
        """A leased message and the token to name with it: its own, one it was leased to before, or a wrong one."""
        message_id = self._pick(queue.state("active"), pick)
        message = queue.messages.get(message_id)
        if message is None or message.token is None or whose == "nobody":
            return message_id, "nobody"
        return message_id, message.token if whose == "held" else self.seen[queue.name, message_id][0]

    # publish

    @rule(target_=targets, draft=drafts, level=snapshots)
    def put_one(self, target_: tuple[str, str], draft: Draft, level: str | None) -> None:
        draft = self._numbered(draft)
        with self.engine.isolation(level):
            actual = self.engine.put_one(*target_, draft)
        assert [actual] == self.model.publish(self._queues_of(*target_), [draft], snapshot=level is not None)

    @rule(
        target_=targets,
        draft=drafts,
        keyed=st.booleans(),
        sizes=st.lists(st.booleans(), min_size=1, max_size=6),
        level=snapshots,
    )
    def put_alike(
        self, target_: tuple[str, str], draft: Draft, keyed: bool, sizes: list[bool], level: str | None
    ) -> None:
        key = draft.key if keyed else None
        alike = [
            self._numbered(
                Draft(0, draft.priority, draft.tenant, draft.delay, draft.ttl, key, large and draft.large)
            )
            for large in sizes
        ]
        with self.engine.isolation(level):
            actual = self.engine.put_alike(*target_, alike)
        assert actual == self.model.publish(self._queues_of(*target_), alike, snapshot=level is not None)

    @rule(target_=targets, mixed=st.lists(drafts, max_size=8), level=snapshots)
    def put_mixed(self, target_: tuple[str, str], mixed: list[Draft], level: str | None) -> None:
        mixed = [self._numbered(draft) for draft in mixed]
        with self.engine.isolation(level):
            actual = self.engine.put_mixed(*target_, mixed)
        assert actual == self.model.publish(self._queues_of(*target_), mixed, snapshot=level is not None)

    # consume

    @rule(
        name=queue_names,
        token=consumers,
        vt=st.sampled_from([None, None, 0, 3, 50]),
        size=st.sampled_from([None, 1, 2, 3, 10]),
    )
    def consume(self, name: str, token: str | None, vt: int | None, size: int | None) -> None:
        queue = self._queue(name, "ready", "scheduled", "active")
        rows = self.engine.consume(queue.name, token, vt, size)
        given = {row["consumer_token"] for row in rows}
        assert len(given) <= 1, "one call, one token"
        made = token or (given.pop() if given else None)
        ids = [row["message_id"] for row in rows]
        at_once = sum(1 for p in PRIORITIES for m in queue.line(p) if not m.over(self.model.now))
        claimed = self.model.consume(queue, made, vt, 1 if size is None else size, ids[at_once:])
        check_consumed(queue, claimed, rows)
        if any(m.over(self.model.now) for m in queue.state("ready") + queue.state("scheduled")):
            self._bury_expired(queue, self.engine.snapshot())
        for message in claimed:
            self.seen.setdefault((queue.name, message.id), []).append(made or "")

    def _bury_expired(self, queue: Queue, snapshot: Snapshot) -> list[Message]:
        """Whose time to live is over is never delivered; when it goes to the dead letters is the engine's choice."""
        dead = {
            row["id"] for row in snapshot.messages if row["queue"] == queue.name and row["state"] == "dead"
        }
        waiting = queue.state("ready") + queue.state("scheduled")
        expired = [m for m in waiting if m.over(self.model.now) and m.id in dead]
        for message in expired:
            queue.bury(message, self.model.now, "expired")
        return expired

    @rule(name=queue_names, size=st.integers(1, 5))
    def consume_some(self, name: str, size: int) -> None:
        self.consume(name, "carla", None, size)

    @rule(name=queue_names)
    def consume_all(self, name: str) -> None:
        self.consume(name, "anna", None, 100)

    @rule(name=queue_names, level=st.sampled_from(["repeatable read", "serializable"]))
    def consume_under_snapshot(self, name: str, level: str) -> None:
        with pytest.raises(psycopg.Error) as raised, self.engine.isolation(level):
            self.engine.consume(name, None, None, 1)
        assert raised.value.sqlstate == "PN006"

    @rule(name=queue_names, draft=drafts)
    def roll_back(self, name: str, draft: Draft) -> None:
        """What a transaction did that rolls back never was, except for the ids it drew."""
        with self.engine.connection.transaction(force_rollback=True):
            rows = self.engine.consume(name, "rolled back", None, 3)
            for row in rows[:2]:
                assert self.engine.one(
                    "select penstock.ack_message(%s, %s, 'rolled back')", [name, row["message_id"]]
                )
            self.engine.put_one("send", name, draft)

    # settle

    @rule(name=queue_names, pick=picks, whose=tokens, result=st.sampled_from([None, 5]), level=snapshots)
    def ack(self, name: str, pick: int, whose: str, result: int | None, level: str | None) -> None:
        queue = self._queue(name, "active")
        message_id, token = self._leased(queue, pick, whose)
        with self.engine.isolation(level):
            actual = self.engine.one(
                "select penstock.ack_message(%s, %s, %s, %s)",
                [queue.name, message_id, token, None if result is None else Jsonb(result)],
            )
        assert actual is self.model.ack(queue, message_id, token, result)

    @rule(
        name=queue_names,
        chosen=st.lists(st.tuples(picks, tokens), max_size=6),
        with_results=st.booleans(),
        level=snapshots,
    )
    def ack_batch(
        self, name: str, chosen: list[tuple[int, str]], with_results: bool, level: str | None
    ) -> None:
        queue = self._queue(name, "active")
        pairs = [self._leased(queue, pick, whose) for pick, whose in chosen]
        results = [Jsonb(n) if n % 2 else None for n in range(len(pairs))] if with_results else None
        with self.engine.isolation(level):
            actual = self.engine.column(
                "select penstock.ack_messages(%s, %s::bigint[], %s::text[], %s::jsonb[])",
                [queue.name, [p[0] for p in pairs], [p[1] for p in pairs], results],
            )
        expected = [
            message_id
            for n, (message_id, token) in enumerate(pairs)
            if self.model.ack(queue, message_id, token, n if with_results and n % 2 else None)
        ]
        assert sorted(actual) == sorted(expected)

    @rule(
        name=queue_names,
        pick=picks,
        whose=tokens,
        delay=st.sampled_from([None, None, 0, 12]),
        error=errors,
        level=snapshots,
    )
    def nack(
        self, name: str, pick: int, whose: str, delay: int | None, error: str | None, level: str | None
    ) -> None:
        queue = self._queue(name, "active")
        message_id, token = self._leased(queue, pick, whose)
        with self.engine.isolation(level):
            actual = self.engine.one(
                "select penstock.nack_message(%s, %s, %s, %s, %s)",
                [queue.name, message_id, token, delay, error],
            )
        expected = self.model.nack(queue, message_id, token, delay, error, snapshot=level is not None)
        assert actual is expected

    @rule(name=queue_names, pick=picks, whose=tokens, level=snapshots)
    def release(self, name: str, pick: int, whose: str, level: str | None) -> None:
        queue = self._queue(name, "active")
        message_id, token = self._leased(queue, pick, whose)
        with self.engine.isolation(level):
            actual = self.engine.one(
                "select penstock.release_message(%s, %s, %s)", [queue.name, message_id, token]
            )
        assert actual is self.model.release(queue, message_id, token, snapshot=level is not None)

    @rule(name=queue_names, pick=picks, whose=tokens, error=errors, level=snapshots)
    def reject(self, name: str, pick: int, whose: str, error: str | None, level: str | None) -> None:
        queue = self._queue(name, "active")
        message_id, token = self._leased(queue, pick, whose)
        with self.engine.isolation(level):
            actual = self.engine.one(
                "select penstock.reject_message(%s, %s, %s, %s)", [queue.name, message_id, token, error]
            )
        assert actual is self.model.reject(queue, message_id, token, error)

    # leases

    @rule(name=queue_names, pick=picks, whose=tokens, seconds=st.sampled_from([1, 20, 90]))
    def extend(self, name: str, pick: int, whose: str, seconds: int) -> None:
        queue = self._queue(name, "active")
        message_id, token = self._leased(queue, pick, whose)
        actual = self.engine.one(
            "select penstock.extend_message_vt(%s, %s, %s, %s)", [queue.name, message_id, token, seconds]
        )
        assert actual == self.model.extend(queue, message_id, token, seconds)

    @rule(name=queue_names, pick=picks, whose=tokens, seconds=st.sampled_from([1, 20]))
    def extend_batch(self, name: str, pick: int, whose: str, seconds: int) -> None:
        """All that is leased from the queue, and something that is not: the token decides."""
        queue = self._queue(name, "active")
        token = self._leased(queue, pick, whose)[1]
        ids = [*queue.messages, 1_000_000]
        actual = self.engine.all(
            "select * from penstock.batch_extend_message_vt(%s, %s::bigint[], %s, %s)",
            [queue.name, ids, token, seconds],
        )
        extended = [(message_id, self.model.extend(queue, message_id, token, seconds)) for message_id in ids]
        assert sorted(actual) == sorted((message_id, vt) for message_id, vt in extended if vt is not None)

    @rule(token=st.sampled_from(["anna", "berta", "carla", "nobody"]), seconds=st.sampled_from([0, 10, 100]))
    def pulse(self, token: str, seconds: int) -> None:
        assert self.engine.one("select penstock.pulse(%s, %s)", [token, seconds]) == self.model.pulse(
            token, seconds
        )

    # time and maintenance

    @rule(seconds=st.sampled_from([0.25, 1, 6, 6, 13, 13, 31, 31, 61, 61, 400, 100_000]))
    def pass_time(self, seconds: float) -> None:
        self.model.now += timedelta(seconds=seconds)
        self.engine.set_time(self.model.now)

    @rule()
    def maintain(self) -> None:
        did = {
            (action, name): n
            for action, name, n in self.engine.all(
                "select action, queue_name, affected from penstock.maintain()"
            )
        }
        snapshot = self.engine.snapshot()
        removed = self._forget_what_was_kept_for_long_enough(snapshot)
        expected = self.model.maintain()
        for queue in self.model.queues.values():
            expected["expired", queue.name] += len(self._bury_expired(queue, snapshot))
        expected += removed
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
        """Retention is looked after once a minute or so: what is gone may be, what is not may stay for a while."""
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
        """Where maintain() is called now and then, nothing that is due stays undone for more than a few minutes."""
        left_behind = self.left_behind
        for _ in range(3):
            self.pass_time(61)
            for _ in range(2):
                self.maintain()
                self.same()
        assert not left_behind & self.left_behind, "payloads that nobody needs are still there"
        for queue in self.model.queues.values():
            for message in queue.messages.values():
                assert not self.model.kept_for_long_enough(queue, message), f"{message} is kept for too long"
                assert message.state not in ("ready", "scheduled") or not message.over(self.model.now), (
                    message
                )
                assert message.state != "scheduled" or (message.due_at or START) > self.model.now, message
                assert message.state != "active" or (message.vt or START) > self.model.now, message
            heads = zip(queue.heads(), queue.floors, strict=True)
            assert all(head is None or head == floor for head, floor in heads), (
                f"the floor of {queue.name} is low"
            )

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
            "select penstock.requeue_dlq_messages(%s, %s::bigint[])",
            [queue.name, ids],
        )

    @rule(name=queue_names, attempts=st.integers(1, 3), level=snapshots)
    def add_retries(self, name: str, attempts: int, level: str | None) -> None:
        queue = self._queue(name, "dead")
        dead = [m for m in queue.state("dead") if m.reason in ("expired", "no_attempts_left")]
        self._revive(
            queue, dead, attempts, level, "select penstock.add_retries(%s, %s)", [queue.name, attempts]
        )

    def _revive(
        self,
        queue: Queue,
        dead: list[Message],
        more: int | None,
        level: str | None,
        call: str,
        params: list[Any],
    ) -> None:
        with self.engine.isolation(level):
            actual = self.engine.one(call, params)
        assert actual == self.model.revive(queue, dead, more, snapshot=level is not None)

    # queues

    @rule(
        name=queue_names, pick=picks, state=st.sampled_from(["ready", "ready", "scheduled", "active", "dead"])
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
                queue.settings = chosen
            case "pause" | "resume":
                self.engine.one(f"select penstock.{verb}_queue(%s)", [name])
                queue.paused = verb == "pause"
            case "delete":
                self.engine.one("select penstock.delete_queue(%s)", [name])
                self._create(name, chosen)
            case "purge":
                purged = self.model.purge(queue, "ready", "scheduled", "active")
                assert self.engine.one("select penstock.purge_queue(%s)", [name]) == purged
            case "purge_dlq":
                assert self.engine.one("select penstock.purge_dlq(%s)", [name]) == self.model.purge(
                    queue, "dead"
                )
            case "clean_up":
                removed = self.model.purge(queue, "done")
                assert self.engine.one("select penstock.cleanup_queue_messages(%s)", [name]) == removed

    @rule()
    def resume(self) -> None:
        for queue in self.model.queues.values():
            self.engine.one("select penstock.resume_queue(%s)", [queue.name])
            queue.paused = False

    # look

    @rule(name=queue_names, pick=picks, page_size=st.sampled_from([1, 3, 100]))
    def look(self, name: str, pick: int, page_size: int) -> None:
        """Lists, page by page, and one message; the order of a list of what is ready is the order of delivery."""
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

    # after every step

    @invariant()
    def same(self) -> None:
        if not self.model.queues:
            return
        snapshot = self.engine.snapshot()
        take_ranks(self.model, snapshot)
        self._check_floors(snapshot)
        check_messages(self.model, snapshot)
        check_ranks(snapshot)
        self.left_behind = check_beside(self.model, snapshot)
        check_statistics(self.model, snapshot)
        self.model.last_id = snapshot.last_id
        # No two calls happen at the same time.
        self.pass_time(0.001)

    def _check_floors(self, snapshot: Snapshot) -> None:
        """A floor rises when asked to, and never falls; that it is not too high is seen from the ranks."""
        for queue in self.model.queues.values():
            floors = snapshot.floors[queue.name]
            if floors != queue.floors:
                assert queue.name in self.may_be_raised
                assert all(new >= old for new, old in zip(floors, queue.floors, strict=True))
                queue.floors = floors
        self.may_be_raised = set()
