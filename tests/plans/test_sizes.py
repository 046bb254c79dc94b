"""Every hot statement keeps to its index and its few blocks, with nothing, little and a million waiting.

Whatever the statistics say, and whenever its plan was made.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.embedded import Server

from ..conftest import Connect
from .calls import CALLS, check
from .dataset import Dataset
from .observed import Session


@pytest.mark.slow
def test_plans_at_every_size(connect: Connect, server: Server) -> None:
    """Empty, ten, a million, emptied. The old session made its plans while all was empty."""
    big = 1_000_000 if server.version >= 18 else 50_000
    data = Dataset(connect())
    old = Session(connect())
    found: dict[str, list[str]] = {}

    def look(stage: str, **sessions: Session) -> None:
        for name, session in {**sessions, "new": Session(connect())}.items():
            for problem in check(session, data.params()):
                found.setdefault(problem, []).append(f"({stage}; {name} session)")

    look("empty, never analyzed", old=old)
    data.fill(10)
    look("10, never analyzed", old=old)
    data.fill(big)
    look(f"{big}, never analyzed", old=old)
    data.analyze_as_if_empty()
    look(f"{big}, analyzed when empty", old=old)
    data.analyze()
    huge = Session(connect())
    look(f"{big}, analyzed", old=old, huge=huge)
    data.empty()
    look("emptied, analyzed when huge", old=old, huge=huge)
    data.fill(10)
    look("10 again, analyzed when huge", old=old, huge=huge)
    data.analyze()
    look("10 again, analyzed", huge=huge)
    assert not found, "\n".join(f"{problem}: {' '.join(stages)}" for problem, stages in found.items())


def test_no_statement_is_compiled(connect: Connect) -> None:
    """Before PostgreSQL 18 a plan with a node that is switched off costs 10,000,000,000.

    That is reason enough for JIT, which takes seconds for each call and gains nothing.
    """
    data = Dataset(connect())
    data.fill(10)
    session = Session(connect(), jit=True)

    def compiled() -> Iterator[str]:
        for call in CALLS:
            observed = session.observe(call.sql, data.params())
            if any(statement.compiled for statement in observed.statements):
                yield call.name

    assert list(compiled()) == []
