"""The checks, in the order in which they are reported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from . import handlers, installation, queues, roles, server, tasks, upkeep, vacuum
from .facts import Facts, NotKnown
from .findings import Finding, Limits

__all__ = ["CHECKS", "Check", "examine"]


@dataclass(frozen=True, slots=True)
class Check:
    """What is looked at, and the function that judges it: from facts to at least one finding."""

    name: str
    about: str
    judge: Callable[[Facts, Limits], Iterable[Finding]]


CHECKS = (
    Check("schema", "whether the schema is there, and of this version", installation.schema),
    Check(
        "postgresql",
        "whether the server is one that the schema runs on, and takes writes",
        installation.postgresql,
    ),
    Check("privileges", "whether this role may see all that is looked at", installation.privileges),
    Check("roles", "what this role may do, and which roles it lacks for what", roles.roles),
    Check("pooler", "whether PgBouncer or its like is in between", installation.pooler),
    Check("clock", "clocks that differ, and a clock of the queues that was moved", installation.clock),
    Check("connections", "connections near a limit", server.connections),
    Check("fan-out", "topics with more queues than the server has locks for", server.fan_out),
    Check("held-vacuum", "sessions that hold back vacuum", vacuum.held_vacuum),
    Check("autovacuum", "autovacuum that is off, for all or for a table", vacuum.autovacuum),
    Check("dead-rows", "tables with many dead rows", vacuum.dead_rows),
    Check("wraparound", "transaction ids that run out", vacuum.wraparound),
    Check("maintenance", "whether maintain() is called", upkeep.maintenance),
    Check("floors", "a floor that does not rise, and the session that keeps it down", upkeep.floors),
    Check("claims", "how much it takes to find the next message, and slow calls", upkeep.claims),
    Check("locks", "sessions that have locked tables of the queues, or the queues themselves", upkeep.locks),
    Check("consumers", "queues in which messages wait without a consumer", queues.consumers),
    Check("paused", "paused queues with messages", queues.paused),
    Check("overdue", "leases that ran out and delayed messages that are due, left lying", queues.overdue),
    Check("dead-letters", "dead letters that become more", queues.dead_letters),
    Check("shares", "priorities whose messages can never be claimed", queues.shares),
    Check("workers", "workers that were lost, or are of another version", tasks.workers),
    Check("handlers", "handlers that have run for very long, while messages wait", handlers.handlers),
    Check("idle-leases", "messages that a worker holds and does not run", handlers.idle_leases),
    Check("parked", "messages of tasks that no live worker knows", tasks.parked),
    Check("groups", "groups that cannot complete, or do not get on", handlers.groups),
    Check("schedules", "periodic tasks that are late", tasks.schedules),
    Check("notify", "how full the queue of NOTIFY is", server.notify),
    Check("wal", "replication slots and an archiver that let the disk fill up", server.wal),
    Check("sequences", "sequences that run out", server.sequences),
)


def examine(
    facts: Facts, limits: Limits | None = None, *, only: Collection[str] = (), skip: Collection[str] = ()
) -> list[Finding]:
    """What the checks find, all or those named. What could not be looked at is told as such."""
    findings = list[Finding]()
    for check in CHECKS:
        if check.name in skip or (only and check.name not in only):
            continue
        try:
            # One by one: what it found before it had to stop counts.
            for finding in check.judge(facts, limits or Limits()):
                findings.append(finding)
        except NotKnown as exc:
            findings.append(
                Finding(check.name, "unknown", None, f"Not checked: {exc.why}.", exc.advice, exc.command)
            )
    return findings
