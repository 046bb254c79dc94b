"""Roles that try to run code with the rights of the installer, or of a superuser that looks at the queues."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from penstock import schema
from penstock.doctor import examine, gather
from penstock.errors import SchemaUnsafe
from penstock.schema import Source
from tests.embedded.processes import eventually

from .conftest import Cluster, Open

Sql = psycopg.Connection[Any]

# Counts its runs, which a rollback does not undo, and makes its owner a superuser where it can.
PLANT = """
create schema evil;
grant usage on schema evil to public;
create sequence evil.runs;
grant usage on sequence evil.runs to public;
create function evil.seize() returns void language plpgsql as $$
begin
    perform pg_catalog.nextval('evil.runs');
    perform pg_catalog.set_config('role', 'none', false);
    execute 'alter role {role} superuser';
exception when others then
    null;
end $$;
create function evil.seize_by_trigger() returns trigger language plpgsql as $$
begin
    perform evil.seize();
    return null;
end $$;
create function evil.seized(value anyelement) returns boolean language plpgsql immutable as $$
begin
    perform evil.seize();
    return true;
end $$;
"""
REPLACED = """
create or replace function penstock.{call} language plpgsql as $$
begin
    perform evil.seize();
    {rest}
end $$;
alter function penstock.{name} security invoker;
"""
OUT = "out package_version text, out migration integer, out digest text, out installed_at timestamptz"
REPLACED_VERSION = REPLACED.format(
    call=f"schema_version({OUT}) returns setof record",
    name="schema_version()",
    rest="package_version := '0.0.1'; migration := 0; digest := ''; installed_at := now(); return next;",
)
REPLACED_CLOCK = REPLACED.format(
    call="clock() returns timestamptz", name="clock()", rest="return clock_timestamp();"
)


class Attacker:
    """A role of no special rights that owns a database."""

    def __init__(self, cluster: Cluster, open_connection: Open) -> None:
        self.role = cluster.make_login()
        self.dsn = cluster.make_database(self.role)
        self.sql = open_connection(self.dsn, self.role)
        self.sql.execute(PLANT.replace("{role}", self.role).encode())

    def assert_has_gained_nothing(self) -> None:
        assert self.sql.execute("select is_called from evil.runs").fetchone() == (False,)
        query = "select rolsuper from pg_roles where rolname = current_user"
        assert self.sql.execute(query).fetchone() == (False,)


@pytest.fixture
def attacker(bare: Cluster, open_connection: Open) -> Iterator[Attacker]:
    attacker = Attacker(bare, open_connection)
    yield attacker
    bare.root.execute(f"alter role {attacker.role} nosuperuser".encode())


Install = Callable[..., object]


@pytest.fixture(params=["install", "script"])
def install(request: pytest.FixtureRequest) -> Install:
    """Installs, by the function and by the script."""
    if request.param == "install":
        return schema.install

    def run(connection: Sql, source: Source | None = None) -> None:
        try:
            connection.execute(schema.script(source).encode())
        except psycopg.Error as exc:
            connection.rollback()
            raise penstock.errors.from_database(exc) or exc from exc

    return run


def older() -> Source:
    """What an upgrade begins with."""
    source = schema.load()
    return Source("0.0.1", source.tables, source.functions, source.roles + "-- older")


def newer() -> Source:
    """An upgrade that has a numbered file to run."""
    source = schema.load()
    more = schema.File("9999_more", "create table penstock.more ()")
    return Source("999.0", (*source.tables, more), source.functions, source.roles)


# Another role owns the schema


@pytest.mark.parametrize("table", ["installation", "migrations"])
def test_an_upgrade_with_a_trigger(
    attacker: Attacker, open_connection: Open, install: Install, table: str
) -> None:
    schema.install(attacker.sql, older())
    attacker.sql.execute(
        f"create trigger seize before insert on penstock.{table}"
        " for each statement execute function evil.seize_by_trigger()".encode()
    )
    superuser = open_connection(attacker.dsn)
    with pytest.raises(SchemaUnsafe, match=f'belongs to role "{attacker.role}", not to "postgres"') as caught:
        install(superuser, newer())
    assert caught.value.hint == f'Connect as "{attacker.role}".'
    attacker.assert_has_gained_nothing()
    assert superuser.execute("select current_user, current_setting('role')").fetchone() == (
        "postgres",
        "none",
    )


@pytest.mark.parametrize(
    "statement",
    [
        "create table penstock.migrations (number int, name text, package_version text,"
        " applied_at boolean default evil.seized(1))",
        "create table penstock.migrations (number int, name text, package_version text,"
        " check (evil.seized(number)))",
        "create view penstock.migrations as select 1 as number where evil.seized(1)",
        "create view penstock.installation as select '1' as package_version where evil.seized(1)",
        f"create function penstock.schema_version({OUT}) language plpgsql as"
        " $$ begin perform evil.seize(); end $$",
    ],
)
def test_a_fresh_install_into_a_schema_that_was_there(
    attacker: Attacker, open_connection: Open, install: Install, statement: str
) -> None:
    attacker.sql.execute("create schema penstock")
    attacker.sql.execute(statement.encode())
    attacker.sql.execute("grant usage on schema penstock to public")
    for _ in range(2):
        with pytest.raises(SchemaUnsafe, match="belongs to role"):
            install(open_connection(attacker.dsn))
    attacker.assert_has_gained_nothing()
    # Nor does the attacker get Penstock to adopt it.
    with pytest.raises(SchemaUnsafe, match="has a schema penstock that Penstock did not create"):
        install(attacker.sql)


def test_a_deployer_that_is_a_member_of_the_owner(
    attacker: Attacker, bare: Cluster, open_connection: Open, install: Install
) -> None:
    schema.install(attacker.sql, older())
    attacker.sql.execute(
        "create trigger seize before insert on penstock.installation"
        " for each statement execute function evil.seize_by_trigger()"
    )
    deployer = bare.make_login(f"createrole in role {attacker.role}")
    with pytest.raises(SchemaUnsafe, match=f'belongs to role "{attacker.role}", not to "{deployer}"'):
        install(open_connection(attacker.dsn, deployer))
    attacker.assert_has_gained_nothing()


@pytest.mark.parametrize("replaced", [REPLACED_VERSION, REPLACED_CLOCK], ids=["schema_version", "clock"])
def test_a_superuser_runs_no_function_of_the_owner(
    attacker: Attacker, open_connection: Open, install: Install, replaced: str
) -> None:
    schema.install(attacker.sql)
    attacker.sql.execute(replaced.encode())
    superuser = open_connection(attacker.dsn)
    with pytest.raises(SchemaUnsafe):
        install(superuser)
    for look in (schema.check, schema.installed_version):
        with pytest.raises(SchemaUnsafe, match="its code would run with the rights of a superuser") as caught:
            look(superuser)
        assert f'Connect as "{attacker.role}"' in (caught.value.hint or "")
    findings = examine(gather(open_connection(attacker.dsn)))
    assert [finding for finding in findings if "rights of a superuser" in finding.found]
    assert {finding.status for finding in findings if finding.check == "maintenance"} == {"unknown"}
    with pytest.raises(SchemaUnsafe), penstock.Client(attacker.dsn) as client:
        client.list_queues()
    with pytest.raises(SchemaUnsafe):
        schema.uninstall(superuser)
    attacker.assert_has_gained_nothing()


def test_a_superuser_that_has_switched_to_the_owner(
    attacker: Attacker, open_connection: Open, install: Install
) -> None:
    schema.install(attacker.sql, older())
    superuser = open_connection(attacker.dsn)
    superuser.execute(f"set role {attacker.role}".encode())
    with pytest.raises(SchemaUnsafe, match="code of that role could switch back"):
        install(superuser)
    with pytest.raises(SchemaUnsafe):
        schema.check(superuser)


def test_the_command_says_it_in_a_line(attacker: Attacker) -> None:
    schema.install(attacker.sql, older())
    command = [sys.executable, "-m", "penstock.cli", "migrate", "--dsn", attacker.dsn]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert (answer.returncode, answer.stdout) == (1, "")
    (line,) = answer.stderr.splitlines()
    assert line.startswith("Error: the schema penstock in database")
    assert line.endswith(f'(Connect as "{attacker.role}".)')


# The database is another role's


def test_a_search_path_with_names_of_the_catalog(
    attacker: Attacker, open_connection: Open, install: Install
) -> None:
    for statement in (
        "create function evil.unnest(text[]) returns setof text language plpgsql as"
        " $$ begin perform evil.seize(); end $$",
        "create function evil.same(name, name) returns boolean language plpgsql as"
        " $$ begin perform evil.seize(); return pg_catalog.nameeq($1, $2); end $$",
        "create operator evil.= (leftarg = name, rightarg = name, function = evil.same)",
        "create function evil.same(oid, oid) returns boolean language plpgsql as"
        " $$ begin perform evil.seize(); return pg_catalog.oideq($1, $2); end $$",
        "create operator evil.= (leftarg = oid, rightarg = oid, function = evil.same)",
        "create function evil.max(integer) returns integer language plpgsql as"
        " $$ begin perform evil.seize(); return $1; end $$",
        "create domain evil.text as pg_catalog.text check (evil.seized(1))",
        "create domain evil.name as pg_catalog.text check (evil.seized(1))",
        "create function evil.clock_timestamp() returns timestamptz language plpgsql as"
        " $$ begin perform evil.seize(); return pg_catalog.now(); end $$",
    ):
        attacker.sql.execute(statement.encode())
    name = attacker.sql.info.dbname
    attacker.sql.execute(f"alter database {name} set search_path = evil, pg_catalog".encode())
    superuser = open_connection(attacker.dsn)
    assert superuser.execute("show search_path").fetchone() == ("evil, pg_catalog",)
    install(superuser)
    schema.install(superuser)
    schema.check(superuser)
    examine(gather(open_connection(attacker.dsn)))
    superuser.execute("select penstock.clock(), penstock.channel('orders')")
    assert superuser.execute("show search_path").fetchone() == ("evil, pg_catalog",)
    schema.uninstall(superuser)
    attacker.assert_has_gained_nothing()


# The schema is the installer's own, and another role has a hand in it

# Runs any query, and pg_depend does not know of it.
QUERY = "pg_catalog.ts_rewrite('a'::tsquery, 'select ''a''::tsquery, ''b''::tsquery where evil.seized(1)')"
OWN = {
    "a right to create": ("grant create on schema penstock to {role}", 'CREATE for "{role}"'),
    "a right of all": ("grant create on schema penstock to public", "CREATE for PUBLIC"),
    "a right to triggers": ("grant trigger on penstock.migrations to {role}", 'TRIGGER for "{role}"'),
    "a right to foreign keys": ("grant references on penstock.queues to {role}", 'REFERENCES for "{role}"'),
    "a table": ("alter table penstock.migrations owner to {role}", "table penstock.migrations"),
    "a sequence": ("alter sequence penstock.message_ids owner to {role}", "sequence penstock.message_ids"),
    "a type": ("alter type penstock.message owner to {role}", "type penstock.message"),
    "a function": ("alter function penstock.clock() owner to {role}", "function penstock.clock()"),
    "a view": ("create view penstock.extra as select 1", "view penstock.extra"),
    "an operator": (
        "create operator penstock.=== (leftarg = int, rightarg = int, function = int4eq)",
        "operator penstock.===(integer,integer)",
    ),
    "a trigger": (
        "create trigger seize before insert on penstock.ready execute function evil.seize_by_trigger()",
        "trigger seize on table penstock.ready",
    ),
    "a rule": (
        "create rule seize as on insert to penstock.migrations do also select evil.seize()",
        "rule seize on table penstock.migrations",
    ),
    "a policy": (
        "create policy seize on penstock.installation using (evil.seized(1))",
        "policy seize on table penstock.installation",
    ),
    "a default": (
        "alter table penstock.migrations add extra boolean default evil.seized(1)",
        "default value for column extra of table penstock.migrations",
    ),
    "a constraint": (
        "alter table penstock.migrations add constraint seize check (evil.seized(number)) not valid",
        "constraint seize on table penstock.migrations",
    ),
    "an index": (
        "create index seize on penstock.upkeep (evil.seized(done_at)) where false",
        "index penstock.seize",
    ),
    "a domain": (
        "create domain evil.named as text; alter table penstock.migrations alter name type evil.named",
        "table penstock.migrations",
    ),
    "a cast": (
        "create function evil.told(penstock.message) returns text language sql as $$ select 'x' $$;"
        "create cast (penstock.message as text) with function evil.told(penstock.message)",
        "cast from penstock.message to text",
    ),
    "a default of the catalog": (
        "alter table penstock.migrations add extra tsquery default {query}",
        "default value for column extra of table penstock.migrations",
    ),
    "a column that is generated": (
        "alter table penstock.upkeep add extra boolean generated always as (done_at is null) stored",
        "default value for column extra of table penstock.upkeep",
    ),
    "a constraint of the catalog": (
        "alter table penstock.installation add constraint seize check ({query} is not null) not valid",
        "constraint seize on table penstock.installation",
    ),
    "an index of the catalog": (
        "create index seize on penstock.upkeep ((pg_catalog.numnode('a'::tsquery))) where false",
        "index penstock.seize",
    ),
    "a predicate of the catalog": (
        "create index seize on penstock.upkeep (done_at) where pg_catalog.numnode('a'::tsquery) = 0",
        "index penstock.seize",
    ),
    "a domain in the schema": (
        "create domain penstock.named as text default pg_catalog.query_to_xml("
        "'select evil.seize()', true, true, '')::text",
        "type penstock.named",
    ),
    "statistics": (
        "create statistics evil.seize on (done_at is null), done_at from penstock.upkeep",
        "statistics object evil.seize",
    ),
    "a foreign key to another table": (
        "create table evil.leader (id int primary key);"
        "alter table penstock.topics add constraint follows foreign key (id) references evil.leader",
        "constraint follows on table penstock.topics",
    ),
    "a child": ("create table evil.child () inherits (penstock.queues)", "table evil.child"),
    "a foreign key": (
        "create table evil.follower (id int constraint follows references penstock.topics (id))",
        "constraint follows on table evil.follower",
    ),
}


def test_what_the_installer_did_not_make_is_refused_and_named(
    attacker: Attacker, open_connection: Open
) -> None:
    superuser = open_connection(attacker.dsn)
    schema.install(superuser, older())
    version = schema.installed_version(superuser)
    for statement, found in OWN.values():
        with superuser.transaction(force_rollback=True):
            written = statement.replace("{role}", attacker.role).replace("{query}", QUERY)
            superuser.execute(written.encode())
            superuser.execute("select setval('evil.runs', 1, false)")
            with pytest.raises(SchemaUnsafe) as caught:
                schema.install(superuser)
            assert found.replace("{role}", attacker.role) in str(caught.value)
            assert superuser.execute("select is_called from evil.runs").fetchone() == (False,)
    assert schema.installed_version(superuser) == version
    assert schema.install(superuser).before == version


def test_a_trigger_that_is_being_made_is_waited_for(
    attacker: Attacker, open_connection: Open, bare: Cluster
) -> None:
    superuser, watcher = open_connection(attacker.dsn), open_connection(attacker.dsn)
    superuser.execute("set lock_timeout = '20s'")
    schema.install(superuser, older())
    superuser.execute(f"grant usage on schema penstock to {attacker.role}".encode())
    superuser.execute(f"grant trigger on penstock.installation to {attacker.role}".encode())
    create = (
        "create trigger seize before insert on penstock.installation execute function evil.seize_by_trigger()"
    )
    # The table remembers the first trigger. So the second one leaves its row alone, and REVOKE does not wait.
    attacker.sql.execute(create)
    superuser.execute("drop trigger seize on penstock.installation")
    attacker.sql.execute("begin")
    attacker.sql.execute(create)
    superuser.execute(f"revoke trigger on penstock.installation from {attacker.role}".encode())

    def commit_when_it_waits() -> None:
        query = "select from pg_locks where not granted and pid = %s"
        try:
            eventually(
                lambda: watcher.execute(query, [superuser.info.backend_pid]).fetchone() is not None,
                "it waits",
            )
        finally:
            attacker.sql.execute("commit")

    with ThreadPoolExecutor(1) as pool:
        committed = pool.submit(commit_when_it_waits)
        with pytest.raises(SchemaUnsafe, match=r"trigger seize on table penstock\.installation"):
            schema.install(superuser)
        committed.result()
    attacker.assert_has_gained_nothing()


def test_an_event_trigger_whose_function_another_role_owns(
    attacker: Attacker, open_connection: Open, install: Install
) -> None:
    attacker.sql.execute(
        "create function evil.on_ddl() returns event_trigger language plpgsql as"
        " $$ begin perform evil.seize(); end $$"
    )
    superuser = open_connection(attacker.dsn)
    superuser.execute("create event trigger watch on ddl_command_end execute function evil.on_ddl()")
    superuser.execute("create sequence evil.unrelated")
    attacker.sql.execute("select setval('evil.runs', 1, false)")
    superuser.execute(f"alter role {attacker.role} nosuperuser".encode())
    attacker.sql.execute("select setval('evil.runs', 1, false)")
    with pytest.raises(SchemaUnsafe, match=f'event trigger "watch" would run code of role "{attacker.role}"'):
        install(superuser)
    attacker.assert_has_gained_nothing()
    superuser.execute("alter event trigger watch disable")
    schema.install(superuser)
    superuser.execute("alter event trigger watch enable")
    with pytest.raises(SchemaUnsafe, match="event trigger"):
        schema.uninstall(superuser)
    superuser.execute("alter event trigger watch disable")
    superuser.execute("alter function evil.on_ddl() owner to postgres")
    superuser.execute(
        "create or replace function evil.on_ddl() returns event_trigger language plpgsql as $$ begin end $$"
    )
    superuser.execute("alter event trigger watch enable")
    schema.uninstall(superuser)
    install(superuser)


@pytest.mark.parametrize("what", ["function", "table"])
def test_a_change_of_owner_of_the_schema_alone(
    attacker: Attacker, bare: Cluster, open_connection: Open, what: str
) -> None:
    """What is in the schema is still the former owner's."""
    schema.install(attacker.sql)
    superuser = open_connection(attacker.dsn)
    if what == "function":
        attacker.sql.execute(REPLACED_VERSION.encode())
        superuser.execute("alter schema penstock owner to postgres")
    else:
        superuser.execute(f"reassign owned by {attacker.role} to postgres".encode())
        superuser.execute(f"alter table penstock.ready owner to {attacker.role}".encode())
        superuser.execute(f"alter sequence evil.runs owner to {attacker.role}".encode())
        superuser.execute(f"grant usage on schema evil to {attacker.role}".encode())
    name = bare.make_login("superuser")
    for look in (schema.check, schema.installed_version):
        with pytest.raises(SchemaUnsafe, match=f'belongs to role "{attacker.role}"') as caught:
            look(open_connection(attacker.dsn, name))
        assert "REASSIGN OWNED" in (caught.value.hint or "")
    with pytest.raises(SchemaUnsafe), penstock.Client(attacker.dsn) as client:
        client.list_queues()
    findings = examine(gather(open_connection(attacker.dsn, name)))
    assert [finding for finding in findings if "rights of a superuser" in finding.found]
    if what == "function":
        # Nor does a role without rights of its own call the function of a role that is not the owner.
        superuser.execute("grant usage on schema penstock to public")
        superuser.execute("grant execute on function penstock.schema_version() to public")
        other = open_connection(attacker.dsn, bare.make_login())
        assert schema.installed_version(other) is None
    attacker.assert_has_gained_nothing()


