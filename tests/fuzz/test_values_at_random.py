"""Calls at random, usual and hostile values mixed, each committed: whatever came before, the engine works."""

from __future__ import annotations

import random
from typing import Any

import psycopg

from tests.sql.conftest import EMPTY

from .attempts import Attempts
from .catalog import Function, public_functions
from .hostile import HUGE, hostile_values
from .stage import QUEUES, Stage, furnish

ROUNDS = 10
CALLS = 80
# After these not much is left: once in a while.
DESTROYERS = {"delete_queue", "delete_topic", "purge_all_messages", "purge_queue", "alter_queue"}
LEVELS = ["read committed", "repeatable read", "serializable"]


def test_calls_at_random(sql: psycopg.Connection[Any]) -> None:
    attempts = Attempts(sql)
    for seed in range(ROUNDS):
        # Of its own: the plugin that shuffles the tests seeds the common one.
        chance = random.Random(seed)
        sql.execute(EMPTY)
        stage = furnish(sql)
        functions = public_functions(sql)
        statements = []
        for _ in range(CALLS):
            statement = any_call(chance, stage, functions)
            statements.append(statement[:500])
            (level,) = chance.choices(LEVELS, weights=[8, 1, 1])
            attempts.transact(f"begin isolation level {level}; {statement}; commit", f"round {seed}")
        attempts.look_after(f"round {seed}")
        if attempts.faults:
            break
    assert attempts.faults == [], "\n".join([*attempts.faults, "after these:", *statements])


def any_call(chance: random.Random, stage: Stage, functions: list[Function]) -> str:
    weights = [1 if function.name in DESTROYERS else 10 for function in functions]
    (function,) = chance.choices(functions, weights)
    queue = chance.choice(list(QUEUES))
    arguments = stage.arguments(function, queue)
    for parameter in function.parameters:
        usual = stage.usual(function, parameter, queue)
        values = hostile_values(parameter.type, usual)
        hostile = values[chance.choice([name for name in values if name not in HUGE])]
        if parameter.name in arguments:
            arguments[parameter.name] = chance.choices([usual, hostile], [4, 1])[0]
        elif chance.random() < 0.3:
            arguments[parameter.name] = chance.choice([usual, hostile])
    return function.call(arguments)
