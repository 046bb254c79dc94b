"""Installs and upgrades the schema `penstock` in a database, and reads its version.

`sql/tables` holds numbered files that run once. `sql/functions` and `sql/roles.sql` hold the current state
and run at every upgrade, which drops functions that no file creates any more. `script` and `install` run the
same SQL: the files with their marks expanded (`sql_fragments.py`).

The installer runs with the rights of its role, perhaps of a superuser. So `sql/guards` runs first: only the
owner of the schema may install, upgrade and drop it, and no other role may have put objects into it. Before
the guards, statements read only the catalog, with every name qualified: see docs/explanation/security.md.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from .errors import MIGRATE, SchemaMissing, SchemaOutdated, SchemaTooNew, SchemaUnsafe, from_database
from .sql_fragments import expand, load_fragments
from .version import __version__

__all__ = [
    "File",
    "Installed",
    "SchemaVersion",
    "Source",
    "check",
    "check_owner",
    "check_version",
    "install",
    "installed_version",
    "load",
    "script",
    "uninstall",
]

SQL = Path(__file__).parent / "sql"

# One installer at a time in a database. The second key is 0 for the installer.
LOCK = "pg_catalog.pg_advisory_xact_lock(1346719315, 0)"

CHANGED_SETTINGS = (
    "client_min_messages",
    "search_path",
    "check_function_bodies",
    "citus.enable_ddl_propagation",  # null without Citus
)

ROLES = ("penstock_admin", "penstock_viewer", "penstock_consumer", "penstock_publisher")

# In a superuser's session: the owner of the schema, or of a function or table in it, if that owner is not a
# superuser; else null. Functions run code of their owner, and tables have triggers of their owner.
# Operators are qualified, too: the owner of a database can set a search path for all sessions in it.
LOWER_OWNER = """(
    select o.rolname
    from pg_catalog.pg_namespace n
    cross join lateral (
        select 1, n.nspowner
        union all
        select 2, p.proowner from pg_catalog.pg_proc p where p.pronamespace operator(pg_catalog.=) n.oid
        union all
        select 2, c.relowner from pg_catalog.pg_class c where c.relnamespace operator(pg_catalog.=) n.oid
    ) x(rank, owner)
    join pg_catalog.pg_roles o on o.oid operator(pg_catalog.=) x.owner
    where n.nspname operator(pg_catalog.=) 'penstock' and not o.rolsuper and exists (
        select from pg_catalog.pg_roles u
        where u.rolsuper and u.rolname operator(pg_catalog.=) any (array[current_user, session_user])
    )
    order by x.rank, o.rolname limit 1
)"""

_COMMENT = re.compile(r"^comment on function .*?';\n", re.DOTALL | re.MULTILINE)

UPGRADE = "Upgrade the package on this machine: pip install --upgrade penstock."


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """The installed version: of the package, its last numbered file, and a digest of the other files."""

    package_version: str
    migration: int
    digest: str
    installed_at: datetime


@dataclass(frozen=True, slots=True)
class Installed:
    """The version that `install` found, the version now, and the names of the numbered files that it ran."""

    before: SchemaVersion | None
    after: SchemaVersion
    migrations: tuple[str, ...]

    @property
    def changed(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True, slots=True)
class File:
    """A file of SQL, by its name without the suffix."""

    name: str
    text: str

    @property
    def number(self) -> int:
        """The number of a file in `sql/tables`: 12 for 0012_what.sql."""
        return int(self.name.partition("_")[0])


@dataclass(frozen=True, slots=True)
class Source:
    """The SQL of one version of the package."""

    package_version: str
    tables: tuple[File, ...]
    functions: tuple[File, ...]
    roles: str

    @property
    def number(self) -> int:
        return max((file.number for file in self.tables), default=0)

    @property
    def digest(self) -> str:
        """The digest of all files that run at every upgrade: equal digest and number mean an equal schema."""
        text = "\0".join([_BOOKKEEPING, *(file.text for file in self.functions), self.roles])
        return hashlib.sha256(text.encode()).hexdigest()

    def is_installed_as(self, found: SchemaVersion) -> bool:
        return (found.migration, found.digest) == (self.number, self.digest)

    def is_older_than(self, found: SchemaVersion) -> bool:
        """Whether the installed version is newer; the script makes the same test in SQL."""
        newer = _release(found.package_version) > _release(self.package_version)
        return found.migration > self.number or (newer and not self.is_installed_as(found))

    def has_nothing_to_do(self, found: SchemaVersion | None) -> bool:
        """Whether the same SQL is installed; a newer package with the same SQL still records its version."""
        if found is None or _release(found.package_version) < _release(self.package_version):
            return False
        return self.is_installed_as(found)


@lru_cache(maxsize=1)
def _loaded() -> Source:
    """The package's own SQL, read once, because each client compares it with the installed version."""
    return load()


