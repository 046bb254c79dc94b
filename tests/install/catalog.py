"""What the catalog of a database says about the schema penstock, as lines of text that can be compared."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

# Each query yields lines. The owner is called "owner": who that is differs from one database to another.
_QUERIES = {
    "schema": """
        select format('%s: %s', n.nspacl, obj_description(n.oid, 'pg_namespace'))
        from pg_namespace n where n.nspname = 'penstock'
    """,
    "tables": """
        select format(
            '%s %s %s, options %s, acl %s, partition %s: %s', c.relkind, c.relname, pg_get_partkeydef(c.oid),
            c.reloptions, c.relacl, pg_get_expr(c.relpartbound, c.oid), obj_description(c.oid, 'pg_class')
        )
        from pg_class c
        where c.relnamespace = 'penstock'::regnamespace and c.relkind <> 'i'
    """,
    "columns": """
        select format(
            '%s.%s %s %s %s%s%s%s, acl %s: %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
            (select collname from pg_collation where oid = a.attcollation), a.attstorage, a.attidentity,
            case when a.attnotnull then ' not null' end, ' default ' || pg_get_expr(d.adbin, d.adrelid),
            a.attacl, col_description(c.oid, a.attnum)
        )
        from pg_attribute a
        join pg_class c on c.oid = a.attrelid
        left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
        where c.relnamespace = 'penstock'::regnamespace and a.attnum > 0 and not a.attisdropped
            and c.relkind in ('r', 'p', 'c', 'v')
    """,
    "indexes": "select indexdef from pg_indexes where schemaname = 'penstock'",
    "constraints": """
        select format('%s %s: %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
        from pg_constraint where connamespace = 'penstock'::regnamespace
    """,
    "functions": """
        select format(
            '%s, acl %s, comment %s', pg_get_functiondef(p.oid), p.proacl, obj_description(p.oid, 'pg_proc')
        )
        from pg_proc p where p.pronamespace = 'penstock'::regnamespace
    """,
    "others": """
        select format('trigger %s on %s', tgname, tgrelid::regclass)
        from pg_trigger join pg_class c on c.oid = tgrelid
        where c.relnamespace = 'penstock'::regnamespace and not tgisinternal
        union all
        select format('type %s %s acl %s', typname, typtype, typacl)
        from pg_type where typnamespace = 'penstock'::regnamespace
    """,
}

# Everything there is, by kind: what an uninstall has to leave as it was.
_EVERYTHING = """
    select 'relation ' || oid::regclass from pg_class
    union all select 'routine ' || oid::regprocedure from pg_proc
    union all select 'type ' || format_type(oid, null) from pg_type
    union all select 'schema ' || nspname from pg_namespace
    union all select 'role ' || rolname from pg_roles
    union all select 'default acl ' || oid from pg_default_acl
    union all select format('member %s of %s', member::regrole, roleid::regrole) from pg_auth_members
    union all select 'dependency on role ' || refobjid from pg_shdepend
    union all select 'setting ' || setrole || setdatabase from pg_db_role_setting
"""


def describe(connection: psycopg.Connection[Any]) -> list[str]:
    """The schema penstock, a line for each thing in it (a function takes several)."""
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    lines = []
    with connection.transaction():
        cursor.execute("set local search_path = pg_catalog")
        row = cursor.execute(
            "select nspowner::regrole::text from pg_namespace where nspname = 'penstock'"
        ).fetchone()
        owner = row[0] if row else "nobody"
        for title, query in _QUERIES.items():
            found = sorted(str(line[0]) for line in cursor.execute(query))
            lines += [
                f"== {title}",
                *(line.replace(f"{owner}=", "owner=").replace(f"/{owner}", "/owner") for line in found),
            ]
    return lines


def everything(connection: psycopg.Connection[Any]) -> set[str]:
    """The name of each thing in the database, and of each role of the server."""
    return {row[0] for row in psycopg.Cursor(connection, row_factory=tuple_row).execute(_EVERYTHING)}
