"""What Penstock raises: one class for each SQLSTATE of the schema, and for a schema that does not fit.

    PenstockError
    ├── NotFound
    │   ├── QueueNotFound      PN001
    │   └── TopicNotFound      PN002
    ├── QueueDiffers           PN003
    ├── InvalidArgument        PN004
    │   └── PayloadTooLarge    PN005
    ├── WrongIsolation         PN006
    └── SchemaError
        ├── SchemaMissing
        ├── SchemaOutdated
        └── SchemaTooNew       PN007

The docstring of a class is its default message.
"""

# ruff: noqa: N818 - a class is named for what happened; only the groups end in Error

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psycopg

__all__ = [
    "InvalidArgument",
    "NotFound",
    "PayloadTooLarge",
    "PenstockError",
    "QueueDiffers",
    "QueueNotFound",
    "SchemaError",
    "SchemaMissing",
    "SchemaOutdated",
    "SchemaTooNew",
    "TopicNotFound",
    "WrongIsolation",
    "by_sqlstate",
    "from_database",
]


class PenstockError(Exception):
    """Penstock could not do what was asked."""

    sqlstate: str | None = None
    hint: str | None = None

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
    """An argument has a value that it may not have."""

    sqlstate = "PN004"


class PayloadTooLarge(InvalidArgument):
    """The payload is larger than the queue takes."""

    sqlstate = "PN005"


class WrongIsolation(PenstockError):
    """Messages can be claimed in READ COMMITTED only, not in REPEATABLE READ or SERIALIZABLE."""

    sqlstate = "PN006"


class SchemaError(PenstockError):
    """The schema of the database does not fit this version of Penstock."""


class SchemaMissing(SchemaError):
    """The database has no schema of Penstock."""


class SchemaOutdated(SchemaError):
    """The schema of the database is older than this version of Penstock."""


class SchemaTooNew(SchemaError):
    """The schema of the database is newer than this version of Penstock."""

    sqlstate = "PN007"


def _descendants(cls: type[PenstockError]) -> Iterator[type[PenstockError]]:
    for child in cls.__subclasses__():
        yield child
        yield from _descendants(child)


def by_sqlstate() -> dict[str, type[PenstockError]]:
    """Each SQLSTATE of the schema with the class that stands for it, in order."""
    return {cls.sqlstate: cls for cls in sorted(_descendants(PenstockError), key=_state) if cls.sqlstate}


def _state(cls: type[PenstockError]) -> str:
    return cls.sqlstate or ""


def from_database(exc: psycopg.Error) -> PenstockError | None:
    """The exception for an error that a function of the schema raised; None for any other error."""
    cls = by_sqlstate().get(exc.diag.sqlstate or exc.sqlstate or "")
    if cls is None:
        return None
    return cls(exc.diag.message_primary, hint=exc.diag.message_hint)
