"""Installs and upgrades the schema `penstock` in a database, and says which version is there.

`sql/tables` holds numbered files that are run once, `sql/functions` and `sql/roles.sql` what is true now, run
at every upgrade; a function that no file creates any more is dropped. `script` and `install` run the same.
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
from psycopg.rows import class_row, tuple_row

from .errors import MIGRATE, SchemaMissing, SchemaOutdated, SchemaTooNew, from_database
from .version import __version__

__all__ = [
    "File",
    "Installed",
    "SchemaVersion",
    "Source",
    "check",
    "check_version",
    "install",
    "installed_version",
    "load",
    "script",
    "uninstall",
]

SQL = Path(__file__).parent / "sql"

# One installer at a time in a database. The second key is 0 for this purpose.
LOCK = "pg_catalog.pg_advisory_xact_lock(1346719315, 0)"

CHANGED_SETTINGS = ("role", "client_min_messages", "search_path", "check_function_bodies")

UPGRADE = "Upgrade the package on this machine: pip install --upgrade penstock."


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """What is installed: by which package, its last numbered file, a digest of the rest."""

    package_version: str
    migration: int
    digest: str
    installed_at: datetime


@dataclass(frozen=True, slots=True)
class Installed:
    """What `install` found, what is there now, and the names of the numbered files that it ran."""

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
        """Of a file in `sql/tables`: 12 for 0012_what.sql."""
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
        """Of all that is run at every upgrade: the same digest and number mean the same schema."""
        text = "\0".join([_BOOKKEEPING, *(file.text for file in self.functions), self.roles])
        return hashlib.sha256(text.encode()).hexdigest()

    def is_installed_as(self, found: SchemaVersion) -> bool:
        return (found.migration, found.digest) == (self.number, self.digest)

    def is_older_than(self, found: SchemaVersion) -> bool:
        """Whether what is installed is newer; the script makes the same test in SQL."""
        newer = _release(found.package_version) > _release(self.package_version)
        return found.migration > self.number or (newer and not self.is_installed_as(found))

    def has_nothing_to_do(self, found: SchemaVersion | None) -> bool:
        """Whether the same is installed; a newer package with the same SQL still writes down its version."""
        if found is None or _release(found.package_version) < _release(self.package_version):
            return False
        return self.is_installed_as(found)


@lru_cache(maxsize=1)
def _loaded() -> Source:
    """The package's own SQL, read once: each client compares it with what is installed."""
    return load()


def load(root: Path = SQL, package_version: str = __version__) -> Source:
    """The SQL below a directory, the package's own unless told otherwise."""
    tables, functions = (
        tuple(File(path.stem, path.read_text("utf-8")) for path in sorted((root / folder).glob("*.sql")))
        for folder in ("tables", "functions")
    )
    numbers = [file.number for file in tables]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"two files in {root / 'tables'} have the same number")
    return Source(package_version, tables, functions, (root / "roles.sql").read_text("utf-8"))


def script(source: Source | None = None) -> str:
    """All of it as plain SQL, for `psql -f`: installs, upgrades, or changes nothing that matters."""
    source = source or load()
    return f"""-- Penstock {source.package_version}: installs or upgrades its schema, in one transaction.
-- psql --no-psqlrc --set ON_ERROR_STOP=1 --file this-file
begin isolation level read committed read write;
{_body(source)}
commit;
"""


def install(connection: psycopg.Connection[Any], source: Source | None = None) -> Installed:
    """Install the schema, or upgrade it, or find that it is current; safe from many processes at once.

    In a transaction of its own, or as a part of the one that the caller has open, which the caller commits.
    Raises `SchemaTooNew` where a newer version of the package was here before.
    """
    source = source or load()
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    begun_here = connection.info.transaction_status == TransactionStatus.IDLE
    with connection.transaction():
        if begun_here:
            cursor.execute("set transaction isolation level read committed, read write")
        before = _read_version(connection)
        if not source.has_nothing_to_do(before):
            # Looked at again with the lock held: of twenty processes that start at once one has work to do.
            cursor.execute(f"select {LOCK}")
            before = _read_version(connection)
        if before and source.has_nothing_to_do(before):
            return Installed(before, before, ())
        try:
            _run(cursor, _body(source))
        except psycopg.Error as exc:
            if error := from_database(exc):
                raise error from exc
            raise
        after = _read_version(connection)
    if after is None:
        raise SchemaMissing
    done = before.migration if before else 0
    return Installed(before, after, tuple(file.name for file in source.tables if file.number > done))


