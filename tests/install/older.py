"""An older version of the SQL, made up from the present one: the same tables, every function another."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from penstock import schema

# The same names and signatures, all else different: body, volatility, settings, comment.
_STUBS = """
    select format(
        e'create or replace %s %s(%s)%s language %s as $stub$%s$stub$;\n'
        'comment on routine %s is %L;\n',
        case p.prokind when 'p' then 'procedure' else 'function' end,
        'penstock.' || quote_ident(p.proname),
        pg_get_function_arguments(p.oid),
        ' returns ' || pg_get_function_result(p.oid),
        l.lanname,
        case l.lanname when 'sql' then 'select null' else 'begin raise exception ''older''; end' end,
        p.oid::regprocedure,
        'an older ' || obj_description(p.oid, 'pg_proc')
    )
    from pg_proc p
    join pg_language l on l.oid = p.prolang
    where p.pronamespace = 'penstock'::regnamespace and p.proname <> 'schema_version'
    order by p.oid::regprocedure::text
"""

_GONE = """
create function penstock.gone(number int) returns int language sql as 'select number';
create function penstock._gone() returns int language sql as 'select 1';
create procedure penstock.gone_too() language sql as 'select 1';
create function penstock.publish_message(topic_name text, number int) returns int language sql as 'select 1';
"""

_ROLES = """
do $$
declare
    name text;
begin
    foreach name in array array['penstock_viewer', 'penstock_publisher'] loop
        begin
            execute format('create role %I', name);
        exception when duplicate_object or unique_violation or insufficient_privilege then
            null;
        end;
        if to_regrole(name) is not null then
            execute format('grant execute on all routines in schema penstock to %I', name);
        end if;
    end loop;
end
$$;
"""


def write_older(root: Path, installed: psycopg.Connection[Any]) -> schema.Source:
    """An older tree in `root`, from the catalog of a database that has the present schema."""
    shutil.copytree(schema.SQL / "tables", root / "tables")
    (root / "functions").mkdir()
    stubs = [row[0] for row in psycopg.Cursor(installed, row_factory=tuple_row).execute(_STUBS)]
    (root / "functions" / "old.sql").write_text("".join(stubs) + _GONE)
    (root / "roles.sql").write_text(_ROLES)
    return schema.load(root, package_version="0.0.9")
