"""The engine and a plain model of it, side by side: thousands of steps, compared after every one.

PENSTOCK_MODEL_EXAMPLES=5000 runs that many examples, other ones each time; without it a run repeats the last one.
"""

from __future__ import annotations

import os
from typing import Any

import psycopg
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .engine import Engine
from .machine import QueueMachine

EXAMPLES = int(os.environ.get("PENSTOCK_MODEL_EXAMPLES", "0"))
SETTINGS = settings(
    max_examples=EXAMPLES or 80,
    stateful_step_count=int(os.environ.get("PENSTOCK_MODEL_STEPS", "50")),
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


def test_the_engine_does_what_the_model_does(sql18: psycopg.Connection[Any]) -> None:
    engine = Engine(sql18)
    run_state_machine_as_test(lambda: QueueMachine(engine), settings=SETTINGS)
