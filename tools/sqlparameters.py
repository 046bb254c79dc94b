"""Writes src/penstock/sql_parameters.py from the catalog of a fresh install; --check fails if out of step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psycopg
from tools.page import write_or_check

from penstock import schema
from penstock.embedded import throwaway

OUTPUT = Path(__file__).parents[1] / "src" / "penstock" / "sql_parameters.py"

HEAD = '''"""The parameters of the SQL functions.

Written by tools/sqlparameters.py from the catalog: change the SQL, then run `make docs`.
"""

from __future__ import annotations

__all__ = ["REQUIRED", "TYPES"]

'''

PARAMETERS = """
    select p.proname::text, p.proargnames[n], format_type(p.proargtypes[n - 1], null),
        n > p.pronargs - p.pronargdefaults
    from pg_proc p cross join generate_series(1, p.pronargs) n
    where p.pronamespace = 'penstock'::regnamespace and not starts_with(p.proname, '_')
    order by p.proname, n
"""


def main() -> int:
    return write_or_check(__doc__, OUTPUT, _render_installed, "the SQL")


def _render_installed() -> str:
    with throwaway(settings={"fsync": "off"}) as server, psycopg.connect(server.dsn()) as connection:
        schema.install(connection)
        return render(connection)


def render(connection: psycopg.Connection[Any]) -> str:
    """The module, for a database that has the schema."""
    types: dict[str, str] = {}
    required: dict[str, list[str]] = {}
    for function, name, declared, has_default in connection.execute(PARAMETERS):
        short = declared.replace("timestamp with time zone", "timestamptz")
        if types.setdefault(name, short) != short:
            raise SystemExit(
                f"the parameter {name} of penstock.{function}() is {short}, and {types[name]} in another"
                " function: rename one of them, since a name has one type in all functions"
            )
        if not has_default:
            required.setdefault(function, []).append(name)
    lines = ["# The type of each parameter: a name has the same type in all functions.", "TYPES = {"]
    lines += [f'    "{name}": "{types[name]}",' for name in sorted(types)]
    lines += ["}", "", "# The parameters without a default, by function.", "REQUIRED = {"]
    for function, names in sorted(required.items()):
        one_line = f'    "{function}": ({", ".join(f"{chr(34)}{name}{chr(34)}" for name in names)},),'
        one_line = one_line.replace(",),", "),") if len(names) > 1 else one_line
        if len(one_line) <= 110:
            lines.append(one_line)
        else:
            lines += [f'    "{function}": (', *(f'        "{name}",' for name in names), "    ),"]
    return HEAD + "\n".join([*lines, "}", ""])


if __name__ == "__main__":
    sys.exit(main())
