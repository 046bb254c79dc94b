"""Which database to use, and how to speak of it without giving its password away."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

__all__ = ["redact", "resolve_dsn", "scrub"]

# The variables of libpq that choose a server or a database; PGPASSWORD and such only say how to get in.
LIBPQ_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE")

HIDDEN = "***"

_DRIVER = re.compile(r"^(postgres(?:ql)?)\+\w+://")
_AUTHORITY = re.compile(r"^\s*(\w+(?:\+\w+)?://[^:/?#@]*):([^/?#]*)@")
# A password with an unescaped "/", "?" or "#" ends the authority early. Better to hide too much.
_BROKEN_AUTHORITY = re.compile(r"^\s*(\w+(?:\+\w+)?://[^:/?#@]*):(.*)@", re.DOTALL)
_PARAMETER = re.compile(r"([?&](?:ssl)?password=)([^&]*)", re.IGNORECASE)
# Up to the next keyword: a password with a space in it should have been quoted, and is hidden all the same.
_KEYWORD = re.compile(
    r"(\b(?:ssl)?password\s*=\s*)('(?:\\.|[^'\\])*'?|[^'\s].*?(?=\s+\w+\s*=|\s*$))", re.IGNORECASE | re.DOTALL
)


def resolve_dsn(explicit: str | None, environ: Mapping[str, str]) -> str | None:
    """The DSN to connect to, or None for the embedded server.

    The first of: the one given, PENSTOCK_DATABASE_URL, DATABASE_URL, and the empty one if any of libpq's own
    variables chooses a server (libpq reads those itself). `postgresql+driver://`, as SQLAlchemy writes it, is
    taken as `postgresql://`.
    """
    if explicit is not None:
        return _DRIVER.sub(r"\1://", explicit)
    for name in ("PENSTOCK_DATABASE_URL", "DATABASE_URL"):
        if value := environ.get(name):
            return _DRIVER.sub(r"\1://", value)
    return "" if any(environ.get(name) for name in LIBPQ_VARIABLES) else None


def redact(dsn: str) -> str:
    """The DSN with its passwords hidden, in URL and in key=value form."""
    if "://" in dsn:
        pattern = _AUTHORITY if _AUTHORITY.match(dsn) else _BROKEN_AUTHORITY
        return _PARAMETER.sub(rf"\1{HIDDEN}", pattern.sub(rf"\1:{HIDDEN}@", dsn))
    return _KEYWORD.sub(rf"\1{HIDDEN}", dsn)


def scrub(message: str, dsn: str) -> str:
    """The message of a failed connection without what libpq may quote of a password that it misread.

    An unescaped "@" or "/" ends a password early, and the rest is then complained of as a host or a port.
    """
    shown = redact(dsn)
    for piece in sorted(_pieces(dsn), key=len, reverse=True):
        if piece not in shown:
            message = message.replace(piece, HIDDEN)
    return message


def _pieces(dsn: str) -> set[str]:
    match = _AUTHORITY.match(dsn) or _BROKEN_AUTHORITY.match(dsn)
    passwords = [match[2]] if match else []
    passwords += [found[1].strip("'") for found in (_PARAMETER if "://" in dsn else _KEYWORD).findall(dsn)]
    pieces = {piece for password in passwords for piece in (password, *re.split(r"[@:/?#\s]", password))}
    return {text for piece in pieces for text in (piece, unquote(piece)) if text}