def load(root: Path = SQL, package_version: str = __version__) -> Source:
    """Read the SQL below a directory, by default the package's own."""
    fragments = load_fragments(root / "fragments")
    tables, functions = (
        tuple(
            File(path.stem, expand(path.read_text("utf-8"), fragments))
            for path in sorted((root / folder).glob("*.sql"))
        )
        for folder in ("tables", "functions")
    )
    numbers = [file.number for file in tables]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"two files in {root / 'tables'} have the same number")
    return Source(package_version, tables, functions, (root / "roles.sql").read_text("utf-8"))


def script(source: Source | None = None) -> str:
    """The complete SQL for `psql -f`: it installs, upgrades, or changes nothing that matters."""
    source = source or load()
    return f"""-- Penstock {source.package_version}: installs or upgrades its schema, in one transaction.
-- psql --no-psqlrc --set ON_ERROR_STOP=1 --file this-file
begin isolation level read committed read write;
{_body(source)}
commit;
"""


def install(connection: psycopg.Connection[Any], source: Source | None = None) -> Installed:
    """Install the schema, or upgrade it, or find that it is current; safe from many processes at once.

    Runs in a transaction of its own, or in the caller's open transaction, which the caller commits. Raises
    `SchemaTooNew` if a newer version of the package installed the schema, `SchemaUnsafe` if another role owns
    the schema or has put objects into it.
    """
    source = source or load()
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    begun_here = connection.info.transaction_status == TransactionStatus.IDLE
    with connection.transaction():
        if begun_here:
            cursor.execute("set transaction isolation level read committed, read write")
        before, is_current = _compare(cursor, source)
        if not is_current:
            # Compare again with the lock held: of twenty processes that start at once, one has work to do.
            cursor.execute(f"select {LOCK}")
            before, is_current = _compare(cursor, source)
        if before and is_current:
            return Installed(before, before, ())
        _run(cursor, _body(source))
        after, _ = _compare(cursor, source)
    if after is None:
        raise SchemaMissing
    done = before.migration if before else 0
    return Installed(before, after, tuple(file.name for file in source.tables if file.number > done))


def installed_version(connection: psycopg.Connection[Any]) -> SchemaVersion | None:
    """The version of the schema in the database, None if there is none; needs any of the four roles.

    Raises `SchemaUnsafe` in a superuser's session if the owner of the schema is not a superuser.
    """
    with connection.transaction():
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        presence = _look(cursor)
        if presence is None:
            return None
        check_owner(presence.lower_owner, connection.info.dbname)
        return _read_version(cursor, presence)


def check(connection: psycopg.Connection[Any], source: Source | None = None) -> SchemaVersion:
    """The version of the schema if it fits this package; else `SchemaMissing`, `-Outdated` or `-TooNew`."""
    return check_version(installed_version(connection), connection.info.dbname, source)