def test_after_a_change_of_owner_the_script_replaces_every_function(
    attacker: Attacker, open_connection: Open
) -> None:
    schema.install(attacker.sql)
    attacker.sql.execute(REPLACED_VERSION.encode())
    attacker.sql.execute(REPLACED_CLOCK.encode())
    superuser = open_connection(attacker.dsn)
    superuser.execute(f"reassign owned by {attacker.role} to postgres".encode())
    superuser.execute(f"grant usage on schema evil to {attacker.role}".encode())
    superuser.execute(f"grant select on sequence evil.runs to {attacker.role}".encode())
    assert schema.install(superuser).before is not None
    superuser.execute(schema.script().encode())
    superuser.execute("select penstock.clock(), penstock.schema_version()")
    attacker.assert_has_gained_nothing()


def test_after_a_change_of_owner_a_query_in_a_constraint_does_not_run(
    attacker: Attacker, open_connection: Open, install: Install
) -> None:
    schema.install(attacker.sql, older())
    attacker.sql.execute(
        f"alter table penstock.installation add check ({QUERY} is not null) not valid".encode()
    )
    superuser = open_connection(attacker.dsn)
    superuser.execute(f"reassign owned by {attacker.role} to postgres".encode())
    superuser.execute(f"grant usage on schema evil to {attacker.role}".encode())
    superuser.execute(f"grant all on sequence evil.runs to {attacker.role}".encode())
    attacker.sql.execute("select setval('evil.runs', 1, false)")
    with pytest.raises(SchemaUnsafe, match=r"constraint installation_check on table penstock\.installation"):
        install(superuser)
    attacker.assert_has_gained_nothing()


