"""The engine and a plain model of it, side by side: thousands of steps, compared after every one.

A run repeats the last one. PENSTOCK_MODEL_EXAMPLES=5000 runs so many examples, other ones each time;
PENSTOCK_MODEL_SHRINK=1 makes the example that failed as short as it gets, which may take minutes.
"""

from __future__ import annotations

import os
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .engine import Engine
from .machine import QueueMachine

EXAMPLES = os.environ.get("PENSTOCK_MODEL_EXAMPLES")
SHRINK = os.environ.get("PENSTOCK_MODEL_SHRINK")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 50),
    stateful_step_count=50,
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink] if SHRINK else [Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


@pytest.mark.slow
def test_the_engine_does_what_the_model_does(sql18: psycopg.Connection[Any]) -> None:
    engine = Engine(sql18)

    class Machine(QueueMachine):
        def __init__(self) -> None:
            super().__init__(engine)

    run_state_machine_as_test(Machine, settings=SETTINGS)