def installed_version(connection: psycopg.Connection[Any]) -> SchemaVersion | None:
    """Which version of the schema the database has, None if none; needs any one of the four roles."""
    with connection.transaction():
        return _read_version(connection)


def check(connection: psycopg.Connection[Any], source: Source | None = None) -> SchemaVersion:
    """The version of the schema, if it is this package's; else `SchemaMissing`, `-Outdated` or `-TooNew`."""
    return check_version(installed_version(connection), connection.info.dbname, source)


def check_version(found: SchemaVersion | None, database: str, source: Source | None = None) -> SchemaVersion:
    """As `check()`, of a version that was read before."""
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
        # Of one series of releases, and with the same tables: older clients go on while others are upgraded.
        same_series = _release(found.package_version)[:2] == _release(source.package_version)[:2]
        if same_series and found.migration == source.number:
            return found
        raise SchemaTooNew(what, hint=UPGRADE)
    raise SchemaOutdated(what, hint=MIGRATE)


def uninstall(connection: psycopg.Connection[Any]) -> None:
    """Drop the schema with all messages, and the four roles if no other database of the server uses them."""
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    with connection.transaction():
        cursor.execute(f"select {LOCK}")
        _run(cursor, _UNINSTALL)


def _read_version(connection: psycopg.Connection[Any]) -> SchemaVersion | None:
    # The catalog may be read by everyone; the tables of the schema by no one, so a function tells.
    exists = psycopg.Cursor(connection, row_factory=tuple_row).execute(
        "select from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname = 'penstock' and p.proname = 'schema_version'"
    )
    if exists.fetchone() is None:
        return None
    cursor = psycopg.Cursor(connection, row_factory=class_row(SchemaVersion))
    return cursor.execute("select * from penstock.schema_version()").fetchone()


def _run(cursor: psycopg.Cursor[tuple[Any, ...]], text: str) -> None:
    """Run statements that change settings, and put these back: the transaction may be the caller's."""
    query = "select name, pg_catalog.current_setting(name) from unnest(%s::text[]) as name"
    before = cursor.execute(query, [list(CHANGED_SETTINGS)]).fetchall()
    cursor.execute(text, prepare=False)
    for setting in before:
        cursor.execute("select pg_catalog.set_config(%s, %s, true)", setting)


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
    parts += [f"\n-- functions/{file.name}.sql\n{file.text}" for file in source.functions]
    return "\n".join([first, *parts, _DROP_STALE, f"\n-- roles.sql\n{source.roles}", last])


# An upgrade runs as the owner of the schema if it may: a definer function could not read a table that another
# role had added. A function that the files replace gets a new row version in pg_proc, one that they do not
# know keeps its own; a setting holds the list, because not everybody may create a temporary table.
_BOOKKEEPING = f"""
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local check_function_bodies = off;

do $penstock$
declare
    owner name;
begin
    perform {LOCK};
    perform set_config('penstock.installer', current_setting('role'), true);
    select pg_get_userbyid(nspowner) into owner from pg_namespace where nspname = 'penstock';
    if not found then
        create schema penstock;
        comment on schema penstock is 'Message queues. Everything in here belongs to Penstock.';
    elsif owner <> current_user then
        begin
            perform set_config('role', owner, true);
        exception when insufficient_privilege then
            null;
        end;
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
    perform set_config('role', current_setting('penstock.installer'), true);
end
$penstock$;
"""

_UNINSTALL = """
set local client_min_messages = warning;
drop schema if exists penstock cascade;
do $penstock$
declare
    role_name text;
begin
    foreach role_name in array array['admin', 'viewer', 'consumer', 'publisher'] loop
        begin
            execute format('drop role if exists penstock_%s', role_name);
        exception when dependent_objects_still_exist or insufficient_privilege then
            null;
        end;
    end loop;
end
$penstock$;
"""
