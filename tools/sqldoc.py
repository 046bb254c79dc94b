"""Writes docs/reference/sql.md from the catalog of a fresh install; --check fails if it is out of step."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row
from tools.page import REFERENCE, write_or_check

from penstock import errors, schema
from penstock.embedded import throwaway

# The order of the sections. Files of functions that are not listed follow by name.
ORDER = [
    "topics",
    "queues",
    "rights",
    "publish",
    "consume",
    "settle",
    "leases",
    "dead_letters",
    "dead_letter_groups",
    "operations",
    "statistics",
    "shares",
    "history",
    "inspect",
    "explain",
    "search",
    "cleanup",
    "deliver_now",
    "audit",
    "tasks",
    "groups",
    "schedules",
    "workers",
    "maintain",
    "diagnosis",
]
WIDTH = 100
NOTES = REFERENCE / "notes"

INTRODUCTION = """\
<!-- Written by tools/sqldoc.py from the comments in src/penstock/sql and from docs/reference/notes. -->

# The SQL reference

Every function is in the schema `penstock`, can be called from any language, and is part of the caller's
transaction. Parameters can be named, and those with a default left out:

```sql
select penstock.create_queue('billing', topic_name => 'orders', max_delivery_attempts => 5);
select * from penstock.consume_messages_batch('billing', batch_size => 100);
```

The last line of each function names the roles that may call the function. `penstock_admin` may call every
function and is a member of the other three roles. No role needs a privilege on a table. Functions whose names
begin with an underscore are internal and not described here.
"""


@dataclass(frozen=True, slots=True)
class Function:
    """One function, as the catalog has it."""

    name: str
    parameters: list[str]
    result: str
    result_type: str | None
    columns: list[str]
    comment: str | None
    roles: list[str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table or of a composite type."""

    name: str
    type: str
    default: str | None
    comment: str | None


FUNCTIONS = """
    select
        p.proname::text as name,
        array(
            select concat_ws(' ', p.proargnames[a.n], format_type(a.type, null), 'default ' || d.expression)
            from unnest(p.proargtypes) with ordinality as a (type, n),
                lateral (select pg_get_function_arg_default(p.oid, a.n::int)) as d (expression)
            order by a.n
        ) as parameters,
        pg_get_function_result(p.oid) as result,
        (select t.typname from pg_type t where t.oid = p.prorettype and t.typtype = 'c')::text as result_type,
        array(
            select concat_ws(' ', p.proargnames[a.n], format_type(a.type, null))
            from unnest(p.proallargtypes) with ordinality as a (type, n)
            where p.proargmodes[a.n] in ('o', 't')
            order by a.n
        ) as columns,
        obj_description(p.oid, 'pg_proc') as comment,
        array(
            select r.rolname::text
            from pg_roles r
            where starts_with(r.rolname, 'penstock_') and has_function_privilege(r.oid, p.oid, 'execute')
            order by r.rolname = 'penstock_admin', r.rolname
        ) as roles
    from pg_proc p
    where p.pronamespace = 'penstock'::regnamespace and not starts_with(p.proname, '_')
    order by p.proname, p.oid::regprocedure::text
"""

COLUMNS = """
    select
        a.attname::text as name,
        format_type(a.atttypid, a.atttypmod) as type,
        pg_get_expr(d.adbin, d.adrelid) as default,
        col_description(a.attrelid, a.attnum) as comment
    from pg_attribute a
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where a.attrelid = format('penstock.%%I', %s::text)::regclass and a.attnum > 0 and not a.attisdropped
    order by a.attnum
"""


def main() -> int:
    return write_or_check(__doc__, REFERENCE / "sql.md", _render_installed, "the SQL")


def _render_installed() -> str:
    with throwaway(settings={"fsync": "off"}) as server, psycopg.connect(server.dsn()) as connection:
        schema.install(connection)
        return render(connection, schema.load())


def render(connection: psycopg.Connection[Any], source: schema.Source) -> str:
    """The page, for a database that has the schema of `source`."""
    connection.execute("set search_path = pg_catalog")
    cursor = psycopg.Cursor(connection, row_factory=class_row(Function))
    functions = cursor.execute(FUNCTIONS).fetchall()
    sections = list(_sections(source, functions))
    notes = _read_notes({function.name for function in functions})
    types = sorted({function.result_type for function in functions if function.result_type})
    lines = [INTRODUCTION]
    lines += [f"- [{title}](#{_anchor(title)}): {about}" for title, about, _ in sections]
    lines += ["- [Rows](#rows), [settings of a queue](#settings-of-a-queue), [errors](#errors)"]
    for title, about, members in sections:
        lines += ["", f"## {title}", "", about]
        lines += [line for function in members for line in _function(function, notes.get(function.name))]
    lines += ["", "## Rows", "", "The rows of functions that return more than one column."]
    for name in types:
        lines += ["", f"### Row: {name}", "", *_columns(connection, name)]
    lines += [
        "",
        "## Settings of a queue",
        "",
        "Given to `create_queue` and `alter_queue`, shown by `list_queues`.",
        "",
    ]
    lines += _settings(connection)
    lines += ["", "## Errors", "", "Raised with these SQLSTATEs, a message and often a hint.", ""]
    states = [(f"`{state}`", f"`{cls.__name__}`", str(cls())) for state, cls in errors.by_sqlstate().items()]
    lines += _table(("SQLSTATE", "in Python", "meaning"), states)
    return "\n".join(lines) + "\n"


