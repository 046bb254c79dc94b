"""What stands between this program and the queues: the schema, the server, rights, a pooler, clocks."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import SchemaError, SchemaMissing, SchemaTooNew, SchemaUnsafe
from penstock.version import __version__
from penstock.wording import age, count

from .facts import Facts, NotKnown, known
from .findings import Finding, Limits, identifier, ok, shell

__all__ = ["clock", "pooler", "postgresql", "privileges", "schema"]

OLDEST, NEWEST = 15, 18
REAL_CLOCK = "select pg_catalog.clock_timestamp()"
# Clocks that are kept by NTP are closer by far.
CLOCK_SECONDS, CLOCK_SECONDS_BAD = 2.0, 60.0
MOVED_SECONDS = 0.5


def schema(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    found = facts.schema
    command: str | None
    if isinstance(found, NotKnown):
        raise found
    if not isinstance(found, SchemaError):
        newer = "" if found.package_version == __version__ else f", this package is {__version__}"
        yield ok("schema", f"Version {found.package_version} (migration {found.migration}){newer}.")
        return
    if isinstance(found, SchemaUnsafe):
        advice, command = found.hint or "", None
    elif isinstance(found, SchemaTooNew):
        advice, command = "Upgrade the package on this machine:", "pip install --upgrade penstock"
    else:
        what = "Install it:" if isinstance(found, SchemaMissing) else "Upgrade it:"
        advice, command = what, "penstock migrate"
    text = str(found)
    yield Finding("schema", "problem", facts.database, text[0].upper() + text[1:] + ".", advice, command)


def postgresql(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    major = facts.server_version // 10000
    if major < OLDEST:
        yield Finding(
            "postgresql",
            "problem",
            f"PostgreSQL {major}",
            f"Penstock runs on PostgreSQL {OLDEST} to {NEWEST}.",
            "Upgrade the server.",
        )
    elif major > NEWEST:
        yield Finding(
            "postgresql",
            "warning",
            f"PostgreSQL {major}",
            f"This version of Penstock was tested on {OLDEST} to {NEWEST}.",
            "See whether there is a newer one:",
            "pip install --upgrade penstock",
        )
    server = known(facts.server)
    if server.is_standby:
        yield Finding(
            "postgresql",
            "problem",
            facts.database,
            "This server is a standby: it takes no messages.",
            "Connect to the primary: name all servers, and libpq finds it:",
            "postgresql://one,two/name?target_session_attrs=read-write",
        )
    elif server.is_read_only:
        yield Finding(
            "postgresql",
            "problem",
            facts.database,
            "default_transaction_read_only is on for this role or database: it takes no messages.",
            "Turn it off:",
            "set default_transaction_read_only = off; "
            f"alter database {identifier(facts.database)} set default_transaction_read_only = off;",
        )
    else:
        up = age(server.now - server.started_at)
        yield ok("postgresql", f"PostgreSQL {major}.{server.version % 10000}, running for {up}.")


def privileges(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    engine = known(facts.engine) if not isinstance(facts.engine, NotKnown) else None
    server = known(facts.server)
    if not server.sees_all_sessions:
        yield Finding(
            "privileges",
            "unknown",
            facts.role,
            "This role does not see what other roles' sessions do, nor since when: of those only their pids "
            "are known.",
            "To see more:",
            f"grant pg_read_all_stats to {identifier(facts.role)};",
        )
    if engine is None:
        known(facts.engine)
        return
    hidden = engine.queue_count - len(known(facts.queues))
    if hidden > 0:
        yield Finding(
            "privileges",
            "unknown",
            facts.role,
            f"{hidden} of {count(engine.queue_count, 'queue')} cannot be checked: restricted, and this role "
            "has no right to view.",
            "Run it as a role with penstock_admin, or grant the right for each:",
            shell("penstock", "queue", "grant", facts.role, "QUEUE", "view"),
        )
    elif server.sees_all_sessions:
        yield ok("privileges", f"{facts.role} sees all of it.")


def pooler(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    if facts.pooling == "none":
        yield ok("pooler", "Connected to the server itself.")
        return
    advice = (
        "Give consumers a second DSN that leads directly to the server: listen_dsn= of a client. Without it "
        "they ask once a second."
    )
    command = 'penstock.connect(pooled, listen_dsn="postgresql://user@server:5432/name")'
    if facts.pooling == "transaction":
        found = (
            "A pooler lends sessions for one transaction at a time (PgBouncer's pool_mode = transaction): "
            "clients cannot listen."
        )
    else:
        found = (
            "A pooler (PgBouncer or its like) is in between. If it pools transactions, clients cannot listen."
        )
    yield Finding(
        "pooler", "warning" if facts.pooling == "transaction" else "ok", None, found, advice, command
    )


def clock(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    reading = facts.clock
    difference = max(abs(reading.offset_seconds) - reading.uncertainty_seconds, 0.0)
    about = f"{age(abs(reading.offset_seconds))} {'ahead of' if reading.offset_seconds > 0 else 'behind'}"
    if difference >= CLOCK_SECONDS:
        yield Finding(
            "clock",
            "problem" if difference >= CLOCK_SECONDS_BAD else "warning",
            "this machine",
            f"The clock of the server is {about} this machine's (give or take "
            f"{age(reading.uncertainty_seconds)}). Leases and delays go by the server's; moments that a "
            "program here computes, like deliver_after=, are off by as much.",
            "Set the clocks by NTP. Is this one?",
            "timedatectl status",
        )
    else:
        yield ok(
            "clock",
            f"The server is {about} this machine, give or take {age(reading.uncertainty_seconds)}.",
        )
    engine = known(facts.engine)
    body = " ".join(engine.clock_body.split())
    if abs(engine.clock_offset_seconds) < MOVED_SECONDS and body == REAL_CLOCK:
        return
    moved = engine.clock_offset_seconds
    by = (
        f"is {age(round(abs(moved), 1))} {'ahead' if moved > 0 else 'behind'}"
        if abs(moved) >= MOVED_SECONDS
        else "may be moved"
    )
    yield Finding(
        "clock",
        "problem" if abs(moved) >= MOVED_SECONDS else "warning",
        "penstock.clock()",
        f"The clock of the queues {by}: its body was replaced, as tests do. It reads: {body[:200]}",
        "Give it the clock of the server back:",
        "create or replace function penstock.clock() returns timestamptz language sql volatile "
        f"as $$ {REAL_CLOCK} $$;",
    )
