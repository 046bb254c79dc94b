"""What the state machine stands on: two queues on a topic, one beside it, and the comparison of each step."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ..isolation.invariants import broken
from .compare import check_beside, check_messages, check_permits, check_statistics, check_tenant_permits
from .engine import Engine, Snapshot
from .explaining import check_explanations
from .messages import Draft, Message, Outside, Settings
from .model import Model
from .order import check_ranks, take_ranks
from .queues import Queue

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
TOPICS = {"a": "t", "b": "t", "c": None}
"""Two queues on one topic, and one without."""

queue_names = st.sampled_from(sorted(TOPICS))
targets = st.sampled_from([("publish", "t"), ("publish", "t"), ("send", "a"), ("send", "b"), ("send", "c")])
picks = st.integers(0, 7)
"""Which of the messages that a call could be about."""
tokens = st.sampled_from(["held", "held", "held", "held", "seen", "no_holder"])
consumers = st.sampled_from([None, "anna", "berta"])
snapshots = st.sampled_from([None, None, None, "repeatable read", "serializable"])
errors = st.sampled_from([None, "boom", "bang"])
caps = st.sampled_from([None, None, None, 1, 2, 3, 4, 5, 7, 10, 13, 24])
least = st.sampled_from([5, 0, 1, 3])
shares = st.sampled_from(
    [(40, 30, 20, 10), (40, 30, 20, 10), (25, 25, 25, 25), (0, 33, 67, 0), (97, 1, 1, 1), (0, 0, 0, 0)]
)
tenant_caps = st.sampled_from([None, 1, 2, 3])
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
    max_active=caps,
    min_active=least,
    priority_shares=shares,
    tenant_max_active=st.none() | tenant_caps,
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
    header=st.sampled_from([None, None, 1, 2]),
    raw=st.sampled_from([False, False, True]),
)


class Base(RuleBasedStateMachine):
    """Engine and model, and time, which passes for both."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.model = Model(START)
        self.number = 0
        self.seen: dict[tuple[str, int], list[str]] = {}
        self.may_be_raised: set[str] = set()
        self.left_behind: set[int] = set()
        self.compared = 0
        engine.set_time(START)
        engine.reset()
        engine.connection.execute("select penstock.create_topic('t')")

    @initialize(a=settings, b=settings, c=settings)
    def create(self, a: Settings, b: Settings, c: Settings) -> None:
        for name, chosen in zip(sorted(TOPICS), (a, b, c), strict=True):
            self._create(name, chosen)

    def _create(self, name: str, chosen: Settings) -> None:
        queue_id = self.engine.create_queue(name, TOPICS[name], chosen)
        fair = chosen.tenant_max_active is not None
        queue = Queue(queue_id, name, TOPICS[name], replace(chosen, max_active=None), fair)
        queue.alter(chosen)
        self.model.queues[name] = queue

    def _pick(self, messages: list[Message], pick: int) -> int:
        return messages[pick % len(messages)].id if messages else 1_000_000 + pick

    def _outside(self, snapshot: Snapshot) -> dict[str, Outside]:
        """What is over is never delivered; when it goes to the dead letters is the engine's choice."""
        ids: dict[tuple[str, str], set[int]] = {}
        for row in snapshot.messages:
            ids.setdefault((row["queue"], row["state"]), set()).add(row["id"])
        return {
            name: Outside(
                frozenset(ids.get((name, "dead"), ())),
                frozenset(ids.get((name, "ready"), set()) | ids.get((name, "active"), set())),
            )
            for name in self.model.queues
        }

    @rule(seconds=st.sampled_from([0.25, 1, 6, 6, 13, 13, 31, 31, 61, 61, 400, 100_000]))
    def pass_time(self, seconds: float) -> None:
        self.model.now += timedelta(seconds=seconds)
        self.engine.set_time(self.model.now)

    @invariant()
    def same(self) -> None:
        if not self.model.queues:
            return
        snapshot = self.engine.snapshot()
        take_ranks(self.model, snapshot)
        self._check_floors(snapshot)
        check_messages(self.model, snapshot)
        check_permits(self.model, snapshot)
        check_tenant_permits(self.model, snapshot)
        check_ranks(snapshot)
        self.left_behind = check_beside(self.model, snapshot)
        check_statistics(self.model, snapshot)
        self.compared += 1
        check_explanations(self.model, self.engine, self.compared)
        assert broken(self.engine.connection) == []
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
            queue.heads_aside = snapshot.heads_aside[queue.name]
        self.may_be_raised = set()
