"""Arguments of tasks: checked when they are enqueued, and what they were when they are run."""

from __future__ import annotations

import dataclasses
import re
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import App, InvalidArgument, TaskContext
from penstock.payloads import encode_json, load_json
from penstock.tasks.arguments import Arguments

from . import kinds
from .kinds import Point
from .working import working

PAIRS = [(kind, value) for kind, values in kinds.GOOD for value in values]
MISFITS = [(kind, value) for kind, values in kinds.BAD for value in values]


def arguments_of(kind: Any) -> Arguments:
    def handler(value: Any) -> None: ...

    handler.__annotations__ = {"value": kind, "return": None}
    return Arguments(handler, "a task")


def there_and_back(arguments: Arguments, *positional: object, **named: object) -> dict[str, Any]:
    """What a worker would call the handler with."""
    stored = encode_json(arguments.encode(arguments.bind(positional, named)))
    decoded = arguments.decode(load_json(stored))
    # The short way from the text to the arguments gives the same.
    assert arguments.decode_stored(stored) == decoded
    return decoded


def shown(kind: object) -> str:
    """An id that is the same in each process: a set has another order in each."""
    return re.sub(r"[^\w.\[\]{}(),:'| -]", "?", str(kind)[:40])


@pytest.mark.parametrize(("kind", "value"), PAIRS, ids=[shown(kind) for kind, _ in PAIRS])
def test_a_typed_argument_comes_back_as_what_it_was(kind: Any, value: Any) -> None:
    back = there_and_back(arguments_of(kind), value)["value"]
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(("kind", "value"), PAIRS + MISFITS, ids=[shown(kind) for kind, _ in PAIRS + MISFITS])
def test_the_short_way_takes_only_what_the_long_way_leaves_as_it_is(kind: Any, value: Any) -> None:
    arguments = arguments_of(kind)
    plain = arguments.plain({"value": value})
    if plain is not None:
        assert plain == arguments.encode(arguments.bind((), {"value": value}))
        assert type(plain["value"]) is type(value)


def test_the_short_way_takes_arguments_that_are_given_in_order() -> None:
    def handler(a: int, b: str, context: TaskContext, c: float = 1.0, **more: int) -> None: ...

    arguments = Arguments(handler, "a task")
    assert arguments.plain({"a": 1, "b": "x"}) == {"a": 1, "b": "x"}
    for other in (
        {},
        {"a": 1},
        {"b": "x", "a": 1},
        {"a": True, "b": "x"},
        {"a": 1, "b": None},
        {"a": 1, "b": "x", "c": 2.0},
        {"a": 1, "b": "x", "d": 1},
        {"a": 1, "b": "x", "context": 1},
    ):
        assert arguments.plain(other) is None


def test_the_short_way_for_many_takes_the_same_in_any_order() -> None:
    def handler(a: int, b: str, context: TaskContext, c: float = 1.0, **more: int) -> None: ...

    def untyped(a: int, b: Any) -> None: ...

    arguments = Arguments(handler, "a task")
    assert arguments.are_plain({"a": {int}, "b": {str}})
    assert arguments.are_plain({"b": {str}, "a": {int}})
    others: list[dict[str, set[type]]] = [
        {},
        {"a": {int}},
        {"a": {int, bool}, "b": {str}},
        {"a": {bool}, "b": {str}},
        {"a": {int}, "b": {str, type(None)}},
        {"a": {int}, "b": {str}, "c": {float}},
        {"a": {int}, "b": {str}, "d": {int}},
    ]
    for other in others:
        assert not arguments.are_plain(other)
    assert not Arguments(untyped, "a task").are_plain({"a": {int}, "b": {str}})


def test_typed_arguments_come_back_through_the_database(shared: App) -> None:
    """What jsonb does to numbers and text does not show."""
    for number, (kind, value) in enumerate(PAIRS):

        def handler(value: Any) -> None: ...

        handler.__annotations__ = {"value": kind}
        task = shared.task(name=f"argument {number}", queue="test_arguments")(handler)
        details = task.enqueue(value).details()
        assert details is not None
        assert task.arguments.decode(details.payload) == {"value": value}


def test_a_moment_stays_that_moment_or_is_refused() -> None:
    arguments = arguments_of(datetime)
    autumn = datetime(2026, 10, 25, 3, 30, fold=1, tzinfo=kinds.RIGA)
    assert there_and_back(arguments, autumn)["value"].astimezone(UTC) == autumn.astimezone(UTC)
    odd = datetime(1800, 1, 1, tzinfo=kinds.RIGA)
    assert odd.utcoffset() == timedelta(hours=1, minutes=36, seconds=34)
    with pytest.raises(InvalidArgument, match="value"):
        there_and_back(arguments, odd)


@pytest.mark.parametrize(("kind", "value"), MISFITS, ids=[shown(kind) for kind, _ in MISFITS])
def test_what_does_not_fit_is_refused(shared: App, kind: Any, value: Any) -> None:
    def handler(value: Any) -> None: ...

    handler.__annotations__ = {"value": kind}
    task = shared.task(name="a task", queue="test_arguments")(handler)
    with pytest.raises(InvalidArgument, match=r"(?s)a task.*value"):
        task.enqueue(value)
    with pytest.raises(InvalidArgument, match=r"(?s)a task.*value"):
        task.enqueue_many([{"value": value}])