def _sections(source: schema.Source, functions: list[Function]) -> Iterator[tuple[str, str, list[Function]]]:
    """Title, sentence and functions of each file with public functions; last, the installer's functions."""
    left = {
        function.name: [each for each in functions if each.name == function.name] for function in functions
    }
    places = {name: place for place, name in enumerate(ORDER)}
    for file in sorted(source.functions, key=lambda file: (places.get(file.name, len(ORDER)), file.name)):
        match = re.match(r"-- ([^:\n]+): (.+)\n", file.text)
        if not match:
            raise SystemExit(f"functions/{file.name}.sql does not begin with `-- Title: one sentence`")
        names = re.findall(
            r"^create or replace (?:function|procedure) penstock[.](\w+)", file.text, re.MULTILINE
        )
        members = [function for name in dict.fromkeys(names) for function in left.pop(name, [])]
        if members:
            yield match[1], _sentence(match[2]), members
    if left:
        yield (
            "Installation",
            "The installed version.",
            [function for each in left.values() for function in each],
        )


def _read_notes(names: Set[str]) -> dict[str, str]:
    """By function, the Markdown of docs/reference/notes: details that are too long for a comment."""
    notes = {path.stem: path.read_text("utf-8").strip() for path in sorted(NOTES.glob("*"))}
    if unknown := sorted(notes.keys() - names):
        raise SystemExit(f"docs/reference/notes has files of unknown functions: {', '.join(unknown)}")
    return notes


def _function(function: Function, note: str | None) -> Iterator[str]:
    parameters = [_tidy(parameter) for parameter in function.parameters]
    result = "table" if function.columns else _tidy(function.result.lower())
    line = f"penstock.{function.name}({', '.join(parameters)}) returns {result}"
    if len(line) > WIDTH:
        inner = ",\n".join(f"    {parameter}" for parameter in parameters)
        line = f"penstock.{function.name}(\n{inner}\n) returns {result}"
    if not function.comment:
        raise SystemExit(f"penstock.{function.name} has no comment")
    yield from ("", f"### {function.name}", "", "```sql", line, "```", "", _prose(function.comment), "")
    if note:
        yield from (note, "")
    if function.columns:
        yield from (f"Columns: {', '.join(f'`{_tidy(column)}`' for column in function.columns)}.", "")
    if function.result_type:
        yield from (f"Columns: [{function.result_type}](#{_anchor('Row: ' + function.result_type)}).", "")
    yield f"Callable by {', '.join(f'`{role}`' for role in function.roles)}."


def _columns(connection: psycopg.Connection[Any], relation: str) -> list[str]:
    columns = _read_columns(connection, relation)
    if any(column.comment for column in columns):
        rows = [(f"`{column.name}`", _tidy(column.type), _prose(column.comment or "")) for column in columns]
        return _table(("column", "type", "meaning"), rows)
    return _table(("column", "type"), [(f"`{column.name}`", _tidy(column.type)) for column in columns])


def _settings(connection: psycopg.Connection[Any]) -> list[str]:
    """The columns of the table of queues that have a comment: the settings."""
    return _table(
        ("setting", "type", "default", "meaning"),
        [
            (
                f"`{column.name}`",
                _tidy(column.type),
                f"`{_tidy(column.default or 'null')}`",
                _prose(column.comment),
            )
            for column in _read_columns(connection, "queues")
            if column.comment
        ],
    )


def _read_columns(connection: psycopg.Connection[Any], relation: str) -> list[Column]:
    return psycopg.Cursor(connection, row_factory=class_row(Column)).execute(COLUMNS, [relation]).fetchall()


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    cells = [heads, tuple("---" for _ in heads), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells]


def _tidy(expression: str) -> str:
    """A type by its short name, a default without the cast that PostgreSQL adds to it."""
    short = expression.replace("timestamp with time zone", "timestamptz").replace("NULL", "null")
    return re.sub(r"::[a-z ]+(?:\[\])?$", "", short)


def _prose(text: str) -> str:
    return text.replace("<", "&lt;")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main())
