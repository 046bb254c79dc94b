"""Calls that return facts about the server, the engine and each queue."""

from __future__ import annotations

from typing import NamedTuple

from penstock import rows
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
from penstock.sql_call import Call, Repeat, call

from .parsing import nothing

__all__ = [
    "Presence",
    "RoleHeld",
    "TableRights",
    "diagnose_engine",
    "diagnose_errors",
    "diagnose_groups",
    "diagnose_holders",
    "diagnose_leases",
    "diagnose_parked",
    "diagnose_priorities",
    "diagnose_queues",
    "diagnose_server",
    "diagnose_statements",
    "diagnose_tables",
    "limit_transaction",
    "presence",
    "roles_held",
    "table_rights",
]


def diagnose_server() -> Call[ServerDiagnosis]:
    columns = rows.SERVER_DIAGNOSIS
    return call("diagnose_server", lambda found: columns.read(found)[0], columns.sql)


def diagnose_holders() -> Call[list[Holder]]:
    return call("diagnose_holders", rows.HOLDER.read, rows.HOLDER.sql)


def diagnose_tables() -> Call[list[TableDiagnosis]]:
    return call("diagnose_tables", rows.TABLE_DIAGNOSIS.read, rows.TABLE_DIAGNOSIS.sql)


def diagnose_statements() -> Call[list[StatementDiagnosis]]:
    return call("diagnose_statements", rows.STATEMENT_DIAGNOSIS.read, rows.STATEMENT_DIAGNOSIS.sql)


def diagnose_engine() -> Call[EngineDiagnosis]:
    columns = rows.ENGINE_DIAGNOSIS
    return call("diagnose_engine", lambda found: columns.read(found)[0], columns.sql)


def diagnose_queues() -> Call[list[QueueDiagnosis]]:
    return call("diagnose_queues", rows.QUEUE_DIAGNOSIS.read, rows.QUEUE_DIAGNOSIS.sql)


def diagnose_parked() -> Call[list[ParkedDiagnosis]]:
    return call("diagnose_parked", rows.PARKED_DIAGNOSIS.read, rows.PARKED_DIAGNOSIS.sql)


def diagnose_errors() -> Call[list[ErrorDiagnosis]]:
    return call("diagnose_errors", rows.ERROR_DIAGNOSIS.read, rows.ERROR_DIAGNOSIS.sql)


def diagnose_leases() -> Call[list[LeaseDiagnosis]]:
    return call("diagnose_leases", rows.LEASE_DIAGNOSIS.read, rows.LEASE_DIAGNOSIS.sql)


def diagnose_priorities() -> Call[list[PriorityDiagnosis]]:
    return call("diagnose_priorities", rows.PRIORITY_DIAGNOSIS.read, rows.PRIORITY_DIAGNOSIS.sql)


def diagnose_groups() -> Call[list[GroupDiagnosis]]:
    return call("diagnose_groups", rows.GROUP_DIAGNOSIS.read, rows.GROUP_DIAGNOSIS.sql)


class Presence(NamedTuple):
    """Facts that any server tells any role, with or without a schema."""

    pid: int
    database: str
    role: str
    at: float


def presence() -> Call[Presence]:
    text = (
        "select pg_catalog.pg_backend_pid(), pg_catalog.current_database(), "
        "cast(current_user as pg_catalog.text), "
        "pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())"
    )
    return Call("presence", text, (), lambda found: Presence(*found[0]), Repeat.SAFE)


class RoleHeld(NamedTuple):
    """A role of the schema: whether it exists, and whether the caller has its rights."""

    role: str
    exists: bool
    is_held: bool


def roles_held() -> Call[list[RoleHeld]]:
    """Checked by a function that only this role and penstock_admin may call. Any role may ask."""
    text = (
        "select r.role, exists ("
        "select from pg_catalog.pg_roles x where x.rolname operator(pg_catalog.=) r.role),"
        " coalesce(("
        "select pg_catalog.bool_and(pg_catalog.has_schema_privilege(n.oid, 'usage')"
        " and pg_catalog.has_function_privilege(p.oid, 'execute'))"
        " from pg_catalog.pg_proc p"
        " join pg_catalog.pg_namespace n on n.oid operator(pg_catalog.=) p.pronamespace"
        " where n.nspname operator(pg_catalog.=) 'penstock'"
        " and p.proname operator(pg_catalog.=) r.function), false)"
        " from (values (1, 'penstock_publisher', 'send_messages'),"
        " (2, 'penstock_consumer', 'consume_messages_batch'), (3, 'penstock_viewer', 'list_messages'),"
        " (4, 'penstock_admin', 'alter_queue')) as r (n, role, function) order by r.n"
    )
    return Call("roles_held", text, (), lambda found: [RoleHeld(*row) for row in found], Repeat.SAFE)


class TableRights(NamedTuple):
    """The rights of a role that is not the owner on tables of the schema; role is None for PUBLIC."""

    role: str | None
    tables: list[str]
    rights: list[str]


def table_rights() -> Call[list[TableRights]]:
    """Rights that no role should have. Any role may ask."""
    text = (
        "select u.rolname, pg_catalog.array_agg(distinct cast(c.relname as pg_catalog.text)),"
        " pg_catalog.array_agg(distinct a.privilege_type)"
        " from pg_catalog.pg_namespace n"
        " join pg_catalog.pg_class c on c.relnamespace operator(pg_catalog.=) n.oid"
        " cross join lateral (select c.relacl union all select t.attacl from pg_catalog.pg_attribute t"
        " where t.attrelid operator(pg_catalog.=) c.oid) as x (acl)"
        " cross join lateral pg_catalog.aclexplode(x.acl) a"
        " left join pg_catalog.pg_roles u on u.oid operator(pg_catalog.=) a.grantee"
        " where n.nspname operator(pg_catalog.=) 'penstock'"
        " and c.relkind operator(pg_catalog.=) any (array['r', 'p', 'S']::pg_catalog.\"char\"[])"
        " and a.grantee operator(pg_catalog.<>) c.relowner group by u.rolname order by u.rolname"
    )
    return Call("table_rights", text, (), lambda found: [TableRights(*row) for row in found], Repeat.SAFE)


def limit_transaction(statement_seconds: float, lock_seconds: float) -> Call[None]:
    """Limit the time of statements and locks in this transaction, and its search path to pg_catalog."""
    text = (
        "select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), "
        "pg_catalog.set_config('statement_timeout', %s, true), "
        "pg_catalog.set_config('lock_timeout', %s, true)"
    )
    limits = (str(round(statement_seconds * 1000)), str(round(lock_seconds * 1000)))
    return Call("limit_transaction", text, limits, nothing, Repeat.SAFE)
