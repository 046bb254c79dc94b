"""Which database to use."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["resolve_dsn"]

# The variables of libpq that choose a server or a database; PGPASSWORD and such only say how to get in.
LIBPQ_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE")

_DRIVER = re.compile(r"^(postgres(?:ql)?)\+\w+://")


def resolve_dsn(explicit: str | None, environ: Mapping[str, str]) -> str | None:
    """The DSN to connect to, or None for the embedded server.

    The first of: the one given, PENSTOCK_DATABASE_URL, DATABASE_URL, and the empty one if any of libpq's own
    variables chooses a server (libpq reads those itself). `postgresql+driver://`, as SQLAlchemy writes it, is
    taken as `postgresql://`.
    """
    if explicit is not None:
        return _DRIVER.sub(r"\1://", explicit) if isinstance(explicit, str) else explicit
    for name in ("PENSTOCK_DATABASE_URL", "DATABASE_URL"):
        if value := environ.get(name):
            return _DRIVER.sub(r"\1://", value)
    return "" if any(environ.get(name) for name in LIBPQ_VARIABLES) else None
