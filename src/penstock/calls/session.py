"""Statements that a client runs for its own connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock import schema
from penstock.sql_call import Call, Repeat

__all__ = [
    "CHECK_CLIENT",
    "GRANT_STATISTICS",
    "LIMIT_LOCK_WAITS",
    "LOOK",
    "PROBE",
    "ROOM_FOR_LOCKS",
    "SET_ASYNCHRONOUS",
    "SET_KEEPALIVES",
    "SET_READ_COMMITTED",
    "SET_READ_ONLY",
    "SET_STATEMENT_TIMEOUT",
    "SET_VIEWER",
    "SET_WARNINGS",
    "SMALLEST_COMMIT",
    "Session",
    "WatchKeys",
    "hand_over",
    "hear_as_next",
    "listen",
    "probe",
    "session",
    "start_polling",
    "step_back",
    "try_to_idle",
    "try_to_watch",
    "try_to_watch_or_be_next",
    "unlisten",
    "watch_keys",
]


class Session(NamedTuple):
    """Facts that a client needs about a connection. lower_owner: see `schema.LOWER_OWNER`."""

    pid: int
    isolation: str
    client_min_messages: str
    database: str
    lower_owner: str | None


SET_READ_COMMITTED = "set default_transaction_isolation = 'read committed'"
# Pages of the dashboard read in this role: PostgreSQL lets them change nothing.
SET_VIEWER = "set role penstock_viewer"
SET_READ_ONLY = "set default_transaction_read_only = on"
# So that pages show what other sessions do, and since when.
GRANT_STATISTICS = "grant pg_read_all_stats to penstock_viewer"
SET_STATEMENT_TIMEOUT = "set statement_timeout = '10s'"
# In a transaction: a pooler keeps nothing of it.
LIMIT_LOCK_WAITS = "set local lock_timeout = '5s'"
SET_WARNINGS = "set client_min_messages = warning"
SET_ASYNCHRONOUS = "set synchronous_commit = off"
# Ends a statement when its client has closed the connection, also during a lock wait. Not on every platform.
CHECK_CLIENT = (
    "do $$ begin perform pg_catalog.set_config('client_connection_check_interval', '5s', false);"
    " exception when others then null; end $$"
)
# If the machine of a client is gone, the server notices within half a minute, and releases its watches.
SET_KEEPALIVES = "set tcp_keepalives_idle = 15; set tcp_keepalives_interval = 5; set tcp_keepalives_count = 3"
PROBE = "select 1"
# How many locks all sessions of the server may hold, at least (docs/how-to/operate.md).
ROOM_FOR_LOCKS = (
    "select 2"
    " operator(pg_catalog.*) cast(pg_catalog.current_setting('max_locks_per_transaction') as pg_catalog.int8)"
    " operator(pg_catalog.*) cast(pg_catalog.current_setting('max_connections') as pg_catalog.int8)"
)
# Writes a few bytes of WAL, and nothing else, so that the time of the commit is the wait for the disk.
SMALLEST_COMMIT = "select pg_catalog.pg_logical_emit_message(true, 'penstock', '')"


def session() -> Call[Session]:
    text = (
        "select pg_catalog.pg_backend_pid(), pg_catalog.current_setting('default_transaction_isolation'), "
        "pg_catalog.current_setting('client_min_messages'), pg_catalog.current_database(), "
        f"cast({schema.LOWER_OWNER} as pg_catalog.text)"
    )
    return Call("session", text, (), lambda found: Session(*found[0]), Repeat.SAFE)


def probe(within: float) -> Call[None]:
    """Ask whether the server answers, within so many seconds."""
    return Call("select 1", PROBE, (), lambda _found: None, Repeat.SAFE, within=within)


def listen(channel_name: str) -> str:
    return f"listen {_quoted(channel_name)}"


def unlisten(channel_name: str) -> str:
    return f"unlisten {_quoted(channel_name)}"


# The session that watches a queue has an advisory lock with the key `watching`. While it is idle, it has one
# with the key `idle`, too: penstock._wake() notifies only then (wakeups.sql has the same seed). One of the
# sessions that stand by has the lock `next`, and hears of a handover alone: else each would wake all of them.


# A notification of penstock._wake_all() on the handover channel.
LOOK = "look"


class WatchKeys(NamedTuple):
    """The channels and the advisory keys of a queue."""

    channel: str
    handover_channel: str
    next_channel: str
    watching: int
    idle: int
    next: int


def watch_keys(queue_name: str) -> Call[WatchKeys]:
    text = (
        "select penstock.channel(cast(%s as pg_catalog.text)), "
        "pg_catalog.hashtextextended(cast(%s as pg_catalog.text), 1346719318), "
        "pg_catalog.hashtextextended(cast(%s as pg_catalog.text), 1346719317), "
        "pg_catalog.hashtextextended(cast(%s as pg_catalog.text), 1346719319)"
    )

    def parse(found: Sequence[Sequence[Any]]) -> WatchKeys:
        channel, *locks = found[0]
        name = channel.removeprefix("queue:")
        return WatchKeys(channel, f"watch:{name}", f"next:{name}", *locks)

    return Call("channel", text, (queue_name,) * 4, parse, Repeat.SAFE)


def try_to_watch(queues: Sequence[WatchKeys]) -> str:
    """Try to watch queues. Returns the keys that this session has got, separated by commas."""
    return _try_to_lock([keys.watching for keys in queues])


def try_to_watch_or_be_next(queues: Sequence[WatchKeys]) -> str:
    """Try to watch queues, or else to be next. Returns the keys that this session has got."""
    pairs = ",".join(
        f"(cast({keys.watching} as pg_catalog.int8), cast({keys.next} as pg_catalog.int8))" for keys in queues
    )
    return (
        "select pg_catalog.string_agg(cast("
        "case when pg_catalog.pg_try_advisory_lock(q.watching) then q.watching"
        " when pg_catalog.pg_try_advisory_lock(q.following) then q.following end"
        f" as pg_catalog.text), ',') from (values {pairs}) q(watching, following)"
    )


def hear_as_next(queues: Sequence[WatchKeys]) -> str:
    """Hear of handovers. Then try to watch once more: one may have come before this session listened."""
    listens = [listen(keys.next_channel) for keys in queues]
    return "; ".join([*listens, _try_to_lock([keys.watching for keys in queues])])


def step_back(queues: Sequence[WatchKeys], *, tells: bool) -> str:
    """Be next no more.

    tells: if no session watches the queue, a handover came that this session cannot heed. Then tell all that
    stand by.
    """
    statements = []
    for keys in queues:
        told = (
            f", case when pg_catalog.pg_try_advisory_lock_shared({keys.watching})"
            f" then pg_catalog.concat(pg_catalog.pg_advisory_unlock_shared({keys.watching}),"
            f" pg_catalog.pg_notify({_literal(keys.handover_channel)}, '')) end"
        )
        unlock = f"select pg_catalog.pg_advisory_unlock({keys.next})"
        statements += [unlisten(keys.next_channel), unlock + told if tells else unlock]
    return "; ".join(statements)


def try_to_idle(queues: Sequence[WatchKeys]) -> str:
    """Try to be idle. Returns the keys that this session has got, separated by commas."""
    listens = [listen(keys.channel) for keys in queues]
    return "; ".join([*listens, _try_to_lock([keys.idle for keys in queues])])


def _try_to_lock(keys: Sequence[int]) -> str:
    listed = ",".join(map(str, keys))
    return (
        "select pg_catalog.string_agg(cast(k as pg_catalog.text), ',')"
        f" from pg_catalog.unnest(cast('{{{listed}}}' as pg_catalog.int8[])) k"
        " where pg_catalog.pg_try_advisory_lock(k)"
    )


def start_polling(keys: WatchKeys) -> str:
    return f"select pg_catalog.pg_advisory_unlock({keys.idle})"


def hand_over(keys: WatchKeys, *, is_idle: bool) -> str:
    """Stop watching, and tell the session that is next; if there is none, all that stand by."""
    unlock = f"pg_catalog.pg_advisory_unlock({keys.idle}), " if is_idle else ""
    to_all = f"pg_catalog.pg_advisory_unlock_shared({keys.next}) then {_literal(keys.handover_channel)}"
    channel = (
        f"case when pg_catalog.pg_try_advisory_lock_shared({keys.next})"
        f" then case when {to_all} end else {_literal(keys.next_channel)} end"
    )
    return (
        f"{unlisten(keys.channel)}; "
        f"select {unlock}pg_catalog.pg_advisory_unlock({keys.watching}), pg_catalog.pg_notify({channel}, '')"
    )


def _literal(text: str) -> str:
    """A string for a statement that takes no parameters."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


def _quoted(name: str) -> str:
    """A quoted name, for a statement that takes no parameters."""
    return '"' + name.replace('"', '""') + '"'
