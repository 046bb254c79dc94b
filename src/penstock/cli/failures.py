"""How a command ends when it fails: one line on stderr, and an exit code."""

from __future__ import annotations

import sys
from typing import Any

import click

from penstock.errors import (
    InvalidArgument,
    NotFound,
    PenstockError,
    QueueDiffers,
    QueueNotFound,
    TopicNotFound,
    from_database,
)

from .output import printable

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "NOTHING_THERE",
    "NOT_FOUND",
    "USAGE",
    "Failure",
    "as_failure",
    "is_lasting",
]

FAILED = 1
USAGE = 2
NOT_FOUND = 3
NOTHING_THERE = 4
INTERRUPTED = 130

INSUFFICIENT_PRIVILEGE = "42501"
ROLES = (
    "penstock doctor --check roles says which role this one lacks: penstock_viewer may look, "
    "penstock_publisher send, penstock_consumer consume, penstock_admin do all"
)

# The hints of the schema speak of its functions.
HINTS: dict[type[BaseException], str] = {
    QueueNotFound: "penstock queue list shows those that do",
    TopicNotFound: "penstock topic list shows those that do",
    QueueDiffers: "penstock queue alter changes settings",
}


class Failure(click.ClickException):
    """A line for the user. Without one nothing is printed: the exit code says it."""

    def __init__(self, message: str = "", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc] # a click that is newer has it on the class only

    def show(self, file: Any = None) -> None:
        if self.message:
            click.echo(f"Error: {printable(self.message)}", file=file, err=True)


def as_failure(exc: BaseException) -> Failure | None:
    """The line for the user; None for an exception that is a fault of Penstock."""
    if isinstance(exc, KeyboardInterrupt | click.Abort):
        return Failure(exit_code=INTERRUPTED)
    if isinstance(exc, PenstockError):
        return Failure(_line(exc), _exit_code(exc))
    if isinstance(exc, _of("psycopg", "Error")):
        ours = from_database(exc)
        if exc.sqlstate == INSUFFICIENT_PRIVILEGE:
            return Failure(f"{_line(exc)} ({ROLES})")
        return Failure(_line(exc)) if ours is None else Failure(_line(ours), _exit_code(ours))
    if isinstance(exc, _of("penstock.embedded", "EmbeddedError")):
        return Failure(_line(exc))
    return None


def is_lasting(exc: BaseException) -> bool:
    """Whether the same command would fail in the same way again: a person has to change something first."""
    return (
        isinstance(exc, PenstockError)
        or getattr(exc, "sqlstate", None) == INSUFFICIENT_PRIVILEGE
        or isinstance(exc, _of("penstock.embedded", "EmbeddedError"))
    )


def _exit_code(exc: PenstockError) -> int:
    if isinstance(exc, NotFound):
        return NOT_FOUND
    return USAGE if isinstance(exc, InvalidArgument) else FAILED


def _of(module: str, name: str) -> Any:
    """A class of a module, if the module is imported: else no exception can be of that class."""
    return getattr(sys.modules.get(module), name, ())


def _line(exc: BaseException) -> str:
    diagnostic = getattr(exc, "diag", None)
    hint = getattr(exc, "hint", None) or getattr(diagnostic, "message_hint", None)
    hint = HINTS.get(type(exc), hint)
    text = getattr(diagnostic, "message_primary", None) or str(exc)
    line = (text.splitlines() or [type(exc).__name__])[0]
    return f"{line} ({hint})" if hint else line
