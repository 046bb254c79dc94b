"""A finding: what was looked at, how it is, and what to do; and the words that findings are made of."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.wording import count, escaped

__all__ = [
    "SEVERE",
    "Finding",
    "Limits",
    "Status",
    "identifier",
    "literal",
    "many",
    "ok",
    "severity",
    "shell",
    "size",
]

Status: TypeAlias = Literal["ok", "warning", "problem", "unknown"]

# How many times the patience of a warning makes a problem.
SEVERE = 12
# Counts of a queue stop here.
MOST = 1000


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has to say.

    subject: what it is about; None where it is about all of it. found: in a sentence or two. advice: what to
    do, and command: what to type for that, in a shell or, where it ends with a semicolon, in psql.
    """

    check: str
    status: Status
    subject: str | None
    found: str
    advice: str | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on something is worth telling.

    patience: for so many seconds something may be open, wait or be late; then it is a warning, and a problem
    after SEVERE times as long.
    """

    patience: float = 300.0


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", None, found)


def severity(seconds: float, limits: Limits) -> Status:
    """What it means that something lasts for so long."""
    if seconds < limits.patience:
        return "ok"
    return "problem" if seconds >= SEVERE * limits.patience else "warning"


# Words


def size(number: int) -> str:
    """Bytes, in the unit that fits."""
    amount = float(number)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.3g} TB"


def many(number: int, thing: str, things: str | None = None, most: int = MOST) -> str:
    """The same of a count that stops somewhere."""
    if number < most:
        return count(number, thing, things)
    return f"{most:,} or more {things or thing + 's'}"


# Names may have any characters. A command is copied into a terminal, where a control character does something
# before the shell or psql sees the quotes around it. So such characters are written as escapes.


def literal(text: str) -> str:
    """A value as it stands in SQL."""
    if "\\" not in text and text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return "E'" + escaped(text.replace("\\", "\\\\").replace("'", "''")) + "'"


def identifier(name: str) -> str:
    """A name as it stands in SQL."""
    quoted = '"' + name.replace('"', '""') + '"'
    if name.isprintable():
        return quoted
    whole = quoted.replace("\\", "\\\\")
    return "U&" + "".join(each if each.isprintable() else f"\\+{ord(each):06x}" for each in whole)


def shell(*words: str) -> str:
    """A command as it is typed."""
    return " ".join(map(_word, words))


def _word(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + escaped(word.replace("\\", "\\\\").replace("'", "\\'")) + "'"