def check_owner(lower_owner: str | None, database: str) -> None:
    """Refuse a `LOWER_OWNER`: this role can replace each function that a superuser would call."""
    if lower_owner is not None:
        raise SchemaUnsafe(
            f'the schema penstock in database "{database}", or something in it, belongs to role '
            f'"{lower_owner}": its code would run with the rights of a superuser',
            hint=f'Connect as "{lower_owner}", or as another role that is not a superuser. To change the '
            "owner, use REASSIGN OWNED, which changes that of the functions and tables as well.",
        )


def check_version(found: SchemaVersion | None, database: str, source: Source | None = None) -> SchemaVersion:
    """As `check()`, for a version that was read before."""
    source = source or _loaded()
    if found is None:
        raise SchemaMissing(f'database "{database}" has no schema penstock', hint=MIGRATE)
    if source.is_installed_as(found):
        return found
    what = (
        f'the schema penstock in database "{database}" is of version {found.package_version} '
        f"(migration {found.migration}), this package of {source.package_version} (migration {source.number})"
    )
    if source.is_older_than(found):
        # Within a series of releases with the same tables, older clients continue during an upgrade.
        same_series = _release(found.package_version)[:2] == _release(source.package_version)[:2]
        if same_series and found.migration == source.number:
            return found
        raise SchemaTooNew(what, hint=UPGRADE)
    raise SchemaOutdated(what, hint=MIGRATE)


def uninstall(connection: psycopg.Connection[Any]) -> None:
    """Drop the schema with all messages, and the four roles if no other database of the server uses them.

    Raises `SchemaUnsafe` if another role owns the schema, or if objects outside of it depend on it.
    """
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    with connection.transaction():
        _run(cursor, "\n".join([_SETTINGS, _guard("role"), _guard("dependents"), _UNINSTALL]))


@dataclass(frozen=True, slots=True)
class _Presence:
    """What the catalog says about a schema penstock.

    lower_owner: see LOWER_OWNER. is_own: whether the current role owns it. has_tables: whether the two tables
    of the installer exist as ordinary tables of the owner. has_function: whether the owner has the function
    that returns the version. lacks_grants: whether one of the four roles exists and has no grant yet.
    """

    lower_owner: str | None
    is_own: bool
    has_tables: bool
    has_function: bool
    lacks_grants: bool


_LOOK = f"""
select
    {LOWER_OWNER},
    n.nspowner operator(pg_catalog.=) (
        select u.oid from pg_catalog.pg_roles u where u.rolname operator(pg_catalog.=) current_user
    ),
    2 operator(pg_catalog.=) (
        select pg_catalog.count(*) from pg_catalog.pg_class c
        where c.relnamespace operator(pg_catalog.=) n.oid and c.relowner operator(pg_catalog.=) n.nspowner
            and c.relname operator(pg_catalog.=) any (array['installation', 'migrations']::pg_catalog.name[])
            and c.relkind operator(pg_catalog.=) 'r' and not c.relrowsecurity
    ),
    exists (
        select from pg_catalog.pg_proc p
        where p.pronamespace operator(pg_catalog.=) n.oid
            and p.proname operator(pg_catalog.=) 'schema_version'
            and p.proowner operator(pg_catalog.=) n.nspowner
    ),
    exists (
        select from pg_catalog.pg_roles r
        where r.rolname operator(pg_catalog.=) any (array{list(ROLES)}::pg_catalog.name[])
            and not pg_catalog.has_schema_privilege(r.oid, n.oid, 'usage')
    )
from pg_catalog.pg_namespace n
where n.nspname operator(pg_catalog.=) 'penstock'
"""


def _look(cursor: psycopg.Cursor[tuple[Any, ...]]) -> _Presence | None:
    row = cursor.execute(_LOOK).fetchone()
    return None if row is None else _Presence(*row)


# The owner reads the tables: after a change of owner the functions may still hold the former owner's code.
# Other roles may not read tables, so they call the function, which runs with the rights of the owner.
_COLUMNS = "package_version, migration, digest, installed_at"
_OWN_VERSION = """
select
    i.package_version, coalesce((select pg_catalog.max(m.number) from only penstock.migrations m), 0),
    i.digest, i.installed_at
from only penstock.installation i
"""


