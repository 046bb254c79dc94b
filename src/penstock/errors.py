"""What Penstock raises: a class for each SQLSTATE of the schema, and for failures of the connection.

    PenstockError
    ├── NotFound
    │   ├── QueueNotFound      PN001
    │   └── TopicNotFound      PN002
    ├── QueueDiffers           PN003
    ├── InvalidArgument        PN004
    │   ├── PayloadInvalid
    │   ├── PayloadTooLarge    PN005
    │   └── UnsupportedConnection
    ├── WrongIsolation         PN006
    ├── MessageUnreadable
    ├── PermissionDenied       PN008
    ├── LeaseLost
    ├── NotReplicated
    ├── DatabaseUnavailable
    ├── ConnectionLost
    │   └── DeliveryUnknown
    ├── ClientClosed
    └── SchemaError
        ├── SchemaMissing
        ├── SchemaOutdated
        ├── SchemaTooNew       PN007
        └── SchemaUnsafe       PN009

The docstring of a class is its default message.
"""

# ruff: noqa: N818 - a class is named after the event; only the base classes end in Error

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

__all__ = [
    "ClientClosed",
    "ConnectionLost",
    "DatabaseUnavailable",
    "DeliveryUnknown",
    "InvalidArgument",
    "LeaseLost",
    "MessageUnreadable",
    "NotFound",
    "NotReplicated",
    "PayloadInvalid",
    "PayloadTooLarge",
    "PenstockError",
    "PermissionDenied",
    "QueueDiffers",
    "QueueNotFound",
    "SchemaError",
    "SchemaMissing",
    "SchemaOutdated",
    "SchemaTooNew",
    "SchemaUnsafe",
    "TopicNotFound",
    "UnsupportedConnection",
    "WrongIsolation",
    "by_sqlstate",
    "from_database",
    "sqlstate_of",
]


class PenstockError(Exception):
    """Penstock could not do what was asked."""

    sqlstate: str | None = None
    hint: str | None = None
    # Of a publish_many() or send_many() that stopped halfway: the ids of the published messages.
    published: tuple[int, ...] = ()

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or type(self).__name__))
        if hint:
            self.hint = hint
            self.add_note(f"Hint: {hint}")


class NotFound(PenstockError):
    """There is no such queue or topic."""


class QueueNotFound(NotFound):
    """There is no queue of that name."""

    sqlstate = "PN001"


class TopicNotFound(NotFound):
    """There is no topic of that name."""

    sqlstate = "PN002"


class QueueDiffers(PenstockError):
    """The queue exists already, with other settings."""

    sqlstate = "PN003"


class InvalidArgument(PenstockError):
    """An argument has a value that is not allowed."""

    sqlstate: str | None = "PN004"


class PayloadInvalid(InvalidArgument):
    """The payload is not what JSON or its model can hold."""

    sqlstate = None


class PayloadTooLarge(InvalidArgument):
    """The payload is larger than the queue takes."""

    sqlstate = "PN005"


class WrongIsolation(PenstockError):
    """Messages can be claimed in READ COMMITTED only, not in REPEATABLE READ or SERIALIZABLE."""

    sqlstate = "PN006"


class PermissionDenied(PenstockError):
    """The role of this connection lacks a right in the queue."""

    sqlstate = "PN008"


class UnsupportedConnection(InvalidArgument, TypeError):
    """Penstock cannot use the transaction of such an object."""

    sqlstate = None


class MessageUnreadable(PenstockError):
    """The server cannot send a message, so nothing was claimed."""


class LeaseLost(PenstockError):
    """This consumer does not hold a lease on the message (any more): another consumer may have it."""


class NotReplicated(PenstockError):
    """The call has taken effect, but the synchronous standby has not confirmed it: a failover may undo it."""


class DatabaseUnavailable(PenstockError):
    """There is no connection to the database, or the server cannot execute the call now. Nothing was done."""


class ConnectionLost(PenstockError):
    """The connection was lost during the call: whether it has taken effect is not known."""


class DeliveryUnknown(ConnectionLost):
    """The connection was lost during the call: whether the message is published is not known."""


class ClientClosed(PenstockError):
    """This client is closed."""


class SchemaError(PenstockError):
    """The schema of the database does not fit this version of Penstock."""


class SchemaMissing(SchemaError):
    """The database has no schema of Penstock."""


class SchemaOutdated(SchemaError):
    """The schema of the database is older than this version of Penstock."""


class SchemaTooNew(SchemaError):
    """The schema of the database is newer than this version of Penstock."""

    sqlstate = "PN007"


class SchemaUnsafe(SchemaError):
    """Another role owns the schema or objects in it: its code could run with the rights of this role."""

    sqlstate = "PN009"


_BY_SQLSTATE: Final[dict[str, type[PenstockError]]] = {
    "PN001": QueueNotFound,
    "PN002": TopicNotFound,
    "PN003": QueueDiffers,
    "PN004": InvalidArgument,
    "PN005": PayloadTooLarge,
    "PN006": WrongIsolation,
    "PN007": SchemaTooNew,
    "PN008": PermissionDenied,
    "PN009": SchemaUnsafe,
}


# SQLSTATEs of PostgreSQL for a missing schema, function or type. They count if the error names the schema.
_MISSING: Final = "3F000"
_OUTDATED: Final = frozenset({"42883", "42704"})

MIGRATE: Final = "Run `penstock migrate`, or `penstock sql` and psql, on this database."


def by_sqlstate() -> dict[str, type[PenstockError]]:
    """Each SQLSTATE of the schema with its class, in order."""
    return dict(_BY_SQLSTATE)


def sqlstate_of(exc: BaseException) -> str:
    """The SQLSTATE of an error of any driver, also if another error wraps it; empty for none."""
    for link in _chain(exc):
        if state := _sqlstate(link):
            return state
    return ""


def from_database(exc: BaseException) -> PenstockError | None:
    """The exception for an error that a function of the schema raised, of any driver; None for others.

    An error about a missing schema, function or type counts, too: the database has to be migrated.
    SQLAlchemy and Django wrap the error of the driver: the first error in the chain with our SQLSTATE counts.
    """
    for link in _chain(exc):
        code = _sqlstate(link)
        cls = _BY_SQLSTATE.get(code)
        diag = getattr(link, "diag", link)
        message = getattr(diag, "message_primary", None) or getattr(link, "message", None)
        if message and (unfit := _unfit(code, message)) is not None:
            return unfit
        if cls is not None and message:
            return cls(message, hint=getattr(diag, "message_hint", None) or getattr(link, "hint", None))
    return None


def _unfit(code: str, message: str) -> SchemaError | None:
    """The exception for an error about a missing schema, function or type."""
    if code == _MISSING and "penstock" in message:
        return SchemaMissing(f"the database has no schema of Penstock: {message}", hint=MIGRATE)
    if code in _OUTDATED and "penstock." in message:
        return SchemaOutdated(
            f"the schema of the database is older than this version of Penstock: {message}", hint=MIGRATE
        )
    return None


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """An error, and the errors that it wraps."""
    seen = set[int]()
    link: BaseException | None = exc
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = getattr(link, "orig", None) or link.__cause__


def _sqlstate(exc: BaseException) -> str:
    return getattr(exc, "sqlstate", None) or getattr(exc, "pgcode", None) or ""
