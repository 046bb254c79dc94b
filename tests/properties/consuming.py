"""Rules: claim messages, hold them, and settle them one way or the other."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from psycopg.types.json import Jsonb

from .base import consumers, drafts, errors, picks, queue_names, snapshots, tokens
from .compare import check_consumed
from .messages import Draft, Outside
from .model import BEFORE
from .publishing import Publishing
from .queues import Queue

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


class Consuming(Publishing):
    """What consumers do."""

    def _queue(self, name: str, *states: str) -> Queue:
        """The queue of that name, or another one, with something in one of these states.

        Where there is none, the step that leads there comes first, so that most steps do something.
        """
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

    def _leased(self, queue: Queue, pick: int, whose: str) -> tuple[int, str]:
        """A leased message, and a token: its own, one that it was leased to before, or a wrong one."""
        message_id = self._pick(queue.state("active"), pick)
        message = queue.messages.get(message_id)
        if message is None or message.token is None or whose == "no_holder":
            return message_id, "no_holder"
        return message_id, message.token if whose == "held" else self.seen[queue.name, message_id][0]

    # consume

    @rule(
        name=queue_names,
        token=consumers,
        vt=st.sampled_from([None, None, 0, 3, 50]),
        size=st.sampled_from([None, 1, 2, 3, 10]),
    )
    def consume(self, name: str, token: str | None, vt: int | None, size: int | None) -> None:
        queue = self._queue(name, "ready", "scheduled", "active", "waiting")
        rows = self.engine.consume(queue.name, token, vt, size)
        given = {row["consumer_token"] for row in rows}
        assert len(given) <= 1, "one call, one token"
        made = token or (given.pop() if given else None)
        ids = [row["message_id"] for row in rows]
        outside = Outside()
        over = any(m.over(self.model.now) for m in queue.state(*BEFORE))
        if over or (queue.cap is not None and queue.state("scheduled")):
            outside = self._outside(self.engine.snapshot())[queue.name]
        claimed = self.model.consume(queue, made, vt, 1 if size is None else size, ids=ids, outside=outside)
        check_consumed(queue, claimed, rows)
        for message in claimed:
            self.seen.setdefault((queue.name, message.id), []).append(made or "")

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
        assert actual is self.model.ack(queue, message_id, token, result, snapshot=level is not None)

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
        snapshot = level is not None
        expected = [
            message_id
            for n, (message_id, token) in enumerate(pairs)
            if self.model.ack(
                queue, message_id, token, n if with_results and n % 2 else None, snapshot=snapshot
            )
        ]
        assert sorted(actual) == sorted(expected)

    @rule(
        name=queue_names,
        pick=picks,
        whose=tokens,
        delay=st.sampled_from([None, None, 0, 12]),
        error=errors,
        most=st.sampled_from([None, None, 1, 2, 5]),
        level=snapshots,
    )
    def nack(
        self,
        name: str,
        pick: int,
        whose: str,
        *,
        delay: int | None,
        error: str | None,
        most: int | None,
        level: str | None,
    ) -> None:
        queue = self._queue(name, "active")
        message_id, token = self._leased(queue, pick, whose)
        with self.engine.isolation(level):
            actual = self.engine.one(
                "select penstock.nack_message(%s, %s, %s, %s, %s, %s)",
                [queue.name, message_id, token, delay, error, most],
            )
        expected = self.model.nack(
            queue, message_id, token, delay, error, most=most, snapshot=level is not None
        )
        assert actual is expected

    @rule(name=queue_names, pick=picks, whose=tokens, delay=st.sampled_from([0, 0, 0, 10]), level=snapshots)
    def release(self, name: str, pick: int, whose: str, delay: int, level: str | None) -> None:
        queue = self._queue(name, "active")
        message_id, token = self._leased(queue, pick, whose)
        with self.engine.isolation(level):
            actual = self.engine.one(
                "select penstock.release_message(%s, %s, %s, %s)", [queue.name, message_id, token, delay]
            )
        expected = self.model.release(queue, message_id, token, delay, snapshot=level is not None)
        assert actual is expected

    @rule(name=queue_names, pick=picks, whose=tokens, error=errors, level=snapshots)
    def reject(self, name: str, pick: int, whose: str, error: str | None, level: str | None) -> None:
        queue = self._queue(name, "active")
        message_id, token = self._leased(queue, pick, whose)
        with self.engine.isolation(level):
            actual = self.engine.one(
                "select penstock.reject_message(%s, %s, %s, %s)", [queue.name, message_id, token, error]
            )
        assert actual is self.model.reject(queue, message_id, token, error, snapshot=level is not None)

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

    @rule(
        token=st.sampled_from(["anna", "berta", "carla", "no_holder"]), seconds=st.sampled_from([0, 10, 100])
    )
    def pulse(self, token: str, seconds: int) -> None:
        assert self.engine.one("select penstock.pulse(%s, %s)", [token, seconds]) == self.model.pulse(
            token, seconds
        )