def _read_version(cursor: psycopg.Cursor[tuple[Any, ...]], presence: _Presence) -> SchemaVersion | None:
    if not (presence.has_tables if presence.is_own else presence.has_function):
        return None
    text = _OWN_VERSION if presence.is_own else f"select {_COLUMNS} from penstock.schema_version()"
    row = cursor.execute(text).fetchone()
    return None if row is None else SchemaVersion(*row)


def _compare(cursor: psycopg.Cursor[tuple[Any, ...]], source: Source) -> tuple[SchemaVersion | None, bool]:
    """The installed version, and whether there is nothing to do.

    Reads nothing if only the guards can decide: the caller then runs the guards first.
    """
    presence = _look(cursor)
    if presence is None or presence.lower_owner is not None:
        return None, False
    found = _read_version(cursor, presence)
    return found, source.has_nothing_to_do(found) and not (presence.is_own and presence.lacks_grants)


def _run(cursor: psycopg.Cursor[tuple[Any, ...]], text: str) -> None:
    """Run statements that change settings, and restore these: the transaction may be the caller's."""
    settings = ", ".join(f"pg_catalog.current_setting('{name}', true)" for name in CHANGED_SETTINGS)
    before = cursor.execute(f"select {settings}").fetchone()
    assert before is not None
    try:
        cursor.execute(text, prepare=False)
    except psycopg.Error as exc:
        if error := from_database(exc):
            raise error from exc
        raise
    for name, value in zip(CHANGED_SETTINGS, before, strict=True):
        if value is not None:
            cursor.execute("select pg_catalog.set_config(%s, %s, true)", (name, value))


def _release(version: str) -> list[int]:
    match = re.match(r"[0-9]+(?:[.][0-9]+)*", version)
    return [int(part) for part in match[0].split(".")] if match else []


def _dollar_quoted(text: str) -> str:
    tag, attempt = "$sql$", 0
    while tag in text:
        attempt += 1
        tag = f"$sql{attempt}$"
    return f"{tag}\n{text}\n{tag}"


def _run_once(file: File, package_version: str) -> str:
    block = f"""
begin
    if exists (select from penstock.migrations where number = {file.number}) then
        return;
    end if;
    execute {_dollar_quoted(file.text)};
    insert into penstock.migrations (number, name, package_version)
    values ({file.number}, '{file.name}', '{package_version}');
end"""
    return f"\n-- tables/{file.name}.sql, if it has not been run yet\ndo {_dollar_quoted(block)};"


def _body(source: Source) -> str:
    """The script without its begin and commit."""
    values = {
        "__number__": str(source.number),
        "__digest__": f"'{source.digest}'",
        "__version__": f"'{source.package_version}'",
        "__release__": f"array{_release(source.package_version)}",
    }
    first, last = _BOOKKEEPING.split("-- the rest of the script\n")
    for name, value in values.items():
        first, last = first.replace(name, value), last.replace(name, value)
    parts = [_run_once(file, source.package_version) for file in source.tables]
    parts += [f"\n-- functions/{file.name}.sql\n{_COMMENT.sub('', file.text)}" for file in source.functions]
    # Comments name no signature. So they come when functions of another version with the same name are gone.
    comments = [comment for file in source.functions for comment in _COMMENT.findall(file.text)]
    guards = [_SETTINGS, _guard("role"), _CREATE_SCHEMA, _guard("contents")]
    roles = f"\n-- roles.sql\n{source.roles}"
    return "\n".join([*guards, first, *parts, _DROP_STALE, roles, *comments, last])


def _guard(name: str) -> str:
    """A file of `sql/guards`: it raises if the installation is not safe, and changes nothing."""
    return f"\n-- guards/{name}.sql\n{(SQL / 'guards' / f'{name}.sql').read_text('utf-8')}"


_SETTINGS = """
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local check_function_bodies = off;

-- Citus would copy schema, roles and functions to all other nodes, without the tables.
do $penstock$
begin
    if exists (select from pg_extension where extname = 'citus') then
        perform set_config('citus.enable_ddl_propagation', 'off', true);
    end if;
end
$penstock$;
"""

