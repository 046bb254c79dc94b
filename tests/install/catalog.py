"""What the catalog of a database says about the schema penstock, as lines of text that can be compared."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

# Each query yields lines. The owner is called "owner": its name differs between databases.
_QUERIES = {
    "schema": """
        select concat_ws(', ', 'acl ' || n.nspacl::text, 'comment ' || obj_description(n.oid, 'pg_namespace'))
        from pg_namespace n where n.nspname = 'penstock'
    """,
    "relations": """
        select concat_ws(
            ', ',
            (case c.relkind when 'c' then 'type ' when 'S' then 'sequence ' else 'table ' end) || c.relname,
            'partitioned by ' || pg_get_partkeydef(c.oid), pg_get_expr(c.relpartbound, c.oid),
            'with ' || c.reloptions::text, 'acl ' || c.relacl::text,
            'comment ' || obj_description(c.oid, 'pg_class')
        )
        from pg_class c
        where c.relnamespace = 'penstock'::regnamespace and c.relkind not in ('i', 'I')
    """,
    "columns": """
        select concat_ws(
            ' ', format('%s.%s', c.relname, a.attname), format_type(a.atttypid, a.atttypmod),
            'collate ' || nullif(l.collname, 'default'),
            'storage ' || nullif(a.attstorage::text, t.typstorage::text),
            case when a.attidentity <> '' then 'identity' end, case when a.attnotnull then 'not null' end,
            'default ' || pg_get_expr(d.adbin, d.adrelid), 'acl ' || a.attacl::text,
            'comment ' || col_description(c.oid, a.attnum)
        )
        from pg_attribute a
        join pg_class c on c.oid = a.attrelid
        join pg_type t on t.oid = a.atttypid
        left join pg_collation l on l.oid = a.attcollation
        left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
        where c.relnamespace = 'penstock'::regnamespace and a.attnum > 0 and not a.attisdropped
            and c.relkind in ('r', 'p', 'c', 'v')
    """,
    "indexes": "select indexdef from pg_indexes where schemaname = 'penstock'",
    "constraints": """
        select format('%s: %s', conrelid::regclass, pg_get_constraintdef(oid))
        from pg_constraint where connamespace = 'penstock'::regnamespace and contype <> 'n'
    """,
    "functions": """
        select concat_ws(
            ', ', pg_get_functiondef(p.oid), 'acl ' || p.proacl::text,
            'comment ' || obj_description(p.oid, 'pg_proc')
        )
        from pg_proc p where p.pronamespace = 'penstock'::regnamespace
    """,
    "triggers": """
        select pg_get_triggerdef(t.oid)
        from pg_trigger t join pg_class c on c.oid = t.tgrelid
        where c.relnamespace = 'penstock'::regnamespace and not t.tgisinternal
    """,
    "other types": """
        select concat_ws(', ', t.typname, t.typtype, 'acl ' || t.typacl::text)
        from pg_type t
        where t.typnamespace = 'penstock'::regnamespace and t.typtype <> 'c' and t.typcategory <> 'A'
    """,
}

# The same functions without their bodies, for a dump to read.
_SIGNATURES = """
    select concat_ws(
        ', ',
        format(
            '%s(%s) returns %s', p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)
        ),
        (select lanname from pg_language where oid = p.prolang),
        case p.provolatile when 'v' then 'volatile' when 's' then 'stable' else 'immutable' end,
        case when p.proisstrict then 'strict' end, case when p.prosecdef then 'definer' end,
        'set ' || array_to_string(p.proconfig, ', '), 'acl ' || p.proacl::text
    )
    from pg_proc p where p.pronamespace = 'penstock'::regnamespace
"""

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


def describe(connection: psycopg.Connection[Any], *, bodies: bool = True) -> list[str]:
    """The schema penstock, a line for each thing in it (a function with its body takes several)."""
    queries = _QUERIES if bodies else _QUERIES | {"functions": _SIGNATURES}
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    lines = []
    with connection.transaction():
        cursor.execute("set local search_path = pg_catalog")
        row = cursor.execute(
            "select nspowner::regrole::text from pg_namespace where nspname = 'penstock'"
        ).fetchone()
        owner = row[0] if row else "no_owner"
        for title, query in queries.items():
            found = sorted(str(line[0]) for line in cursor.execute(query))
            lines += [
                f"== {title}",
                *(line.replace(f"{owner}=", "owner=").replace(f"/{owner}", "/owner") for line in found),
            ]
    return lines


def everything(connection: psycopg.Connection[Any]) -> set[str]:
    """The name of each thing in the database, and of each role of the server."""
    return {row[0] for row in psycopg.Cursor(connection, row_factory=tuple_row).execute(_EVERYTHING)}
