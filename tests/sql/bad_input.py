"""Tables of calls that must be refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from .engine import Engine


@dataclass(frozen=True, slots=True)
class Bad:
    """A call, the SQLSTATE it gets, and what the message has to name."""

    function: str
    positional: tuple[Any, ...]
    named: dict[str, Any]
    sqlstate: str
    names: tuple[str, ...]

    def check(self, house: Engine) -> None:
        with house.refused(self.sqlstate, *self.names):
            house.rows(self.function, *self.positional, **self.named)


@dataclass(frozen=True, slots=True)
class Expect:
    """Begins a line of a table: `expect("PN001", "nope").of("ack_message", "nope", 1, "t")`."""

    sqlstate: str
    names: tuple[str, ...]

    def of(self, function: str, *positional: Any, **named: Any) -> Any:
        """The call that gets it, as a parameter of a test."""
        shown = ", ".join([*map(_short, positional), *(f"{n}={_short(v)}" for n, v in named.items())])
        return pytest.param(
            Bad(function, positional, named, self.sqlstate, self.names),
            id=f"{function}({shown})".encode("ascii", "replace").decode(),
        )


def expect(sqlstate: str, *names: str) -> Expect:
    return Expect(sqlstate, names)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 30 else f"{text[:27]}..."