_CREATE_SCHEMA = """
do $penstock$
begin
    if to_regnamespace('penstock') is null then
        create schema penstock;
        comment on schema penstock is 'Message queues. Everything in here belongs to Penstock.';
    end if;
end
$penstock$;
"""

# A function that the files replace gets a new row version in pg_proc; a function without a file keeps its
# old version. A setting holds the list, because not every role may create a temporary table.
_BOOKKEEPING = f"""
do $penstock$
begin
    if getdatabaseencoding() = 'SQL_ASCII' then
        raise exception using
            errcode = 'PN004',
            message = format('database "%s" has the encoding SQL_ASCII,', current_database())
                || ' in which text may be bytes that no client can read',
            hint = 'Use another: create database ... encoding ''UTF8'' template template0.';
    end if;
    perform set_config('penstock.functions', coalesce(string_agg(p.oid || ' ' || p.ctid, ';'), ''), true)
    from pg_proc p
    join pg_namespace n on n.oid = p.pronamespace
    where n.nspname = 'penstock';
end
$penstock$;

create table if not exists penstock.migrations (
    number integer primary key,
    name text not null,
    package_version text not null,
    applied_at timestamptz not null default clock_timestamp()
);
comment on table penstock.migrations is 'The numbered files that have been run here.';

create table if not exists penstock.installation (
    only_row boolean primary key default true check (only_row),
    package_version text not null,
    digest text not null,
    installed_at timestamptz not null default clock_timestamp()
);
comment on table penstock.installation is 'What installed or last upgraded this schema: one row.';

do $penstock$
declare
    found_version text;
    found_digest text;
    found_number integer;
begin
    select package_version, digest into found_version, found_digest from penstock.installation;
    select max(number) into found_number from penstock.migrations;
    if found_number > __number__
        or found_digest <> __digest__
            and string_to_array(substring(found_version from '^[0-9]+(?:[.][0-9]+)*'), '.')::integer[]
                > __release__::integer[]
    then
        raise exception using
            errcode = 'PN007',
            message = format(
                'the schema penstock in database "%s" is of version %s (migration %s),',
                current_database(), found_version, found_number
            ) || format(' this package of %s (migration %s)', __version__, __number__),
            hint = '{UPGRADE}';
    end if;
end
$penstock$;

create or replace function penstock.schema_version(
    out package_version text, out migration integer, out digest text, out installed_at timestamptz
)
returns setof record
language sql stable security definer
set search_path = pg_catalog, penstock, pg_temp
as $penstock$
    select
        i.package_version,
        (select coalesce(max(m.number), 0) from penstock.migrations m),
        i.digest,
        i.installed_at
    from penstock.installation i
$penstock$;
comment on function penstock.schema_version() is
    'The version of the package that installed this schema, and what tells whether it is up to date.';
-- the rest of the script

insert into penstock.installation (package_version, digest)
values (__version__, __digest__)
on conflict (only_row) do update
set (package_version, digest, installed_at) = row (excluded.package_version, excluded.digest, default);
"""

_DROP_STALE = """
do $penstock$
declare
    stale regprocedure;
begin
    for stale in
        select p.oid::regprocedure
        from pg_proc p
        join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = 'penstock'
            and p.oid || ' ' || p.ctid = any (string_to_array(current_setting('penstock.functions'), ';'))
        order by p.oid::regprocedure::text
    loop
        execute format('drop routine %s', stale);
    end loop;
end
$penstock$;
"""

_UNINSTALL = f"""
drop schema if exists penstock cascade;
do $penstock$
declare
    role_name text;
begin
    foreach role_name in array array{list(ROLES)} loop
        begin
            execute format('drop role if exists %I', role_name);
        exception when dependent_objects_still_exist or insufficient_privilege then
            null;
        end;
    end loop;
end
$penstock$;
"""
