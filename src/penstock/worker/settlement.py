"""Settlements: runs of one queue and token with the same verdict, which one statement settles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock import calls
from penstock.sql_call import Call

from .outcome import Outcome, Verdict
from .run import Run, Unrunnable

__all__ = ["Key", "Pending", "Settlement"]

# Messages in one statement.
MOST_SETTLED = 1000
# Statements that lock the queue come first. A session that purges or deletes a queue locks the queue, and
# then waits for the rows: the other order would be a deadlock.
ORDER: tuple[Verdict, ...] = ("release", "retry", "reject", "ack", "ack_with_result")
# These lock rows, but not the queue.
ACKS = ("ack", "ack_with_result")


class Key(NamedTuple):
    """What the runs of one statement have in common."""

    queue_name: str
    token: str
    verdict: Verdict


Ended = tuple[Run | Unrunnable, Outcome]


@dataclass(frozen=True, slots=True)
class Settlement:
    """One statement: runs with the same key, each with its own delay, error or result."""

    key: Key
    ended: Sequence[Ended]

    @property
    def runs(self) -> list[Run]:
        """The runs; without messages that no run could be made of."""
        return [run for run, _ in self.ended if isinstance(run, Run)]

    def call(self) -> Call[list[int]]:
        queue_name, token, verdict = self.key
        ids = [run.claimed.message_id for run, _ in self.ended]
        if verdict == "ack":
            return calls.ack_messages_of(queue_name, ids, token)
        outcomes = [outcome for _, outcome in self.ended]
        if verdict == "ack_with_result":
            groups = [run.group for run in self.runs]
            return calls.ack_tasks(
                queue_name,
                ids,
                token,
                results=[outcome.result for outcome in outcomes],
                group_ids=[group and group[0] for group in groups],
                positions=[group and group[1] for group in groups],
            )
        held = calls.Held(ids, token)
        delays = [outcome.delay for outcome in outcomes]
        errors = [outcome.error for outcome in outcomes]
        if verdict == "release":
            return calls.release_messages(queue_name, held, delays)
        if verdict == "reject":
            return calls.reject_messages(queue_name, held, errors)
        return calls.nack_messages(queue_name, held, delays, errors, [run.max_attempts for run in self.runs])

    def halves(self) -> Iterator[Settlement]:
        """Two smaller settlements, to find the message for which the statement fails."""
        middle = len(self.ended) // 2
        yield Settlement(self.key, self.ended[:middle])
        yield Settlement(self.key, self.ended[middle:])

    def __str__(self) -> str:
        return ", ".join(str(run) for run, _ in self.ended)


class Pending:
    """Outcomes that the settler has yet to write, by key."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, str, Verdict], list[Ended]] = {}

    def __bool__(self) -> bool:
        return bool(self._ended)

    def add(self, run: Run | Unrunnable, outcome: Outcome) -> None:
        claimed = run.claimed
        key = (claimed.queue_name, claimed.token, outcome.verdict)
        ended = self._ended.get(key)
        if ended is None:
            self._ended[key] = [(run, outcome)]
        else:
            ended.append((run, outcome))

    def groups(self) -> Iterator[list[Settlement]]:
        """What goes into each transaction: one statement of every key.

        So a transaction with several statements always has several keys, and acks of one queue and token
        need no transaction around their statement.
        """
        keys = sorted((Key(*key) for key in self._ended), key=lambda key: (ORDER.index(key.verdict), key))
        most = max((len(ended) for ended in self._ended.values()), default=0)
        for start in range(0, most, MOST_SETTLED):
            group = [
                Settlement(key, part)
                for key in keys
                if (part := self._ended[key][start : start + MOST_SETTLED])
            ]
            together, alone = _without_deadlocks(group)
            yield together
            for settlement in alone:
                yield [settlement]


def _without_deadlocks(group: list[Settlement]) -> tuple[list[Settlement], list[Settlement]]:
    """Settlements for one transaction, and acks that need a transaction of their own.

    Two acks of a queue lock rows in two steps. A session that purges the queue may lock rows in between,
    unless a statement before the acks has locked the queue.
    """
    safe = {settlement.key.queue_name for settlement in group if settlement.key.verdict not in ACKS}
    together, alone, acked = list[Settlement](), list[Settlement](), set[str]()
    for settlement in group:
        queue_name = settlement.key.queue_name
        if queue_name in safe or queue_name not in acked:
            together.append(settlement)
            acked.add(queue_name)
        else:
            alone.append(settlement)
    return together, alone
