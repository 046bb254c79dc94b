"""Facts about the server, the engine and each queue, which penstock.doctor judges."""

from __future__ import annotations

from penstock import calls
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

from .call_runner import AsyncCallRunner

__all__ = ["AsyncDiagnosing"]


class AsyncDiagnosing(AsyncCallRunner):
    """The facts that `penstock doctor` needs. All calls are cheap, with queues of any size."""

    async def diagnose_server(self) -> ServerDiagnosis:
        """Facts about the server: version, clock, settings of vacuum, connections, the NOTIFY queue."""
        return await self._run(calls.diagnose_server())

    async def diagnose_holders(self) -> list[Holder]:
        """Sessions, standbys, prepared transactions and slots that may hold back vacuum or floors."""
        return await self._run(calls.diagnose_holders())

    async def diagnose_tables(self) -> list[TableDiagnosis]:
        """Facts about the tables of the engine: their size, dead rows, and last vacuum."""
        return await self._run(calls.diagnose_tables())

    async def diagnose_statements(self) -> list[StatementDiagnosis]:
        """How long calls of the frequent functions took, from pg_stat_statements."""
        return await self._run(calls.diagnose_statements())

    async def diagnose_engine(self) -> EngineDiagnosis:
        """Facts about the engine: the last maintenance, its clock, partitions and sequences."""
        return await self._run(calls.diagnose_engine())

    async def diagnose_queues(self) -> list[QueueDiagnosis]:
        """Facts about each queue: pending messages, their age, signs of a consumer, the cost of a claim."""
        return await self._run(calls.diagnose_queues())

    async def diagnose_parked(self) -> list[ParkedDiagnosis]:
        """Messages that workers could not run and have parked, by queue and task."""
        return await self._run(calls.diagnose_parked())

    async def diagnose_errors(self) -> list[ErrorDiagnosis]:
        """Causes of dead letters of the last hour: the three most frequent errors of each queue."""
        return await self._run(calls.diagnose_errors())

    async def diagnose_leases(self) -> list[LeaseDiagnosis]:
        """Messages that live workers have held for a minute or longer and do not run."""
        return await self._run(calls.diagnose_leases())

    async def diagnose_priorities(self) -> list[PriorityDiagnosis]:
        """Priorities that have no permit under max_active although messages wait for one."""
        return await self._run(calls.diagnose_priorities())

    async def diagnose_groups(self) -> list[GroupDiagnosis]:
        """Groups whose callback has not been sent, and the dead letters among their members."""
        return await self._run(calls.diagnose_groups())
