"""What the server may run out of: connections, room for notifications, disk, numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from penstock.wording import ago, count

from .facts import Facts, known
from .findings import Finding, Limits, literal, ok, size
from .holders import describe

__all__ = ["connections", "fan_out", "notify", "sequences", "wal"]

# Parts of what there is.
CONNECTIONS, CONNECTIONS_BAD = 0.8, 0.95
NOTIFY, NOTIFY_BAD = 0.1, 0.5
SEQUENCE, SEQUENCE_BAD = 0.5, 0.9
RETAINED_BYTES, RETAINED_BYTES_BAD = 2**30, 20 * 2**30
SHOWN = 3


def connections(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    server = known(facts.server)
    limits = [("the server", server.used_connections, server.max_connections - server.reserved_connections)]
    if server.database_limit is not None:
        limits.append(
            (f"database {server.database_name}", server.database_connections, server.database_limit)
        )
    if server.role_limit is not None:
        limits.append((f"role {server.role_name}", server.role_connections, server.role_limit))
    busiest = ", ".join(
        f"{number} {name}" for name, number in zip(server.client_names, server.client_counts, strict=True)
    )
    for subject, used, most in limits:
        if used < CONNECTIONS * most:
            continue
        yield Finding(
            "connections",
            "problem" if used >= CONNECTIONS_BAD * most else "warning",
            subject,
            f"{used} of {most} connections are in use. Most of them: {busiest}.",
            "Lower max_connections of clients and the concurrency of workers, put PgBouncer in between, or "
            "raise the limit (of the server: with a restart). Idle for longest:",
            "select pid, usename, application_name, state, state_change from pg_stat_activity "
            "where state like 'idle%' order by state_change limit 20;",
        )
    if all(used < CONNECTIONS * most for _, used, most in limits):
        _, used, most = limits[0]
        yield ok("connections", f"{used} of {most} in use.")


def fan_out(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    """A publish holds a lock for each queue of the topic. All sessions share the server's table of locks."""
    server, engine = known(facts.server), known(facts.engine)
    queues, topic = engine.largest_topic_queue_count or 0, engine.largest_topic
    room = 2 * server.max_locks_per_transaction * server.max_connections
    if queues * server.max_connections <= room:
        found = f"{topic} has {count(queues, 'queue')}" if topic is not None else "no topic has a queue"
        yield ok("fan-out", f"The largest topic fits the server's table of locks: {found}.")
        return
    yield Finding(
        "fan-out",
        "warning",
        f"topic {topic}",
        f"It has {queues} queues, and a publish holds a lock for each until its transaction ends. The server "
        f"has room for {room // queues} such transactions at a time, and allows {server.max_connections} "
        "connections. Beyond that, publishing fails (out of shared memory).",
        "Commit soon after a publish, or raise the setting (with a restart of the server):",
        f"alter system set max_locks_per_transaction = {math.ceil(queues / 2)};",
    )


def notify(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    server = known(facts.server)
    used = server.notify_usage
    if used < NOTIFY:
        yield ok("notify", f"{used:.1%} of the queue of NOTIFY is used.")
        return
    in_transaction = [
        holder
        for holder in facts.others()
        if holder.kind == "session" and holder.transaction_started_at is not None
    ]
    in_transaction.sort(key=lambda holder: holder.transaction_started_at or server.now)
    suspects = "; ".join(describe(holder, facts) for holder in in_transaction[:SHOWN])
    yield Finding(
        "notify",
        "problem" if used >= NOTIFY_BAD else "warning",
        "the server",
        f"{used:.0%} of the queue of NOTIFY is used: a session listens in a transaction that stays open. "
        "When it is full, publishing fails. "
        + (
            f"Open for longest: {suspects}."
            if suspects
            else "This role cannot see which transactions are open."
        ),
        "End the session that listens (the log of the server names it in a warning):",
        f"select pg_terminate_backend({in_transaction[0].pid});" if in_transaction else None,
    )


def wal(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    fine = True
    slots = [holder for holder in facts.others() if holder.kind == "replication slot"]
    for slot in slots:
        retained = slot.retained_bytes or 0
        if slot.wal_status not in ("unreserved", "lost") and (slot.is_active or retained < RETAINED_BYTES):
            continue
        fine = False
        name = slot.name or ""
        yield Finding(
            "wal",
            "problem" if retained >= RETAINED_BYTES_BAD else "warning",
            f"replication slot {name}",
            f"It keeps {size(retained)} of WAL on the disk"
            + ("" if slot.is_active else ", and no client reads from it")
            + f" (wal_status {slot.wal_status}).",
            "Start the standby or subscriber that uses it; if there is none any more, drop it:",
            f"select pg_drop_replication_slot({literal(name)});",
        )
    server = known(facts.server)
    if server.archive_failed_at is not None:
        fine = False
        yield Finding(
            "wal",
            "warning",
            "the archiver",
            f"archive_command failed, last {ago(server.archive_failed_at, server.now)}, and has not since "
            "succeeded: WAL stays on the disk until it does.",
            "The log of the server says why. What fails:",
            "select * from pg_stat_archiver;",
        )
    if fine:
        kept = sum(slot.retained_bytes or 0 for slot in slots)
        yield ok("wal", f"{count(len(slots), 'replication slot')}, keeping {size(kept)} of WAL.")


def sequences(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    engine = known(facts.engine)
    used = engine.sequence_used or 0.0
    if used < SEQUENCE:
        yield ok("sequences", f"Used up at most: {engine.sequence_name}, {used:.2%}.")
        return
    yield Finding(
        "sequences",
        "problem" if used >= SEQUENCE_BAD else "warning",
        f"penstock.{engine.sequence_name}",
        f"{used:.0%} of its numbers are used.",
        "Keep queues and topics instead of making new ones for each use; at 100% none can be made:",
        "select * from pg_sequences where schemaname = 'penstock';",
    )
