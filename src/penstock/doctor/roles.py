"""What the role of this connection may do, and which roles it lacks for what."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.wording import count

from .facts import Facts, NotKnown, known
from .findings import Finding, Limits, identifier, shell

__all__ = ["roles"]

# What each role is for, and what does not work without it.
MAY = {
    "penstock_publisher": "publish",
    "penstock_consumer": "consume",
    "penstock_viewer": "view",
    "penstock_admin": "administer",
}
WITHOUT = {
    "penstock_publisher": "cannot send messages or enqueue tasks, nor wait for results; a worker with this "
    "role cannot run periodic tasks",
    "penstock_consumer": "cannot consume: neither a worker nor `penstock maintain` can run with this role",
    "penstock_viewer": "cannot look into queues: `penstock top`, `penstock queue list` and most checks of "
    "doctor do not work",
    "penstock_admin": "cannot change queues, grant rights or bring back dead letters; where a queue exists, "
    "what the code says of its settings is not applied",
}


def roles(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    found = known(facts.roles)
    held = [MAY[each.role] for each in found if each.is_held]
    lacking = [each for each in found if not each.is_held]
    yield from _on_tables(facts)
    if not held:
        yield Finding(
            "roles",
            "warning",
            facts.role,
            "It has none of the roles of Penstock, and can do nothing.",
            "Grant what it is for: penstock_publisher to send, penstock_consumer to work, penstock_admin to "
            "change settings, penstock_viewer to look:",
            _grant("penstock_viewer", facts.role),
        )
        return
    yield Finding("roles", "ok", facts.role, f"It may {_listed(held)}.")
    for each in lacking:
        grant = _grant(each.role, facts.role)
        there = (
            ""
            if each.exists
            else " (not there: a role with CREATEROLE creates it, then the owner runs penstock migrate)"
        )
        yield Finding(
            "roles",
            "ok",
            facts.role,
            f"Without {each.role}{there} it {WITHOUT[each.role]}. If it should: {grant}",
            command=grant,
        )
    yield from _dangling(facts)


def _on_tables(facts: Facts) -> Iterator[Finding]:
    for each in known(facts.table_rights):
        role = "public" if each.role is None else identifier(each.role)
        yield Finding(
            "roles",
            "warning",
            each.role or "PUBLIC",
            f"It has rights on {count(len(each.tables), 'table')} of the schema penstock, such as "
            f"{each.tables[0]}: {', '.join(each.rights)}. No role needs one. A trigger on a table would "
            "run with the rights of the owner.",
            "Take them away, as the owner of the schema:",
            f"revoke all on all tables in schema penstock from {role} cascade; "
            f"revoke all on all sequences in schema penstock from {role} cascade;",
        )


def _dangling(facts: Facts) -> Iterator[Finding]:
    """Only an administrator sees grants."""
    if isinstance(facts.grants, NotKnown):
        return
    for grant in facts.grants:
        if not grant.role_exists:
            yield Finding(
                "roles",
                "warning",
                f"queue {grant.queue_name}",
                f"Role {identifier(grant.role_name)} has the right to {grant.right}, but does not exist: it "
                "was dropped or renamed. A new role of that name would have the right.",
                "Take it away:",
                shell("penstock", "queue", "revoke", grant.role_name, grant.queue_name, grant.right),
            )


def _grant(role: str, to: str) -> str:
    return f"grant {role} to {identifier(to)};"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
