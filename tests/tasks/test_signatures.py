"""Signatures of handlers: what a call of a task may look like, and what the handler is called with."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from penstock import App, InvalidArgument, PayloadInvalid, TaskContext
from penstock.tasks.arguments import Arguments

from . import kinds
from .kinds import Point
from .test_arguments import arguments_of, there_and_back

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]


def plain(a: int, b: str, c: float = 1.5) -> None: ...


@pytest.mark.parametrize(
    ("positional", "named", "names"),
    [
        ((), {}, "'a', 'b'"),
        ((1,), {}, "'b'"),
        ((), {"b": "x"}, "'a'"),
        ((1, "x", 2.5, 4), {}, "3 positional.* 4"),
        ((1, "x"), {"d": 5}, "'d'"),
        ((1, "x"), {"a": 1}, "'a' twice"),
        ((1, "x"), {"b": "x"}, "'b' twice"),
        (("x", "x"), {}, r"'a' \(argument 1, of type str\)"),
        ((1,), {"b": 5}, r"'b' \(argument 2, of type int\)"),
        ((1, "x", "y"), {}, r"'c' \(argument 3, of type str\)"),
        ((1, "x"), {"c": None}, r"'c' \(argument 3, of type NoneType\)"),
        ((1, "x"), {"self": 1}, "'self'"),
    ],
)
def test_what_the_signature_does_not_take_is_refused(
    unconnected: App, positional: tuple[Any, ...], named: dict[str, Any], names: str
) -> None:
    task: Any = unconnected.task(plain)
    with pytest.raises(InvalidArgument, match=f"(?s)'plain'.*{names}"):
        task.enqueue(*positional, **named)


async def test_the_same_for_all_ways_to_enqueue(unconnected: App) -> None:
    task: Any = unconnected.task(plain)
    with pytest.raises(InvalidArgument, match="'plain'"):
        await task.enqueue_async(1)
    with pytest.raises(InvalidArgument, match="'plain'"):
        await task.options(delay=1).enqueue_async(1)
    with pytest.raises(InvalidArgument, match="'plain'"):
        task.call(1)
    with pytest.raises(InvalidArgument, match="'plain'"):
        task.options(delay=1).enqueue(1)


def test_nothing_is_sent_of_a_call_that_is_refused(app: App) -> None:
    task: Any = app.task(plain)
    with pytest.raises(InvalidArgument):
        task.enqueue(1, 2)
    with pytest.raises(InvalidArgument):
        task.enqueue_many([(1, "x"), (2, "y"), (3, 4)])
    assert all(queue.total_count == 0 for queue in app.client.get_queue_statistics())


def test_defaults_are_the_handlers_when_it_runs() -> None:
    def earlier(a: int, b: str = "old") -> None: ...
    def later(a: int, b: str = "new", c: int = 3) -> tuple[int, str, int]:
        return (a, b, c)

    sent = Arguments(earlier, "t")
    stored = sent.encode(sent.bind((1,), {}))
    assert stored == {"a": 1}
    run = Arguments(later, "t")
    assert run.call(run.decode(stored), None) == (1, "new", 3)
    assert run.call(run.decode(sent.encode(sent.bind((1, "old"), {}))), None) == (1, "old", 3)


def call(function: Callable[..., Any], *positional: object, **named: object) -> Any:
    arguments = Arguments(function, "t")
    return arguments.call(there_and_back(arguments, *positional, **named), None)


def test_keyword_only_arguments() -> None:
    def handler(a: int, *, at: datetime, b: int = 5) -> object:
        return (a, at, b)

    assert call(handler, 1, at=kinds.MOMENT) == (1, kinds.MOMENT, 5)
    with pytest.raises(InvalidArgument, match="1 positional"):
        call(handler, 1, kinds.MOMENT)
    with pytest.raises(InvalidArgument, match="'at'"):
        call(handler, 1)


def test_positional_only_arguments() -> None:
    def handler(a: int, at: datetime, /, b: int = 5) -> object:
        return (a, at, b)

    assert call(handler, 1, kinds.MOMENT) == (1, kinds.MOMENT, 5)
    assert call(handler, 1, kinds.MOMENT, 6) == (1, kinds.MOMENT, 6)


def test_positional_only_arguments_keep_their_places() -> None:
    def handler(a: int = 1, b: int = 2, /, *, c: int = 3) -> object:
        return (a, b, c)

    assert call(handler) == (1, 2, 3)
    assert call(handler, 5) == (5, 2, 3)
    assert call(handler, 5, 6, c=7) == (5, 6, 7)
    try:
        back = call(handler, b=6)
    except InvalidArgument:
        return
    assert back == (1, 6, 3)


def test_any_named_arguments() -> None:
    def handler(a: int, **rest: Any) -> object:
        return (a, rest)

    assert call(handler, 1) == (1, {})
    assert call(handler, 1, b=2, rest=3, self=4) == (1, {"b": 2, "rest": 3, "self": 4})
    with pytest.raises(InvalidArgument, match="twice"):
        call(handler, 1, a=2)
    with pytest.raises(InvalidArgument, match="when"):
        call(handler, 1, when=kinds.MOMENT)


def test_any_named_arguments_of_a_type() -> None:
    def handler(**dates: date) -> object:
        return dates

    assert call(handler, a=date(2026, 1, 1)) == {"a": date(2026, 1, 1)}
    with pytest.raises(InvalidArgument, match="b"):
        call(handler, a=date(2026, 1, 1), b=5)


class Adding:
    """Can be called, and has methods."""

    def __init__(self, more: int) -> None:
        self.more = more

    def __call__(self, a: int, at: date | None = None) -> object:
        return (a + self.more, at)

    def method(self, a: int, at: date | None = None) -> object:
        return (a + self.more, at)

    @staticmethod
    def static(a: int, at: date | None = None) -> object:
        return (a + 1, at)

    @classmethod
    def of_class(cls, a: int, at: date | None = None) -> object:
        return (a + 1, at)


@pytest.mark.parametrize(
    "function",
    [
        *(Adding.static, Adding.of_class, Adding(1).method, Adding(1)),
        *(partial(Adding.static), partial(partial(Adding(1)), at=None), staticmethod(Adding.static)),
    ],
    ids=["static", "of class", "method", "object", "partial", "partial of partial", "staticmethod"],
)
def test_other_things_that_can_be_called(function: Any) -> None:
    assert call(function, 5, at=date(2026, 1, 1)) == (6, date(2026, 1, 1))
    with pytest.raises(InvalidArgument, match=r"'a' \(argument 1, of type str\)"):
        call(function, "x")


def test_the_context_is_no_argument() -> None:
    seen = list[tuple[object, int]]()

    def first(context: TaskContext, a: int) -> None:
        seen.append((context, a))

    def last(a: int, *, context: TaskContext) -> None:
        seen.append((context, a))

    for handler in (first, last):
        arguments = Arguments(handler, "t")
        assert arguments.names == ("a",)
        arguments.call(there_and_back(arguments, 1), "the context")
        with pytest.raises(InvalidArgument, match="'context'"):
            arguments.bind((1,), {"context": 5})
    assert seen == [("the context", 1), ("the context", 1)]


def test_the_context_is_no_argument_among_any_others() -> None:
    def handler(context: TaskContext, **rest: Any) -> object:
        return rest

    assert call(handler, a=1) == {"a": 1}
    with pytest.raises(InvalidArgument, match="'context'"):
        call(handler, context=1)


@pytest.mark.parametrize("name", ["self", "cls", "_private", "__dunder", "class_", "from_", "task", "é"])
def test_parameters_of_any_name(name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def handler({name}: int, other: int = 1): return {name} + other", space)  # noqa: S102
    assert call(space["handler"], **{name: 5}) == 6
    assert call(space["handler"], 5, other=2) == 7


# Annotations that cannot be resolved, and payloads that do not fit


def unknown_name(value: Unknown) -> None: ...


def test_an_annotation_that_cannot_be_resolved(unconnected: App) -> None:
    def attribute(value: Any) -> None: ...
    def syntax(value: Any) -> None: ...

    attribute.__annotations__ = {"value": "datetime.nothing"}
    syntax.__annotations__ = {"value": "list[int"}
    for handler, named in [(unknown_name, "Unknown"), (attribute, "nothing"), (syntax, "list")]:
        with pytest.raises(InvalidArgument, match=f"(?s){handler.__name__}.*{named}"):
            unconnected.task(handler).enqueue(5)


def test_an_annotation_is_resolved_late() -> None:
    assert arguments_of("int").names == ("value",)
    assert there_and_back(arguments_of("list[Point]"), [Point(1)]) == {"value": [Point(1)]}


@pytest.mark.parametrize(
    "payload", [None, 5, "x", [], [1], {}, {"a": 1}, {"a": "1", "b": "x"}, {"a": 1, "b": "x", "d": 5}]
)
def test_a_payload_that_does_not_fit_is_said_to(payload: Any) -> None:
    with pytest.raises(PayloadInvalid, match="'plain'"):
        Arguments(plain, "plain").decode(payload)
