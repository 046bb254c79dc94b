"""The facts that checks judge, each known or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeAlias, TypeVar

from penstock.calls import RoleHeld, TableRights
from penstock.diagnoses import (
    EngineDiagnosis,
    ErrorDiagnosis,
    GroupDiagnosis,
    Holder,
    LeaseDiagnosis,
    ParkedDiagnosis,
    PriorityDiagnosis,
    QueueDiagnosis,
    ServerDiagnosis,
    StatementDiagnosis,
    TableDiagnosis,
)
from penstock.errors import SchemaError
from penstock.models import ListedSchedule, ListedWorker, QueueGrant
from penstock.schema import SchemaVersion

__all__ = ["ClockReading", "Facts", "NotKnown", "Pooling", "known"]

T = TypeVar("T")

Pooling: TypeAlias = Literal["none", "transaction", "some"]


class NotKnown(Exception):  # noqa: N818 - no error: a fact that could not be had
    """Why something is not known, and what would help. A check that needs it lets it pass."""

    def __init__(self, why: str, advice: str | None = None, command: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.advice = advice
        self.command = command


@dataclass(frozen=True, slots=True)
class ClockReading:
    """By how much the clock of the server is ahead of this machine's, give or take so much."""

    offset_seconds: float
    uncertainty_seconds: float


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the checks look at."""

    database: str
    role: str
    server_version: int
    pooling: Pooling
    clock: ClockReading
    schema: SchemaVersion | SchemaError | NotKnown
    server: ServerDiagnosis | NotKnown
    engine: EngineDiagnosis | NotKnown
    holders: Sequence[Holder] | NotKnown
    tables: Sequence[TableDiagnosis] | NotKnown
    statements: Sequence[StatementDiagnosis] | NotKnown
    queues: Sequence[QueueDiagnosis] | NotKnown
    errors: Sequence[ErrorDiagnosis] | NotKnown
    leases: Sequence[LeaseDiagnosis] | NotKnown
    parked: Sequence[ParkedDiagnosis] | NotKnown
    priorities: Sequence[PriorityDiagnosis] | NotKnown
    groups: Sequence[GroupDiagnosis] | NotKnown
    workers: Sequence[ListedWorker] | NotKnown
    schedules: Sequence[ListedSchedule] | NotKnown
    roles: Sequence[RoleHeld] | NotKnown
    grants: Sequence[QueueGrant] | NotKnown
    table_rights: Sequence[TableRights] | NotKnown

    @property
    def now(self) -> datetime:
        """By the clock of the server, as sessions are timed by."""
        return known(self.server).now

    @property
    def engine_now(self) -> datetime:
        """By the clock of the engine, as messages are timed by."""
        return self.now + timedelta(seconds=known(self.engine).clock_offset_seconds)

    def others(self) -> Iterator[Holder]:
        """The sessions that hold something, without the session that asked."""
        return (holder for holder in known(self.holders) if not holder.own)

    def open_for(self, holder: Holder) -> float | None:
        """For how many seconds its transaction is open; None where that may not be seen."""
        started = holder.transaction_started_at
        return None if started is None else max((self.now - started).total_seconds(), 0.0)

    def held_for(self, holder: Holder) -> float | None:
        """For how many seconds it may have held back vacuum; None where that may not be seen.

        A slot without a connection has done so since the connection ended.
        """
        left = holder.state_changed_at
        if holder.kind != "replication slot" or holder.is_active or left is None:
            return self.open_for(holder)
        return max((self.now - left).total_seconds(), 0.0)


def known(fact: T | NotKnown) -> T:
    """The fact; NotKnown is raised where it is not known."""
    if isinstance(fact, NotKnown):
        raise fact
    return fact
