"""Payloads in errors, logs and dead letters: an error names what does not fit, and does not quote it."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest

import penstock
from penstock import App, InvalidArgument, PayloadInvalid
from penstock.payloads import MAX_DEPTH, codec_of, decode, encode
from penstock.wording import MOST_SHOWN, shown

from .working import working

# Nothing of it may be seen; longer than anything that is quoted.
SECRET = "xyzzy4711"  # noqa: S105 - not a real one
LONG = f"{'a' * 500}{SECRET}"


class Card(pydantic.BaseModel):
    number: int
    owner: str = pydantic.Field(max_length=3)


class Kind(enum.Enum):
    A = "a"


@dataclasses.dataclass
class Order:
    id: int
    kind: Kind = Kind.A


class Struct(msgspec.Struct):
    id: int


def everything(exc: BaseException) -> str:
    """All that a log shows of an exception."""
    return "".join(traceback.format_exception(exc))


WRONG: dict[str, tuple[Any, Any]] = {
    "int": (int, SECRET),
    "list of int": (list[int], [1, SECRET]),
    "dict": (dict[str, int], {"a": SECRET}),
    "datetime": (datetime, SECRET),
    "uuid": (UUID, SECRET),
    "decimal": (Decimal, SECRET),
    "enum": (Kind, SECRET),
    "literal": (Literal["a", "b"], SECRET),
    "dataclass": (Order, {"id": SECRET}),
    "enum of a dataclass": (Order, {"id": 1, "kind": SECRET}),
    "struct": (Struct, {"id": SECRET}),
    "pydantic": (Card, {"number": SECRET, "owner": SECRET}),
    "pydantic in a list": (list[Card], [{"number": SECRET, "owner": "me"}]),
    "nothing that JSON can hold": (dict[str, Any], {"a": {SECRET}}),
    "other than it came": (float, 10**300 + int.from_bytes(SECRET.encode())),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_an_argument_that_does_not_fit(unconnected: App, name: str) -> None:
    kind, value = WRONG[name]

    def pay(first: int, what: Any) -> None: ...

    pay.__annotations__ = {"first": int, "what": kind}
    task = unconnected.task(pay)
    with pytest.raises((InvalidArgument, TypeError)) as caught:
        task.call(1, value).member()
    assert SECRET not in everything(caught.value)
    assert f"'what' (argument 2, of type {type(value).__name__})" in str(caught.value)
    assert str(int.from_bytes(SECRET.encode())) not in everything(caught.value)


@pytest.mark.parametrize("name", [name for name in WRONG if "JSON" not in name and "other" not in name])
def test_a_payload_that_does_not_fit_its_task(unconnected: App, name: str) -> None:
    kind, value = WRONG[name]

    def pay(what: Any) -> None: ...

    pay.__annotations__ = {"what": kind}
    arguments = unconnected.task(pay).arguments
    for read in (arguments.decode, lambda plain: arguments.decode_stored(encode(plain))):
        with pytest.raises(PayloadInvalid, match="the payload of task 'pay' does not fit") as caught:
            read({"what": value})
        assert SECRET not in everything(caught.value)


@pytest.mark.parametrize("plain", [SECRET, [SECRET], LONG])
def test_a_payload_that_is_no_object(unconnected: App, plain: object) -> None:
    task = unconnected.task(_nothing)
    with pytest.raises(PayloadInvalid, match="must be an object of arguments") as caught:
        task.arguments.decode(plain)
    assert SECRET not in everything(caught.value)


def _nothing() -> None: ...


@pytest.mark.parametrize("model", [Card, Order, Struct, Kind], ids=lambda model: model.__name__)
@pytest.mark.parametrize("way", ["encode", "decode"])
def test_a_payload_that_does_not_fit_its_model(model: Any, way: str) -> None:
    wrong: Any = SECRET if model is Kind else {"id": SECRET, "number": SECRET, "owner": SECRET}
    codec = codec_of(model)
    with pytest.raises(PayloadInvalid, match=f"the payload does not fit {model.__name__}: ") as caught:
        encode(wrong, codec) if way == "encode" else decode(str(encode(wrong)), codec)
    assert SECRET not in everything(caught.value)


def test_what_pydantic_says_is_reported_without_the_values() -> None:
    with pytest.raises(PayloadInvalid) as caught:
        decode(str(encode({"number": SECRET, "owner": SECRET})), codec_of(Card))
    assert "number: Input should be a valid integer" in str(caught.value)
    assert "owner: String should have at most 3 characters" in str(caught.value)


def test_the_error_of_a_codec_is_cut() -> None:
    class Own:
        def encode(self, value: Any) -> Any:
            raise ValueError(f"what is {value}")

        def decode(self, stored: Any) -> Any:
            raise ValueError(f"what is {stored}")

    for fail in (lambda: encode(LONG, Own()), lambda: decode(str(encode(LONG)), Own())):
        with pytest.raises(PayloadInvalid, match="what is aaa") as caught:
            fail()
        assert SECRET not in everything(caught.value)
    with pytest.raises(PayloadInvalid) as caught:
        encode("short", Own())
    assert isinstance(caught.value.__cause__, ValueError), "what has nothing more in it stays the cause"


@pytest.mark.parametrize(
    "payload", [{LONG: float("nan")}, {LONG: {1: 2}}, {"a": f"\0{SECRET}"}, {"a": f"\ud800{SECRET}"}]
)
def test_a_payload_that_cannot_be_stored(payload: object) -> None:
    with pytest.raises(PayloadInvalid) as caught:
        encode(payload)
    assert SECRET not in everything(caught.value)


def test_many_calls(unconnected: App) -> None:
    task = unconnected.task(_nothing)
    with pytest.raises(InvalidArgument, match="not of type str") as caught:
        list(task.using(penstock.Client("dbname=none"))._many([SECRET]))
    assert SECRET not in everything(caught.value)


def test_unique_by_what_cannot_be_compared(unconnected: App) -> None:
    @unconnected.task(unique=["card"])
    def pay(card: Any) -> None: ...

    with pytest.raises(InvalidArgument, match=r"is unique by 'card' \(argument 1, of type dict\)") as caught:
        pay.call({"a": object(), SECRET: SECRET}).member()
    assert SECRET not in everything(caught.value)


BAD_OPTIONS: list[Callable[[penstock.Client], object]] = [
    lambda client: client.send("q", 1, headers=[LONG]),  # type: ignore[arg-type]
    lambda client: client.send("q", 1, dedup_key=f"\0{LONG}"),
    lambda client: client.send("q", 1, tenant=[LONG]),  # type: ignore[arg-type]
    lambda client: client.send("q", 1, delay=LONG),  # type: ignore[arg-type]
    lambda client: client.ack_many([LONG]),  # type: ignore[list-item]
    lambda client: client.ack_many([], results=LONG),
]


@pytest.mark.parametrize("call", range(len(BAD_OPTIONS)))
def test_what_is_quoted_is_cut(call: int) -> None:
    client = penstock.Client("dbname=none")
    with pytest.raises(InvalidArgument, match="aaa") as caught:
        BAD_OPTIONS[call](client)
    assert SECRET not in str(caught.value)
    assert len(shown(LONG)) == MOST_SHOWN
    assert shown("short") == "'short'"


@pytest.mark.parametrize("payload", [{"card": {"number": SECRET, "owner": "me"}}, {"cart": SECRET}, [SECRET]])
async def test_the_log_and_the_dead_letter_of_a_payload_that_does_not_fit(
    app: App, payload: Mapping[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    @app.task(queue="cards")
    async def pay(card: Card) -> None: ...

    async with asyncio.timeout(20), working(app):
        message_id = await app.async_client.send("cards", payload, headers={"task": "pay"})
        while (found := await app.async_client.get_message("cards", message_id)) is None or (
            found.state != "dead"
        ):
            await asyncio.sleep(0.02)
    assert "does not fit" in (found.last_error or "") or "must be an object" in (found.last_error or "")
    assert SECRET not in str(found.errors) + str(found.last_error)
    logged = [logging.Formatter("%(message)s").format(record) for record in caplog.records]
    assert "pay" in "\n".join(logged)
    assert SECRET not in "\n".join(logged)


def test_a_deep_path_is_cut() -> None:
    nested: Any = SECRET
    for _ in range(MAX_DEPTH + 10):
        nested = {"key": nested}
    with pytest.raises(PayloadInvalid) as caught:
        encode(nested)
    assert len(str(caught.value)) < 300
