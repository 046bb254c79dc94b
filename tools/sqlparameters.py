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

__all__ = ["OWN_TYPES", "REQUIRED", "TYPES"]

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
    found: dict[str, dict[str, list[str]]] = {}
    required: dict[str, list[str]] = {}
    for function, name, declared, has_default in connection.execute(PARAMETERS):
        short = declared.replace("timestamp with time zone", "timestamptz")
        found.setdefault(name, {}).setdefault(short, []).append(function)
        if not has_default:
            required.setdefault(function, []).append(name)
    # The type that most functions have comes first.
    ranked = {name: sorted(types, key=lambda one: -len(types[one])) for name, types in found.items()}
    own = {
        (function, name): other
        for name, types in ranked.items()
        for other in types[1:]
        for function in found[name][other]
    }
    lines = ["# The type of each parameter, the same in all functions but those of OWN_TYPES.", "TYPES = {"]
    lines += [f'    "{name}": "{ranked[name][0]}",' for name in sorted(ranked)]
    lines += ["}", "", "# Parameters that have another type in a function, by function and name."]
    lines += ["OWN_TYPES: dict[tuple[str, str], str] = {" + ("" if own else "}")]
    lines += [f'    ("{function}", "{name}"): "{own[function, name]}",' for function, name in sorted(own)]
    lines += ["}"] * bool(own)
    lines += ["", "# The parameters without a default, by function.", "REQUIRED = {"]
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
