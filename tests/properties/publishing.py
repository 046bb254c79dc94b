"""Rules: publish and send, one message or many, alike or each with options of its own."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import rule

from .base import Base, drafts, snapshots, targets
from .messages import Draft
from .queues import Queue


class Publishing(Base):
    """What publishers do."""

    def _queues_of(self, verb: str, target: str) -> list[Queue]:
        if verb == "send":
            return [self.model.queues[target]]
        return [q for q in self.model.queues.values() if q.topic == target]

    def _numbered(self, draft: Draft) -> Draft:
        self.number += 1
        return replace(draft, number=self.number)

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
            self._numbered(replace(draft, key=key, large=large and draft.large, raw=large and draft.raw))
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

    @rule(target_=targets, first=drafts, mixed=st.lists(drafts, max_size=3), level=snapshots)
    def put_when_the_holder_of_the_key_is_over(
        self, target_: tuple[str, str], first: Draft, mixed: list[Draft], level: str | None
    ) -> None:
        """At once when its time to live and its lease have ended, before a sweep comes by."""
        self.put_one(target_, replace(first, key="k", ttl=25), None)
        self.same()
        holders = [q.messages[q.keys["k"]] for q in self._queues_of(*target_) if "k" in q.keys]
        ends = [end for m in holders for end in (m.expires_at, m.vt if m.state == "active" else None) if end]
        for end in ends:
            self.pass_time(max(0.0, (end - self.model.now).total_seconds()) + 0.001)
        self.put_mixed(target_, [Draft(0, key="k"), *mixed, Draft(0, key="k")], level)
