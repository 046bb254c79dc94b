"""DSNs: which database to use, what libpq gets for it, and how to show a DSN without its password."""

# ruff: noqa: PLC0415 - `penstock --help` finds a DSN, and needs no psycopg for that

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from .errors import DatabaseUnavailable, InvalidArgument

if TYPE_CHECKING:
    import psycopg

__all__ = ["complete", "describe", "find_dsn", "resolve_dsn", "resolve_listen_dsn", "scrub", "unavailable"]

# In this order. Each holds a DSN.
DSN_VARIABLES = ("PENSTOCK_DATABASE_URL", "DATABASE_URL")
# The variables of libpq that choose a server or a database; PGPASSWORD and such only say how to get in.
LIBPQ_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE")
# Where the one connection that listens goes to, if not to the database's own DSN.
LISTEN_VARIABLE = "PENSTOCK_LISTEN_URL"
# 0: a database has to be given. 1, or not set: without one, the embedded server is used.
EMBEDDED_VARIABLE = "PENSTOCK_EMBEDDED"

_DRIVER = re.compile(r"^(postgres(?:ql)?)\+\w+://")

# For all hosts of a DSN together; each of them has the shortest at least.
CONNECT_TIMEOUT_SECONDS = 10
SHORTEST_CONNECT_TIMEOUT_SECONDS = 2

# A connection whose other end has vanished is given up after some 30 seconds, not after two hours.
KEEPALIVE = {
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

SHOWN = ("host", "hostaddr", "port", "dbname", "user")
HIDDEN = "***"
# Parameters whose values are secrets.
SECRET = re.compile("pass|secret|scram")
FORM = "it should read postgresql://user:password@host:port/name, or host=... dbname=..."
ESCAPE = "in a URL write @ as %40, / as %2F, : as %3A and % as %25 within a user or password"


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


def complete(dsn: str, name: str = "the DSN") -> str:
    """The DSN in key=value form, with defaults for what it does not say."""
    from psycopg.conninfo import make_conninfo

    given = _parse(dsn, name)
    hosts = _count_hosts(given, os.environ)
    if "connect_timeout" not in given and "PGCONNECT_TIMEOUT" not in os.environ:
        given["connect_timeout"] = max(SHORTEST_CONNECT_TIMEOUT_SECONDS, CONNECT_TIMEOUT_SECONDS // hosts)
    given.setdefault("fallback_application_name", "penstock")
    # Names of channels and payloads are text, in whatever encoding the role or the environment prefers.
    given["client_encoding"] = "UTF8"
    if hosts > 1 and "PGTARGETSESSIONATTRS" not in os.environ:
        given.setdefault("target_session_attrs", "read-write")  # after a failover not to the standby
    return make_conninfo("", **{**KEEPALIVE, **given})


def _count_hosts(given: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    """How many hosts libpq tries. Those of a service file count as one: libpq alone reads it."""
    named = [str(given[name]) for name in ("host", "hostaddr") if given.get(name)]
    if not named and not (given.get("service") or environ.get("PGSERVICE")):
        named = [environ.get("PGHOST", ""), environ.get("PGHOSTADDR", "")]
    return max((len(hosts.split(",")) for hosts in named), default=1)


def describe(dsn: str) -> str:
    """Which database a DSN leads to, and nothing else of it."""
    given = _parse(dsn)
    shown = [f"{name}={given[name]}" for name in SHOWN if name in given and "://" not in str(given[name])]
    return " ".join(shown) or "the database of libpq's own variables"


def scrub(message: str, dsn: str) -> str:
    """The message of a failed connection without the password, should libpq ever quote it."""
    password = str(_parse(dsn).get("password") or "")
    return message.replace(password, HIDDEN) if len(password) > len(HIDDEN) else message


def unavailable(exc: psycopg.Error, dsn: str) -> DatabaseUnavailable:
    """The exception for a connection that could not be made.

    To be raised when the handler of the driver's own one is left, which would hang on to it.
    """
    error = DatabaseUnavailable(f"cannot connect to {describe(dsn)}: {_in_one_line(scrub(str(exc), dsn))}")
    error.sqlstate = exc.sqlstate
    return error


def _in_one_line(message: str) -> str:
    """The message of a failed connection; of several hosts, each once: psycopg repeats the last one."""
    _, several, failures = message.partition("All failures were:\n- ")
    return " ".join(failures.replace("\n- ", "; ").split()) if several else message


def _parse(dsn: str, name: str = "the DSN") -> dict[str, Any]:
    """The parts of a DSN. What is wrong with it is told without quoting what may be part of a password."""
    if not isinstance(dsn, str):
        raise InvalidArgument(f"{name} must be a string, not {dsn!r}", hint=FORM)
    given = _try_to_parse(dsn)
    if given is None:
        scheme = re.match(r"\w+://", dsn)
        if scheme and not scheme[0].startswith("postgres"):
            raise InvalidArgument(f"{name} must begin with postgresql://, not {scheme[0]}", hint=FORM)
        if (parameter := _unknown_parameter(dsn)) is not None:
            raise InvalidArgument(
                f'{name} has a parameter "{parameter}" that PostgreSQL does not know', hint=FORM
            )
        harmless = f' "{dsn}"' if re.fullmatch(r"[\w./-]*", dsn) else ""
        raise InvalidArgument(f"PostgreSQL does not understand {name}{harmless}", hint=f"{FORM}; {ESCAPE}")
    hosts, ports = str(given.get("host", "")).split(","), str(given.get("port", "")).split(",")
    if any("@" in host[1:] for host in hosts) or not all(re.fullmatch(r"\d*", port) for port in ports):
        raise InvalidArgument(f"{name} has no proper host and port", hint=f"{FORM}; {ESCAPE}")
    return given


def _unknown_parameter(dsn: str) -> str | None:
    """The first parameter that libpq does not know, where it cannot be a piece of a password.

    A password that is not escaped or quoted can look like a parameter. So none is named that an `@` or a
    quote without an end follows, and none behind a password.
    """
    from psycopg.pq import Conninfo

    if "://" in dsn:
        query = dsn.partition("?")[2]
        found = [] if "@" in query else [unquote(part.partition("=")[0]) for part in query.split("&")]
    else:
        bare = re.sub(r"'(?:\\.|[^'\\])*'", "", dsn)
        found = [] if "'" in bare or "@" in bare else re.findall(r"(?:^|\s)(\w+)\s*=", bare)
    known = {option.keyword.decode() for option in Conninfo.get_defaults()} | {"ssl"}
    for parameter in found:
        if parameter not in known:
            return parameter if re.fullmatch(r"\w{1,40}", parameter) else None
        if SECRET.search(parameter):
            return None
    return None


def _try_to_parse(dsn: str) -> dict[str, Any] | None:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return dict(conninfo_to_dict(dsn))
    except (ProgrammingError, UnicodeError):
        return None