EXPRESSIONS = """
select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d join pg_class c on c.oid = d.adrelid
where c.relnamespace = 'penstock'::regnamespace
union select pg_get_expr(conbin, conrelid) from pg_constraint
where connamespace = 'penstock'::regnamespace and conbin is not null
union select e from pg_index i join pg_class c on c.oid = i.indrelid,
    unnest(array[pg_get_expr(indexprs, indrelid), pg_get_expr(indpred, indrelid)]) e
where c.relnamespace = 'penstock'::regnamespace and e is not null
"""


def test_the_guard_knows_every_expression_of_the_tables(bare: Cluster, open_connection: Open) -> None:
    connection = open_connection(bare.make_database())
    schema.install(connection)
    connection.execute("set search_path = pg_catalog, pg_temp")
    found = sorted(row[0] for row in connection.execute(EXPRESSIONS.encode()))
    guard = (schema.SQL / "guards" / "contents.sql").read_text("utf-8")
    (listed,) = re.findall(r"expressions constant text\[\] := array\[\n(.*?)\n    \];", guard, re.DOTALL)
    wanted = [f"$${expression}$$" for expression in found]
    missing = set(wanted) - {line.strip().removesuffix(",") for line in listed.splitlines()}
    assert not missing, "add to guards/contents.sql, and keep what it has:\n" + ",\n".join(sorted(missing))


