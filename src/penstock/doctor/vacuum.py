"""Whether vacuum comes, and can remove what is dead."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.diagnoses import Holder
from penstock.wording import age, ago, count

from .facts import Facts, NotKnown, known
from .findings import Finding, Limits, Status, ok, severity, size
from .holders import describe, doing, letting_go, subject

__all__ = ["HELD", "autovacuum", "dead_rows", "held_vacuum", "wraparound"]

# The age is given in transactions where the time is not known.
HELD, HELD_BAD = 1_000_000, 50_000_000
MANY_DEAD = 100_000
OLD, OLD_BAD = 1_000_000_000, 1_600_000_000
SHOWN = 10


def held_vacuum(facts: Facts, limits: Limits) -> Iterator[Finding]:
    holders = sorted(
        (holder for holder in facts.others() if holder.holds_vacuum),
        key=lambda holder: (-(facts.open_for(holder) or 0.0), -(holder.held_age or 0)),
    )
    held = [(holder, status) for holder in holders if (status := _status(holder, facts, limits)) != "ok"]
    for holder, status in held[:SHOWN]:
        advice, command = letting_go(holder)
        lasts = facts.open_for(holder)
        since = "" if lasts is None else f" for {age(lasts)}"
        found = f"{describe(holder, facts).partition(',')[0]} holds back vacuum{since}: {_age(holder)}."
        yield Finding(
            "held-vacuum", status, subject(holder), f"{found} {doing(holder, facts)}".strip(), advice, command
        )
    if len(held) > SHOWN:
        yield Finding("held-vacuum", "warning", None, f"{len(held) - SHOWN} others do so, too.")
    if not held:
        oldest = f" The oldest snapshot: {describe(holders[0], facts)}." if holders else ""
        yield ok("held-vacuum", f"No session holds it back for long.{oldest}")


def _age(holder: Holder) -> str:
    return f"it may still want to see what was there {count(holder.held_age or 0, 'transaction')} ago"


def _status(holder: Holder, facts: Facts, limits: Limits) -> Status:
    """By how long it lasts, if that is known; sooner a problem where dead rows pile up."""
    lasts = facts.held_for(holder)
    if lasts is None and holder.kind == "replication slot" and not holder.is_active:
        lasts = limits.patience
    age = holder.held_age or 0
    if lasts is None:
        return "problem" if age >= HELD_BAD else "warning" if age >= HELD else "ok"
    status = severity(lasts, limits)
    return "problem" if status == "warning" and _dead(facts) >= MANY_DEAD else status


def _dead(facts: Facts) -> int:
    """Dead rows in all tables, as far as that is known."""
    return 0 if isinstance(facts.tables, NotKnown) else sum(table.dead_rows for table in facts.tables)


def autovacuum(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    server, tables = known(facts.server), known(facts.tables)
    fine = True
    for name, is_on in (("autovacuum", server.autovacuum), ("track_counts", server.track_counts)):
        if is_on:
            continue
        fine = False
        yield Finding(
            "autovacuum",
            "problem",
            "the server",
            f"The setting {name} is off: nothing is vacuumed by itself, and tables grow without an end.",
            "Turn it on:",
            f"alter system set {name} = on; select pg_reload_conf();",
        )
    for table in tables:
        if table.autovacuum:
            continue
        fine = False
        yield Finding(
            "autovacuum",
            "problem",
            f"penstock.{table.table_name}",
            f"autovacuum_enabled is off for this table, which has {count(table.dead_rows, 'dead row')}.",
            "Turn it on:",
            f"alter table penstock.{table.table_name} reset (autovacuum_enabled);",
        )
    if fine:
        yield ok("autovacuum", f"On, for all {len(tables)} tables.")


def dead_rows(facts: Facts, limits: Limits) -> Iterator[Finding]:
    server, tables = known(facts.server), known(facts.tables)
    fine = True
    for table in tables:
        if table.dead_rows < max(MANY_DEAD, 2 * table.vacuum_threshold):
            continue
        # One that was never vacuumed is not older than the server.
        vacuumed = table.vacuumed_at or server.started_at
        held = any(
            holder.holds_vacuum and (facts.open_for(holder) or 0) >= limits.patience
            for holder in facts.others()
        )
        if (server.now - vacuumed).total_seconds() < limits.patience and not held:
            continue
        fine = False
        last = f"last vacuumed {ago(vacuumed, server.now)}" if table.vacuumed_at else "never vacuumed"
        yield Finding(
            "dead-rows",
            "warning",
            f"penstock.{table.table_name}",
            f"{count(table.dead_rows, 'dead row')}, {count(table.live_rows, 'living one')}, {last}.",
            "Vacuum cannot remove them while a session holds it back (see held-vacuum). Afterwards:"
            if held
            else "Autovacuum does not keep up. Now:",
            f"vacuum (analyze) penstock.{table.table_name};",
        )
    if fine:
        total = sum(table.size_bytes for table in tables)
        yield ok("dead-rows", f"{count(_dead(facts), 'dead row')} in tables of {size(total)}.")


def wraparound(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    server = known(facts.server)
    age = max(server.oldest_age, server.oldest_multixact_age)
    if age < OLD:
        yield ok(
            "wraparound",
            f"The oldest row of {server.oldest_database} is {count(age, 'transaction')} old.",
        )
        return
    yield Finding(
        "wraparound",
        "problem" if age >= OLD_BAD else "warning",
        f"database {server.oldest_database}",
        f"Its oldest row is {count(age, 'transaction')} old; at some 2,146,000,000 the server stops "
        "taking writes.",
        "See which session holds back vacuum (held-vacuum), then, in that database:",
        "vacuum (freeze, verbose);",
    )
