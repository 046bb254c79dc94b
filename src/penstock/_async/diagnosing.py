"""How the server, the engine and each queue are: facts, which penstock.doctor judges."""

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
    """What `penstock doctor` looks at. All of it is cheap, whatever the size of the queues."""

    async def diagnose_server(self) -> ServerDiagnosis:
        """How the server is: version, clock, settings of vacuum, connections, the NOTIFY queue."""
        return await self._run(calls.diagnose_server())

    async def diagnose_holders(self) -> list[Holder]:
        """Who has a transaction open, or keeps something for later: what vacuum and floors wait for."""
        return await self._run(calls.diagnose_holders())

    async def diagnose_tables(self) -> list[TableDiagnosis]:
        """How the tables of the engine are: their size, dead rows, when they were vacuumed."""
        return await self._run(calls.diagnose_tables())

    async def diagnose_statements(self) -> list[StatementDiagnosis]:
        """How long calls of the functions that are called all day took, from pg_stat_statements."""
        return await self._run(calls.diagnose_statements())

    async def diagnose_engine(self) -> EngineDiagnosis:
        """How the engine is: whether somebody maintains it, and by which clock it goes."""
        return await self._run(calls.diagnose_engine())

    async def diagnose_queues(self) -> list[QueueDiagnosis]:
        """How each queue is: what waits, since when, signs of a consumer, what a claim costs."""
        return await self._run(calls.diagnose_queues())

    async def diagnose_parked(self) -> list[ParkedDiagnosis]:
        """Messages that workers could not run and have parked, by queue and task."""
        return await self._run(calls.diagnose_parked())

    async def diagnose_errors(self) -> list[ErrorDiagnosis]:
        """What the dead letters of the last hour died of, the three most frequent errors of each queue."""
        return await self._run(calls.diagnose_errors())

    async def diagnose_leases(self) -> list[LeaseDiagnosis]:
        """Messages that live workers have held for a minute or longer and do not run."""
        return await self._run(calls.diagnose_leases())

    async def diagnose_priorities(self) -> list[PriorityDiagnosis]:
        """Priorities that have no place under max_active although messages wait for one."""
        return await self._run(calls.diagnose_priorities())

    async def diagnose_groups(self) -> list[GroupDiagnosis]:
        """Groups whose callback has not been sent, and what may keep them from it."""
        return await self._run(calls.diagnose_groups())