# Uninstall


def test_what_depends_on_the_schema_is_not_dropped_with_it(attacker: Attacker, open_connection: Open) -> None:
    superuser = open_connection(attacker.dsn)
    schema.install(superuser)
    superuser.execute("create table public.mine (id int, told penstock.message)")
    superuser.execute("create view public.seen as select * from penstock.topics")
    with pytest.raises(SchemaUnsafe, match=r"column told of .* rule _RETURN on view public\.seen"):
        schema.uninstall(superuser)
    superuser.execute("alter table public.mine drop told")
    superuser.execute("drop view public.seen")
    schema.uninstall(superuser)
    assert superuser.execute("select id from public.mine").fetchall() == []


# Advisory locks


def test_advisory_locks_can_be_kept_for_the_owner(
    attacker: Attacker, bare: Cluster, open_connection: Open
) -> None:
    connection, login = open_connection(attacker.dsn), open_connection(attacker.dsn, attacker.role)
    schema.install(connection)
    connection.execute("select penstock.create_queue('billing', max_active => 1)")
    connection.execute(f"grant penstock_publisher, penstock_consumer to {attacker.role}".encode())
    login.execute("select pg_advisory_lock(1346719315, 1), pg_advisory_unlock_all()")
    page = (Path(__file__).parents[2] / "docs/explanation/security.md").read_text()
    (block,) = [block for block in re.findall(r"```sql\n(.*?)```", page, re.DOTALL) if "advisory" in block]
    connection.execute(block.encode())
    taken = connection.execute(
        "select oid::regprocedure::text from pg_proc where proname like 'pg%%advisory%%lock%%'"
        " and pronargs = 2 and has_function_privilege(%s, oid, 'execute') and proname not like '%%unlock%%'",
        [attacker.role],
    ).fetchall()
    assert taken == []
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        login.execute("select pg_advisory_lock(1346719315, 1)")
    login.execute("select penstock.send_message('billing', '1')")
    assert login.execute("select message_id from penstock.consume_message('billing', 'me')").fetchone()
    login.execute("select penstock.nack_message('billing', 1, 'me', 0, 'no')")
    login.execute("select penstock.maintain()")
