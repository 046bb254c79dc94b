"""Declaring tasks: options, names, queues, and what cannot be a task."""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any, cast

import pytest

import penstock
from penstock import App, InvalidArgument

BAD_DURATIONS = [-1, "5", float("nan"), float("inf"), True, 2**31, timedelta(seconds=-1), [5]]

BAD: dict[str, list[Any]] = {
    "name": ["", 5, b"name", "a\0b"],
    "queue": ["", 5, b"mail", "a\0b"],
    "max_attempts": [0, -1, True, 1.0, "3", None, 10**7],
    "attempt_timeout": [0, *BAD_DURATIONS],
    "retry_delays": [[], (), [1, -1], [1, None], {1, 2}, {1: 2}, b"ab", bytearray(b"a"), *BAD_DURATIONS[:-1]],
    "ttl": [0, *BAD_DURATIONS],
    "concurrency": [0, -1, True, 1.5, "4"],
    "max_active": [0, -1, True, 1.5, "4", 2**40],
    "priority": [-1, 4, "high", True, 2.0, [1]],
    "tenant": [5, b"acme", ["acme"], "", "t" * 256, "a\0b"],
    "unique": ["x", 5, 0, None, b"x", ["nope"], [1], ["x", "nope"]],
    "result": [0, *BAD_DURATIONS[:4], *BAD_DURATIONS[5:]],
    "process": [1, 0, None, "yes"],
}


def handler(x: int, account: str = "acme") -> int:
    return x + len(account)


@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for option, values in BAD.items() for value in values],
    ids=lambda value: repr(value)[:30],
)
def test_a_bad_value_is_refused_by_name(unconnected: App, option: str, value: object) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(InvalidArgument, match=option):
        unconnected.task(**options)(handler)
    assert unconnected.tasks == {}
    assert unconnected.queues == ()


@pytest.mark.parametrize(
    "options",
    [
        {"attempt_timeout": timedelta(minutes=1), "ttl": timedelta(days=1), "result": timedelta(hours=1)},
        {"attempt_timeout": 0.5, "ttl": 0.5, "result": 0.5},
        {"retry_delays": 0},
        {"retry_delays": [0, 0.5, timedelta(seconds=3)]},
        {"retry_delays": (1, 2)},
        {"retry_delays": range(3)},
        {"retry_delays": penstock.Exponential(first=1, factor=3, longest=60, jitter=0)},
        {"priority": penstock.URGENT, "tenant": "acme", "unique": True, "process": False},
        {"priority": penstock.LOW, "tenant": lambda x: f"{x}", "unique": ["x"]},
        {"unique": ("account",), "result": False},
        {"unique": lambda x, account: f"{x} {account}", "result": True},
        {"max_attempts": 1_000_000, "concurrency": 1, "max_active": 1},
        {"tenant": lambda **arguments: arguments["account"], "name": "ünïcode 名"},
    ],
)
def test_good_values_are_taken(unconnected: App, options: dict[str, Any]) -> None:
    task = unconnected.task(**options)(handler)
    assert unconnected.tasks == {options.get("name", "handler"): task}


def test_an_unknown_option_is_refused_by_name(unconnected: App) -> None:
    options: dict[str, Any] = {"retries": 3}
    with pytest.raises((InvalidArgument, TypeError), match="retries"):
        unconnected.task(**options)(handler)
    assert unconnected.tasks == {}


def test_a_function_of_arguments_may_ask_for_arguments_only(unconnected: App) -> None:
    nope: Callable[..., str] = lambda nope: nope  # noqa: E731
    for option in ("tenant", "unique"):
        options: dict[str, Any] = {option: nope}
        with pytest.raises(InvalidArgument, match=f"(?s){option}.*nope"):
            unconnected.task(**options)(handler)


# Names


def test_a_task_is_named_after_its_function_unless_it_has_a_name(unconnected: App) -> None:
    assert unconnected.task(handler).name == "handler"
    assert unconnected.task(name="other")(handler).name == "other"
    assert set(unconnected.tasks) == {"handler", "other"}


def test_two_tasks_of_one_name_are_refused(unconnected: App) -> None:
    first = unconnected.task(handler)
    with pytest.raises(InvalidArgument, match="'handler'"):
        unconnected.task(queue="elsewhere")(handler)
    assert unconnected.tasks == {"handler": first}
    assert [needs.name for needs in unconnected.queues] == ["default"]


