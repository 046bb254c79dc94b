"""The public functions, as the catalog of the database has them: a new one is covered by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

FUNCTIONS = """
select p.proname, p.provolatile = 'v', p.pronargs, p.pronargdefaults, coalesce(p.proargnames, '{}'),
    array(select format_type(t.type, null) from unnest(p.proargtypes) with ordinality t(type, n) order by t.n)
from pg_proc p
where p.pronamespace = 'penstock'::regnamespace and p.proname not like '\\_%'
order by p.proname
"""


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument that a function takes; input arguments stand before the columns that it returns."""

    name: str
    type: str
    is_optional: bool


@dataclass(frozen=True, slots=True)
class Function:
    """A function that a role may call."""

    name: str
    is_volatile: bool
    parameters: tuple[Parameter, ...]

    def call(self, arguments: dict[str, str]) -> str:
        """The statement that calls it; arguments are SQL expressions."""
        given = [
            f"{parameter.name} => ({arguments[parameter.name]})::{parameter.type}"
            for parameter in self.parameters
            if parameter.name in arguments
        ]
        return f"select * from penstock.{self.name}({', '.join(given)})"


def public_functions(connection: psycopg.Connection[Any]) -> list[Function]:
    found = []
    for name, is_volatile, count, defaults, names, types in connection.execute(FUNCTIONS.encode()):
        parameters = [Parameter(names[i], types[i], is_optional=i >= count - defaults) for i in range(count)]
        found.append(Function(name, is_volatile, tuple(parameters)))
    return found
