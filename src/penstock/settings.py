"""Which database to use: what the caller gives, else what the environment says."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .errors import InvalidArgument

__all__ = ["find_dsn", "resolve_dsn", "resolve_listen_dsn"]

# In this order. Each holds a DSN.
DSN_VARIABLES = ("PENSTOCK_DATABASE_URL", "DATABASE_URL")
# The variables of libpq that choose a server or a database; PGPASSWORD and such only say how to get in.
LIBPQ_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE")
# Where the one connection that listens goes to, if not to the database's own DSN.
LISTEN_VARIABLE = "PENSTOCK_LISTEN_URL"
# 0: a database has to be given. 1, or not set: without one, the embedded server is used.
EMBEDDED_VARIABLE = "PENSTOCK_EMBEDDED"

_DRIVER = re.compile(r"^(postgres(?:ql)?)\+\w+://")


def find_dsn(explicit: str | None, environ: Mapping[str, str]) -> str | None:
    """The DSN that is given or set; None where none is.

    The first of: the one given, PENSTOCK_DATABASE_URL, DATABASE_URL, and the empty one if any of libpq's own
    variables chooses a server (libpq reads those itself). `postgresql+driver://`, as SQLAlchemy writes it, is
    taken as `postgresql://`.
    """
    if explicit is not None:
        return _without_driver(explicit)
    for name in DSN_VARIABLES:
        if value := environ.get(name):
            return _without_driver(value)
    return "" if any(environ.get(name) for name in LIBPQ_VARIABLES) else None


def resolve_dsn(explicit: str | None, environ: Mapping[str, str]) -> str | None:
    """The DSN that is given or set, or None for the embedded server, which PENSTOCK_EMBEDDED=0 forbids."""
    found = find_dsn(explicit, environ)
    embedded = environ.get(EMBEDDED_VARIABLE) or "1"
    if explicit is None and embedded not in {"0", "1"}:
        raise InvalidArgument(
            f"{EMBEDDED_VARIABLE} must be 0 or 1, not {embedded!r}",
            hint="0 forbids the embedded server, 1 allows it",
        )
    if found is None and embedded == "0":
        raise InvalidArgument(
            f"no database is given, and {EMBEDDED_VARIABLE}=0 forbids the embedded server: none of"
            f" {', '.join(DSN_VARIABLES + LIBPQ_VARIABLES)} is set",
            hint=f"set {DSN_VARIABLES[0]}, or give a DSN",
        )
    return found


def resolve_listen_dsn(explicit: str | None, dsn: str | None, environ: Mapping[str, str]) -> str | None:
    """The DSN of the connection that listens; None where that is the database's own.

    dsn: what the caller gave for the database. PENSTOCK_LISTEN_URL counts only where that is none: it stands
    beside the variables that choose the database, and a program may give another one.
    """
    name = "listen_dsn"
    if explicit is None and dsn is None:
        name, explicit = LISTEN_VARIABLE, environ.get(LISTEN_VARIABLE) or None
    if explicit is None:
        return None
    if find_dsn(dsn, environ) is None:
        raise InvalidArgument(
            f"{name} is given, but no database: notifications of the embedded server do not go there",
            hint=f"set {DSN_VARIABLES[0]}, or give a DSN",
        )
    return _without_driver(explicit)


def _without_driver(dsn: str) -> str:
    # What is no string is refused where the DSN is parsed.
    return _DRIVER.sub(r"\1://", dsn) if isinstance(dsn, str) else dsn
