"""The public face: names, a method for each function, the types of parameters, frozen results."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from tools import sqlparameters

import penstock
from penstock import errors, models
from penstock.cli import queue as cli_queue
from penstock.models import QueueSettings
from tests.test_catalog import SIGNATURES

from .inputs import CONSUME, FREE, METHODS, OPTIONS

Sql = psycopg.Connection[Any]

# The function, and the method where it is called otherwise.
RENAMED = {
    "publish_message": "publish",
    "publish_messages": "publish_many",
    "send_message": "send",
    "send_messages": "send_many",
    "consume_message": "consume_one",
    "consume_messages_batch": "consume_batch",
    "ack_message": "ack",
    "ack_messages": "ack_many",
    "nack_message": "nack",
    "nack_messages": "nack_many",
    "release_message": "release",
    "release_messages": "release_many",
    "reject_message": "reject",
    "reject_messages": "reject_many",
    "reject_unreadable_messages": "reject_unreadable",
    "extend_message_vt": "extend",
    "batch_extend_message_vt": "extend_many",
}

# What a parameter is called in Python, where not as in SQL: durations have no unit, a message is its receipt,
# bytes are a payload, what is given for each message is in a NewMessage.
PARAMETERS = {
    "consumer_token": "token",
    "vt_seconds": "visibility_timeout",
    "deadline_ms": "deadline",
    "extension_seconds": "extension",
    "body": "payload",
    "callback_headers": "headers",
    "queue_right": "right",
    "bodies": "payloads",
    "deliver_afters": "payloads",
    "priorities": "payloads",
    "tenants": "payloads",
    "headers_list": "payloads",
    "ttls": "payloads",
    "dedup_keys": "payloads",
    "delays": "delay",
    "errors": "error",
}
OF_A_MESSAGE = {"queue_name", "message_id", "token", "message_ids", "tokens"}
SETTLING = {
    *("ack", "ack_many", "nack", "nack_many", "release", "release_many", "reject", "reject_many"),
    *("extend", "extend_many"),
}


def test_errors_are_all_public() -> None:
    tree = {name for name in errors.__all__ if inspect.isclass(getattr(errors, name))}
    assert tree <= set(penstock.__all__)


def method_name(function: str) -> str:
    return RENAMED.get(function, function)


def parameters_of(method: Any) -> dict[str, inspect.Parameter]:
    return {n: p for n, p in inspect.signature(method).parameters.items() if n != "self"}


@pytest.mark.parametrize(
    "cls", [penstock.AsyncClient, penstock.Client, penstock.AsyncTransaction, penstock.Transaction]
)
@pytest.mark.parametrize("function", SIGNATURES)
def test_each_function_has_its_method(function: str, cls: type) -> None:
    method = getattr(cls, method_name(function), None)
    assert method is not None
    assert inspect.iscoroutinefunction(method) == cls.__name__.startswith("Async")
    assert (inspect.getdoc(method) or "").endswith((".", ")"))
    in_sql = [part.split()[0] for part in SIGNATURES[function][0].split(", ") if part]
    expected = set()
    for name in in_sql:
        renamed = PARAMETERS.get(name, name.removesuffix("_seconds"))
        if method_name(function) in SETTLING and name in OF_A_MESSAGE:
            renamed = "messages" if "messages" in parameters_of(method) else "message"
        if function == "create_queue" and name == "topic_name":
            renamed = "topic"
        expected.add(renamed)
    assert expected <= parameters_of(method).keys()


def test_a_new_message_takes_every_option() -> None:
    assert {field.name for field in dataclasses.fields(penstock.NewMessage)} == {"payload", *OPTIONS}


def test_options_are_keyword_only() -> None:
    for cls in (penstock.AsyncClient, penstock.Client):
        for name in (*METHODS, "consume"):
            optional = [
                parameter
                for parameter in parameters_of(getattr(cls, name)).values()
                if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
                and parameter.default is not inspect.Parameter.empty
            ]
            assert len(optional) <= 1, name


def public_methods(cls: type) -> dict[str, Callable[..., Any]]:
    return {
        name: function
        for name, function in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_worlds_have_the_same_methods() -> None:
    for one, other in (
        (penstock.AsyncClient, penstock.Client),
        (penstock.AsyncConsumer, penstock.Consumer),
        (penstock.AsyncMessage, penstock.Message),
        (penstock.AsyncTransaction, penstock.Transaction),
    ):
        assert public_methods(one).keys() == public_methods(other).keys()
        for name, method in public_methods(one).items():
            twin = parameters_of(getattr(other, name))
            assert {n: (p.kind, p.default) for n, p in parameters_of(method).items()} == {
                n: (p.kind, p.default) for n, p in twin.items()
            }


def test_bad_input_is_tried_for_every_parameter() -> None:
    """The tables of inputs.py know each method and each parameter, so that a new one is not forgotten."""
    functions = {method_name(function) for function in SIGNATURES}
    assert functions == METHODS.keys()
    for name, kinds in METHODS.items():
        assert set(kinds) == parameters_of(getattr(penstock.Client, name)).keys() - FREE, name
    assert set(CONSUME) == parameters_of(penstock.Client.consume).keys() - FREE


def test_parameters_are_those_of_the_catalog(sql18: Sql) -> None:
    """Types and defaults of parameters come from the SQL alone."""
    written = sqlparameters.OUTPUT.read_text("utf-8")
    assert written == sqlparameters.render(sql18), "the SQL has changed: run `make docs`"


SETTINGS = """
select p.proargnames[n] from pg_proc p cross join generate_series(2, p.pronargs) n
where p.oid = 'penstock.alter_queue'::regproc order by n
"""


def test_a_setting_of_a_queue_is_everywhere(sql18: Sql) -> None:
    """A new setting is listed in four places of Python; this says which one lacks it."""
    in_sql = [name for (name,) in sql18.execute(SETTINGS)]
    in_python = {name: name.removesuffix("_seconds") for name in in_sql}
    options = {"--" + name.replace("_", "-") for name in in_python.values()} - {"--notify"}
    lacking = {
        "QueueSettings in models.py": set(in_sql)
        - {field.name for field in dataclasses.fields(QueueSettings)},
        "create_queue() in _async/administration.py": set(in_python.values())
        - parameters_of(penstock.AsyncClient.create_queue).keys(),
        "alter_queue() in _async/administration.py": set(in_python.values())
        - parameters_of(penstock.AsyncClient.alter_queue).keys(),
        "SETTINGS in cli/queue.py": options - cli_queue.SETTINGS.keys(),
    }
    assert {place: names for place, names in lacking.items() if names} == {}


# Results


RESULTS = [cls for name in models.__all__ if dataclasses.is_dataclass(cls := getattr(models, name))]


@pytest.mark.parametrize("cls", [*RESULTS, penstock.SchemaVersion])
def test_results_are_frozen(cls: Any) -> None:
    assert cls.__name__ in penstock.__all__
    result = cls(**{field.name: None for field in dataclasses.fields(cls)})
    name = dataclasses.fields(cls)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(result, name, 1)
    with pytest.raises((AttributeError, TypeError)):
        result.another = 1
    assert result == cls(**{field.name: None for field in dataclasses.fields(cls)})
    assert pickle.loads(pickle.dumps(result)) == result  # noqa: S301 - our own


def test_a_receipt_can_be_kept_anywhere() -> None:
    receipt = penstock.Receipt("q", 1, "t")
    assert {receipt: 1}[penstock.Receipt("q", 1, "t")] == 1
    assert pickle.loads(pickle.dumps(receipt)) == receipt  # noqa: S301 - our own


def test_a_message_is_frozen(database18: str) -> None:
    with penstock.connect(database18) as client:
        client.create_queue("q")
        client.send("q", 1)
        (message,) = client.consume_batch("q")
        for name in ("id", "payload", "token", "is_lost", "another"):
            with pytest.raises((AttributeError, TypeError)):
                setattr(message, name, 1)


def test_priorities() -> None:
    assert (penstock.URGENT, penstock.HIGH, penstock.NORMAL, penstock.LOW) == (0, 1, 2, 3)


def test_moments_are_of_utc(database18: str) -> None:
    with penstock.connect(database18) as client:
        assert client.clock().tzinfo is UTC
        assert abs((client.clock() - datetime.now(UTC)).total_seconds()) < 60
