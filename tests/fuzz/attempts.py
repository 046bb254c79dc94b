"""Calls that may fail, but only as a caller deserves, and a look at what they left behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus

from tests.isolation.invariants import broken

# What everyone relies on, whatever others have called before.
AFTERMATH = [
    "select * from penstock.maintain()",
    "select * from penstock.list_queues()",
    "select * from penstock.list_schedules()",
    "select * from penstock.list_groups()",
    "select * from penstock.list_workers()",
    "select * from penstock.list_dlq_messages()",
    "select * from penstock.list_dlq_messages(newest_first => true)",
    "select * from penstock.get_queue_statistics()",
    "select * from penstock.get_queue_statistics(breakdown => 'priority')",
    "select * from penstock.get_queue_statistics(breakdown => 'tenant')",
    "select * from penstock.diagnose_engine()",
    "select * from penstock.diagnose_queues()",
    "select * from penstock.diagnose_errors()",
    "select * from penstock.diagnose_parked()",
    "select * from penstock.diagnose_leases()",
    "select * from penstock.diagnose_priorities()",
    "select * from penstock.diagnose_groups()",
    "select penstock.get_message(m.name, m.message_id), penstock.explain_delivery(m.name, m.message_id)"
    " from (select q.name, m.message_id from penstock.queues q, penstock.list_messages(q.name) m"
    " where q.keep_alive_until is null order by m.message_id desc limit 20) m",
    "select * from penstock.finish_groups()",
    "select c.* from penstock.queues q, penstock.consume_messages_batch(q.name, 'after') c"
    " where q.keep_alive_until is null",
    "select penstock.pulse('after', 60)",
    "select penstock.nack_message(q.name, m.message_id, 'after', error => 'after')"
    " from penstock.queues q, penstock.list_messages(q.name, 'active') m"
    " where m.consumer = penstock._fingerprint('after') and q.keep_alive_until is null",
]


@dataclass(frozen=True, slots=True)
class Error:
    """Why a statement failed."""

    sqlstate: str
    text: str

    @property
    def is_deserved(self) -> bool:
        """Of the engine, which says what is wrong. Nothing is left for PostgreSQL itself to find."""
        return self.sqlstate.startswith("PN")


@dataclass(slots=True)
class Attempts:
    """Runs statements on one connection, and keeps what must not happen."""

    connection: psycopg.Connection[Any]
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection.execute("set client_min_messages = error")
        # A call that takes so long hangs.
        self.connection.execute("set statement_timeout = '10s'")

    def run(self, statement: str) -> Error | None:
        """Below psycopg, which would take longer than the statement; several statements in one, too."""
        result = self.connection.pgconn.exec_(statement.encode())
        if result.status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            return None
        sqlstate = (result.error_field(DiagnosticField.SQLSTATE) or b"none").decode()
        return Error(sqlstate, result.get_error_message())

    def attempt(self, statement: str, note: str) -> bool:
        """A call that is undone; whether it was successful."""
        return self.transact(f"begin; {statement}; rollback", note)

    def attempt_within(self, statement: str, note: str) -> bool:
        """A call inside of a transaction, which goes on if it fails; whether it was successful."""
        error = self.run(f"savepoint attempt; {statement}")
        self.run("release attempt" if error is None else "rollback to attempt; release attempt")
        return self._judge(error, statement, note)

    def transact(self, transaction: str, note: str) -> bool:
        """A whole transaction; whether it was successful."""
        error = self.run(transaction)
        if error is not None:
            self.run("rollback")
        return self._judge(error, transaction, note)

    def _judge(self, error: Error | None, statement: str, note: str) -> bool:
        if error is not None and not error.is_deserved:
            self.faults.append(f"{error.sqlstate} {error.text[:300]}\n  {statement[:400]}\n  {note}")
        return error is None

    def look_after(self, note: str) -> None:
        """The invariants hold, and what others call works, and then they still hold."""
        self.faults += [f"{fault}\n  {note}" for fault in broken(self.connection)[:3]]
        for statement in AFTERMATH:
            if error := self.run(statement):
                self.faults.append(f"{error.sqlstate} {error.text[:300]}\n  after: {statement}\n  {note}")
                return
        self.faults += [f"{fault}, in the end\n  {note}" for fault in broken(self.connection)[:3]]
