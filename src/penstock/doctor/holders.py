"""How to describe a session that holds something, and how to end that."""

from __future__ import annotations

from penstock.diagnoses import Holder
from penstock.wording import age

from .facts import Facts
from .findings import literal

__all__ = ["describe", "doing", "letting_go", "subject"]

QUERY = 160


def subject(holder: Holder) -> str:
    return f"{holder.kind} {holder.name}" if holder.pid is None or holder.name else f"pid {holder.pid}"


def describe(holder: Holder, facts: Facts) -> str:
    """The session in words: `pid 12 (psql of alice on 10.0.0.1), open for 5 min`."""
    of = [part for part in (holder.application_name, holder.user_name and f"of {holder.user_name}") if part]
    if holder.client_address:
        of.append(f"on {holder.client_address}")
    if holder.database_name not in (None, facts.database):
        of.append(f"in {holder.database_name}")
    name = f"{subject(holder)} ({' '.join(of)})" if of else subject(holder)
    open_for = facts.open_for(holder)
    return name if open_for is None else f"{name}, open for {age(open_for)}"


def doing(holder: Holder, facts: Facts) -> str:
    """Its state, since when, and its last statement."""
    if holder.kind not in ("session", "standby") or holder.state is None:
        return "" if holder.kind != "session" else "What it does may not be seen by this role."
    since = ""
    if holder.state_changed_at is not None:
        since = f" for {age(max((facts.now - holder.state_changed_at).total_seconds(), 0.0))}"
    query = " ".join((holder.query or "").split())
    if len(query) > QUERY:
        query = query[:QUERY] + "..."
    label = "Its statement" if holder.state == "active" else "Its last statement"
    return f"It is {holder.state}{since}. {label}: {query}" if query else f"It is {holder.state}{since}."


def letting_go(holder: Holder) -> tuple[str, str]:
    """What to do about it, and what to type."""
    name = literal(holder.name or "")
    match holder.kind:
        case "prepared transaction":
            return (
                "It was prepared and never ended. Roll it back, or commit it, in its own database:",
                f"rollback prepared {name};",
            )
        case "replication slot":
            return (
                "Start the standby or subscriber that uses it; if there is none any more, drop it:",
                f"select pg_drop_replication_slot({name});",
            )
        case "standby":
            return (
                "A query on the standby runs for long, and hot_standby_feedback tells of it. Look there:",
                "select pid, xact_start, query from pg_stat_activity where backend_xmin is not null "
                "order by xact_start;",
            )
    if holder.state == "active":
        return "Wait for it, or cancel it:", f"select pg_cancel_backend({holder.pid});"
    return (
        "Commit or roll back there, or end the session (as idle_in_transaction_session_timeout would):",
        f"select pg_terminate_backend({holder.pid});",
    )