def test_two_apps_may_have_a_task_of_the_same_name(unconnected: App) -> None:
    other = App()
    assert other.task(handler).app is other
    assert unconnected.task(handler).app is unconnected


def test_attributes_of_the_function_do_not_become_the_tasks(unconnected: App) -> None:
    def decorated() -> None:
        """What it does."""

    decorated.name = "another"  # type: ignore[attr-defined]
    decorated.queue = "elsewhere"  # type: ignore[attr-defined]
    task = unconnected.task(decorated)
    assert (task.name, task.queue, task.app) == ("decorated", "default", unconnected)
    assert task.__doc__ == "What it does."


# Queues


@pytest.mark.parametrize(
    ("options", "queue"),
    [
        ({}, "default"),
        ({"max_attempts": 3, "priority": 0, "tenant": "a", "unique": True, "ttl": 5}, "default"),
        ({"concurrency": 3}, "handler"),
        ({"max_active": 3}, "handler"),
        ({"result": True}, "handler"),
        ({"result": 60, "name": "other"}, "other"),
        ({"result": False}, "default"),
        ({"queue": "mail"}, "mail"),
        ({"queue": "mail", "concurrency": 3, "max_active": 3, "result": True}, "mail"),
    ],
)
def test_the_queue_is_as_given_or_default_or_its_own(
    unconnected: App, options: dict[str, Any], queue: str
) -> None:
    assert unconnected.task(**options)(handler).queue == queue


def test_tasks_that_share_a_queue_agree_on_its_cap(unconnected: App) -> None:
    unconnected.task(queue="mail", max_active=3, name="first")(handler)
    unconnected.task(queue="mail", max_active=3, name="second")(handler)
    for other in ({"max_active": 4}, {}):
        options: dict[str, Any] = {"queue": "mail", "name": "third", **other}
        with pytest.raises(InvalidArgument, match=r"max_active.*'mail'"):
            unconnected.task(**options)(handler)
    assert set(unconnected.tasks) == {"first", "second"}
    assert unconnected.needs("mail").max_active == 3


def test_a_queue_keeps_results_as_long_as_any_of_its_tasks_asks_for(unconnected: App) -> None:
    for name, result in [("a", False), ("b", 60), ("c", 3600), ("d", 5), ("e", False)]:
        options: dict[str, Any] = {"queue": "mail", "name": name, "result": result}
        unconnected.task(**options)(handler)
    assert unconnected.needs("mail").retain_completed == 3600


def test_the_queue_is_made_as_the_tasks_want_it(app: App) -> None:
    task = app.task(max_active=3, result=100)(handler)
    task.enqueue(1)
    settings = {queue.name: queue for queue in app.client.list_queues()}["handler"]
    assert settings.max_active == 3
    assert settings.retain_completed_seconds == 100
    assert settings.max_delivery_attempts == 0


def test_a_cap_that_changes_is_set_on_the_queue_that_exists(app: App, database18: str) -> None:
    app.task(max_active=3, result=100)(handler).enqueue(1)
    with App(database18) as later:
        later.task(max_active=5, result=50)(handler).enqueue(2)
    (settings,) = [queue for queue in app.client.list_queues() if queue.name == "handler"]
    # Results are kept for the longest time that a task asked for.
    assert (settings.max_active, settings.retain_completed_seconds) == (5, 100)


# What can be a task


async def coroutine(x: int) -> int:
    return x


async def async_generator(x: int) -> AsyncIterator[int]:
    yield x


def generator(x: int) -> Iterator[int]:
    yield x


def positional(*numbers: int) -> None: ...


class Callable_:  # noqa: N801
    """An object that can be called, and awaited then."""

    __name__ = "callable"

    async def __call__(self, x: int) -> int:
        return x