def test_what_is_taken_for_what_it_stands_for() -> None:
    """Where the type leaves no doubt of what is meant."""
    for kind, sent, back in [
        (float, 5, 5.0),
        (list[int], (1, 2), [1, 2]),
        (set[int], [1, 2], {1, 2}),
        (Point, {"x": 1}, Point(1)),
        (kinds.Person, {"name": "A", "born": "2000-01-01"}, kinds.Person(name="A", born=date(2000, 1, 1))),
    ]:
        found = there_and_back(arguments_of(kind), sent)["value"]
        assert found == back
        assert type(found) is type(back)


@dataclasses.dataclass(frozen=True)
class Solid(Point):
    z: int = 0


def test_what_a_subclass_has_more_is_not_lost_in_silence() -> None:
    arguments = arguments_of(Point)
    try:
        back = there_and_back(arguments, Solid(1, 2, 3))["value"]
    except InvalidArgument:
        return
    assert back == Solid(1, 2, 3)


@pytest.mark.parametrize(
    "value",
    [datetime(2026, 1, 1), b"x", Decimal(1), {1}, {1: 2}, object(), Point(1), float("nan"), "a\0"],
    ids=lambda value: type(value).__name__,
)
def test_an_untyped_argument_is_what_json_can_hold(shared: App, value: object) -> None:
    def handler(value, other=None): ...  # type: ignore[no-untyped-def]

    task = shared.task(name="a task", queue="test_arguments")(handler)
    for wrong in (value, [value], {"key": value}):
        with pytest.raises(InvalidArgument, match=r"(?s)a task.*value"):
            task.enqueue(wrong)


@pytest.mark.parametrize("value", [None, 5, 2**70, 1e23, "x", [1, [2]], {"a": {"b": None}}, True])
def test_an_untyped_argument_comes_back(value: object) -> None:
    def handler(value): ...  # type: ignore[no-untyped-def]

    assert there_and_back(Arguments(handler, "a task"), value) == {"value": value}


# Any values

json_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
json_values = st.recursive(
    json_scalars | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=10
)
offsets = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timedelta(minutes=minutes))


@dataclasses.dataclass
class Everything:
    number: int
    fraction: float
    text: str
    raw: bytes
    moment: datetime
    day: date
    span: timedelta
    key: uuid.UUID
    amount: Decimal
    colour: kinds.Colour
    points: list[Point]
    names: set[str]
    pair: tuple[int, bool]
    by_key: dict[uuid.UUID, int]
    maybe: int | str | None
    anything: Any


everything = st.builds(
    Everything,
    fraction=st.floats(allow_nan=False, allow_infinity=False),
    text=texts,
    names=st.sets(texts),
    moment=st.datetimes(timezones=st.just(UTC) | st.none()),
    amount=st.decimals(allow_nan=False, allow_infinity=False),
    points=st.lists(st.builds(Point, y=st.floats(allow_nan=False, allow_infinity=False))),
    maybe=st.none() | st.integers() | texts,
    anything=json_values,
)


# Slow where the machine has much else to do.
relaxed = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@relaxed
@given(everything)
def test_any_value_comes_back(value: Everything) -> None:
    assert there_and_back(arguments_of(Everything), value) == {"value": value}


def _with_parameters() -> Any:
    """A function with a parameter for each field."""
    space = dict(globals())
    names = ", ".join(f"{field.name}: {field.type}" for field in dataclasses.fields(Everything))
    exec(f"def with_parameters({names}): ...", space)  # noqa: S102
    return space["with_parameters"]


by_name = Arguments(_with_parameters(), "t")


@relaxed
@given(everything)
def test_any_arguments_come_back(value: Everything) -> None:
    named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    assert there_and_back(by_name, **named) == named


# Through a worker


async def test_typed_arguments_and_results_through_a_worker(app: App) -> None:
    seen: list[object] = []

    @app.task(queue="typed", result=True)
    async def awaited(context: TaskContext, shape: kinds.Polygon, *, at: datetime | None = None) -> datetime:
        seen.append((context.task_name, shape, at))
        return shape.made_at

    @app.task(queue="typed", result=True)
    def threaded(person: kinds.Person, key: uuid.UUID, raw: bytes = b"none") -> list[kinds.Person]:
        seen.append((person, key, raw))
        return [person]

    shape = kinds.Polygon([Point(1)], kinds.MOMENT, kinds.Colour.GREEN, {"a"})
    person = kinds.Person(name="Anna", born=date(2000, 1, 1), addresses=[kinds.Address(street="x")])
    async with working(app):
        handle = await awaited.enqueue_async(shape, at=kinds.MOMENT)
        assert await handle.result_async(timeout=20) == kinds.MOMENT
        other = await threaded.enqueue_async(person, kinds.KEY)
        assert await other.result_async(timeout=20) == [person]
    assert seen == [("awaited", shape, kinds.MOMENT), (person, kinds.KEY, b"none")]


async def test_a_payload_that_does_not_fit_fails_the_task(app: App) -> None:
    async def plain(a: int) -> None: ...

    app.task(plain)
    await app.async_client.declare_queue("default")
    sent = await app.async_client.send("default", {"a": "no number"}, headers={"task": "plain"})
    async with working(app):
        found = None
        while found is None or found.state != "dead":
            found = await app.async_client.get_message("default", sent)
    assert found.last_error is not None
    assert "'plain'" in found.last_error
    await app.aclose()
