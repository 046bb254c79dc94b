"""Every public function, with hostile values in every position: it does its work, or says what is wrong."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from .attempts import Attempts
from .catalog import Function, public_functions
from .hostile import HUGE, hostile_values
from .stage import Stage, furnish

# What was rolled back is in the way of every look.
VACUUM = b"vacuum penstock.ready, penstock.active, penstock.permits, penstock.waiting, penstock.dead"


@pytest.mark.slow
def test_one_hostile_value_at_a_time(sql: psycopg.Connection[Any]) -> None:
    stage = furnish(sql)
    attempts = Attempts(sql)
    # How a value is taken may depend on the server or on the caps of the queue: not on both at once.
    with_caps = sql.info.server_version >= 180000
    for function in public_functions(sql):
        depends_on_queue = any("queue" in parameter.name for parameter in function.parameters)
        by_queue = with_caps and function.is_volatile and depends_on_queue
        for queue in ("plain", "both") if by_queue else ("plain",):
            vary(attempts, stage, function, queue)
    assert attempts.faults == [], "\n".join(attempts.faults)


def vary(attempts: Attempts, stage: Stage, function: Function, queue: str) -> None:
    """Each value of each parameter finds the stage as it was; then all that succeeded are called in a row."""
    usual = stage.arguments(function, queue)
    assert attempts.attempt(function.call(usual), f"a good example of {function.name}: see stage.py")
    done: list[tuple[str, str]] = []
    for parameter in function.parameters:
        values = hostile_values(parameter.type, stage.usual(function, parameter, queue))
        for name, value in values.items():
            if name in HUGE and queue != "plain":
                continue
            statement = function.call({**usual, parameter.name: value})
            note = f"{function.name}({parameter.name} => {name})"
            if name in HUGE:
                # A second where nothing else runs.
                statement = f"set local statement_timeout = '60s'; {statement}"
            if attempts.attempt(statement, note) and name not in HUGE:
                done.append((statement, note))
    if not function.is_volatile:
        return
    with attempts.connection.transaction(force_rollback=True):
        for statement, note in done:
            attempts.attempt_within(statement, note)
        attempts.look_after(f"after {len(done)} calls of {function.name} on {queue}")
    attempts.connection.execute(VACUUM)
