"""The condition of the database in numbers: from the doctor's facts, so that /metrics asks nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.doctor import Facts, NotKnown
from penstock.models import ListedWorker

__all__ = ["WORKER_STATES", "Condition", "condition_of", "state_of_worker"]

WORKER_STATES = ("alive", "stopping", "lost")


@dataclass(frozen=True, slots=True)
class Condition:
    """Numbers of one examination. None: the role of the pages may not see them, or there are none.

    held_seconds, held_transactions: for how long, and over how many transactions, vacuum has been held back;
    0 where no session holds it back. dead_rows, table_bytes: of all tables of the schema. maintained_at: when
    maintain() last did its chores. workers: their number by state. slots, running: how many tasks the workers
    can run that are not lost, and how many they run.
    """

    held_seconds: float | None = None
    held_transactions: int | None = None
    dead_rows: int | None = None
    table_bytes: int | None = None
    maintained_at: datetime | None = None
    workers: Mapping[str, int] | None = None
    slots: int | None = None
    running: int | None = None


def condition_of(facts: Facts) -> Condition:
    held_seconds, held_transactions = _held(facts)
    tables = None if isinstance(facts.tables, NotKnown) else facts.tables
    workers = None if isinstance(facts.workers, NotKnown) else facts.workers
    present = [each for each in workers or () if state_of_worker(each) != "lost"]
    return Condition(
        held_seconds=held_seconds,
        held_transactions=held_transactions,
        dead_rows=None if tables is None else sum(each.dead_rows for each in tables),
        table_bytes=None if tables is None else sum(each.size_bytes for each in tables),
        maintained_at=None if isinstance(facts.engine, NotKnown) else facts.engine.maintained_at,
        workers=None if workers is None else _by_state(workers),
        slots=None if workers is None else sum(each.concurrency for each in present),
        running=None
        if workers is None
        else sum(len(each.running) for each in present if isinstance(each.running, list)),
    )


def state_of_worker(worker: ListedWorker) -> str:
    """One of WORKER_STATES."""
    return "lost" if not worker.is_alive else "stopping" if worker.stopping else "alive"


def _by_state(workers: Sequence[ListedWorker]) -> dict[str, int]:
    states = [state_of_worker(each) for each in workers]
    return {state: states.count(state) for state in WORKER_STATES}


def _held(facts: Facts) -> tuple[float | None, int | None]:
    """Not known for a role that does not see other sessions: 0 would be a lie."""
    if (
        isinstance(facts.server, NotKnown)
        or isinstance(facts.holders, NotKnown)
        or not facts.server.sees_all_sessions
    ):
        return None, None
    holders = [each for each in facts.others() if each.holds_vacuum]
    return (
        max((facts.held_for(each) or 0.0 for each in holders), default=0.0),
        max((each.held_age or 0 for each in holders), default=0),
    )
