"""Every public function in sessions with odd settings, and among objects that bear the names of others."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
import psycopg2  # type: ignore[import-untyped]
import pytest
from psycopg import sql as composed

import penstock
from penstock.doctor import examine, gather
from tests.conftest import Connect
from tests.integrations.awaiting import awaited, run_without_loop
from tests.integrations.everything import METHODS, call_everything

from .attempts import Attempts
from .catalog import Function, public_functions
from .stage import Stage, furnish

SETTINGS = {
    "how values are read and written": {
        "array_nulls": "off",
        "backslash_quote": "on",
        "bytea_output": "escape",
        "client_encoding": "LATIN1",
        "datestyle": "German, DMY",
        "escape_string_warning": "off",
        "extra_float_digits": "-15",
        "intervalstyle": "iso_8601",
        "quote_all_identifiers": "on",
        "standard_conforming_strings": "off",
        "timezone": "America/St_Johns",
        "transform_null_equals": "on",
        "xmloption": "document",
    },
    "without an encoding": {"client_encoding": "SQL_ASCII"},
    "how names are found": {
        "plpgsql.extra_errors": "all",
        "plpgsql.variable_conflict": "use_column",
        "row_security": "off",
        "search_path": "",
        "session_replication_role": "replica",
    },
    "the other column": {"plpgsql.variable_conflict": "use_variable"},
    "how statements are planned": {
        "constraint_exclusion": "on",
        "cursor_tuple_fraction": "0.0001",
        "enable_indexscan": "off",
        "enable_nestloop": "off",
        "enable_partition_pruning": "off",
        "from_collapse_limit": "1",
        "geqo_threshold": "2",
        # What costs much is compiled, which takes its time: tests/sql/test_plans_are_not_compiled.py.
        "jit": "off",
        "join_collapse_limit": "1",
        "plan_cache_mode": "force_custom_plan",
        "random_page_cost": "1000000",
        "work_mem": "64kB",
    },
}

# Functions and operators of pg_catalog, each with the same arguments and another mind.
IMPOSTORS = """
create schema impostors;
do $do$
declare
    types constant regtype[] := '{
        text,int2,int4,int8,bool,float8,numeric,json,jsonb,timestamptz,timestamp,date,interval,bytea,oid,name,
        regclass,uuid,text[],int4[],int8[],bool[],jsonb[],bytea[],timestamptz[],anyarray,anyelement}';
    body constant text := 'language plpgsql as $$ begin raise exception ''an impostor was called''; end $$';
    f record;
    o record;
begin
    for f in
        select p.proname as name,
            concat(case when p.proretset then 'setof ' end, p.prorettype::regtype) as type,
            (select string_agg(a::regtype::text, ', ') from unnest(p.proargtypes) a) as arguments
        from pg_proc p
        where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f'
            and p.proargtypes::oid[] <@ types::oid[] and p.prorettype = any (types || '{void}'::regtype[])
    loop
        execute format('create function impostors.%I(%s) returns %s %s', f.name, f.arguments, f.type, body);
    end loop;
    for o in
        select p.oid, p.oprname as name, p.oprleft::regtype as l, p.oprright::regtype as r,
            p.oprresult::regtype as type
        from pg_operator p
        where p.oprnamespace = 'pg_catalog'::regnamespace
            and p.oprleft = any (types) and p.oprright = any (types)
    loop
        execute format('create function impostors.o%s(%s, %s) returns %s %s', o.oid, o.l, o.r, o.type, body);
        execute format(
            'create operator impostors.%s (function = impostors.o%s, leftarg = %s, rightarg = %s)',
            o.name, o.oid, o.l, o.r
        );
    end loop;
end
$do$
"""
# Types of pg_catalog, as domains that take no value. They come last: the functions above name the true types.
IMPOSTOR_TYPES = """
create function impostors.is_true() returns boolean language plpgsql as
    $$ begin raise exception 'an impostor was called'; end $$;
do $do$
declare
    name text;
begin
    for name in
        select t.typname from pg_type t
        where t.typnamespace = 'pg_catalog'::regnamespace and t.typtype = 'b' and t.typelem = 0
    loop
        execute format('create domain impostors.%1$I as pg_catalog.%1$I check (impostors.is_true())', name);
    end loop;
end
$do$
"""
# Types and tables of pg_temp come before those of pg_catalog, unless pg_temp is in the search path.
TEMPORARY = """
do $do$
declare
    name text;