@pytest.mark.parametrize(
    "wrong",
    [None, 5, "handler", generator, async_generator, positional, classmethod(cast("Any", handler))],
    ids=["None", "number", "string", "generator", "async generator", "*numbers", "classmethod"],
)
def test_what_is_no_function_is_refused(unconnected: App, wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        unconnected.task(wrong)
    assert unconnected.tasks == {}


def test_a_task_cannot_be_made_of_a_task(unconnected: App) -> None:
    task = unconnected.task(handler)
    with pytest.raises(InvalidArgument, match="'handler'"):
        unconnected.task(name="again")(task)


def test_arguments_without_names_are_refused_with_advice(unconnected: App) -> None:
    with pytest.raises(InvalidArgument, match=r"\*numbers") as caught:
        unconnected.task(positional)
    assert caught.value.hint is not None


def test_a_partial_needs_a_name_and_is_one(unconnected: App) -> None:
    partial: Any = functools.partial(handler, account="other")
    with pytest.raises(InvalidArgument, match="name"):
        unconnected.task(partial)
    assert unconnected.task(name="partial")(partial)(5) == 10


@pytest.mark.parametrize(
    "function",
    [coroutine, functools.partial(coroutine, 5), Callable_(), staticmethod(coroutine)],
    ids=["function", "partial", "object", "staticmethod"],
)
def test_what_has_to_be_awaited_is_known_as_such(unconnected: App, function: Any) -> None:
    assert unconnected.task(name="task")(function).is_async


def test_static_functions_of_a_class_are_tasks(unconnected: App) -> None:
    class Mail:
        @staticmethod
        @unconnected.task
        def send(to: str) -> str:
            return to

        @unconnected.task(name="outside")
        @staticmethod
        def receive(sender: str) -> str:
            return sender

    assert Mail.send("a") == Mail().send("a") == "a"
    assert Mail.receive("b") == "b"
    with pytest.raises(InvalidArgument, match=r"'to' \(argument 1, of type int\)"):
        Mail.send.enqueue(5)  # type: ignore[arg-type]


def test_a_task_called_as_it_is_runs_here(unconnected: App) -> None:
    assert unconnected.task(handler)(1, account="xy") == 3
    assert asyncio.run(unconnected.task(coroutine)(7)) == 7


def test_a_task_looks_like_its_function(unconnected: App) -> None:
    task = unconnected.task(handler)
    assert inspect.signature(task) == inspect.signature(handler)
    assert "handler" in repr(task)
    assert "default" in repr(task)


def test_middleware_is_an_instance(unconnected: App) -> None:
    wrong: Any
    for wrong in ([penstock.Middleware], [5], 5):
        with pytest.raises(InvalidArgument, match="middleware"):
            App(middleware=wrong)
    assert unconnected.middleware == []


def test_an_unknown_task_gets_no_retries(unconnected: App) -> None:
    unconnected.task(handler)
    with pytest.raises(InvalidArgument, match=r"'nope'.*handler"):
        unconnected.add_retries("nope", 1)


def test_a_method_is_refused(unconnected: App) -> None:
    with pytest.raises(InvalidArgument, match=r"Shop\.pay is a method, and a worker has no 'self'") as caught:

        class Shop:
            @unconnected.task
            def pay(self, order: int) -> None: ...

    assert "@staticmethod" in (caught.value.hint or "")
    with pytest.raises(InvalidArgument, match=r"Shop\.count is a method, and a worker has no 'cls'"):

        class Shop:  # type: ignore[no-redef]
            @unconnected.task(max_attempts=3)
            @classmethod
            def count(cls) -> None: ...

    with pytest.raises(InvalidArgument, match=r"Shop\.sweep is a method"):

        class Shop:  # type: ignore[no-redef]
            @unconnected.periodic(every=60)
            async def sweep(self) -> None: ...

    assert unconnected.tasks == {}
    assert unconnected.queues == ()


def test_what_only_looks_like_a_method_is_a_task(unconnected: App) -> None:
    class Shop:
        @staticmethod
        @unconnected.task
        def pay(order: int) -> int:
            return order

        @unconnected.task
        @staticmethod
        def refund(order: int) -> int:
            return order

    @unconnected.task
    def first(self: int) -> int:
        """A function with an odd name for its parameter."""
        return self

    assert set(unconnected.tasks) == {"pay", "refund", "first"}
    assert Shop.pay(1) == Shop().pay(2) - 1 == 1
    assert cast("Any", Shop.refund)(3) == 3
    assert first.call(4).arguments == {"self": 4}