begin
    for name in
        select c.relname from pg_class c
        where c.relnamespace = 'penstock'::regnamespace and c.relkind in ('r', 'p')
    loop
        execute format('create temporary table %I (impostor int)', name);
    end loop;
    foreach name in array
        '{text,int2,int4,int8,bool,float8,numeric,jsonb,timestamptz,interval,bytea,oid,regclass,tid}'::text[]
    loop
        execute format('create domain pg_temp.%I as pg_catalog.point', name);
    end loop;
end
$do$
"""


def literal_calls(connection: psycopg.Connection[Any], stage: Stage) -> list[str]:
    """A good example of each function, in which no name is looked up that is not qualified."""
    return [
        _literal_call(connection, function, stage.arguments(function, queue))
        for function in public_functions(connection)
        for queue in ("plain", "both")
    ]


def _literal_call(connection: psycopg.Connection[Any], function: Function, arguments: dict[str, str]) -> str:
    given = []
    for parameter in function.parameters:
        if parameter.name in arguments:
            query = f"select ({arguments[parameter.name]})::{parameter.type}::text"
            ((text,),) = connection.execute(query.encode())
            literal = composed.Literal(text).as_string(connection)
            name = parameter.type.removesuffix("[]")
            # Words of SQL itself are not looked up.
            schema = "" if " " in name or name in ("integer", "bigint", "boolean") else "pg_catalog."
            given.append(f"{parameter.name} => {literal}::{schema}{parameter.type}")
    return f"select * from penstock.{function.name}({', '.join(given)})"


def call_all(connection: psycopg.Connection[Any], calls: list[str], note: str) -> list[str]:
    attempts = Attempts(connection)
    for statement in calls:
        error = attempts.run(f"begin; {statement}; rollback")
        if error is not None:
            attempts.run("rollback")
            attempts.faults.append(f"{note}: {error.sqlstate} {error.text[:300]}\n  {statement}")
    return attempts.faults


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_settings_of_a_session(connect: Connect, settings: dict[str, str]) -> None:
    first = connect()
    calls = literal_calls(first, furnish(first))
    # Another one: in the first all functions may be compiled already.
    session = connect()
    for name, value in settings.items():
        session.execute("select set_config(%s, %s, false)", (name, value))
    assert call_all(session, calls, "settings") == []


def test_functions_and_operators_that_come_before_those_of_postgresql(connect: Connect) -> None:
    first = connect()
    calls = literal_calls(first, furnish(first))
    first.execute(IMPOSTORS)
    session = connect(options="-c search_path=impostors,pg_catalog,public")
    with pytest.raises(psycopg.errors.RaiseException, match="impostor"):
        session.execute("select 1 + 1")
    assert call_all(session, calls, "impostors") == []


def test_a_client_among_impostors(database: str) -> None:
    """Neither do the clients look for types, operators and functions where other roles may put some."""
    with psycopg.connect(database) as connection:
        connection.execute(IMPOSTORS)
        connection.execute(IMPOSTOR_TYPES)
        connection.execute("set search_path = impostors, pg_catalog")
        for expression in ("'1'::text", "unnest(array[1])", "'{}'::jsonb"):
            with (
                pytest.raises(psycopg.errors.RaiseException, match="impostor"),
                connection.transaction(),
            ):
                connection.execute(f"select {expression}".encode())

    async def call() -> None:
        async with awaited(client).transaction() as tx:
            assert {name for name, _ in await call_everything(tx)} == METHODS

    dsn = f"{database}&options=-csearch_path%3Dimpostors,pg_catalog"
    with penstock.connect(dsn) as client:
        run_without_loop(call())
        client.create_queue("delays")
        client.send_many("delays", [penstock.NewMessage(1, delay=5), penstock.NewMessage(2)])
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert examine(gather(connection))


def test_bytes_among_impostors(database18: str) -> None:
    """A driver that writes parameters into the statement casts bytes, to a type that it does not qualify."""
    with psycopg.connect(database18) as connection:
        connection.execute(IMPOSTORS)
        connection.execute(IMPOSTOR_TYPES)
        connection.execute("select penstock.create_queue('raw')")
    options = "-csearch_path=impostors,pg_catalog"
    with (
        contextlib.closing(psycopg2.connect(database18, options=options)) as caller,
        penstock.connect(database18) as client,
    ):
        client.using(caller).send("raw", b"\0\\'bytes")
        caller.commit()
        (message,) = client.consume_batch("raw")
        assert message.payload == b"\0\\'bytes"


def test_temporary_types_and_tables(connect: Connect) -> None:
    first = connect()
    calls = literal_calls(first, furnish(first))
    session = connect()
    session.execute(TEMPORARY)
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        session.execute("select 'x'::text")
    assert call_all(session, calls, "temporary objects") == []
